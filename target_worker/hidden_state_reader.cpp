#include "target_worker/hidden_state_reader.h"

#include <algorithm>
#include <cmath>

#include "base/bfloat16.h"

namespace outrider {

HiddenStateReader::HiddenStateReader(Model& target, std::shared_ptr<HiddenStateProjection> projection,
                                     int64_t aux_layers)
    : target_(target),
      projection_(std::move(projection)),
      raw_(projection_->compute().rows(projection_->max_rows(), aux_layers * target.config().hidden_size)),
      rows_(projection_->compute().rows(projection_->max_rows(), projection_->width())) {}

void HiddenStateReader::read(KvHandle sequence, int64_t first, FloatRows to) {
  HeadCompute& on = projection_->compute();
  for (int64_t begin = 0; begin < to.extent(0); begin += projection_->max_rows()) {
    const int64_t count = std::min(projection_->max_rows(), to.extent(0) - begin);
    const FloatRows raw = raw_.rows(count);
    const FloatRows part(to.data() + begin * to.stride(0), {count, to.extent(1)}, {to.stride(0), 1});
    on.read_hidden_states(target_, sequence, first + begin, raw);
    projection_->apply(raw, part);
    on.round_to_bf16(part);
  }
}

void HiddenStateReader::tell(KvHandle sequence, const HiddenStateRequest& ask, HiddenStateLink* link,
                             std::vector<HiddenStateRows>& told) {
  const int64_t end = std::min(target_.kv().length(sequence), int64_t{ask.first.value()} + ask.count);
  HiddenStateRows rows{.sequence = ask.sequence,
                       .first = ask.first,
                       .ids = {},
                       .width = static_cast<int32_t>(rows_.columns),
                       .values = {}};
  if (link && send(sequence, rows, end, *link, told)) return;
  for (int64_t at = ask.first.value(); at < end;) {
    const FloatRows part = rows_.rows(std::min(projection_->max_rows(), end - at));
    read(sequence, at, part);
    const FloatRows here = projection_->compute().fetch(part);
    int64_t finite = 0;
    for (; finite < here.extent(0); ++finite) {
      const auto row = here.row(finite);
      if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })) break;
      for (const float x : row) rows.values.push_back(to_bf16(x).bits);
    }
    at += finite;
    if (finite < here.extent(0)) break;
  }
  if (!rows.values.empty()) told.push_back(std::move(rows));
}

// From device to device, and the host learns only which are finite. False: none were sent.
bool HiddenStateReader::send(KvHandle sequence, HiddenStateRows rows, int64_t end, HiddenStateLink& link,
                             std::vector<HiddenStateRows>& told) {
  const int64_t first = rows.first.value(), count = end - first;
  const int64_t most = std::min<int64_t>(projection_->max_rows(), link.most_rows());
  const int64_t at_once = projection_->max_rows() / most * most;
  if (count <= 0 || !link.takes((count + most - 1) / most)) return false;
  for (int64_t at = 0; at < count; at += rows.count) {
    const int64_t projected = at % at_once;
    if (projected == 0) read(sequence, first + at, rows_.rows(std::min(at_once, count - at)));
    const FloatRows part = rows_.from(projected, std::min(most, count - at));
    rows.first = Position(static_cast<int32_t>(first + at));
    rows.count = static_cast<int32_t>(projection_->compute().narrow(part, link.room()));
    rows.transfer = rows.count > 0 ? link.send(rows.count) : 0;
    if (rows.transfer > 0) told.push_back(rows);
    if (rows.transfer == 0 || rows.count < part.extent(0)) return at > 0 || rows.transfer > 0;
  }
  return true;
}

}  // namespace outrider
