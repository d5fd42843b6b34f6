#include "requests/round_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

namespace outrider {

std::string round_table(const std::vector<RoundDone>& rounds) {
  struct Pass {
    int64_t rows = 0, batch = 0;
  };
  std::map<std::pair<int32_t, uint64_t>, Pass> passes;  // by group and step
  for (const RoundDone& round : rounds) {
    Pass& pass = passes[{round.group, round.step}];
    pass.rows += round.drafted + 1;
    ++pass.batch;
  }
  std::map<SequenceId, int64_t> numbers;
  std::string out =
      "request,round,position,asked,drafted,tested,accepted,emitted,draft_ms,verify_ms,rows,batch,"
      "confidence\n";
  for (const RoundDone& round : rounds) {
    const Pass& pass = passes.at({round.group, round.step});
    out += fmt::format("{},{},{},{},{},{},{},{},{:.6g},{:.6g},{},{},{:.4g}\n", round.request.value(),
                       ++numbers[round.request], round.base.value(), round.gamma, round.drafted, round.tested,
                       round.accepted_count, round.emitted, static_cast<double>(round.draft_ns) * 1e-6,
                       static_cast<double>(round.target_ns) * 1e-6, pass.rows, pass.batch,
                       fmt::join(round.margins, " "));
  }
  return out;
}

}  // namespace outrider
