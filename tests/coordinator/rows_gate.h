// A drafter that needs hidden states of the target, without a draft head. A row of the toy target is a hash
// of the text up to its token, so the drafter detects a missing row and a row of another text.
#pragma once

#include <map>
#include <string>

#include "base/hash.h"
#include "draft_worker/drafter.h"
#include "toy_model.h"

namespace outrider {

class RowsGate final : public Drafter {
 public:
  explicit RowsGate(std::unique_ptr<Drafter> inner) : inner_(std::move(inner)) {}

  Status open(const Open& open) override {
    RETURN_IF_ERROR(inner_->open(open));
    Text& text = texts_[open.sequence];
    if (open.ids.size() > text.ids.size() || !std::equal(open.ids.begin(), open.ids.end(), text.ids.begin()))
      text = {.ids = open.ids};
    return {};
  }
  void close(SequenceId sequence) override {
    texts_.erase(sequence);
    inner_->close(sequence);
  }
  Status take(const HiddenStateRows& rows) override {
    const auto at = texts_.find(rows.sequence);
    if (at == texts_.end()) return not_found("sequence is not open");
    Text& text = at->second;
    const auto first = static_cast<size_t>(rows.first.value());
    if (first > text.rows) return unavailable("a gap");
    RETURN_IF_ERROR(extend(text, first + 1, rows.ids));
    for (size_t i = 0; i < rows.ids.size(); ++i)
      if (rows.values[i] != toy_state(prefix_hash(std::span(text.ids).first(first + i + 1))))
        error = "a row of another text";
    text.rows = std::max(text.rows, first + rows.ids.size());
    return {};
  }
  Status begin(const Propose& propose) override {
    const auto at = texts_.find(propose.sequence);
    if (at == texts_.end()) return not_found("sequence is not open");
    Text& text = at->second;
    const auto base = static_cast<size_t>(propose.base.value());
    RETURN_IF_ERROR(extend(text, base - propose.committed.size(), propose.committed));
    if (base < text.ids.size()) return malformed("behind a part of the text");
    const bool is_late = text.round && text.round->round == propose.round && propose.sent_after_us > 0;
    text.round = propose;
    text.round->committed = text.ids;
    if (is_late && text.rows + 1 < base) return unavailable("rows are missing");
    return {};
  }
  bool work(std::vector<DraftAnswer>& answers) override {
    for (auto& [id, text] : texts_) {
      if (!text.round || text.rows + 1 < static_cast<size_t>(text.round->base.value())) continue;
      const Propose propose = *std::exchange(text.round, std::nullopt);
      if (Status status = inner_->begin(propose); !status.ok())
        answers.push_back({.status = std::move(status), .draft = {.sequence = id}});
    }
    return inner_->work(answers);
  }
  void reuse(Draft draft) override { inner_->reuse(std::move(draft)); }
  Resync held(SequenceId sequence) const override {
    const auto at = texts_.find(sequence);
    if (at == texts_.end()) return {.sequence = sequence};
    return {.sequence = sequence,
            .committed = Position(static_cast<int32_t>(at->second.ids.size())),
            .hash = prefix_hash(at->second.ids),
            .hidden_state_rows = static_cast<int32_t>(at->second.rows)};
  }
  int32_t max_context() const override { return inner_->max_context(); }

  std::string error;

 private:
  struct Text {
    std::vector<TokenId> ids;
    size_t rows = 0;
    std::optional<Propose> round;
  };
  static Status extend(Text& text, size_t first, std::span<const TokenId> ids) {
    if (first > text.ids.size()) return malformed("a gap");
    for (size_t i = 0; i < ids.size(); ++i) {
      if (first + i == text.ids.size()) text.ids.push_back(ids[i]);
      if (text.ids[first + i] != ids[i]) return malformed("another text");
    }
    return {};
  }

  const std::unique_ptr<Drafter> inner_;
  std::map<SequenceId, Text> texts_;
};

}  // namespace outrider
