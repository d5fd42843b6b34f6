#include "launch/commands/compare_plain.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr int kMostTurns = 9;
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
  return wanted > 0 ? turns < wanted : turns < kMostTurns && taken < kLongEnough;
}

PlainRuns::PlainRuns(const GenerateJob& job)
    : job_(job),
      without_drafter_(without_drafter(job.cluster)),
      plain_job_{without_drafter_, job.prepared, job.requests, job.finished, job.policy, 0, false} {}

Status PlainRuns::first() {
  plain_ = run_in_one_process(plain_job_, nullptr, nullptr);
  return plain_.status;
}

Result<PlainComparison> PlainRuns::compare(const GenerateResult& speculative, CompareTurns turns) {
  std::vector<PlainTurn> measured{compare_with_plain(plain_.totals, speculative.totals)};
  identical_ = same_output(plain_, speculative);
  while (turns.go_on(static_cast<int>(measured.size()), std::chrono::steady_clock::now() - begun_)) {
    ASSIGN_OR_RETURN(const PlainTurn next, turn(measured.size() % 2 == 0, speculative));
    measured.push_back(next);
  }
  return PlainComparison::of(measured, identical_);
}

Result<PlainTurn> PlainRuns::turn(bool plain_first, const GenerateResult& expected) {
  GenerateResult plain, speculative;
  for (const bool is_plain : {plain_first, !plain_first}) {
    GenerateResult& result = is_plain ? plain : speculative;
    result = run_in_one_process(is_plain ? plain_job_ : job_, nullptr, nullptr);
    RETURN_IF_ERROR(result.status);
    identical_ = identical_ && same_output(result, expected);
  }
  return compare_with_plain(plain.totals, speculative.totals);
}

}  // namespace outrider
