// Chooses the kind of drafter for a sequence where several kinds exist (a model and n-grams, say): the one
// that brought it the most tokens per second, with a trial of the others from time to time. Uses finished
// rounds only, so that no choice depends on a token still to be tested. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

namespace outrider {

// ModelInfo::fingerprint of a draft worker. Workers of one kind draft the same and may stand in for each
// other.
using DrafterKind = uint64_t;

// Emitted tokens and the time of their rounds; older rounds count less.
struct Goodput {
  double tokens = 0, seconds = 0;
  int64_t rounds = 0;
  void add(int32_t emitted, double round_seconds);
  double rate() const { return seconds > 0 ? tokens / seconds : 0; }
};

using GoodputByKind = std::map<DrafterKind, Goodput>;

class DrafterChoice {
 public:
  // One verified round of this sequence.
  void add(DrafterKind kind, int32_t emitted, double seconds);
  // The kind for the next round; the same answer until add() or `available` changes. `available` is not
  // empty. `run`: sums over all sequences, which give the start of a new sequence and exclude hopeless kinds
  // from trials.
  DrafterKind choose(std::span<const DrafterKind> available, const GoodputByKind& run);
  bool has_chosen() const { return current_.has_value(); }

 private:
  struct Arm {
    Goodput goodput;
    int64_t tried_in = -1;  // the latest turn of trials with this kind
  };
  std::optional<DrafterKind> next_trial(std::span<const DrafterKind> available, const GoodputByKind& run);
  DrafterKind best_of(std::span<const DrafterKind> available);

  std::map<DrafterKind, Arm> arms_;
  std::optional<DrafterKind> current_;
  int64_t stays_ = 0;    // rounds until the next choice
  int64_t turn_ = 0;     // of trials
  int64_t settled_ = 0;  // rounds between this turn of trials and the next
};

}  // namespace outrider
