#include "kernels/sampling/penalties.h"

#include <algorithm>
#include <limits>

#include "base/log.h"
#include "kernels/sampling/token_math.h"

namespace outrider {
void apply_penalties(std::span<float> logits, IndexRange range, const SamplingParams& params,
                     const TokenCounts* counts, std::span<const TokenId> drafted) {
  const auto at = [&](TokenId id) -> float& { return logits[static_cast<size_t>(id.value() - range.begin)]; };
  if (needs_counts(params)) {
    CHECK(counts != nullptr, "penalties need the token counts of their sequence");
    const PenaltyFactors factors = penalty_factors(params);
    // A drafted token gets its penalty once, with committed and drafted occurrences together.
    const auto is_drafted = [&](TokenId id) {
      return std::find(drafted.begin(), drafted.end(), id) != drafted.end();
    };
    for (const TokenCounts::Entry& entry : counts->entries())
      if (range.contains(entry.id.value()) && !is_drafted(entry.id))
        at(entry.id) = penalised(at(entry.id), factors, entry.in_prompt, entry.in_output);
    for (size_t i = 0; i < drafted.size(); ++i) {
      const TokenId id = drafted[i];
      if (!range.contains(id.value()) ||
          std::find(drafted.begin(), drafted.begin() + i, id) != drafted.begin() + i)
        continue;
      const TokenCounts::Entry committed = counts->find(id);
      const auto times = static_cast<int32_t>(std::count(drafted.begin(), drafted.end(), id));
      at(id) = penalised(at(id), factors, committed.in_prompt, committed.in_output + times);
    }
  }
  for (const auto& [id, bias] : params.logit_bias)
    if (range.contains(id.value())) at(id) += bias;
}

void forbid_ends(std::span<float> logits, IndexRange range, const SamplingParams& params, Position position) {
  if (position.value() >= params.ends_from) return;
  for (const TokenId id : params.ends)
    if (range.contains(id.value()))
      logits[static_cast<size_t>(id.value() - range.begin)] = -std::numeric_limits<float>::infinity();
}

void forbid_others(std::span<float> logits, IndexRange range, const TokenSet& allowed) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const auto at = [&](int64_t id) -> float& { return logits[static_cast<size_t>(id - range.begin)]; };
  if (allowed.form == TokenSet::Form::kBits) {
    for (int64_t id = range.begin; id < range.end; ++id)
      if ((allowed.bits[static_cast<size_t>(id / 32)] >> (id % 32) & 1) == 0) at(id) = kNever;
    return;
  }
  const auto begin =
      std::lower_bound(allowed.ids.begin(), allowed.ids.end(), TokenId(static_cast<int32_t>(range.begin)));
  const auto end = std::lower_bound(begin, allowed.ids.end(), TokenId(static_cast<int32_t>(range.end)));
  if (allowed.form == TokenSet::Form::kAllBut) {
    for (auto id = begin; id != end; ++id) at(id->value()) = kNever;
    return;
  }
  int64_t next = range.begin;
  for (auto id = begin; id != end; ++id) {
    for (; next < id->value(); ++next) at(next) = kNever;
    next = id->value() + 1;
  }
  for (; next < range.end; ++next) at(next) = kNever;
}

}  // namespace outrider
