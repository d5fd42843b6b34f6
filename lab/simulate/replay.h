// Replays recorded rounds under another policy: the drafts that it would have asked for, and their accepted
// tokens. Under match rules draft and target choose tokens that depend only on the text before them. So the
// acceptance at a position is the same for every draft that reaches it, and the replay equals a real run,
// round for round. Times come from the costs that the recorded run fitted, or from given ones.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cluster/simulation/row_costs.h"
#include "coordinator/gamma/gamma_policy.h"
#include "requests/round_record.h"

namespace outrider {

// Costs in place of the recorded ones, in passes of one row. The policy knows them before the first round, as
// it does where target and draft model were measured at the start.
struct ReplayCosts {
  RowCosts rows;         // then a context costs nothing
  double draft = 0;          // of a draft token; 0: as recorded
  double draft_prefill = 0;  // of a token of a prompt, by the draft model, before its first draft
  bool given() const { return !rows.points().empty() || draft > 0 || draft_prefill > 0; }
};

// The recorded part of one request's text.
class RecordedText {
 public:
  RecordedText(const RecordedRequest& request, int32_t max_context);
  void add(const RecordedRound& round);

  const RecordedRequest& request() const { return request_; }
  // A round that drafts `gamma` tokens after `base`. A position that no record covers is a gap: whether its
  // token is right is drawn with this chance, from (request, position) alone, and counted.
  RecordedRound round(int32_t base, int32_t gamma, double chance_at_gaps, int64_t& gaps) const;
  // The margins of `drafted` tokens drafted after `base`, of which `accepted` are accepted. Where the record
  // lacks one, the margin before it stands there, and it counts as a gap if the token is tested. Empty: it
  // has none.
  std::vector<float> margins(int32_t base, int32_t drafted, int32_t accepted, int64_t& gaps) const;
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
  std::map<int32_t, float> margins_;     // by position, of tested tokens
  std::map<int32_t, std::vector<float>> behind_;  // by position of a rejected token: margins of the next ones
};

struct ReplayResult {
  std::vector<RecordedRound> rounds;
  double seconds = 0;        // by the recorded costs; prompts not included
  RoundSums sums;            // without each request's first round, which no policy chooses
  int64_t tested = 0;        // positions at which the target would have tested a draft token
  int64_t gaps = 0;          // tested tokens that are not known from the record, or whose margin is not
  bool stops_early = false;  // the policy ends drafts by a confidence that the record lacks
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(sums.emitted) / seconds : 0; }
};

// Replays all requests, as many at once as in the recorded run, with common drafting and verification.
ReplayResult replay(const RoundRecord& record, const GammaPolicyFactory& policy,
                    const ReplayCosts& costs = {});

// Why a replay of this record is not exact; empty: it is.
std::vector<std::string> replay_caveats(const RoundRecord& record);

}  // namespace outrider
