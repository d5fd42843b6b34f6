#include "coordinator/request/constraint.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"

namespace outrider {
namespace {

void shorten(Draft& draft, size_t length, RoundMasks& out) {
  if (draft.ids.size() <= length) return;
  out.cut += static_cast<int32_t>(draft.ids.size() - length);
  draft.ids.resize(length);
  draft.q.resize(std::min(draft.q.size(), length));
  draft.hidden.resize(std::min(draft.hidden.size(), length));
  draft.eos = false;
}

}  // namespace

// State of the walk over a tree's nodes.
struct Constraint::Tree {
  DraftTreeView view;
  bool matches = false;
  std::vector<bool> stays;
  std::vector<int32_t> children;
};

Constraint::Constraint(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)),
      matcher_(grammar_->matcher()),
      bits_(words_of_bits(grammar_->vocab_size())) {}

bool Constraint::commit(TokenId id) {
  if (matcher_->accept(id)) return true;
  status_ = matcher_->error();
  if (status_.ok())
    status_ =
        malformed(fmt::format("token {} does not fit the request's grammar, and was drawn", id.value()));
  return false;
}

bool Constraint::allowed(TokenId id) const {
  const auto v = static_cast<size_t>(id.value());
  return v / 32 < bits_.size() && (bits_[v / 32] >> v % 32 & 1) != 0;
}

TokenMatcher& Constraint::ahead() {
  if (!ahead_) ahead_ = matcher_->clone();
  return *ahead_;
}

// Adds the mask of a row. False: no token may follow, so later rows need no mask.
bool Constraint::add_mask(TokenMatcher& matcher, int32_t row, RoundMasks& out) {
  ++out.computed;
  only_.reset();
  Status allowed = status_.ok() ? matcher.allow(bits_) : status_;
  TokenSet set{.form = TokenSet::Form::kOnly, .ids = {}, .bits = {}};
  if (allowed.ok()) {
    set = token_set_of(bits_, grammar_->vocab_size());
    const bool is_only = set.form == TokenSet::Form::kOnly;
    if (is_only && set.ids.size() == 1) only_ = set.ids.front();
    if (is_only && set.ids.empty())
      allowed = invalid_argument("the grammar allows no token of this vocabulary behind the text so far");
  }
  if (!allowed.ok() && row == 0 && status_.ok()) status_ = allowed;
  if (set.is_all()) return true;
  out.bytes += kMaskBytes + set.bytes();
  out.masks.push_back({.row = row, .allowed = std::move(set)});
  return allowed.ok();
}

void Constraint::settle(Draft& draft, Rule rule, const ConstraintRoom& room, RoundMasks& out) {
  const auto start = std::chrono::steady_clock::now();
  out = {};
  const bool matches = is_match_rule(rule);
  if (draft.parents.empty())
    settle_chain(draft, matches, room, out);
  else
    settle_tree(draft, matches, room, out);
  ahead_.reset();
  out.ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
}

// If the masks have no room, the draft is cut at a position that does not depend on its tokens.
void Constraint::settle_chain(Draft& draft, bool matches, const ConstraintRoom& room, RoundMasks& out) {
  shorten(draft, static_cast<size_t>(std::max(room.rows - 1, 0)), out);
  const size_t margins = draft.margins.size();
  const bool may_cut = draft.q_kind != QKind::kSlices;  // the ranks have rows for all of it
  size_t drafted = 0;
  bool goes_on = add_mask(*matcher_, 0, out);
  if (!goes_on && may_cut) shorten(draft, 0, out);
  while (goes_on && drafted < draft.ids.size()) {
    const bool fits = allowed(draft.ids[drafted]);
    if (!fits || !ahead().accept(draft.ids[drafted])) {
      // A token that fits and is not accepted reached a limit of the library, as it would at its commit.
      out.refused = goes_on = matches && !fits;
      if (may_cut) shorten(draft, drafted + (matches ? 0 : 1), out);
      break;
    }
    ++drafted;
    if (ahead().is_over()) {  // tokens after the end would never be emitted
      if (may_cut) shorten(draft, drafted, out);
      goes_on = false;
      break;
    }
    goes_on = add_mask(ahead(), static_cast<int32_t>(drafted), out);
    if (!goes_on && may_cut) shorten(draft, drafted, out);
  }
  if (margins > 0) draft.margins.resize(std::min(margins, draft.ids.size() + (out.refused ? 1 : 0)));
  if (goes_on && matches) foresee(draft, room, out);
}

