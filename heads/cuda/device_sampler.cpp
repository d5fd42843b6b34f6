#include "heads/cuda/device_sampler.h"

#include <algorithm>

#include "heads/cuda/head_rows.h"
#include "kernels/sampling/penalties.h"

namespace outrider::cuda {
namespace {

bool weighs(const HeadSampler::Row& row) { return needs_q(effective_rule(*row.first.sampling)); }

// Longer drafts are drawn in several turns.
constexpr int64_t kTokens = 16;
// Rows of q for each row, as long as they are few; many rows get fewer tokens in a turn.
constexpr int64_t kQRows = 8, kMaxQRows = 128;

constexpr int64_t kBiases = 300, kLongestDraft = 64;

DrawLimits limits_of(const HeadSamplerPlan& plan) {
  return {.rows = plan.rows,
          .steps = kTokens,
          .width = plan.vocab_size,
          .stride = plan.vocab_size,
          .q_rows = std::max(plan.rows, std::min(kQRows * plan.rows, kMaxQRows)),
          .counted = plan.counted + plan.rows * kLongestDraft,
          .biases = kBiases * plan.rows};
}

// Nodes of one sequence have its committed tokens together.
DrawLimits look_limits_of(const HeadSamplerPlan& plan) {
  return {.rows = plan.looks,
          .steps = 1,
          .width = plan.vocab_size,
          .stride = plan.vocab_size,
          .counted = plan.counted + plan.looks * kLongestDraft,
          .biases = kBiases * plan.looks};
}

DeviceBuffer<int32_t> places_of(const HeadSamplerPlan& plan, StreamView stream) {
  if (plan.target_ids.empty()) return {};
  std::vector<int32_t> own_of(static_cast<size_t>(plan.vocab_size), -1);
  for (size_t i = 0; i < plan.target_ids.size(); ++i)
    own_of[static_cast<size_t>(plan.target_ids[i].value())] = static_cast<int32_t>(i);
  DeviceBuffer<int32_t> places(plan.vocab_size);
  copy(places.data(), own_of.data(), plan.vocab_size, stream);
  stream.synchronize();  // the host's go away
  return places;
}

}  // namespace

DeviceSampler::DeviceSampler(const HeadSamplerPlan& plan, int device, StreamView stream)
    : device_(device),
      stream_(stream),
      limits_(limits_of(plan)),
      look_limits_(look_limits_of(plan)),
      own_of_(places_of(plan, stream)),
      logits_(std::max(limits_.rows, look_limits_.rows) * limits_.stride),
      tokens_(limits_.rows),
      positions_(limits_.rows),
      draws_(limits_, logits_.data()) {
  rows_.reserve(static_cast<size_t>(std::max(limits_.rows, look_limits_.rows)));
  if (plan.looks > 0) ranking_.emplace(look_limits_, logits_.data());
}

int64_t DeviceSampler::bytes_for(const HeadSamplerPlan& plan) {
  const DrawLimits limits = limits_of(plan), looks = look_limits_of(plan);
  return DeviceDraws::bytes_for(limits) + (looks.rows > 0 ? DeviceRanking::bytes_for(looks) : 0) +
         4 * (std::max(limits.rows, looks.rows) + 1) * limits.stride + 8 * limits.rows;
}

// All rows of q stay on the device until the host waits for them.
int32_t DeviceSampler::most_tokens(std::span<const Row> rows) {
  if (static_cast<int64_t>(rows.size()) > limits_.rows) return 0;
  const int64_t weighing = std::count_if(rows.begin(), rows.end(), &weighs);
  auto most = static_cast<int32_t>(weighing == 0 ? kTokens : std::min(kTokens, limits_.q_rows / weighing));
  for (; most > 0; most = most > 1 ? 1 : 0) {
    rows_.clear();
    for (const Row& row : rows) rows_.push_back({.first = row.first, .steps = std::min(row.tokens, most)});
    if (draws_.takes(rows_)) break;
  }
  return most;
}

void DeviceSampler::begin(std::span<const Row> rows, bool measures) {
  use_device(device_);
  rows_.clear();
  for (const Row& row : rows)
    rows_.push_back(
        {.first = row.first, .logits_row = static_cast<int64_t>(rows_.size()), .steps = row.tokens});
  draws_.send(rows_, measures, stream_);
  wants_q_ = std::any_of(rows.begin(), rows.end(), &weighs);
  is_first_ = true;
}

void DeviceSampler::draw(FloatRows logits, std::span<const int32_t> row_numbers) {
  use_device(device_);
  spread(logits, row_numbers);
  draws_.queue_step(static_cast<int64_t>(row_numbers.size()), stream_);
  if (std::exchange(is_first_, false)) first_drawn_.record(stream_);
}

// To rows of the target's vocabulary.
void DeviceSampler::spread(FloatRows logits, std::span<const int32_t> row_numbers) {
  const RowsAt from{logits.data(), logits.extent(0), logits.extent(1), logits.stride(0)};
  for (size_t first = 0; first < row_numbers.size(); first += RowNumbers::kMost) {
    const auto some =
        row_numbers.subspan(first, std::min<size_t>(RowNumbers::kMost, row_numbers.size() - first));
    RowNumbers numbers{.count = static_cast<int32_t>(some.size())};
    std::copy(some.begin(), some.end(), numbers.rows);
    spread_rows(stream_, from, numbers, own_of_.data(),
                {logits_.data() + static_cast<int64_t>(first) * limits_.stride, numbers.count, limits_.width,
                 limits_.stride});
  }
}

void DeviceSampler::read_drawn(const HeadTable& table, FloatRows to) {
  use_device(device_);
  draws_.queue_feed(to.extent(0), tokens_.data(), positions_.data(), stream_);
  read_table(stream_, *static_cast<const MatrixView*>(table.get()), tokens_.data(),
             {to.data(), to.extent(0), to.extent(1), to.stride(0)});
}

void DeviceSampler::wait() {
  use_device(device_);
  last_drawn_.record(stream_);
  draws_.queue_fetch(rows_.front().steps, wants_q_, stream_);
  stream_.synchronize();
}

std::optional<TokenId> DeviceSampler::token(size_t row, int32_t number) const {
  const TokenId id = draws_.token(static_cast<int64_t>(row), number);
  return id.value() < 0 ? std::nullopt : std::optional(id);
}

DraftConfidence DeviceSampler::confidence(size_t row, int32_t number) const {
  return draws_.confidence(static_cast<int64_t>(row), number);
}

void DeviceSampler::read_q(size_t row, int32_t number, QRow& q) const {
  draws_.read_q(static_cast<int64_t>(row), number, q);
}

void DeviceSampler::put_looks(std::span<const TokenLook> looks) {
  rows_.clear();
  for (const TokenLook& look : looks)
    rows_.push_back({.first = look.step, .logits_row = static_cast<int64_t>(rows_.size())});
}

size_t DeviceSampler::most_looks(std::span<const TokenLook> looks) {
  if (!ranking_) return 0;
  put_looks(looks.first(std::min(looks.size(), static_cast<size_t>(look_limits_.rows))));
  while (!rows_.empty() && !ranking_->takes(rows_)) rows_.pop_back();
  return rows_.size();
}

void DeviceSampler::rank(FloatRows logits, std::span<const TokenLook> looks) {
  use_device(device_);
  put_looks(looks);
  look_rows_.clear();
  counts_.clear();
  for (const TokenLook& look : looks) {
    look_rows_.push_back(static_cast<int32_t>(look.row));
    counts_.push_back(look.count);
  }
  spread(logits, look_rows_);
  ranking_->queue(rows_, *std::max_element(counts_.begin(), counts_.end()), stream_);
  stream_.synchronize();
}

std::span<const RankedToken> DeviceSampler::best(size_t look) const {
  const auto all = ranking_->best(static_cast<int64_t>(look));
  return all.first(std::min(all.size(), static_cast<size_t>(counts_[look])));
}

int64_t DeviceSampler::ns_behind_first() const {
  return static_cast<int64_t>(last_drawn_.seconds_since(first_drawn_) * 1e9);
}

}  // namespace outrider::cuda
