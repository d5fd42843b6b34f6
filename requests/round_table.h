// Every round of a run as CSV, for studies outside this program (`generate --rounds FILE`). One line a round,
// in the order of verdicts, in columns that pandas.read_csv and R read as they are:
//
//   request      id of the request
//   round        number within the request, from 1; the first one ends the prompt and drafts nothing
//   position     tokens before the round, the prompt included
//   asked        draft tokens that the policy asked for
//   drafted      draft tokens that the target verified; of a tree its nodes
//   tested       draft tokens that were compared with the target's; of a tree one for each level
//   accepted     draft tokens accepted
//   emitted      tokens that the text got
//   draft_ms     the drafter's busy time for this round, the prefill of new tokens included
//   verify_ms    the target's busy time for the pass, which is that of all rounds of the pass
//   rows         rows of the pass for its rounds: draft tokens and one more each; those of prompts not
//   included batch        rounds that the pass verified confidence   the drafter's lead of the best token
//   over the second, in nats (PlaceRule), for each draft
//                token, separated by spaces; empty where the drafter did not send it
//
// Workers send confidences where --record-rounds or the policies `logistic` and `vllm` want them. They send
// no entropies.
#pragma once

#include <string>
#include <vector>

#include "coordinator/rounds/events.h"

namespace outrider {

std::string round_table(const std::vector<RoundDone>& rounds);

}  // namespace outrider
