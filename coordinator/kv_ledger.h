// Who has the blocks of the target's KV cache: what each open sequence needs in the next pass, and, in all
// that is left, texts of sequences that were closed or have read their prompt (PrefixIndex). Keeps the books
// alone; ranks do the same by the changes that a plan brings.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/prefix_index.h"
#include "coordinator/protocol_options.h"

namespace outrider {

struct LiveRequest;

// Of one sequence that is open on the target.
struct KvShare {
  PrefixIndex::Node node = PrefixIndex::kNoNode;  // the blocks up to here are shared
  int32_t blocks = 0;                             // in all, the shared ones among them
  bool apart = false;  // another sequence's computed the same behind `node`; this one's are not shared
};

class KvLedger {
 public:
  explicit KvLedger(const ProtocolOptions& options) : options_(options) {}

  // A target has joined, with so many blocks; 0: it does not tell, and nothing is kept. Or it is gone.
  void reset(int64_t blocks);
  bool keeps_prefixes() const { return options_.prefix_caching && blocks_ > 0; }
  int64_t tokens() const { return blocks_ * kBlockTokens; }  // 0: not known

  // Whether a request takes what others have computed. Not where every row's logits are asked for.
  bool looks_up(const LiveRequest& live) const;
  // What would be there of its text; never the last token, which is fed for what follows it.
  PrefixIndex::Match find(const LiveRequest& live) const;
  // Tokens of its text, in whole blocks, that are how the prompt of `other` begins, which runs here.
  int32_t shared_prompt(const LiveRequest& live, const LiveRequest& other) const;
  // Whether it is better off when `other`, which is open and reads its prompt, has read it: at least half of
  // what this one would have to read is the same.
  bool should_wait_for(const LiveRequest& live, const LiveRequest& other, int32_t known) const;

  // The target is told to open it, with what was found, or with less where that is in the way. Nothing: there
  // is no room for all of its text.
  std::optional<PrefixIndex::Match> open(LiveRequest& live, const PrefixIndex::Match& found);
  // It has so many tokens in the next pass, drafts included. Forgets what is in the way. False: there are not
  // as many blocks, and nothing has changed.
  bool make_room(LiveRequest& live, int32_t tokens);
  // Keeps what is there of its prompt, for others that begin alike.
  void keep_prompt(LiveRequest& live);
  // The target is told to close it: all that it computed is kept.
  void close(LiveRequest& live);

  uint64_t state_hash() const { return index_.state_hash(); }
  // Tells in a plan what became of prefixes, and which of those that are left serve its opens, one open() for
  // each in this order.
  void finish(StepPlan& plan);

  int64_t blocks() const { return blocks_; }
  int64_t kept_blocks() const { return index_.blocks(); }
  const PrefixIndex& index() const { return index_; }

 private:
  int64_t own(const KvShare& share) const;
  bool try_open(LiveRequest& live, const PrefixIndex::Match& match);

  const ProtocolOptions& options_;
  PrefixIndex index_;
  std::vector<PrefixIndex::Match> opened_;  // since the last plan
  int64_t blocks_ = 0;                      // of the cache
  int64_t taken_ = 0;                       // by open sequences, without those that are shared
};

}  // namespace outrider
