#include "comm/message_check.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/bfloat16.h"
#include "base/kv_shape.h"
#include "base/printable.h"
#include "comm/codec.h"
#include "comm/q_rows.h"

namespace outrider {
namespace {

constexpr int64_t kMaxVocabulary = static_cast<int64_t>(WireLimits{}.ids);  // the largest row of q
constexpr int64_t kMostTokens = static_cast<int64_t>(WireLimits{}.draft_tokens);
constexpr int64_t kMaxLogprobs = static_cast<int64_t>(WireLimits{}.logprobs);
constexpr int64_t kMaxRowBytes = static_cast<int64_t>(WireLimits{}.frame_bytes);
constexpr int64_t kMaxOutcomes = 4096;
constexpr int64_t kMaxNanoseconds = int64_t{1} << 50;  // a fortnight
constexpr int64_t kMaxPauseMs = int64_t{1} << 40;

Status within(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return malformed(fmt::format("{} is {}, not {} to {}", field, value, least, most));
}

// False for NaN.
Status real_within(const char* field, float value, float least, float most) {
  if (value >= least && value <= most) return {};
  return malformed(fmt::format("{} is {}, not {} to {}", field, value, least, most));
}

Status check_ids(const char* field, std::span<const TokenId> ids, int64_t vocab_size) {
  const auto is_outside = [&](TokenId id) { return id.value() < 0 || id.value() >= vocab_size; };
  const auto at = std::find_if(ids.begin(), ids.end(), is_outside);
  if (at == ids.end()) return {};
  return malformed(fmt::format("{} has id {}, outside a vocabulary of {}", field, at->value(), vocab_size));
}

Status check(const SamplingParams& p, int64_t vocab_size) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr int32_t kMaxK = std::numeric_limits<int32_t>::max();
  RETURN_IF_ERROR(real_within("temperature", p.temperature, 0, kMost));
  RETURN_IF_ERROR(within("top_k", p.top_k, 0, kMaxK));
  RETURN_IF_ERROR(real_within("top_p", p.top_p, std::numeric_limits<float>::denorm_min(), 1));
  RETURN_IF_ERROR(real_within("min_p", p.min_p, 0, 1));
  RETURN_IF_ERROR(real_within("repetition_penalty", p.repetition_penalty,
                              std::numeric_limits<float>::denorm_min(), kMost));
  RETURN_IF_ERROR(real_within("presence_penalty", p.presence_penalty, -kMost, kMost));
  RETURN_IF_ERROR(real_within("frequency_penalty", p.frequency_penalty, -kMost, kMost));
  for (const auto& [id, bias] : p.logit_bias) RETURN_IF_ERROR(check_ids("logit_bias", {&id, 1}, vocab_size));
  RETURN_IF_ERROR(check_ids("ends", p.ends, vocab_size));
  return within("logprobs", p.logprobs, -1, kMaxLogprobs);
}

Status check_fields(const Open& open, const MessageLimits& limits) {
  const auto length = static_cast<int64_t>(open.ids.size());
  RETURN_IF_ERROR(within("the number of ids", length, 1, std::numeric_limits<int32_t>::max()));
  RETURN_IF_ERROR(check_ids("ids", open.ids, limits.vocab_size));
  RETURN_IF_ERROR(within("prompt_length", open.prompt_length, 1, length));
  // The last id is always fed, to get the next token.
  RETURN_IF_ERROR(within("prefix_length", open.prefix_length, 0, length - 1));
  return check(open.sampling, limits.vocab_size).in("sampling");
}

Status check_fields(const TreeShape& shape) {
  const auto listed = static_cast<int64_t>(shape.parents.size());
  RETURN_IF_ERROR(within("the number of parents", listed, 0, kMostTokens));
  std::vector<int32_t> children(listed > 0 ? shape.parents.size() + 1
                                           : 0);  // allocates nothing for most drafts
  for (size_t i = 0; i < shape.parents.size(); ++i) {
    RETURN_IF_ERROR(within("parents", shape.parents[i], kTreeRoot, static_cast<int64_t>(i) - 1));
    RETURN_IF_ERROR(within("the number of children of a node",
                           ++children[static_cast<size_t>(shape.parents[i] + 1)], 1, kMaxTreeChildren));
  }
  constexpr float kMost = std::numeric_limits<float>::max();
  RETURN_IF_ERROR(within("nodes", shape.nodes, 0, kMostTokens));
  RETURN_IF_ERROR(real_within("node_price", shape.node_price, 0, kMost));
  RETURN_IF_ERROR(real_within("pass_price", shape.pass_price, 0, kMost));
  int64_t level = 1, nodes = 0;
  for (const int32_t width : shape.widths) {
    RETURN_IF_ERROR(within("widths", width, 1, kMaxTreeChildren));
    nodes += level *= width;
    RETURN_IF_ERROR(within("the number of nodes of widths", nodes, 1, kMostTokens));
  }
  return {};
}

Status check_fields(const StopRule& rule) {
  constexpr float kMost = std::numeric_limits<float>::max();
  RETURN_IF_ERROR(real_within("threshold", rule.threshold, -kMost, kMost));
  for (const PlaceRule& place : rule.places) {
    RETURN_IF_ERROR(real_within("places.slope", place.slope, -kMost, kMost));
    RETURN_IF_ERROR(real_within("places.offset", place.offset, -kMost, kMost));
  }
  return real_within("scale", rule.scale, 0, kMost);
}

Status check_fields(const TokenSuccessors& successors, const MessageLimits& limits) {
  RETURN_IF_ERROR(check_ids("tokens", successors.tokens, limits.vocab_size));
  for (const TokenId id : successors.best)
    RETURN_IF_ERROR(within("best", id.value(), -1, limits.vocab_size - 1));
  return {};
}

Status check_fields(const Propose& propose, const MessageLimits& limits) {
  RETURN_IF_ERROR(within("base", propose.base.value(), 1, limits.max_context));
  RETURN_IF_ERROR(within("the number of committed ids", static_cast<int64_t>(propose.committed.size()), 0,
                         propose.base.value()));
  RETURN_IF_ERROR(check_ids("committed", propose.committed, limits.vocab_size));
  RETURN_IF_ERROR(within("gamma", propose.gamma, 0, kMostTokens));
  const bool is_sparse = propose.q_kind == QKind::kSparse;
  RETURN_IF_ERROR(within("row_bytes", propose.row_bytes, is_sparse ? kMinRowBytes : 0, kMaxRowBytes));
  const bool is_hidden = propose.q_kind == QKind::kHidden;
  RETURN_IF_ERROR(within("code_bits", propose.code_bits, is_hidden ? kMinHiddenBits : 0, kMaxHiddenBits));
  RETURN_IF_ERROR(within("sent_after_us", propose.sent_after_us, 0, std::numeric_limits<int32_t>::max()));
  RETURN_IF_ERROR(within("fanout", propose.fanout, 0, kMaxOutcomes));
  RETURN_IF_ERROR(check_fields(propose.stop).in("stop"));
  RETURN_IF_ERROR(check_fields(propose.successors, limits).in("successors"));
  RETURN_IF_ERROR(within("text_gamma", propose.text_gamma, 0, kMostTokens));
  RETURN_IF_ERROR(within("pass_ns", propose.pass_ns, 0, kMaxNanoseconds));
  RETURN_IF_ERROR(within("row_ns", propose.row_ns, 0, kMaxNanoseconds));
  return check_fields(propose.tree).in("tree");
}

Status check_fields(const HiddenStateRows& rows, const MessageLimits& limits) {
  if (limits.hidden_state_width == 0) return malformed("came to a worker that reads no states");
  RETURN_IF_ERROR(within("width", rows.width, limits.hidden_state_width, limits.hidden_state_width));
  const auto count = static_cast<int64_t>(rows.ids.size());
  RETURN_IF_ERROR(within("first", rows.first.value(), 0, limits.max_context));
  RETURN_IF_ERROR(within("the number of ids", count, 1, limits.max_context - rows.first.value()));
  RETURN_IF_ERROR(check_ids("ids", rows.ids, limits.vocab_size));
  if (rows.transfer > 0) RETURN_IF_ERROR(within("count", rows.count, count, count));
  const int64_t all = rows.transfer > 0 ? 0 : count * rows.width;
  RETURN_IF_ERROR(within("the number of values", static_cast<int64_t>(rows.values.size()), all, all));
  const auto is_finite = [](uint16_t bits) { return std::isfinite(to_float(bf16{bits})); };
  if (std::all_of(rows.values.begin(), rows.values.end(), is_finite)) return {};
  return malformed("values has a number that is not finite");
}

Status check_fields(const Welcome& welcome) {
  if (!welcome.accepted) return {};
  RETURN_IF_ERROR(within("target.vocab_size", welcome.target.vocab_size, 1, kMaxVocabulary));
  // Some models name ids beyond their vocabulary, which never occur.
  RETURN_IF_ERROR(check_ids("eos_ids", welcome.eos_ids, std::numeric_limits<int32_t>::max()));
  const auto is_address = [](const SliceEndpoint& rank_endpoint) {
    return rank_endpoint.endpoint.starts_with("tcp://") || rank_endpoint.endpoint.starts_with("ipc://");
  };
  const auto& endpoints = welcome.slices.of_rank;
  const auto bad = std::find_if_not(endpoints.begin(), endpoints.end(), is_address);
  if (bad == endpoints.end()) return {};
  return malformed(
      fmt::format("slices has endpoint '{}'; tcp:// and ipc:// are taken", printable(bad->endpoint, 100)));
}

// Checks the rows of q that a plan itself carries. Hidden states and slices are checked where a rank reads
// them.
Status check_q(const PlanEntry& entry, int64_t vocab_size) {
  if (entry.q_kind == QKind::kHidden) return {};
  const QKind whole = entry.q_kind == QKind::kSlices ? QKind::kNone : entry.q_kind;
  return validate_q_rows(whole, entry.q, entry.tree(), vocab_size).in("q");
}

Status check_masks(const PlanEntry& entry, int64_t rows, int64_t vocab_size) {
  int64_t last = -1;
  for (const TokenMask& mask : entry.masks) {
    RETURN_IF_ERROR(within("masks.row", mask.row, last + 1, rows - 1));
    last = mask.row;
    RETURN_IF_ERROR(check_token_set(mask.allowed, vocab_size).in("masks"));
  }
  return {};
}

Status check_fields(const PlanEntry& entry, const MessageLimits& limits) {
  const int64_t base = entry.base.value(), first = entry.first_input.value();
  RETURN_IF_ERROR(within("base", base, 1, limits.max_context));
  RETURN_IF_ERROR(within("first_input", first, 0, base - 1));
  RETURN_IF_ERROR(within("input_count", entry.input_count, 1, base - first));
  const bool samples = first + entry.input_count == base;
  const auto drafted = static_cast<int64_t>(entry.draft.size());
  // The last token has no KV.
  RETURN_IF_ERROR(
      within("the number of drafted tokens", drafted, 0, samples ? limits.max_context - base : 0));
  RETURN_IF_ERROR(check_ids("draft", entry.draft, limits.vocab_size));
  RETURN_IF_ERROR(within("prompt_logprobs", entry.prompt_logprobs, -1, kMaxLogprobs));
  // The rank checks equal siblings, because only it knows the rule.
  const TreeLimits limits_of_tree{.equal_siblings = entry.q_kind != QKind::kNone};
  RETURN_IF_ERROR(check_tree(entry.tree(), limits_of_tree).in("the draft"));
  RETURN_IF_ERROR(within("next_gamma", entry.next_gamma, 0, samples ? kMostTokens : 0));
  RETURN_IF_ERROR(check_fields(entry.next_stop).in("next_stop"));
  RETURN_IF_ERROR(check_fields(entry.next_tree).in("next_tree"));
  if (entry.successors && !samples) return malformed("successors are asked for of a chunk of a prompt");
  RETURN_IF_ERROR(check_masks(entry, samples ? drafted + 1 : 0, limits.vocab_size));
  return check_q(entry, limits.vocab_size);
}

// Whole blocks within the context.
template <class Blocks>
Status check_blocks(const Blocks& blocks, const MessageLimits& limits) {
  const auto name = fmt::format("blocks of sequence {}", blocks.sequence.value());
  RETURN_IF_ERROR(within("first", blocks.first.value(), 0, limits.max_context).in(name));
  RETURN_IF_ERROR(
      within("count", blocks.count, 1, std::max<int64_t>(1, limits.max_context - blocks.first.value()))
          .in(name));
  if (blocks.first.value() % kBlockTokens == 0 && blocks.count % kBlockTokens == 0) return {};
  return malformed(
      fmt::format("{}: first {} and count {} are not whole", name, blocks.first.value(), blocks.count));
}

}  // namespace

