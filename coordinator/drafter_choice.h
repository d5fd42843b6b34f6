// Which kind of drafter a sequence gets where several kinds are there (a model and n-grams, say): the one
// that brought it the most tokens per second, the others being tried again from time to time. Looks at rounds
// that are over and at nothing else, so that no choice depends on a token still to be
// tested. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

namespace outrider {

// ModelInfo::fingerprint of a draft worker. Workers of one kind draft the same and may stand in for each
// other.
using DrafterKind = uint64_t;

// Emitted tokens over the time of their rounds; a round counts less the more rounds followed it.
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
  // For the next round; the same answer until add() or `available` changes. `available` is not empty. `run`:
  // the same sums over all sequences, which say where a new one begins and what is not worth a trial.
  DrafterKind choose(std::span<const DrafterKind> available, const GoodputByKind& run);
  bool has_chosen() const { return current_.has_value(); }

 private:
  struct Arm {
    Goodput goodput;
    int64_t tried_in = -1;  // the latest turn of trials it took part in
  };
  std::optional<DrafterKind> next_trial(std::span<const DrafterKind> available, const GoodputByKind& run);
  DrafterKind best_of(std::span<const DrafterKind> available);

  std::map<DrafterKind, Arm> arms_;
  std::optional<DrafterKind> current_;
  int64_t stays_ = 0;    // rounds before current_ is questioned
  int64_t turn_ = 0;     // of trials
  int64_t settled_ = 0;  // rounds between this turn of trials and the next
};

}  // namespace outrider
