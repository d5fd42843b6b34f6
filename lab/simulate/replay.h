// Replays recorded rounds under another policy: the drafts that it would have asked for, and their accepted
// tokens. Under match rules draft and target choose tokens that depend only on the text before them. So the
// acceptance at a position is the same for every draft that reaches it, and the replay equals a real run,
// round for round. Times come from the costs that the recorded run fitted.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/gamma/gamma_policy.h"
#include "requests/round_record.h"

namespace outrider {

// The recorded part of one request's text.
class RecordedText {
 public:
  RecordedText(const RecordedRequest& request, int32_t max_context);
  void add(const RecordedRound& round);

  const RecordedRequest& request() const { return request_; }
  // A round that drafts `gamma` tokens after `base`. A position that no record covers is a gap: whether its
  // token is right is drawn with this chance, from (request, position) alone, and counted.
  RecordedRound round(int32_t base, int32_t gamma, double chance_at_gaps, int64_t& gaps) const;
  // The longest draft at `base`, as DraftRounds::gamma_limit has it.
  int32_t limit(int32_t base, int32_t gamma_max) const;
  int32_t end() const { return request_.prompt_tokens + request_.emitted; }

 private:
  void know(int32_t position, Guess guess);
  Guess at(int32_t position) const;

  RecordedRequest request_;
  int32_t max_context_;
  std::vector<Guess> guesses_;           // by emitted token, from 0
  std::map<int32_t, int32_t> rejected_;  // position -> tokens until the draft ends, this one included
};

struct ReplayResult {
  std::vector<RecordedRound> rounds;
  double seconds = 0;        // by the recorded costs; prompts not included
  RoundSums sums;            // without each request's first round, which no policy chooses
  int64_t tested = 0;        // positions at which the target would have tested a draft token
  int64_t gaps = 0;          // tested tokens that are not known from the record
  bool stops_early = false;  // the policy ends drafts by their confidence, which no record has
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(sums.emitted) / seconds : 0; }
};

// Replays all requests, as many at once as in the recorded run, with common drafting and verification.
ReplayResult replay(const RoundRecord& record, const GammaPolicyFactory& policy);

// Why a replay of this record is not exact; empty: it is.
std::vector<std::string> replay_caveats(const RoundRecord& record);

}  // namespace outrider
