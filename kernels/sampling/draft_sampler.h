// The draft worker's side: one row of draft logits to one draft token and, for the rules that need it, the
// distribution q that the token was really drawn from, as the integers that travel.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/q_row.h"
#include "comm/collectives.h"
#include "kernels/sampling/filters.h"
#include "kernels/sampling/token_counts.h"

namespace outrider {

// Where in its sequence a row stands.
struct DraftStep {
  const SamplingParams* sampling = nullptr;
  const TokenCounts* counts = nullptr;  // committed tokens; may be null unless there are penalties
  std::span<const TokenId> drafted;     // the tokens of this draft before this one
  Position position{};                  // of the token to draw
  Round round{};
  int32_t row_bytes = 0;  // token and block rules: of q on the wire, sparse; 0: dense
};

class DraftSampler {
 public:
  // `single` is a group of one rank (a draft model is not split). It must outlive the sampler.
  explicit DraftSampler(Collectives& single) : filters_(single) {}

  // The token for raw logits, which are overwritten; only ids below logits.size() can come out, so pass no
  // padding that the target lacks. Under greedy and naive the argmax, under invariant the argmax with the
  // shared noise (q is left alone), under token and block a draw from q. Empty: the row holds NaN or +inf, or
  // nothing above -inf.
  std::optional<TokenId> sample(std::span<float> logits, const DraftStep& step, QRow* q);
  // Only q, for rules that need it, of a row of which several tokens will be drawn. False: as empty above.
  bool weigh(std::span<float> logits, const DraftStep& step, QRow& q);
  // Only processes the logits (temperature, filters, mask) and returns the best token. Empty as for sample().
  std::optional<RankedToken> process(std::span<float> logits, const DraftStep& step);
  // The largest processed logit of the last call.
  float max() const { return max_; }

 private:
  ShardFilters filters_;
  std::vector<float> chunk_max_;
  float max_ = 0;
  std::vector<uint32_t> scratch_;
};

// round(exp(l - max) * 2^31) of every id, of which 11 significant bits are kept so that it travels in two
// bytes; or, if `row_bytes` is not 0, the sparse row made of that (compact_row.h). `scratch` is reused.
void make_integer_weights(std::span<const float> processed, float max, int64_t row_bytes, QRow& q,
                          std::vector<uint32_t>& scratch);
// From those integers and 64 uniform bits.
TokenId draw_token(const QRow& q, uint64_t bits);
// A draw once these tokens, each named once, are taken out of q. Empty: nothing is left.
std::optional<TokenId> draw_token_without(const QRow& q, std::span<const TokenId> gone, uint64_t bits);

}  // namespace outrider
