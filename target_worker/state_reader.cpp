#include "target_worker/state_reader.h"

#include <algorithm>
#include <cmath>

#include "base/bfloat16.h"

namespace outrider {

StateReader::StateReader(Model& target, std::shared_ptr<StateProjection> projection, int64_t taps)
    : target_(target),
      projection_(std::move(projection)),
      raw_(projection_->compute().rows(projection_->max_rows(), taps * target.config().hidden_size)),
      rows_(projection_->compute().rows(projection_->max_rows(), projection_->width())) {}

void StateReader::read(KvHandle sequence, int64_t first, FloatRows to) {
  HeadCompute& on = projection_->compute();
  for (int64_t begin = 0; begin < to.extent(0); begin += projection_->max_rows()) {
    const int64_t count = std::min(projection_->max_rows(), to.extent(0) - begin);
    const FloatRows raw = raw_.rows(count);
    const FloatRows part(to.data() + begin * to.stride(0), {count, to.extent(1)}, {to.stride(0), 1});
    on.read_states(target_, sequence, first + begin, raw);
    projection_->apply(raw, part);
    on.round_to_bf16(part);
  }
}

void StateReader::tell(KvHandle sequence, const StateAsk& ask, StateRows& rows) {
  const int64_t end = std::min(target_.kv().length(sequence), int64_t{ask.first.value()} + ask.count);
  rows.first = ask.first;
  rows.width = static_cast<int32_t>(rows_.columns);
  rows.values.clear();
  for (int64_t at = ask.first.value(); at < end;) {
    const int64_t count = std::min(projection_->max_rows(), end - at);
    read(sequence, at, rows_.rows(count));
    const FloatRows part = projection_->compute().fetch(rows_.rows(count));
    for (int64_t r = 0; r < count; ++r) {
      const auto row = part.row(r);
      if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })) return;
      for (const float x : row) rows.values.push_back(to_bf16(x).bits);
    }
    at += count;
  }
}

}  // namespace outrider
