#include "draft_worker/text/text_drafter.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "draft_worker/draft_window.h"
#include "draft_worker/text/found_length.h"

namespace outrider {
namespace {

class TextDrafter final : public Drafter {
 public:
  TextDrafter(std::shared_ptr<TextGuesser> guesser, TextDrafterOptions options)
      : guesser_(std::move(guesser)), options_(options) {}

  Status open(const Open& open) override {
    const auto at = windows_.find(open.sequence);
    if (at == windows_.end() && static_cast<int32_t>(windows_.size()) >= options_.max_sequences)
      return resource_exhausted(
          fmt::format("this drafter without a model holds {} sequences already", windows_.size()));
    if (at != windows_.end() && at->second.knows(open.ids)) return {};
    if (at != windows_.end()) guesser_->close(open.sequence);
    windows_.insert_or_assign(open.sequence, DraftWindow(open.ids));
    guesser_->open(open.sequence, open.ids, open.prompt_length, open.salt != 0);
    return {};
  }
  void close(SequenceId sequence) override {
    if (windows_.erase(sequence) > 0) guesser_->close(sequence);
  }

  Status begin(const Propose& propose) override {
    const bool repeated = std::any_of(done_.begin(), done_.end(), [&](const DraftAnswer& answer) {
      return answer.draft.sequence == propose.sequence && answer.draft.round == propose.round;
    });
    if (repeated) return {};
    ASSIGN_OR_RETURN(Draft draft, look_up(propose));
    std::erase_if(done_, [&](const DraftAnswer& old) { return old.draft.sequence == propose.sequence; });
    done_.push_back({.status = {}, .draft = std::move(draft), .wanted = propose.gamma > 0});
    return {};
  }
  bool work(std::vector<DraftAnswer>& answers) override {
    const bool any = !done_.empty();
    std::move(done_.begin(), done_.end(), std::back_inserter(answers));
    done_.clear();
    return any;
  }

  Resync held(SequenceId sequence) const override {
    const auto at = windows_.find(sequence);
    if (at == windows_.end()) return {.sequence = sequence};
    return {.sequence = sequence,
            .committed = Position(static_cast<int32_t>(at->second.committed().size())),
            .hash = at->second.hash()};
  }
  int32_t max_context() const override { return options_.max_context; }

 private:
  TreeShape suited(const TreeShape& shape) const {
    if (shape.parents.empty() || guesser_->ranks_siblings()) return shape;
    return {.nodes = static_cast<int32_t>(shape.parents.size())};
  }

  Result<Draft> look_up(const Propose& propose) {
    const auto at = windows_.find(propose.sequence);
    if (at == windows_.end()) return not_found("sequence is not open");
    DraftWindow& window = at->second;
    RETURN_IF_ERROR(window.advance(propose.base, propose.committed));
    guesser_->extend(propose.sequence, window.committed());
    guesser_->learn(propose.sequence, propose.successors);
    Draft draft{.sequence = propose.sequence,
                .epoch = propose.epoch,
                .round = propose.round,
                .base = propose.base,
                .prefix_hash = window.hash(),
                .q_kind = propose.q_kind == QKind::kNone ? QKind::kNone : QKind::kSparse,
                .sent_after_us = propose.sent_after_us};
    // This drafter draws nothing, so the rules that need q get a chain.
    const bool branches = !propose.tree.is_chain() && propose.q_kind == QKind::kNone;
    if (propose.gamma > 0 && !branches) {
      guesser_->guess(propose.sequence, window.committed(), propose.gamma, draft.ids);
      if (const auto chances = guesser_->chances(propose.sequence); propose.pass_ns > 0 && !chances.empty())
        draft.ids.resize(std::min(
            draft.ids.size(),
            static_cast<size_t>(best_found_length(chances, propose.pass_ns, propose.row_ns).tokens)));
    } else if (propose.gamma > 0) {
      DraftTree tree =
          guesser_->guess_tree(propose.sequence, window.committed(), suited(propose.tree), propose.gamma);
      draft.ids.swap(tree.ids);
      draft.parents.swap(tree.parents);
    }
    if (draft.q_kind != QKind::kNone)
      for (TokenId id : draft.ids)
        draft.q.push_back({.ids = {static_cast<uint32_t>(id.value())}, .weights = {1}, .sum = 1});
    return draft;
  }

  const std::shared_ptr<TextGuesser> guesser_;
  const TextDrafterOptions options_;
  std::unordered_map<SequenceId, DraftWindow> windows_;
  std::vector<DraftAnswer> done_;  // at most one per sequence
};

}  // namespace

std::unique_ptr<Drafter> make_text_drafter(std::shared_ptr<TextGuesser> guesser, TextDrafterOptions options) {
  return std::make_unique<TextDrafter>(std::move(guesser), options);
}

}  // namespace outrider
