// The target group as the protocol sees it, on the toy model.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/messages/joining.h"
#include "comm/messages/verifying.h"
#include "model/kv/kv_cache.h"

namespace outrider {

ModelInfo toy_info();
constexpr int64_t kToyKvBlocks = 64;  // for eight longest texts, and some more

// Replays StepPlans as the messages define them and refuses whatever a target rank would call a bug.
class ToyTarget {
 public:
  explicit ToyTarget(int32_t max_rows, int64_t kv_blocks = kToyKvBlocks);
  ToyTarget(const ToyTarget&) = delete;
  ToyTarget& operator=(const ToyTarget&) = delete;
  // `lost`: whose drafts are given up, because a rank misses its slices of q.
  StepResult handle(const StepPlan& plan, const std::set<SequenceId>& lost = {});
  size_t open_sequences() const { return sequences_.size(); }
  size_t prefixes() const { return prefixes_.size(); }
  int64_t prefix_tokens() const { return prefix_tokens_; }  // that opens took from prefixes
  int64_t told() const { return told_; }                    // rows of hidden states
  // Blocks of keys and values, here hashes: those that plans exported, and those that arrived from others.
  struct Blocks {
    uint64_t transfer = 0, inbox = 0;
    int32_t first = 0;  // token
    std::vector<uint64_t> hashes;
  };
  std::vector<Blocks> take_exports() { return std::exchange(exports_, {}); }
  void arrive(Blocks blocks) { arrived_.insert_or_assign(blocks.transfer, std::move(blocks)); }
  bool only_prefills = false, takes_blocks = true;
  const std::string& error() const { return error_; }       // of the first violation
  double nonfinite_chance = 0;
  bool drafts = false;  // for the rounds behind its passes, under rules that need no q; tokens are right
  double accuracy = 1;  // with this chance each
  size_t max_sequences = SIZE_MAX;  // open at once
  std::mt19937_64* random = nullptr;

 private:
  struct Held {
    std::vector<TokenId> ids;
    KvHandle kv;
    Epoch epoch;
    int64_t last_round = -1;
    SamplingParams sampling;
  };
  // The blocks are real. For keys and values a slot has the hash of the text up to it, and from that alone
  // the next token follows: a block that is another's gives another text.
  class Storage;
  void check(bool condition, const char* what);
  void tell(const HiddenStateRequest& ask, StepResult* result);
  void change(const PrefixChange& change);
  void open(const Open& open);
  uint64_t known(const Held& held, int64_t slot) const;
  void feed(Held& held, int64_t before, TokenId token);
  void handle_entry(const PlanEntry& entry, bool lost, StepResult* result);
  void export_blocks(const BlockExport& blocks, StepResult* result);
  void import_blocks(const BlockImport& blocks, StepResult* result);
  void draft_next(const PlanEntry& entry, const Held& held, StepResult* result);

  int32_t max_rows_;
  Storage* storage_;  // the cache's
  KvCache kv_;
  std::map<PrefixId, KvPrefix> prefixes_;
  int64_t prefix_tokens_ = 0, told_ = 0;
  std::vector<Blocks> exports_;
  std::map<uint64_t, Blocks> arrived_;  // by transfer
  std::optional<uint64_t> last_step_;
  std::map<SequenceId, Held> sequences_;
  std::string error_;
};

}  // namespace outrider
