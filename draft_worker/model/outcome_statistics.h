// Statistics of past verifications, from which the outcomes worth a prepared draft are chosen. An outcome is
// (accepted_count, next token); the token is represented by its rank among the draft model's guesses for that
// position. Pure; decides what is prepared, never what is sent.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "heads/token_guesses.h"

namespace outrider {

struct Outcome {
  int32_t accepted = 0;
  int32_t rank = 0;  // of the next token among the guesses, 0 is the best
  double probability = 0;
};

class OutcomeStatistics {
 public:
  // `accepted` of `drafted` tokens were kept. `rank`: of the next token among its guesses, kMaxGuesses if it
  // was not guessed; empty if there were no guesses to compare with.
  void observe(int32_t drafted, int32_t accepted, std::optional<int32_t> rank);

  // The `budget` most likely outcomes of a draft of `gamma` tokens, best first: the number of guesses falls
  // geometrically with the position, and rises at full acceptance.
  void pick(int32_t gamma, int32_t budget, std::vector<Outcome>& out) const;

  double acceptance() const { return accepted_ / tested_; }
  double guess_probability(bool full, int32_t rank) const;

 private:
  // Decayed counts, starting from a prior worth a few observations.
  struct Ranks {
    std::array<double, kMaxGuesses> hits;
    double total;
  };
  static Ranks prior();

  double accepted_ = 7, tested_ = 10;
  Ranks recovery_ = prior(), bonus_ = prior();
};

}  // namespace outrider
