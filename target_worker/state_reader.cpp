#include "target_worker/state_reader.h"

#include <algorithm>
#include <cmath>

#include "base/bfloat16.h"

namespace outrider {

StateReader::StateReader(Model& target, std::shared_ptr<StateProjection> projection, int64_t taps,
                         int64_t max_rows)
    : target_(target),
      projection_(std::move(projection)),
      max_rows_(max_rows),
      raw_(max_rows, taps * target.config().hidden_size),
      rows_(max_rows, projection_->width()) {}

void StateReader::read(KvHandle sequence, int64_t first, TensorView<float, 2> to) {
  for (int64_t begin = 0; begin < to.extent(0); begin += max_rows_) {
    const int64_t count = std::min(max_rows_, to.extent(0) - begin);
    const auto raw = raw_.rows(count);
    for (int64_t r = 0; r < count; ++r) target_.read_states(sequence, first + begin + r, raw.row(r));
    const TensorView<float, 2> part(to.row(begin).data(), {count, to.extent(1)}, {to.stride(0), 1});
    projection_->apply(raw, part);
    for (int64_t r = 0; r < count; ++r)
      for (float& x : part.row(r)) x = to_float(to_bf16(x));
  }
}

void StateReader::tell(KvHandle sequence, const StateAsk& ask, StateRows& rows) {
  const int64_t end = std::min(target_.kv().length(sequence), int64_t{ask.first.value()} + ask.count);
  rows.first = ask.first;
  rows.width = static_cast<int32_t>(rows_.columns);
  rows.values.clear();
  for (int64_t at = ask.first.value(); at < end;) {
    const int64_t count = std::min(max_rows_, end - at);
    const auto part = rows_.rows(count);
    read(sequence, at, part);
    for (int64_t r = 0; r < count; ++r) {
      const auto row = part.row(r);
      if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })) return;
      for (const float x : row) rows.values.push_back(to_bf16(x).bits);
    }
    at += count;
  }
}

}  // namespace outrider
