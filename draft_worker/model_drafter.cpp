#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "draft_worker/draft_window.h"
#include "draft_worker/drafter.h"
#include "transformer/sampling/draft_sampler.h"
#include "transformer/sampling/penalties.h"

namespace outrider {
namespace {

int64_t ns_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
      .count();
}

class ModelDrafter final : public Drafter {
 public:
  ModelDrafter(Model& model, ModelDrafterOptions options)
      : model_(model), options_(std::move(options)), single_(make_single_collectives()), sampler_(*single_) {
    const int64_t all = model.config().vocab_size;
    vocab_size_ = options_.vocab_size > 0 ? std::min(options_.vocab_size, all) : all;
  }

  Status open(const Open& open) override {
    close(open.sequence);
    if (static_cast<int32_t>(sequences_.size()) >= options_.max_sequences)
      return resource_exhausted(fmt::format("the drafter holds {} sequences already", sequences_.size()));
    Sequence s{.window = DraftWindow(open.ids), .sampling = open.sampling, .kv = model_.kv().create()};
    if (needs_counts(s.sampling)) {
      const auto prompt = static_cast<size_t>(open.prompt_length);
      s.counts.add_prompt(std::span(open.ids).first(prompt));
      s.counts.add_output(std::span(open.ids).subspan(prompt));
    }
    sequences_.emplace(open.sequence, std::move(s));
    return {};
  }

  void close(SequenceId sequence) override {
    const auto at = sequences_.find(sequence);
    if (at == sequences_.end()) return;
    model_.kv().release(at->second.kv);
    sequences_.erase(at);
  }

  Result<Draft> draft(const Propose& propose) override {
    const auto at = sequences_.find(propose.sequence);
    if (at == sequences_.end()) return not_found("sequence is not open");
    Sequence& s = at->second;
    const auto known = s.window.committed().size();
    RETURN_IF_ERROR(s.window.advance(propose.base, propose.committed));
    if (needs_counts(s.sampling)) s.counts.add_output(s.window.committed().subspan(known));
    roll_back(s);

    Draft draft{.sequence = propose.sequence,
                .epoch = propose.epoch,
                .round = propose.round,
                .base = propose.base,
                .prefix_hash = s.window.hash(),
                .q_kind = propose.q_kind};
    const int64_t room =
        model_.max_positions() - propose.base.value() + 1;  // the last drafted token needs no KV
    const auto gamma = static_cast<int32_t>(std::min<int64_t>(propose.gamma, room));
    auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(ingest(s, gamma > 0));
    draft.ingest_ns = ns_since(start);
    start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(extend(s, propose, gamma, draft));
    draft.draft_ns = ns_since(start);
    return draft;
  }

  Resync held(SequenceId sequence) const override {
    const auto at = sequences_.find(sequence);
    if (at == sequences_.end()) return {.sequence = sequence};
    const DraftWindow& window = at->second.window;
    return {.sequence = sequence,
            .committed = Position(static_cast<int32_t>(window.committed().size())),
            .hash = window.hash()};
  }
  int32_t max_context() const override { return static_cast<int32_t>(model_.max_positions()); }

 private:
  struct Sequence {
    DraftWindow window;
    SamplingParams sampling;
    TokenCounts counts;  // kept only when penalties need it
    KvHandle kv;
  };

  void roll_back(Sequence& s) {
    const int64_t keep = s.window.keep();
    s.window.kept(keep);
    model_.kv().truncate(s.kv, keep);
  }

  // Feeds what is pending, in chunks; the last token only when its logits are wanted. They stay in logits_.
  Status ingest(Sequence& s, bool want_logits) {
    auto pending = s.window.pending();
    if (!want_logits && !pending.empty()) pending = pending.first(pending.size() - 1);
    // A text longer than this model's context is not read further; the coordinator will not ask for drafts of
    // it.
    pending = pending.first(
        std::min<size_t>(pending.size(), static_cast<size_t>(model_.max_positions() - s.window.cached())));
    while (!pending.empty()) {
      const auto part =
          pending.first(std::min<size_t>(pending.size(), static_cast<size_t>(model_.max_rows())));
      pending = pending.subspan(part.size());
      RETURN_IF_ERROR(feed(s, part, want_logits && pending.empty()));
    }
    return {};
  }

  Status feed(Sequence& s, std::span<const TokenId> ids, bool want_logits) {
    const BatchSlice slice{.sequence = s.kv, .tokens = ids, .logit_rows = want_logits ? 1 : 0};
    ASSIGN_OR_RETURN(logits_, model_.forward({&slice, 1}));
    s.window.fed(ids);
    return {};
  }

  // Draws token i of the block from the logits of the token before it.
  Status extend(Sequence& s, const Propose& propose, int32_t gamma, Draft& draft) {
    for (int32_t i = 0; i < gamma; ++i) {
      if (i > 0) {
        const TokenId last = draft.ids.back();
        RETURN_IF_ERROR(feed(s, {&last, 1}, true));
      }
      const DraftStep step{.sampling = &s.sampling,
                           .counts = &s.counts,
                           .drafted = draft.ids,
                           .position = propose.base + i,
                           .round = propose.round,
                           .sparse_m = propose.q_kind == QKind::kSparse ? propose.sparse_m : 0};
      const auto row = logits_.logits.row(0).first(static_cast<size_t>(vocab_size_));
      const auto token = sampler_.sample(row, step, propose.q_kind == QKind::kNone ? nullptr : &q_);
      if (!token)
        return malformed(
            fmt::format("the draft model gave non-finite logits at position {}", step.position.value()));
      draft.ids.push_back(*token);
      if (propose.q_kind != QKind::kNone)
        draft.q.push_back({.ids = q_.ids, .weights = q_.weights, .sum = q_.sum});
      if (std::find(options_.eos_ids.begin(), options_.eos_ids.end(), *token) != options_.eos_ids.end()) {
        draft.eos = true;  // a stopping time: it looks at tokens that are sent
        break;
      }
    }
    return {};
  }

  Model& model_;
  ModelDrafterOptions options_;
  std::unique_ptr<Collectives> single_;
  DraftSampler sampler_;
  int64_t vocab_size_ = 0;
  LogitsShard logits_;
  IntegerWeights q_;
  std::unordered_map<SequenceId, Sequence> sequences_;
};

}  // namespace

std::unique_ptr<Drafter> make_model_drafter(Model& model, ModelDrafterOptions options) {
  return std::make_unique<ModelDrafter>(model, std::move(options));
}

}  // namespace outrider
