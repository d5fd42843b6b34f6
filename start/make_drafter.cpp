#include "start/make_drafter.h"

#include "draft_worker/text/text_drafter.h"
#include "start/device.h"

namespace outrider {
namespace {

// Looks at the sequence's own text only: otherwise the speed of drafts would reveal the texts of other
// requests.
std::shared_ptr<TextGuesser> make_guesser(const std::string& kind) {
  if (kind == "ngram") return make_ngram_guesser({});
  if (kind == "suffix") return make_suffix_guesser({.history_tokens = 0});
  return nullptr;
}

}  // namespace

std::unique_ptr<Drafter> make_head_worker(const ModelSettings& models, Head& head,
                                          std::vector<TokenId> eos_ids, HiddenStateInbox* inbox) {
  return std::make_unique<HeadDrafting>(
      head, HeadDraftingOptions{
                .max_sequences = models.sequences(), .eos_ids = std::move(eos_ids), .inbox = inbox});
}

std::unique_ptr<Drafter> make_drafter(const ModelSettings& models, const Preparation& prepared, Model* model,
                                      int64_t vocab_size, std::vector<TokenId> eos_ids, const DraftHead* head,
                                      RowSender* rows) {
  if (models.drafter == "suffix")
    return make_suffix_drafter({.max_sequences = models.sequences(),
                                .max_context = static_cast<int32_t>(prepared.max_model_len),
                                .history_tokens = models.draft_history_tokens});
  if (models.looks_ahead())
    return make_lookahead_drafter({.max_sequences = models.sequences(),
                                   .max_context = static_cast<int32_t>(prepared.max_model_len),
                                   .ngram = models.lookahead_ngram});
  if (models.reads_successors())
    return make_recycling_drafter(
        {.max_sequences = models.sequences(), .max_context = static_cast<int32_t>(prepared.max_model_len)});
  if (!models.uses_draft_model())
    return make_ngram_drafter(
        {.max_sequences = models.sequences(), .max_context = static_cast<int32_t>(prepared.max_model_len)});
  auto of_model =
      make_model_drafter(*model, {.max_sequences = models.sequences(),
                                  .kept_texts = models.prefix_caching == "on" ? models.sequences() : 0,
                                  .window = models.draft_window,
                                  .sinks = models.sinks(),
                                  .eos_ids = std::move(eos_ids),
                                  .vocab_size = models.draft_vocab_size > 0
                                                    ? std::min(vocab_size, int64_t{models.draft_vocab_size})
                                                    : vocab_size,
                                  .rows = rows,
                                  .head = head,
                                  .guesser = make_guesser(models.draft_drafter)});
  if (!models.drafts_from_both()) return of_model;
  return make_text_or_model_drafter(std::move(of_model),
                                    make_suffix_guesser({.history_tokens = models.draft_history_tokens}));
}

const DraftHead* offered_head(const ModelSettings& models, int worker, const DraftHead* head) {
  return device_of_worker(models, worker).kind == Device::Kind::kCpu ? head : nullptr;
}

}  // namespace outrider
