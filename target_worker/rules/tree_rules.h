// Verification of a draft that is a tree, by the rules that need q: which path is accepted, and which token
// follows it. The rules are written over the few numbers that they ask of a node (TreeRows), so one text
// serves whole rows of text-book doubles and rows that are split over ranks.
//
// A node is an index into the draft, or kTreeRoot. Its row is the pair of distributions of the token after
// it: p of the target, q of the draft. Children stand in the order in which they were drawn, which is part of
// the sample, and may be equal tokens where they were drawn independently.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/draft_tree.h"
#include "base/sampling_params.h"

namespace outrider {

// The residual after a rejection: p becomes max(floor * p, scale * p - weight * q), normalised.
struct Rejection {
  double scale = 1, weight = 1, floor = 0;
};

class TreeRows {
 public:
  virtual ~TreeRows() = default;
  // The probabilities of a child of `node`, in its row as it is now.
  virtual double p(int32_t node, TokenId child) = 0;
  virtual double q(int32_t node, TokenId child) = 0;
  // overlap[i] = sum over the vocabulary of min(q, p / rho[i]).
  virtual void overlaps(int32_t node, std::span<const double> rho, std::span<double> overlap) = 0;
  // Applies it to p and returns the mass before p is normalised. Without mass (rounding) p stays as it was.
  virtual double reject(int32_t node, const Rejection& rejection) = 0;
  // Takes the token out of q, which is normalised again.
  virtual void remove_from_q(int32_t node, TokenId child) = 0;
  // True with probability min(1, a / b), which is decided by u * b < a: never for a = 0. Asked at most once
  // for each node of the draft.
  virtual bool accept(int32_t node, double a, double b) = 0;
  // From p as it is now. Ends the verification.
  virtual TokenId draw(int32_t node) = 0;
};

struct TreeOutcome {
  std::vector<int32_t> path;  // accepted nodes, a child of the root first
  TokenId next;
};

// One of the tree rules. An empty tree draws from the root.
TreeOutcome decide_tree(Rule rule, DraftTreeView tree, TreeRows& rows);

}  // namespace outrider
