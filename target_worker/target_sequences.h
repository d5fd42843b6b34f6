// The open sequences and kept prefixes of a target rank, and their part in its KV cache. Plans and
// verification results change them, in the same way on all ranks.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/messages/verifying.h"
#include "model/model.h"
#include "target_worker/verifier.h"

namespace outrider {

class TargetSequences {
 public:
  struct Sequence {
    std::vector<TokenId> ids;  // committed
    SamplingParams sampling;
    TokenCounts counts;  // kept only when penalties need it
    KvHandle kv;
    Epoch epoch;
  };

  explicit TargetSequences(Model& model) : model_(model) {}  // which must outlive this
  ~TargetSequences();                                        // the cache is empty again
  TargetSequences(const TargetSequences&) = delete;
  TargetSequences& operator=(const TargetSequences&) = delete;

  // Apply a plan's changes to prefixes and sequences, after check_prefixes() and check_plan() accepted the
  // plan.
  void change(const PrefixChange& change);
  void open(const Open& open);
  void close(SequenceId id);

  // Whether the prefixes that a plan changes, and opens sequences with, are there.
  Status check_prefixes(const StepPlan& plan) const;

  // Keeps the accepted drafts' keys and values; the next token has none yet. A failed verdict leaves the
  // sequence as it was before the pass. Throws std::runtime_error if a path cannot be kept.
  void commit(const PlanEntry& entry, DraftTreeView draft, const VerifyResult& verdict);

  size_t size() const { return sequences_.size(); }
  bool contains(SequenceId id) const { return sequences_.contains(id); }
  // A sequence that must be open; another id is a programming error.
  const Sequence& at(SequenceId id) const;

  // The state on which all ranks and the coordinator must agree (lengths and epochs), as a hash and as text.
  uint64_t state_hash() const;
  std::string describe() const;

 private:
  Sequence& mutable_at(SequenceId id) { return const_cast<Sequence&>(at(id)); }

  Model& model_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::unordered_map<PrefixId, KvPrefix> prefixes_;
};

}  // namespace outrider
