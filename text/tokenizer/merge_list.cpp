#include "text/tokenizer/merge_list.h"

#include <algorithm>
#include <tuple>

namespace outrider {
namespace {

constexpr auto kMergesLater = [](const auto& a, const auto& b) {
  return std::tie(a.rank, a.left) > std::tie(b.rank, b.left);
};

}  // namespace

void MergeList::clear() {
  symbols_.clear();
  heap_.clear();
}

void MergeList::append(int32_t id, uint32_t length) {
  const auto index = static_cast<int32_t>(symbols_.size());
  uint32_t begin = 0;
  if (index > 0) {
    symbols_.back().next = index;
    begin = symbols_.back().begin + symbols_.back().length;
  }
  symbols_.push_back({.id = id, .begin = begin, .length = length, .previous = index - 1, .next = -1});
}

void MergeList::push(const Candidate& candidate) {
  heap_.push_back(candidate);
  std::push_heap(heap_.begin(), heap_.end(), kMergesLater);
}

MergeList::Candidate MergeList::pop() {
  std::pop_heap(heap_.begin(), heap_.end(), kMergesLater);
  const Candidate best = heap_.back();
  heap_.pop_back();
  return best;
}

bool MergeList::is_current(const Candidate& candidate) const {
  const Symbol& left = symbols_[candidate.left];
  return left.length > 0 && left.next >= 0 && left.length + symbols_[left.next].length == candidate.length;
}

void MergeList::join(const Candidate& candidate) {
  Symbol& left = symbols_[candidate.left];
  Symbol& right = symbols_[left.next];
  left.id = candidate.id;
  left.length += right.length;
  left.next = right.next;
  right.length = 0;
  if (left.next >= 0) symbols_[left.next].previous = candidate.left;
}

}  // namespace outrider
