#include "draft_worker/draft_window.h"

#include <algorithm>

namespace outrider {

Status DraftWindow::advance(Position base, std::span<const TokenId> ids) {
  const auto known = static_cast<int64_t>(committed_.size());
  const int64_t first = base.value() - static_cast<int64_t>(ids.size());
  if (first < 0 || first > known)
    return malformed(
        fmt::format("committed ids [{}, {}) do not join the {} known ones", first, base.value(), known));
  const int64_t overlap = std::min<int64_t>(known - first, static_cast<int64_t>(ids.size()));
  if (base.value() < known || !std::equal(ids.begin(), ids.begin() + overlap, committed_.begin() + first))
    return malformed(
        fmt::format("committed ids [{}, {}) contradict the {} known ones", first, base.value(), known));
  for (TokenId id : ids.subspan(static_cast<size_t>(overlap))) {
    committed_.push_back(id);
    if (skipped_ > 0) read_.push_back(id);
    hash_ = extend_prefix_hash(hash_, id);
  }
  return {};
}

void DraftWindow::skip_to_last(int64_t sinks, int64_t last) {
  const auto length = static_cast<int64_t>(committed_.size());
  CHECK(cached() <= sinks && sinks + last < length, "nothing to skip, or it is in the cache");
  skipped_ = length - sinks - last;
  read_.assign(committed_.begin(), committed_.begin() + sinks);
  read_.insert(read_.end(), committed_.end() - last, committed_.end());
}

int64_t DraftWindow::keep() const {
  const auto text = read();
  const size_t limit = std::min(cached_.size(), text.empty() ? 0 : text.size() - 1);
  const auto end = cached_.begin() + static_cast<ptrdiff_t>(limit);
  return std::mismatch(cached_.begin(), end, text.begin()).first - cached_.begin();
}

}  // namespace outrider
