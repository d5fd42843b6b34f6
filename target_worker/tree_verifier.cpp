// Verification of trees. The match rules decide the token after a node from that node's row alone, so each
// node of a tree, and the committed text, is asked for as a round of its own that drafted nothing. What the
// target would say along every path is known then; the walk follows what it does say. Trees under the rules
// that need q are decided by themselves.
#include <chrono>
#include <memory>

#include "kernels/sampling/penalties.h"
#include "target_worker/sampled_trees.h"
#include "target_worker/verifier.h"

namespace outrider {
namespace {

class TreeVerifier final : public Verifier {
 public:
  TreeVerifier(std::unique_ptr<Verifier> inner, Collectives& group)
      : inner_(std::move(inner)), sampled_(group) {}

  const std::vector<VerifyResult>& verify(std::span<const VerifyRequest> requests,
                                          const PlacedLogits& logits) override {
    bool any = false;
    for (const VerifyRequest& request : requests) any |= !request.parents.empty();
    if (!any) {
      sampled_requests_.clear();
      const std::vector<VerifyResult>& answers = inner_->verify(requests, logits);
      stats_ = inner_->stats();
      stats_.residual_fallbacks += sampled_.fallbacks();
      return answers;
    }
    ask(requests);
    LogitsShard on_host;
    sampled_ns_ = 0;
    if (!sampled_requests_.empty()) on_host = inner_->on_host(sampled_requests_, logits);
    const std::vector<VerifyResult>& answers = inner_->verify(asked_, logits);
    stats_ = inner_->stats();
    results_.resize(requests.size());
    size_t next = 0;
    for (size_t e = 0; e < requests.size(); ++e) {
      const DraftTreeView tree(requests[e].draft, requests[e].parents);
      if (tree.parents.empty()) {
        results_[e] = answers[next++];
        continue;
      }
      if (is_sampled(requests[e])) {
        const auto start = std::chrono::steady_clock::now();
        sampled_.verify(requests[e], on_host, results_[e]);
        sampled_ns_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
        continue;
      }
      walk(tree, std::span(answers).subspan(next, static_cast<size_t>(tree.size()) + 1), results_[e]);
      next += static_cast<size_t>(tree.size()) + 1;
    }
    stats_.residual_fallbacks += sampled_.fallbacks();
    return results_;
  }

  const VerifierStats& stats() const override { return stats_; }
  bool takes_masks() const override { return inner_->takes_masks(); }
  void rank_rows(std::span<const int64_t> rows, const PlacedLogits& logits) override {
    inner_->rank_rows(rows, logits);
  }
  std::span<const uint64_t> ranked_rows() const override { return inner_->ranked_rows(); }
  std::optional<int64_t> busy_ns() const override {
    const auto of_rows = inner_->busy_ns();
    if (!of_rows || sampled_requests_.empty()) return of_rows;
    return *of_rows + sampled_ns_;
  }

 private:
  static bool is_sampled(const VerifyRequest& request) {
    return !request.parents.empty() && is_tree_rule(effective_rule(*request.sampling));
  }

  void ask(std::span<const VerifyRequest> requests) {
    asked_.clear();
    counts_.clear();
    sampled_requests_.clear();
    for (const VerifyRequest& request : requests) {
      const DraftTreeView tree(request.draft, request.parents);
      if (tree.parents.empty()) {
        asked_.push_back(request);
        continue;
      }
      if (is_sampled(request)) {
        sampled_requests_.push_back(request);
        continue;
      }
      tree_depths(tree, depths_);
      for (int32_t node = kTreeRoot; node < tree.size(); ++node) {
        VerifyRequest& row = asked_.emplace_back(request);
        row.draft = {};
        row.parents = {};
        row.first_row = request.first_row + node + 1;
        row.first_mask_row = request.first_mask_row + node + 1;
        if (node == kTreeRoot) continue;
        row.base = request.base + depths_[static_cast<size_t>(node)];
        if (needs_counts(*request.sampling)) row.counts = &counts_behind(*request.counts, tree, node);
      }
    }
  }

  // Penalties at a node count the tokens of its path, too.
  const TokenCounts& counts_behind(const TokenCounts& committed, DraftTreeView tree, int32_t node) {
    auto& counts = counts_.emplace_back(std::make_unique<TokenCounts>(committed));
    path_to(tree, node, path_);
    for (const int32_t of_path : path_) counts->add_output(tree.id(of_path));
    return *counts;
  }

  // `rows`: of the committed text and of each node. As in a chain, a row that is not finite matters only if
  // the text comes to it, and then the token in front of it is `next`.
  static void walk(DraftTreeView tree, std::span<const VerifyResult> rows, VerifyResult& result) {
    result.path.clear();
    result.logprobs.clear();
    int32_t node = kTreeRoot;
    while (true) {
      const VerifyResult& row = rows[static_cast<size_t>(node + 1)];
      if (node == kTreeRoot) result.status = row.status;
      if (row.status != VerdictStatus::kOk) break;
      result.next = row.next;
      result.logprobs.insert(result.logprobs.end(), row.logprobs.begin(), row.logprobs.end());
      node = child_with(tree, node, row.next);
      if (node == kTreeRoot) break;
      if (rows[static_cast<size_t>(node + 1)].status != VerdictStatus::kOk) break;
      result.path.push_back(node);
    }
    result.accepted_count = static_cast<int>(result.path.size());
  }

  std::unique_ptr<Verifier> inner_;
  SampledTrees sampled_;
  VerifierStats stats_;
  int64_t sampled_ns_ = 0;  // of the last pass
  std::vector<VerifyRequest> asked_, sampled_requests_;
  std::vector<std::unique_ptr<TokenCounts>> counts_;
  std::vector<int32_t> depths_, path_;
  std::vector<VerifyResult> results_;
};

}  // namespace

std::unique_ptr<Verifier> make_tree_verifier(std::unique_ptr<Verifier> inner, Collectives& group) {
  return std::make_unique<TreeVerifier>(std::move(inner), group);
}

}  // namespace outrider
