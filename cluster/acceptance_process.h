// Decides whether a draft token is accepted, in place of a model. A pure function of (seed, sequence,
// position in the text, place in the draft): a token's result does not depend on other drafts, batches or
// retries, so two policies with one seed see the same text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/draft_tree.h"
#include "base/status.h"
#include "base/types.h"

namespace outrider {

class AcceptanceProcess {
 public:
  static constexpr double kDefaultGuess = 0.5;  // each further guess is right in half of the remaining cases

  // A rate for each place in the draft; the last one holds for all further places. `spread`: the rate of a
  // text position is drawn uniformly around it, so that some tokens are easy and some are hard.
  static Result<AcceptanceProcess> of_rates(std::vector<double> rates, double spread, uint64_t seed);
  // The rates that give `tokens` per round on average at draft length `gamma`: an i.i.d. process.
  static Result<AcceptanceProcess> of_length(double tokens, int32_t gamma, uint64_t seed);
  // Recorded: a line per sequence with one character per emitted token, 1 if a draft of it was accepted,
  // 0 if not; '#' starts a comment. Sequences take the lines in turn, and a line repeats when it ends.
  static Result<AcceptanceProcess> of_trace(const std::string& path, uint64_t seed);
  // "rates:0.8[/0.7...][,spread=0.1][,guess=0.5 or hit=0.7]", "length:3.2[/GAMMA]", "trace:FILE".
  static Result<AcceptanceProcess> parse(std::string_view text, uint64_t seed);

  // After the time of a phase change (in the simulator) all rates are those of `next`.
  double rate(SequenceId sequence, int32_t position, int32_t place) const;
  bool accepts(SequenceId sequence, int32_t position, int32_t place) const;
  // The rank (from 0) of the next token among the drafter's guesses, after `accepted` tokens were accepted.
  // After a full acceptance it is 0 where a draft token would be accepted; each further guess is right with
  // chance `guess`. With `hit`, measured in a run: the likeliest remaining token with chance `hit`, else
  // none. Used only by drafters that prepare for outcomes.
  int32_t next_guess(SequenceId sequence, int32_t base, int32_t accepted, int32_t drafted) const;
  // The number of accepted tokens among `drafted` tokens from text position `base` on.
  int32_t accepted_count(SequenceId sequence, int32_t base, int32_t drafted) const;
  // The accepted nodes of a tree, from a child of the root on: at each depth the first child is right like a
  // chain's token there, the further children according to next_guess().
  void accepted_path(SequenceId sequence, int32_t base, DraftTreeView tree, std::vector<int32_t>& path) const;
  std::string describe() const { return description_; }

 private:
  std::vector<double> rates_;
  double spread_ = 0;
  double guess_ = kDefaultGuess;
  std::optional<double> hit_;
  std::vector<std::vector<bool>> trace_;
  uint64_t seed_ = 0;
  std::string description_;
};

}  // namespace outrider
