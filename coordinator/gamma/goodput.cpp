#include "coordinator/gamma/goodput.h"

#include <map>
#include <queue>

#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/by_group.h"
#include "coordinator/gamma/policies.h"
#include "coordinator/gamma/probe_budget.h"

namespace outrider {

GoodputChoice allocate_goodput(std::span<const double> acceptance, std::span<const int32_t> limits,
                               const CostModel& cost, int64_t context) {
  struct Candidate {
    double reach;
    size_t request;
    bool operator<(const Candidate& other) const {  // the lower request first among equals
      return reach != other.reach ? reach < other.reach : request > other.request;
    }
  };
  const auto batch = static_cast<int32_t>(acceptance.size());
  std::vector<int32_t> gammas(acceptance.size(), 0);
  std::priority_queue<Candidate> heap;
  for (size_t r = 0; r < acceptance.size(); ++r)
    if (limits[r] > 0) heap.push({acceptance[r], r});
  double tokens = batch;
  int32_t longest = 0, total = 0;
  GoodputChoice best{gammas, tokens / cost.verify_seconds(batch, context)};
  while (!heap.empty()) {
    const auto [reach, r] = heap.top();
    heap.pop();
    tokens += reach;
    longest = std::max(longest, ++gammas[r]);
    ++total;
    if (gammas[r] < limits[r]) heap.push({reach * acceptance[r], r});
    const double rate =
        tokens / (cost.verify_seconds(total + batch, context) + cost.draft_phase_seconds(longest, total));
    if (rate > best.rate * (1 + 1e-12)) best = {gammas, rate};
  }
  return best;
}

// Estimates are uncertain: a prefill must promise this many times its price.
constexpr double kMargin = 1.5;

GoodputChoice allocate_goodput(std::span<const double> acceptance, std::span<int32_t> limits,
                               std::span<const UnreadPrompt> unread, const CostModel& cost, int64_t context) {
  const auto batch = static_cast<int32_t>(acceptance.size());
  const double plain = batch / cost.verify_seconds(batch, context);
  for (;;) {
    GoodputChoice best = allocate_goodput(acceptance, limits, cost, context);
    // Saved seconds of the batch per token.
    const double saved = cost.is_in_seconds() ? std::max(0.0, 1 / plain - 1 / best.rate) : 0;
    bool all_pay = true;
    for (size_t r = 0; r < unread.size(); ++r) {
      if (limits[r] == 0 || kMargin * unread[r].seconds <= saved * unread[r].remaining) continue;
      limits[r] = 0;
      all_pay = false;
    }
    if (all_pay) return best;
  }
}

namespace {

class GoodputGamma;
using Batch = PolicyBatch<GoodputGamma>;

class GoodputGamma : public GammaPolicy {
 public:
  GoodputGamma(int32_t max, std::shared_ptr<ByGroup<Batch>> batches)
      : max_(max), batches_(std::move(batches)) {}

  int32_t next(const GammaContext& context) override {
    Batch& batch = membership_.join(batches_->of(context.group));
    batch.stale |= context.limit < gamma_;
    limit_ = std::min(max_, context.limit);
    context_ = context.context_length;
    unread_ = {.seconds = context.prefill_seconds, .remaining = context.remaining};
    if (batch.stale) allocate(batch, cost_of(context.cost));
    return gamma_ > 0 ? gamma_ : probes_.next(context);
  }

  void update(const RoundOutcome& outcome) override {
    if (gamma_ == 0) probes_.update(outcome);
    acceptance_.update(outcome.drafted, outcome.accepted);
    membership_.make_stale();
  }

 private:
  static void allocate(Batch& batch, const CostModel& cost) {
    std::vector<double> acceptance;
    std::vector<int32_t> limits;
    std::vector<UnreadPrompt> unread;
    int64_t context = 0;
    for (const GoodputGamma* member : batch.members) {
      unread.push_back(member->unread_);
      acceptance.push_back(member->acceptance_.mean());
      limits.push_back(member->limit_);
      context += member->context_;
    }
    const GoodputChoice choice = allocate_goodput(acceptance, limits, unread, cost, context);
    for (size_t i = 0; i < batch.members.size(); ++i) batch.members[i]->gamma_ = choice.gammas[i];
    batch.stale = false;
  }

  int32_t max_;
  std::shared_ptr<ByGroup<Batch>> batches_;
  InBatch<GoodputGamma> membership_{*this};
  AcceptanceEwma acceptance_;
  ProbeBudget probes_;
  int32_t gamma_ = 0, limit_ = 0, context_ = 0;
  UnreadPrompt unread_;
};

}  // namespace

Result<GammaPolicyFactory> goodput_gamma_from(const GammaArguments& arguments) {
  ASSIGN_OR_RETURN(const int32_t max, gamma_integer(arguments, "max", 1, 1024));
  const auto batches = std::make_shared<ByGroup<Batch>>(Batch());
  return GammaPolicyFactory([max, batches] { return std::make_unique<GoodputGamma>(max, batches); });
}

}  // namespace outrider
