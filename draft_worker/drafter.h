// A way to guess the next tokens. Implementations keep their own state per sequence; one thread calls them.
#pragma once

#include <memory>

#include "base/status.h"
#include "comm/messages.h"
#include "transformer/model.h"

namespace outrider {

class Drafter {
 public:
  virtual ~Drafter() = default;

  // kResourceExhausted: no room for another sequence. Opening an open sequence starts it afresh.
  virtual Status open(const Open& open) = 0;
  virtual void close(SequenceId sequence) = 0;
  // Rolls back to the committed text, reads what is new of it, and drafts at most propose.gamma tokens; gamma
  // 0 only reads. Fewer tokens (or none) is a valid answer: the context ends, or a block ends at an
  // end-of-sequence token. kNotFound or kMalformed: this worker and the coordinator disagree about the
  // sequence; a Resync puts it right.
  virtual Result<Draft> draft(const Propose& propose) = 0;
  // What is held of a sequence; nothing known is committed 0.
  virtual Resync held(SequenceId sequence) const = 0;
  virtual int32_t max_context() const = 0;
};

struct ModelDrafterOptions {
  int32_t max_sequences = 16;
  std::vector<TokenId> eos_ids;  // a block ends at one of these
  int64_t vocab_size = 0;        // ids that may be drafted; 0: all. Padding that the target lacks is left out
};
// A smaller language model with the target's vocabulary. `model` must outlive the drafter.
std::unique_ptr<Drafter> make_model_drafter(Model& model, ModelDrafterOptions options);

struct NgramDrafterOptions {
  int32_t max_sequences = 1024;
  int32_t max_context = 1 << 20;
  int32_t min_ngram = 1;  // length of the suffix that is looked up, longest first
  int32_t max_ngram = 4;
};
// Prompt lookup (Saxena 2023): what followed the last occurrence of the text's own suffix. No model at all;
// its q is one-hot.
std::unique_ptr<Drafter> make_ngram_drafter(NgramDrafterOptions options);

}  // namespace outrider