// The last mask belongs to the row after the draft. Only a single allowed token is certain. With several, the
// target may choose another spelling, so later tokens are worth less and less.
void Constraint::foresee(Draft& draft, const ConstraintRoom& room, RoundMasks& out) {
  constexpr int kMostGuesses = 4;
  int guesses = 0;
  size_t next = 0;
  foreseen_.clear();
  while (static_cast<int32_t>(draft.ids.size()) < std::min(room.tokens, room.rows - 1)) {
    TokenId id{-1};
    if (only_) {
      id = *only_;
      next = next < foreseen_.size() && foreseen_[next] == id ? next + 1 : foreseen_.size();
    } else {
      if (next == foreseen_.size()) {
        foreseen_.clear();
        next = 0;
        const TokenMatcher& last = ahead_ ? *ahead_ : *matcher_;
        last.foresee(bits_, room.tokens - static_cast<int32_t>(draft.ids.size()), foreseen_);
        if (foreseen_.empty()) return;
      }
      if (++guesses > kMostGuesses) return;
      id = foreseen_[next++];
    }
    if (!allowed(id) || !ahead().accept(id)) return;
    draft.ids.push_back(id);
    draft.eos = false;
    ++out.forced;
    if (ahead().is_over() || !add_mask(ahead(), static_cast<int32_t>(draft.ids.size()), out)) return;
  }
}

void Constraint::settle_tree(Draft& draft, bool matches, const ConstraintRoom& room, RoundMasks& out) {
  const auto nodes = static_cast<int32_t>(draft.ids.size());
  Tree tree{
      .view = draft.tree(), .matches = matches, .stays = std::vector<bool>(draft.ids.size()), .children = {}};
  if (nodes + 1 > room.rows) tree.view = {tree.view.ids.first(0), {}};
  walk(tree, kTreeRoot, *matcher_, out);
  std::sort(out.masks.begin(), out.masks.end(),
            [](const TokenMask& a, const TokenMask& b) { return a.row < b.row; });
  const bool stays_whole =
      std::all_of(tree.stays.begin(), tree.stays.end(), [](bool stays) { return stays; });
  if (stays_whole || (!matches && !tree.view.ids.empty())) return;
  std::vector<int32_t> place(draft.ids.size(), kTreeRoot);
  DraftTree kept;
  for (int32_t node = 0; node < nodes; ++node) {
    const auto at = static_cast<size_t>(node);
    if (!tree.stays[at]) continue;
    place[at] = static_cast<int32_t>(kept.ids.size());
    const int32_t parent = draft.parents[at];
    kept.ids.push_back(draft.ids[at]);
    kept.parents.push_back(parent == kTreeRoot ? kTreeRoot : place[static_cast<size_t>(parent)]);
  }
  for (TokenMask& mask : out.masks)
    if (mask.row > 0) mask.row = place[static_cast<size_t>(mask.row - 1)] + 1;
  out.cut += nodes - static_cast<int32_t>(kept.ids.size());
  draft.ids = std::move(kept.ids);
  draft.parents = std::move(kept.parents);
  if (draft.ids.empty()) draft.q.clear(), draft.hidden.clear();
  draft.margins.clear();
  draft.eos = false;
}

// `matcher` has read the text up to `node`, included.
void Constraint::walk(Tree& tree, int32_t node, TokenMatcher& matcher, RoundMasks& out) {
  if (!add_mask(matcher, node + 1, out)) return;
  const size_t mask =
      out.masks.empty() || out.masks.back().row != node + 1 ? out.masks.size() : out.masks.size() - 1;
  const bool is_free = mask == out.masks.size();  // any token may come
  std::vector<int32_t> children;
  children_of(tree.view, node, children);
  for (const int32_t child : children) {
    const TokenId id = tree.view.id(child);
    if (!(is_free || out.masks[mask].allowed.contains(id))) continue;
    const std::unique_ptr<TokenMatcher> behind = matcher.clone();
    if (!behind->accept(id)) continue;
    tree.stays[static_cast<size_t>(child)] = true;
    if (!behind->is_over()) walk(tree, child, *behind, out);
  }
}

}  // namespace outrider
