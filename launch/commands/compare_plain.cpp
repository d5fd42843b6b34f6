#include "launch/commands/compare_plain.h"

#include <algorithm>

#include "base/printable.h"
#include "base/program/interrupt.h"

namespace outrider {
namespace {

constexpr int kMaxTurns = 9;
constexpr std::chrono::seconds kLongEnough{2};

ClusterSettings without_drafter(ClusterSettings cluster) {
  cluster.models.drafter.clear();
  cluster.models.draft_model.clear();
  cluster.models.head_place = "target";
  cluster.models.exit_layer = 0;
  return cluster;
}

bool same_output(const GenerateResult& a, const GenerateResult& b) {
  return std::equal(
      a.generated.begin(), a.generated.end(), b.generated.begin(), b.generated.end(),
      [](const Generated& x, const Generated& y) { return x.ids == y.ids && x.text == y.text; });
}

}  // namespace

bool CompareTurns::go_on(int turns, std::chrono::duration<double> taken) const {
  return wanted > 0 ? turns < wanted : turns < kMaxTurns && taken < kLongEnough;
}

GenerateResult PlainRuns::run(bool plain, bool quiet) const {
  ClusterSettings cluster = plain ? without_drafter(job_.cluster) : job_.cluster;
  cluster.quiet = cluster.quiet || quiet;
  const GenerateJob job{
      cluster, job_.prepared, job_.requests, job_.finished, plain ? 0 : job_.workers, job_.listens && !plain};
  return run_in_one_process(job, nullptr, nullptr);
}

Status PlainRuns::first() {
  plain_ = run(true, false);
  return plain_.status;
}

PlainComparison PlainRuns::compare(const GenerateResult& speculative, CompareTurns turns) {
  std::vector<PlainTurn> measured{compare_with_plain(plain_.totals, speculative.totals)};
  identical_ = same_output(plain_, speculative);
  note_first_signal();  // the first comparison is complete and must be reported
  while (turns.go_on(static_cast<int>(measured.size()), std::chrono::steady_clock::now() - begun_)) {
    const auto next = turn(measured.size() % 2 == 0, speculative);
    if (!next.ok()) {
      tell_error("--compare-plain: " + next.status().message());
      break;
    }
    measured.push_back(*next);
  }
  return PlainComparison::of(measured, identical_);
}

Result<PlainTurn> PlainRuns::turn(bool plain_first, const GenerateResult& expected) {
  GenerateResult plain, speculative;
  for (const bool is_plain : {plain_first, !plain_first}) {
    GenerateResult& result = is_plain ? plain : speculative;
    result = run(is_plain, true);
    RETURN_IF_ERROR(result.status);
    identical_ = identical_ && same_output(result, expected);
  }
  return compare_with_plain(plain.totals, speculative.totals);
}

}  // namespace outrider
