#include "lab/bench/verify_curve.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/statistics.h"
#include "base/threads.h"
#include "comm/device_group.h"

namespace outrider {
namespace {

constexpr int kPassesPerTurn = 2;

// Timed passes over a text that stays in the cache; what a pass appended is forgotten again.
class TimedText {
 public:
  explicit TimedText(Model& model) : model_(model), handle_(model.kv().create()) {}
  ~TimedText() { model_.kv().release(handle_); }
  TimedText(const TimedText&) = delete;
  TimedText& operator=(const TimedText&) = delete;

  Status read(std::span<const TokenId> ids) {
    while (!ids.empty()) {
      const size_t count = std::min(ids.size(), static_cast<size_t>(model_.max_rows()));
      const BatchSlice slice{.sequence = handle_, .tokens = ids.first(count), .logit_rows = 0};
      RETURN_IF_ERROR(model_.forward({&slice, 1}).status());
      ids = ids.subspan(count);
    }
    return {};
  }

  Result<double> time_pass(std::span<const TokenId> ids) {
    const int64_t length = model_.kv().length(handle_);
    const BatchSlice slice{
        .sequence = handle_, .tokens = ids, .logit_rows = static_cast<int64_t>(ids.size())};
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(const PlacedLogits logits, model_.forward_in_place({&slice, 1}));
    if (const auto* on_device = std::get_if<DeviceLogits>(&logits))
      model_.device_group()->wait(on_device->stream);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    model_.kv().truncate(handle_, length);
    return took.count();
  }

 private:
  Model& model_;
  const KvHandle handle_;
};

// Some tokens to verify: they only have to differ.
std::vector<TokenId> rows_after(const std::vector<TokenId>& context, int count) {
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i) ids.push_back(context[static_cast<size_t>(i) % context.size()]);
  return ids;
}

}  // namespace

VerifyCurve::VerifyCurve(LocalModels& models, std::vector<TokenId> context, std::vector<int> rows)
    : models_(models), context_(std::move(context)), rows_(std::move(rows)) {}

Status VerifyCurve::turn() {
  std::vector<Status> statuses(models_.target.size());
  run_on_threads(static_cast<int>(statuses.size()), [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    try {
      statuses[r] = time_target(r);
    } catch (const std::exception& error) {
      statuses[r] = unavailable(error.what());
    }
    if (!statuses[r].ok()) models_.group[r]->abort();  // so that the other ranks do not wait for a failed one
  });
  for (const Status& status : statuses) RETURN_IF_ERROR(status);
  return models_.draft ? time_draft() : Status();
}

// Every rank makes the same passes; the first one's clock counts.
Status VerifyCurve::time_target(size_t rank) {
  TimedText text(*models_.target[rank]);
  RETURN_IF_ERROR(text.read(context_));
  RETURN_IF_ERROR(text.time_pass(rows_after(context_, 1)).status());
  for (int pass = 0; pass < kPassesPerTurn; ++pass)
    for (const int count : rows_) {
      ASSIGN_OR_RETURN(const double took, text.time_pass(rows_after(context_, count)));
      if (rank == 0) samples_[count].push_back(took);
    }
  return {};
}

Status VerifyCurve::time_draft() {
  constexpr int kSteps = 16;
  TimedText text(*models_.draft);
  RETURN_IF_ERROR(text.read(context_));
  const auto one = rows_after(context_, 1);
  RETURN_IF_ERROR(text.time_pass(one).status());
  for (int step = 0; step < kSteps; ++step) {
    ASSIGN_OR_RETURN(const double took, text.time_pass(one));
    draft_samples_.push_back(took);
  }
  return {};
}

double VerifyCurve::seconds(int rows) const { return median(samples_.at(rows)); }
double VerifyCurve::draft_step_seconds() const { return median(draft_samples_); }

}  // namespace outrider
