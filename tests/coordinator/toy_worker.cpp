#include "toy_worker.h"

#include "base/hash.h"
#include "toy_model.h"

namespace outrider {

std::vector<Message> ToyWorker::handle(const Message& message) {
  if (const auto* open = std::get_if<Open>(&message)) {
    sequences_[open->sequence] = Held{open->ids, open->prompt_length};
  } else if (const auto* close = std::get_if<Close>(&message)) {
    sequences_.erase(close->sequence);
  } else if (const auto* propose_message = std::get_if<Propose>(&message)) {
    return propose(*propose_message);
  }
  return {};
}

std::vector<Message> ToyWorker::propose(const Propose& message) {
  const auto at = sequences_.find(message.sequence);
  const int32_t from = message.base.value() - static_cast<int32_t>(message.committed.size());
  if (at == sequences_.end())
    return {Resync{.sequence = message.sequence, .epoch = {}, .committed = {}, .hash = kEmptyPrefixHash}};
  Held& held = at->second;
  if (from > static_cast<int32_t>(held.ids.size()))
    return {Resync{.sequence = message.sequence,
                   .epoch = {},
                   .committed = Position(static_cast<int32_t>(held.ids.size())),
                   .hash = prefix_hash(held.ids)}};
  held.ids.resize(static_cast<size_t>(from));
  held.ids.insert(held.ids.end(), message.committed.begin(), message.committed.end());
  if (message.gamma == 0) return {};
  Draft draft{.sequence = message.sequence,
              .epoch = message.epoch,
              .round = message.round,
              .base = message.base,
              .ids = {},
              .parents = {},
              .prefix_hash = prefix_hash(held.ids),
              .q_kind = message.q_kind,
              .q = {},
              .sent_after_us = message.sent_after_us,
              .ingest_ns = 1000,
              .draft_ns = 5000};
  std::vector<TokenId> ids = held.ids;
  for (int32_t i = 0; i < message.gamma && !draft.eos; ++i) {
    const bool right = std::uniform_real_distribution<>()(*random_) < accuracy_;
    ids.push_back(right ? toy_next(ids) : TokenId(static_cast<int32_t>((*random_)() % kToyVocab)));
    draft.ids.push_back(ids.back());
    if (message.q_kind == QKind::kSparse)
      draft.q.push_back({.ids = {static_cast<uint32_t>(ids.back().value())}, .weights = {1}, .sum = 1});
    if (message.q_kind == QKind::kDense)
      draft.q.push_back({.ids = {},
                         .weights = std::vector<uint32_t>(static_cast<size_t>(vocabulary_), 1),
                         .sum = static_cast<uint64_t>(vocabulary_)});
    draft.eos = ids.back() == kToyEos;
  }
  return {std::move(draft)};
}

}  // namespace outrider
