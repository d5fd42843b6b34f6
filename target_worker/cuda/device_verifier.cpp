#include "target_worker/cuda/device_verifier.h"

#include <algorithm>

#include "base/log.h"
#include "kernels/sampling/cuda/row_steps.h"
#include "target_worker/cuda/verify_kernels.h"

namespace outrider::cuda {

struct DeviceVerifier::Memory {
  Memory(int64_t rows, int64_t requests, int64_t ranks)
      : part_values(rows * kMaxParts),
        residual_parts(rows * kMaxParts),
        best(rows),
        bins(rows * kKeyBytes * kKeyBins),
        ties(rows),
        all_ties(ranks * rows),
        sums(2 * rows),
        all_sums(2 * ranks * rows),
        residual_sums(rows),
        all_residual_sums(ranks * rows),
        chosen(rows),
        max(rows),
        ratios(rows),
        finite_rows(requests),
        residual(rows),
        accepted(requests),
        fallback(requests),
        searches(rows * kSearchStates),
        draws(rows),
        verdicts(requests) {}

  void set(VerifyBatch& b) const {
    b.part_values = part_values.data();
    b.residual_parts = residual_parts.data();
    b.best = best.data();
    b.bins = bins.data();
    b.ties = ties.data();
    b.all_ties = all_ties.data();
    b.sums = sums.data();
    b.all_sums = all_sums.data();
    b.residual_sums = residual_sums.data();
    b.all_residual_sums = all_residual_sums.data();
    b.chosen = chosen.data();
    b.max = max.data();
    b.ratios = ratios.data();
    b.finite_rows = finite_rows.data();
    b.residual = residual.data();
    b.accepted = accepted.data();
    b.fallback = fallback.data();
    b.searches = searches.data();
    b.draws = draws.data();
    b.verdicts = verdicts.data();
  }

