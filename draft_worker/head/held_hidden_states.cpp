#include "draft_worker/head/held_hidden_states.h"

#include <algorithm>

namespace outrider {

HiddenStateInbox::Arrival HeldHiddenStates::arrival(const Part& part) const {
  if (part.transfer == 0) return HiddenStateInbox::Arrival::kHere;
  if (!inbox_) return HiddenStateInbox::Arrival::kLost;
  return inbox_->arrival(part.transfer, part.skipped + part.count);
}

int64_t HeldHiddenStates::ready() const {
  const auto missing = std::find_if(parts_.begin(), parts_.end(), [this](const Part& part) {
    return arrival(part) != HiddenStateInbox::Arrival::kHere;
  });
  return missing == parts_.end() ? end_ : std::max(first_, missing->first);
}

void HeldHiddenStates::add(const HiddenStateRows& rows) {
  const int64_t known = end_ - rows.first.value(), count = static_cast<int64_t>(rows.ids.size()) - known;
  if (count <= 0) return;
  Part& part = parts_.emplace_back(Part{.first = end_, .count = count});
  end_ += count;
  if (rows.transfer == 0)
    return part.values.assign(rows.values.begin() + known * rows.width, rows.values.end());
  part.transfer = rows.transfer;
  part.skipped = known;
  if (inbox_) inbox_->claim(rows.transfer);
}

void HeldHiddenStates::read(int64_t first, FloatRows to) const {
  const int64_t end = first + to.extent(0), width = to.extent(1);
  CHECK(first >= first_ && end <= end_, "rows [{}, {}) of [{}, {})", first, end, first_, end_);
  for (const Part& part : parts_) {
    const int64_t from = std::max(first, part.first), count = std::min(end, part.end()) - from;
    if (count <= 0) continue;
    const FloatRows some(to.data() + (from - first) * to.stride(0), {count, width}, {to.stride(0), 1});
    if (part.transfer == 0)
      put_rows(*compute_, part.values.data() + (from - part.first) * width, some);
    else
      inbox_->read(part.transfer, part.skipped + from - part.first, some);
  }
}

void HeldHiddenStates::forget_before(int64_t row) {
  first_ = std::clamp(row, first_, end_);
  while (!parts_.empty() && parts_.front().end() <= first_) {
    if (inbox_ && parts_.front().transfer > 0) inbox_->release(parts_.front().transfer);
    parts_.pop_front();
  }
  if (parts_.empty()) return;
  // Keeps only the needed rows of a message.
  Part& part = parts_.front();
  const int64_t gone = first_ - part.first;
  if (part.transfer > 0 || gone <= part.count / 2) return;
  const auto width = static_cast<int64_t>(part.values.size()) / part.count;
  part.values.erase(part.values.begin(), part.values.begin() + gone * width);
  part.values.shrink_to_fit();
  part.first += gone;
  part.count -= gone;
}

bool HeldHiddenStates::forget_lost() {
  const auto lost = std::find_if(parts_.begin(), parts_.end(), [this](const Part& part) {
    return arrival(part) == HiddenStateInbox::Arrival::kLost;
  });
  if (lost == parts_.end()) return false;
  forget_from(std::max(first_, lost->first));
  return true;
}

void HeldHiddenStates::forget_from(int64_t row) {
  while (!parts_.empty() && parts_.back().end() > row) {
    if (inbox_ && parts_.back().transfer > 0) inbox_->release(parts_.back().transfer);
    parts_.pop_back();
  }
  end_ = row;
}

}  // namespace outrider
