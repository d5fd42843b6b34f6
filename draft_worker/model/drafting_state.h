// State shared by the parts of the model drafter: the model, its texts, measurements, and reused storage. One
// thread. Internal to the model drafter.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>

#include "draft_worker/drafter.h"
#include "draft_worker/model/drafted_sequence.h"
#include "draft_worker/model/preparation_policy.h"
#include "draft_worker/model/read_texts.h"
#include "draft_worker/model/strand_storage.h"
#include "model/model.h"

namespace outrider {

struct DraftingState {
  using Clock = std::chrono::steady_clock;

  DraftingState(Model& draft_model, ModelDrafterOptions drafter_options)
      : model(draft_model),
        options(std::move(drafter_options)),
        vocab_size(options.vocab_size > 0 ? std::min(options.vocab_size, model.config().vocab_size)
                                          : model.config().vocab_size),
        texts(model.kv(), static_cast<size_t>(options.kept_texts)) {}

  int64_t ns_since(Clock::time_point start) const { return ns_between(start, options.now()); }
  static int64_t ns_between(Clock::time_point start, Clock::time_point end) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count();
  }
  bool is_end(TokenId token) const {
    return std::find(options.eos_ids.begin(), options.eos_ids.end(), token) != options.eos_ids.end();
  }
  // The number of tokens that can be drafted from `base` on before the context ends.
  int64_t room_behind(const DraftedSequence& s, Position base) const {
    return model.max_positions() - s.window.in_read(base) + 1;
  }

  // Cuts the cache to the first `length` tokens of the text that the model reads.
  void roll_back(DraftedSequence& s, int64_t length) {
    s.window.kept(length);
    model.kv().truncate(s.kv, length);
  }
  void drop_job(DraftedSequence& s) {
    if (s.job) {
      storage.give_back(s.job->strand);
      s.job->tree.drop_forks(model.kv());
    }
    s.job.reset();
  }

  Model& model;
  ModelDrafterOptions options;
  int64_t vocab_size;  // ids that may be drafted
  std::map<SequenceId, DraftedSequence> sequences;
  ReadTexts texts;           // of sequences that were closed
  StrandStorage storage;     // of rounds and branches
  PreparationPolicy policy;  // of Pipeline::kAuto
  // Since the last answer: prepared tokens that were not used, and the time of preparing.
  int32_t wasted_tokens = 0;
  int64_t prepare_ns = 0;
};

}  // namespace outrider