  DeviceBuffer<uint64_t> part_values, residual_parts, best, bins, ties, all_ties, sums, all_sums,
      residual_sums, all_residual_sums, chosen;
  DeviceBuffer<float> max;
  DeviceBuffer<double> ratios;
  DeviceBuffer<int32_t> finite_rows, residual, accepted, fallback;
  DeviceBuffer<Search> searches;
  DeviceBuffer<Draw> draws;
  DeviceBuffer<Verdict> verdicts;
};

DeviceVerifier::DeviceVerifier(DeviceGroup& group, Collectives& host, const VerifierLimits& limits)
    : group_((use_device(group.device()), group)),
      limits_(limits),
      inputs_(limits.q_words),
      memory_(std::make_unique<Memory>(limits.rows, limits.requests, group.size())),
      verdicts_(limits.requests),
      ranked_(limits.rows),
      logprobs_(host) {
  memory_->set(batch_);
  batch_.rank = group.rank();
  batch_.ranks = group.size();
}

DeviceVerifier::~DeviceVerifier() = default;

std::optional<int64_t> DeviceVerifier::busy_ns() const {
  if (results_.empty()) return 0;  // nothing was queued, perhaps ever
  return static_cast<int64_t>(ended_.seconds_since(begun_) * 1e9);
}

LogitsShard DeviceVerifier::on_host(std::span<const VerifyRequest> requests, const PlacedLogits& logits) {
  const auto* on_device = std::get_if<DeviceLogits>(&logits);
  CHECK(on_device, "the logits are in host memory");
  use_device(group_.device());
  const int64_t width = on_device->vocab_range.size();
  for (const VerifyRequest& request : requests) {
    const int64_t at = request.first_row * width;
    copy(on_device->host_room + at, on_device->logits.data() + at,
         (static_cast<int64_t>(request.draft.size()) + 1) * width, on_device->stream);
  }
  group_.wait(on_device->stream);
  return {.logits = {on_device->host_room, {on_device->logits.extent(0), width}},
          .vocab_range = on_device->vocab_range,
          .vocab_size = on_device->vocab_size,
          .hidden = {}};
}

void DeviceVerifier::rank_rows(std::span<const int64_t> rows, const PlacedLogits& logits) {
  const auto* on_device = std::get_if<DeviceLogits>(&logits);
  CHECK(on_device, "the logits are in host memory");
  use_device(group_.device());
  ranked_.queue(rows, *on_device);
}

const std::vector<VerifyResult>& DeviceVerifier::verify(std::span<const VerifyRequest> requests,
                                                        const PlacedLogits& logits) {
  results_.resize(requests.size());
  const auto* on_device = std::get_if<DeviceLogits>(&logits);
  CHECK(on_device, "the logits are in host memory");
  if (requests.empty()) {  // the forward pass must be ended here, since nothing else will wait for it
    if (group_.is_in_pass()) group_.wait(on_device->stream);
    return results_;
  }
  prepare(requests, *on_device);
  penalise_rows(stream_, batch_);
  if (batch_.mask_count > 0) forbid_tokens(stream_, batch_);
  scale_and_rank(stream_, batch_);
  reduce(Reduction::kMax, batch_.best, batch_.rows);
  settle_best(stream_, batch_);
  queue_filters();
  if (batch_.drawn_count > 0) queue_draws();
  decide(stream_, batch_);
  fetch(requests);
  report_logprobs(requests, *on_device);
  return results_;
}

void DeviceVerifier::prepare(std::span<const VerifyRequest> requests, const DeviceLogits& logits) {
  const IndexRange range = logits.vocab_range;
  use_device(group_.device());
  stream_ = logits.stream;
  group_.begin_pass();  // unless the forward pass has: rows of trees may have come to the host since
  begun_.record(stream_);
  batch_.logits = logits.logits.data();
  batch_.stride = range.size();
  batch_.width = static_cast<int32_t>(range.size());
  batch_.first_token = static_cast<int32_t>(range.begin);
  batch_.parts = std::max(1, (batch_.width + kPartTokens - 1) / kPartTokens);
  CHECK(batch_.parts <= kMaxParts, "a slice of {} tokens; shard the vocabulary over more ranks",
        batch_.width);
  inputs_.send(requests, range, stream_, batch_);
  CHECK(batch_.rows <= limits_.rows && batch_.requests <= limits_.requests,
        "{} rows of {} requests; planned {}, {}", batch_.rows, batch_.requests, limits_.rows,
        limits_.requests);
  keep_raw_rows(requests, logits);
}

// Copies rows whose log-probabilities are wanted, before the rows are overwritten.
void DeviceVerifier::keep_raw_rows(std::span<const VerifyRequest> requests, const DeviceLogits& logits) {
  const int64_t width = batch_.stride;
  for (const VerifyRequest& request : requests) {
    if (request.sampling->logprobs < 0) continue;
    const int64_t at = request.first_row * width;
    copy(logits.host_room + at, logits.logits.data() + at,
         (static_cast<int64_t>(request.draft.size()) + 1) * width, stream_);
  }
}

void DeviceVerifier::reduce(Reduction reduction, uint64_t* values, int64_t count) {
  if (group_.size() > 1) group_.all_reduce(reduction, values, count, stream_);
}

void DeviceVerifier::queue_filters() {
  if (batch_.top_k_count > 0) queue_cut({.rows = batch_.top_k_rows, .count = batch_.top_k_count});
  if (batch_.top_p_count > 0)
    queue_cut({.rows = batch_.top_p_rows, .count = batch_.top_p_count, .by_mass = true});
  if (batch_.min_p_count > 0) cut_min_p(stream_, batch_);
  if (batch_.noisy_count == 0) return;
  rank_with_noise(stream_, batch_);
  reduce(Reduction::kMax, batch_.best, batch_.rows);  // other rows agree already
}

// Four bytes of the key, then ties by id.
void DeviceVerifier::queue_cut(const SearchTask& task) {
  for (int byte = 0; byte < kKeyBytes; ++byte) {
    count_bins(stream_, batch_, task, byte);
    reduce(Reduction::kSum, searched_bins(batch_, task, byte), task.count * int64_t{kKeyBins});
  }
  count_ties(stream_, batch_, task);
  group_.all_gather(batch_.ties, batch_.all_ties, task.count * static_cast<int64_t>(sizeof(uint64_t)),
                    stream_);
  cut(stream_, batch_, task);
}

void DeviceVerifier::queue_draws() {
  constexpr auto kWord = static_cast<int64_t>(sizeof(uint64_t));
  sum_drawn_rows(stream_, batch_);
  group_.all_gather(batch_.sums, batch_.all_sums, 2 * batch_.rows * kWord, stream_);
  test_drafts(stream_, batch_);
  sum_residuals(stream_, batch_);
  group_.all_gather(batch_.residual_sums, batch_.all_residual_sums, batch_.rows * kWord, stream_);
  plan_draws(stream_, batch_);
  draw_tokens(stream_, batch_);
  reduce(Reduction::kMax, batch_.chosen, batch_.rows);
}

// The one wait of a pass.
void DeviceVerifier::fetch(std::span<const VerifyRequest> requests) {
  copy(verdicts_.data(), batch_.verdicts, batch_.requests, stream_);
  ended_.record(stream_);
  group_.wait(stream_);
  stats_.q_zero_draws += inputs_.q_zero_draws();
  for (size_t e = 0; e < requests.size(); ++e) {
    const Verdict& verdict = verdicts_.data()[e];
    CHECK(verdict.failed || verdict.next >= 0, "request {}: no rank has the drawn token", e);
    stats_.residual_fallbacks += static_cast<uint64_t>(verdict.fallback);
    VerifyResult& result = results_[e];
    result.status = verdict.failed ? VerdictStatus::kNonFinite : VerdictStatus::kOk;
    result.accepted_count = verdict.accepted;
    result.next = verdict.failed ? TokenId() : TokenId(verdict.next);
    result.logprobs.clear();
  }
}

void DeviceVerifier::report_logprobs(std::span<const VerifyRequest> requests, const DeviceLogits& logits) {
  queries_.clear();
  const auto width = static_cast<size_t>(logits.vocab_range.size());
  for (size_t e = 0; e < requests.size(); ++e) {
    const VerifyRequest& request = requests[e];
    if (request.sampling->logprobs < 0) continue;
    float* raw = logits.host_room + static_cast<size_t>(request.first_row) * width;
    const VerifyResult& result = results_[e];
    for (int i = 0; result.status == VerdictStatus::kOk && i <= result.accepted_count; ++i)
      queries_.push_back({.raw = {raw + static_cast<size_t>(i) * width, width},
                          .chosen = chosen_at(request, result, i),
                          .top = request.sampling->logprobs});
  }
  if (queries_.empty()) return;
  auto row = logprobs_.compute(queries_, Chunks{logits.vocab_range}).begin();
  auto query = queries_.begin();
  for (size_t e = 0; e < requests.size(); ++e) {
    VerifyResult& result = results_[e];
    if (requests[e].sampling->logprobs < 0 || result.status != VerdictStatus::kOk) continue;
    for (int i = 0; i <= result.accepted_count; ++i, ++row, ++query) {
      PositionLogprobs& position = result.logprobs.emplace_back();
      position.chosen = {query->chosen, row->chosen};
      for (const auto& [id, logprob] : row->top) position.top.push_back({id, logprob});
    }
  }
}

}  // namespace outrider::cuda
