// The recorded rounds of a run (`generate --record-rounds FILE`), for trying other draft lengths off-line.
// JSON lines: one that describes the run, one per request, one per round:
//
//   {"outrider_rounds":1,"drafter":"model","synthetic":false,"gamma_policy":"fixed:gamma=8",...,"costs":{...}}
//   {"request":1,"rule":"greedy","prompt_tokens":5,"max_tokens":64,"emitted":64}
//   {"round":[1,6,8,8,3,4,0,1],"margins":[3.1,0.2,...]}
//       request, base, gamma, drafted, accepted, emitted, end of text, guess
//
// End of text: the draft ended at an end-of-sequence token. Guess: whether the drafter would have drafted the
// token before `base` (match rules, where known): 0 no, 1 yes, 2 yes and that ends a text, -1 unknown.
// Margins: the drafter's confidence in each drafted token (PlaceRule), where it told.
// With --logprobs a round also has "chances", the target's own probability of each emitted token, and a
// request "prompt_chance", their mean over the tokens of its prompt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/costs/cost_model.h"
#include "coordinator/rounds/events.h"

namespace outrider {

enum class Guess : int8_t { kUnknown = -1, kWrong = 0, kRight = 1, kRightAndEnds = 2 };

struct RecordedRound {
  int64_t request = 0;
  int32_t base = 0;     // committed tokens before it, the prompt included
  int32_t gamma = 0;    // requested from the drafter
  int32_t drafted = 0;  // verified; of a tree the tested levels, as in a chain
  int32_t accepted = 0, emitted = 0;
  bool eos = false;
  Guess guess = Guess::kUnknown;
  std::vector<int32_t> parents, path;  // of a tree: as in DraftTree, and the accepted nodes
  std::vector<float> margins;          // of the drafted tokens of a chain; empty: not known
  std::vector<float> chances;          // the target's, of the emitted tokens; empty: not known

  static RecordedRound of(const RoundDone& round);
  bool operator==(const RecordedRound&) const = default;
};

struct RecordedRequest {
  int64_t id = 0;
  std::string rule;
  int32_t prompt_tokens = 0, max_tokens = 0, emitted = 0;
  std::optional<float> prompt_chance = {};  // mean probability of the prompt's tokens, by the target
};

// Seconds, as CostModel fitted them.
struct RecordedCosts {
  VerifyCost verify;
  DraftCost draft;
  double exchange = 0;
};

struct RoundRecord {
  std::string drafter;  // "model", "ngram", "suffix", "recycling" or "lookahead"
  std::string gamma_policy;
  bool synthetic = false;  // --synthetic-acceptance
  int32_t max_num_seqs = 1, gamma_max = 0, max_context = 0;
  int64_t dropped = 0;  // rounds beyond the limit of the record
  RecordedCosts costs;
  std::vector<RecordedRequest> requests;
  std::vector<RecordedRound> rounds;  // in the order of their verdicts
};

std::string format_round_record(const RoundRecord& record);
// Errors name file and line.
Result<RoundRecord> read_round_record(const std::string& path);

}  // namespace outrider
