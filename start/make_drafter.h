// The drafter of a draft worker.
#pragma once

#include <memory>
#include <vector>

#include "draft_worker/drafter.h"
#include "draft_worker/head/head_drafting.h"
#include "model/draft_head.h"
#include "model/model.h"
#include "start/prepare.h"
#include "start/settings.h"

namespace outrider {

// A drafter for a target with this vocabulary. `model` (with --draft-model), its `head` (if it may send
// hidden states) and `rows` (if rows of q may stay on its device) must outlive it.
std::unique_ptr<Drafter> make_drafter(const ModelSettings& models, const Preparation& prepared, Model* model,
                                      int64_t vocab_size, std::vector<TokenId> eos_ids, const DraftHead* head,
                                      RowSender* rows = nullptr);

// A drafter with the head of --drafter eagle3 and similar ones. `head` must outlive it, and `inbox`, if
// hidden states come from device to device.
std::unique_ptr<Drafter> make_head_worker(const ModelSettings& models, Head& head,
                                          std::vector<TokenId> eos_ids, HiddenStateInbox* inbox = nullptr);

// `head`, if worker 0, 1, ... (device.h) drafts on the host, where it can be used; else null.
const DraftHead* offered_head(const ModelSettings& models, int worker, const DraftHead* head);

}  // namespace outrider
