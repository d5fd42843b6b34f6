// The merge loop of BPE: a linked list of symbols and a heap of candidate pairs, O(n log n) in the word's
// length.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace outrider {

// One symbol of a word being merged; symbols are linked by index, -1 ends the list.
struct Symbol {
  int32_t id;       // -1: no token (SentencePiece may still merge it into one)
  uint32_t begin;   // bytes of the word
  uint32_t length;  // 0: swallowed by its left neighbour
  int32_t previous, next;
};

struct Merge {
  uint32_t rank;  // lower merges first, ties go left to right
  int32_t id;     // of the merged token
};

class MergeList {
 public:
  void clear();
  void append(int32_t id, uint32_t length);  // after the symbols so far
  const std::vector<Symbol>& symbols() const { return symbols_; }

  // `lookup(left, right)` gives the optional<Merge> of two neighbouring symbols.
  template <class Lookup>
  void merge_all(const Lookup& lookup) {
    for (size_t i = 0; i + 1 < symbols_.size(); ++i) consider(static_cast<int32_t>(i), lookup);
    while (!heap_.empty()) {
      const Candidate best = pop();
      if (!is_current(best)) continue;
      join(best);
      const int32_t previous = symbols_[best.left].previous;
      if (previous >= 0) consider(previous, lookup);
      consider(best.left, lookup);
    }
  }

 private:
  struct Candidate {
    uint32_t rank;
    int32_t left;
    int32_t id;
    uint32_t length;  // of both symbols when considered
  };

  template <class Lookup>
  void consider(int32_t left, const Lookup& lookup) {
    const int32_t right = symbols_[left].next;
    if (right < 0) return;
    if (const std::optional<Merge> merge = lookup(symbols_[left], symbols_[right]))
      push({merge->rank, left, merge->id, symbols_[left].length + symbols_[right].length});
  }
  void push(const Candidate& candidate);
  Candidate pop();
  // Symbols only grow, so a pair is the one considered exactly if its length is.
  bool is_current(const Candidate& candidate) const;
  void join(const Candidate& candidate);

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace outrider
