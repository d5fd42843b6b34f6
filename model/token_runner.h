// Several tokens in a row drawn where the model computes: each is fed to the next step there, and the host
// waits once. Bit for bit what forward() and DraftSampler give step by step. One thread, the model's.
#pragma once

#include <span>

#include "kernels/sampling/confidence.h"
#include "kernels/sampling/device_row.h"
#include "kernels/sampling/draft_sampler.h"
#include "kernels/sampling/token_look.h"
#include "model/batch.h"

namespace outrider {

struct TokenRun {
  KvHandle sequence;
  std::span<const TokenId> inputs;  // at least one; read first
  DraftStep first;                  // of the token that is drawn after them
  int32_t count = 0;                // tokens to draw; 0: inputs are read, no more
  bool q_stays = false;             // rows of q are asked for by device_row()
  bool guesses = false;             // also what would be drawn after the input before the last, drafted empty
};

class TokenRunner {
 public:
  virtual ~TokenRunner() = default;

  // Whether run() can do these: no more than was planned.
  virtual bool takes(std::span<const TokenRun> runs) = 0;
  // Appends the inputs, and all tokens drawn but the last, to every sequence's KV. kResourceExhausted (no KV
  // blocks) leaves every sequence as it was. `measures`: for confidence().
  virtual Status run(std::span<const TokenRun> runs, bool measures) = 0;

  // Tokens of the last run(), valid until the next. Fewer tokens than asked for: there was no more room, or
  // the logits after them were not finite.
  virtual std::span<const TokenId> tokens(size_t run) const = 0;
  virtual bool failed(size_t run) const = 0;
  virtual TokenId guess(size_t run) const = 0;  // -1: none
  virtual DraftConfidence confidence(size_t run, size_t token) const = 0;
  // Under rules with q: the row that the token was drawn from.
  virtual void read_q(size_t run, size_t token, QRow& q) const = 0;
  // Where that row lies on the device, if it is dense; until the next run.
  virtual DeviceRow device_row(size_t run, size_t token) const = 0;
  // How long reading the inputs and drawing the first tokens took.
  virtual int64_t first_ns() const = 0;

  // Whether look() can do these.
  virtual bool takes(std::span<const TokenLook> looks) = 0;
  // As Model::forward(), and then one look at each row of logits instead of returning the logits.
  virtual Status look(std::span<const BatchSlice> batch, std::span<const TokenLook> looks) = 0;
  // Equal, bit for bit, to DraftSampler::process and TokenGuesser::best; empty where the row is not finite.
  // Valid until the next look().
  virtual std::span<const RankedToken> best(size_t look) const = 0;
};

}  // namespace outrider