Status check(const Welcome& welcome) { return check_fields(welcome).in("welcome"); }

Status check(const Open& open, const MessageLimits& limits) { return check_fields(open, limits).in("open"); }

Status check(const Propose& propose, const MessageLimits& limits) {
  return check_fields(propose, limits).in("propose");
}

Status check(const HiddenStateRows& rows, const MessageLimits& limits) {
  return check_fields(rows, limits).in("state_rows");
}

Status check_from_job(const Message& message, const MessageLimits& limits) {
  if (const auto* open = std::get_if<Open>(&message)) return check(*open, limits);
  if (const auto* propose = std::get_if<Propose>(&message)) return check(*propose, limits);
  if (const auto* rows = std::get_if<HiddenStateRows>(&message)) return check(*rows, limits);
  if (const auto* welcome = std::get_if<Welcome>(&message)) return check(*welcome);
  if (const auto* unload = std::get_if<Unload>(&message))
    return within("pause_ms", unload->pause_ms, 0, kMaxPauseMs).in("rest");
  return {};
}

Status check(const StepPlan& plan, const MessageLimits& limits) {
  for (const PrefixChange& change : plan.prefixes)
    RETURN_IF_ERROR(
        within("length", change.length, change.kind == PrefixChange::Kind::kKeep ? 1 : 0, limits.max_context)
            .in(fmt::format("prefix {}", change.prefix.value())));
  for (const Open& open : plan.opens) {
    RETURN_IF_ERROR(check(open, limits));
    RETURN_IF_ERROR(
        within("the number of ids", static_cast<int64_t>(open.ids.size()), 1, limits.max_context).in("open"));
  }
  for (const PlanEntry& entry : plan.entries)
    RETURN_IF_ERROR(
        check_fields(entry, limits).in(fmt::format("entry of sequence {}", entry.sequence.value())));
  for (const BlockExport& blocks : plan.exports) RETURN_IF_ERROR(check_blocks(blocks, limits));
  for (const BlockImport& blocks : plan.imports) RETURN_IF_ERROR(check_blocks(blocks, limits));
  for (const HiddenStateRequest& ask : plan.hidden_states) {
    const auto name = [&] { return fmt::format("states of sequence {}", ask.sequence.value()); };
    RETURN_IF_ERROR(within("first", ask.first.value(), 0, limits.max_context).in(name()));
    RETURN_IF_ERROR(
        within("count", ask.count, 1, std::max<int64_t>(1, limits.max_context - ask.first.value()))
            .in(name()));
  }
  return {};
}

Status check(const HiddenStateTransfer& transfer, int32_t rows) {
  return within("rows", transfer.rows, 1, rows).in("state_transfer");
}

// Every drafted token has a weight.
Status check(const QTransfer& transfer, int32_t rows) {
  const size_t count = transfer.sums.size();
  RETURN_IF_ERROR(within("the number of sums", static_cast<int64_t>(count), 1, rows).in("q_transfer"));
  if (transfer.drafted.size() != count)
    return malformed(
        fmt::format("q_transfer: drafted has {} weights for {} rows", transfer.drafted.size(), count));
  for (size_t i = 0; i < count; ++i)
    if (transfer.drafted[i] == 0 || transfer.drafted[i] > transfer.sums[i])
      return malformed(
          fmt::format("q_transfer: drafted has weight {} of {}", transfer.drafted[i], transfer.sums[i]));
  return {};
}

}  // namespace outrider
