// Accounts for the blocks of the target's KV cache: the blocks that each open sequence needs in the next
// pass, and in the remaining blocks the cached texts of closed sequences and prefilled prompts (PrefixIndex).
// Only keeps the books; ranks make the same changes from each plan.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/scheduler/prefix_index.h"
#include "coordinator/scheduler/protocol_options.h"

namespace outrider {

struct LiveRequest;

// The blocks of one sequence that is open on the target.
struct KvShare {
  PrefixIndex::Node node = PrefixIndex::kNoNode;  // the blocks up to here are shared
  int32_t blocks = 0;                             // in all, the shared ones among them
  bool apart = false;  // another sequence computed the same blocks after `node`; this one's are not shared
};

class KvLedger {
 public:
  explicit KvLedger(const ProtocolOptions& options) : options_(options) {}

  // A target has joined with this many blocks, or is gone. 0: the number is unknown, and no prefixes are
  // kept.
  void reset(int64_t blocks);
  bool keeps_prefixes() const { return options_.prefix_caching && blocks_ > 0; }
  int64_t tokens() const { return blocks_ * kBlockTokens; }  // 0: not known

  // Whether a request uses cached blocks. False where the logits of every row are requested.
  bool looks_up(const LiveRequest& live) const;
  // The cached part of its text; never the last token, which must be fed to get the next one.
  PrefixIndex::Match find(const LiveRequest& live) const;
  // The number of leading tokens, in whole blocks, that its text shares with the prompt of `other`, which
  // runs here.
  int32_t shared_prompt(const LiveRequest& live, const LiveRequest& other) const;
  // Whether it should wait for the prefill of `other`, which is open: true if at least half of its own
  // prefill would then be cached.
  bool should_wait_for(const LiveRequest& live, const LiveRequest& other, int32_t known) const;

  // Opens the sequence on the target with the match, or with a shorter one where blocks are short. Empty:
  // there is no room for all of its text.
  std::optional<PrefixIndex::Match> open(LiveRequest& live, const PrefixIndex::Match& found);
  // Whether there would be room for all of its text beside this many more blocks.
  bool has_room(const LiveRequest& live, int64_t more_blocks) const;
  // Makes room for this many tokens in the next pass, drafts included, by evicting cached blocks. False:
  // there are not enough blocks, and nothing has changed.
  bool make_room(LiveRequest& live, int32_t tokens);
  // Keeps the computed part of its prompt, for others that begin alike.
  void keep_prompt(LiveRequest& live);
  // Closes the sequence on the target; all of its computed blocks are kept.
  void close(LiveRequest& live);

  uint64_t state_hash() const { return index_.state_hash(); }
  // Writes the changes of prefixes into a plan, and the prefix of each of its opens; one open() for each, in
  // this order.
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
  int64_t taken_ = 0;                       // by open sequences, without shared blocks
};

}  // namespace outrider
