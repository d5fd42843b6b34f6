// Reused storage of rounds and branches. These come and go with every round, a dense row of q takes four
// bytes for every token of the vocabulary, and each branch has several rows; the allocator would map and
// clear their pages anew each time. Internal to the model drafter.
#pragma once

#include <utility>
#include <vector>

#include "draft_worker/model/strand.h"

namespace outrider {

// An optional whose value keeps its storage: emplace() returns the old value after T::clear().
template <class T>
class Kept {
 public:
  explicit operator bool() const { return has_value_; }
  T& operator*() { return value_; }
  const T& operator*() const { return value_; }
  T* operator->() { return &value_; }
  const T* operator->() const { return &value_; }
  T& emplace() {
    value_.clear();
    has_value_ = true;
    return value_;
  }
  void reset() { has_value_ = false; }

 private:
  T value_;
  bool has_value_ = false;
};

class StrandStorage {
 public:
  // Empty, with reused storage.
  Strand take_strand() { return take(strands_); }
  QRow take_row() { return take(rows_); }
  HiddenRow take_hidden_row() { return take(hidden_rows_); }
  Draft take_draft() { return take(drafts_); }

  void give_back(Strand& strand) {
    if (strand.tokens.capacity() == 0) return;  // moved from
    give_back(strand.q, rows_);
    give_back(strand.hidden, hidden_rows_);
    Strand empty{.base = {},
                 .tokens = std::move(strand.tokens),
                 .q = std::move(strand.q),
                 .hidden = std::move(strand.hidden)};
    empty.tokens.clear();
    strands_.push_back(std::move(empty));
    strand = {};
  }
  void give_back(Draft draft) {
    if (draft.ids.capacity() == 0) return;
    give_back(draft.q, rows_);
    give_back(draft.hidden, hidden_rows_);
    Draft empty;
    empty.ids = std::move(draft.ids);
    empty.ids.clear();
    empty.q = std::move(draft.q);
    empty.hidden = std::move(draft.hidden);
    drafts_.push_back(std::move(empty));
  }

 private:
  template <class T>
  static T take(std::vector<T>& from) {
    if (from.empty()) return {};
    T value = std::move(from.back());
    from.pop_back();
    return value;
  }
  template <class T>
  static void give_back(std::vector<T>& rows, std::vector<T>& to) {
    for (T& row : rows) to.push_back(std::move(row));
    rows.clear();
  }

  std::vector<Strand> strands_;
  std::vector<QRow> rows_;
  std::vector<HiddenRow> hidden_rows_;
  std::vector<Draft> drafts_;
};

}  // namespace outrider
