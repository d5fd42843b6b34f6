#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "draft_worker/draft_window.h"
#include "draft_worker/drafter.h"

namespace outrider {
namespace {

class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(NgramDrafterOptions options) : options_(options) {}

  Status open(const Open& open) override {
    const auto at = windows_.find(open.sequence);
    if (at == windows_.end() && static_cast<int32_t>(windows_.size()) >= options_.max_sequences)
      return resource_exhausted(
          fmt::format("the n-gram drafter holds {} sequences already", windows_.size()));
    if (at != windows_.end() && at->second.knows(open.ids)) return {};
    windows_.insert_or_assign(open.sequence, DraftWindow(open.ids));
    return {};
  }
  void close(SequenceId sequence) override { windows_.erase(sequence); }

  // Looking up costs next to nothing, so it is done at once; nothing is prepared.
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
  Result<Draft> look_up(const Propose& propose) {
    const auto at = windows_.find(propose.sequence);
    if (at == windows_.end()) return not_found("sequence is not open");
    RETURN_IF_ERROR(at->second.advance(propose.base, propose.committed));
    Draft draft{.sequence = propose.sequence,
                .epoch = propose.epoch,
                .round = propose.round,
                .base = propose.base,
                .ids = continuation(at->second.committed(), propose.gamma),
                .prefix_hash = at->second.hash(),
                .q_kind = propose.q_kind == QKind::kNone ? QKind::kNone : QKind::kSparse,
                .sent_after_us = propose.sent_after_us};
    if (draft.q_kind != QKind::kNone)
      for (TokenId id : draft.ids)
        draft.q.push_back({.ids = {static_cast<uint32_t>(id.value())}, .weights = {1}, .sum = 1});
    return draft;
  }

  std::vector<TokenId> continuation(std::span<const TokenId> ids, int32_t gamma) const {
    for (int32_t n = options_.max_ngram; n >= options_.min_ngram; --n) {
      if (static_cast<int64_t>(ids.size()) <= n) continue;
      const auto suffix = ids.last(static_cast<size_t>(n));
      // The latest earlier occurrence: its match may overlap the suffix, but must end before the text does.
      const auto haystack = ids.first(ids.size() - 1);
      const auto found = std::find_end(haystack.begin(), haystack.end(), suffix.begin(), suffix.end());
      if (found == haystack.end()) continue;
      const auto next = ids.subspan(static_cast<size_t>(found - haystack.begin()) + suffix.size());
      const auto count = std::min<size_t>(next.size(), static_cast<size_t>(gamma));
      return {next.begin(), next.begin() + static_cast<ptrdiff_t>(count)};
    }
    return {};
  }

  NgramDrafterOptions options_;
  std::unordered_map<SequenceId, DraftWindow> windows_;
  std::vector<DraftAnswer> done_;  // at most one per sequence
};

}  // namespace

std::unique_ptr<Drafter> make_ngram_drafter(NgramDrafterOptions options) {
  return std::make_unique<NgramDrafter>(options);
}

}  // namespace outrider
