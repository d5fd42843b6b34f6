// What the values of options mean, and which of them go together.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "cluster/acceptance_process.h"
#include "comm/emulated_link.h"
#include "comm/message_check.h"
#include "start/flags/options.h"
#include "transformer/model/shard.h"

namespace outrider {
namespace {

constexpr int32_t kAutoRowBytes = 1024;  // the entropy of a text does not shrink with the vocabulary

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string RunOptions::policy() const {
  if (!gamma_policy.empty()) return gamma_policy;
  return num_speculative_tokens ? fmt::format("fixed:gamma={}", *num_speculative_tokens) : "ewma";
}

Result<Rule> resolve_rule(const std::string& name, float temperature) {
  const bool greedy = temperature < kGreedyTemperature;
  if (name == "auto") return greedy ? Rule::kGreedy : Rule::kInvariant;
  const auto rule = rule_from_name(name);
  if (!rule)
    return invalid_argument(
        fmt::format("--rule {}: choose auto, greedy, invariant, naive, token or block", name));
  if (*rule == Rule::kGreedy && !greedy)
    return invalid_argument(fmt::format(
        "--rule greedy means temperature 0, but the temperature is {}; drop one of them", temperature));
  return greedy ? Rule::kGreedy : *rule;
}

Result<std::pair<TokenId, float>> parse_logit_bias(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon != std::string::npos) {
    const auto id = parse_number<int32_t>(std::string_view(text).substr(0, colon));
    const auto value = parse_number<float>(std::string_view(text).substr(colon + 1));
    if (id && value && *id >= 0 && std::isfinite(*value)) return std::pair{TokenId(*id), *value};
  }
  return invalid_argument(fmt::format("--logit-bias {}: write ID:V, for example 42:-1.5", text));
}

Result<Pipeline> parse_pipeline(const std::string& name) {
  if (name == "lockstep") return Pipeline::kLockstep;
  if (name == "ahead") return Pipeline::kAhead;
  if (name == "fanout") return Pipeline::kFanout;
  if (name == "auto") return Pipeline::kAuto;
  return invalid_argument(fmt::format("--pipeline {}: choose lockstep, ahead, fanout or auto", name));
}

Result<QFormat> parse_q_format(const std::string& text) {
  if (text == "auto") return QFormat{};
  if (text == "dense") return QFormat{.kind = QKind::kDense};
  if (text.starts_with("budget:")) {
    const auto bytes = parse_number<int32_t>(std::string_view(text).substr(7));
    if (bytes && *bytes >= kLeastRowBytes) return QFormat{.kind = QKind::kSparse, .bytes = *bytes};
  }
  if (text == "hidden") return QFormat{.kind = QKind::kHidden};
  if (text.starts_with("hidden:")) {
    const auto bits = parse_number<int32_t>(std::string_view(text).substr(7));
    if (bits && *bits >= kLeastHiddenBits && *bits <= kMostHiddenBits)
      return QFormat{.kind = QKind::kHidden, .bits = *bits};
  }
  return invalid_argument(fmt::format(
      "--q-format {}: choose auto, dense, budget:BYTES with at least {}, or hidden:BITS with {} to {}", text,
      kLeastRowBytes, kLeastHiddenBits, kMostHiddenBits));
}

int32_t QFormat::row_bytes(int64_t vocab_size) const {
  if (kind == QKind::kDense) return 0;
  const int64_t dense_bytes = 2 * vocab_size;
  const int64_t longest = 8 * vocab_size;  // no row takes more, whatever is allowed
  return bytes > 0 ? static_cast<int32_t>(std::min<int64_t>(bytes, longest))
                   : std::max(kAutoRowBytes, static_cast<int32_t>(dense_bytes / 100));
}

// As many as a hundredth of a dense row has room for, beside what else travels with a token; states cost
// little then, and acceptance the more the larger the vocabulary is.
int32_t QFormat::code_bits(int64_t vocab_size, int64_t hidden_size) const {
  constexpr int64_t kLeast = 4, kOtherBytes = 30;
  const int64_t dense_bytes = 2 * vocab_size, room = 8 * (dense_bytes / 100 - kOtherBytes);
  return bits > 0 ? bits
                  : static_cast<int32_t>(std::clamp<int64_t>(room / hidden_size, kLeast, kMostHiddenBits));
}

Result<ModelOptions::Kv> parse_kv_dtype(const std::string& text) {
  if (text == "auto") return ModelOptions::Kv::kAuto;
  if (text == "fp32" || text == "float32") return ModelOptions::Kv::kFloat32;
  if (text == "bf16" || text == "bfloat16") return ModelOptions::Kv::kBFloat16;
  return invalid_argument(fmt::format("--kv-dtype {}: choose auto, fp32 or bf16", text));
}

Result<SamplingParams> sampling_of(const RunOptions& o) {
  ASSIGN_OR_RETURN(const Rule rule, resolve_rule(o.rule, o.temperature));
  SamplingParams params{.rule = rule,
                        .temperature = o.temperature,
                        .top_k = o.top_k,
                        .top_p = o.top_p,
                        .min_p = o.min_p,
                        .repetition_penalty = o.repetition_penalty,
                        .presence_penalty = o.presence_penalty,
                        .frequency_penalty = o.frequency_penalty,
                        .logit_bias = {},
                        .seed = Seed{o.seed},
                        .logprobs = o.logprobs};
  for (const std::string& bias : o.logit_bias) {
    ASSIGN_OR_RETURN(auto parsed, parse_logit_bias(bias));
    params.logit_bias.push_back(parsed);
  }
  return params;
}

namespace {

Status check_pool_options(const RunOptions& o) {
  if (o.num_draft_workers < 1 || o.num_draft_workers > kMaxDraftWorkers)
    return invalid_argument(
        fmt::format("--num-draft-workers {}: must be 1 to {}", o.num_draft_workers, kMaxDraftWorkers));
  if (o.num_draft_workers > 1 && !o.has_drafter())
    return invalid_argument("--num-draft-workers needs --draft-model DIR or --drafter ngram");
  const int waits_for = o.wait_for_draft_workers.value_or(0);
  if (waits_for < 0 || waits_for > kMaxDraftWorkers || (waits_for > 0 && o.listen.empty()))
    return invalid_argument(fmt::format("--wait-for-draft-workers {}: must be 0 to {}, and needs --listen",
                                        waits_for, kMaxDraftWorkers));
  if (o.curve_secret_key.empty() != o.allowed_keys.empty())
    return invalid_argument(
        "--curve-secret-key and --allowed-keys go together: our key, and those of the workers");
  if (!o.curve_secret_key.empty() && o.listen.empty())
    return invalid_argument("--curve-secret-key needs --listen: nothing else here uses keys from files");
  return {};
}

}  // namespace

Status check_drafter_options(const RunOptions& o) {
  if (o.drafter == "ngram" && !o.draft_model.empty())
    return invalid_argument("--drafter ngram and --draft-model exclude each other; drop one");
  if (o.drafter == "model" && o.draft_model.empty())
    return invalid_argument("--drafter model needs --draft-model");
  if (o.threads < 0 || o.threads > 1024)
    return invalid_argument(fmt::format("--threads {}: must be 0 to 1024", o.threads));
  if (o.fanout_budget < 1 || o.fanout_budget > kMaxFanoutBudget)
    return invalid_argument(
        fmt::format("--fanout-budget {}: must be 1 to {}", o.fanout_budget, kMaxFanoutBudget));
  if (o.max_num_seqs < 1 || o.max_num_seqs > 256)
    return invalid_argument(fmt::format("--max-num-seqs {}: must be 1 to 256", o.max_num_seqs));
  if (o.max_model_len < 0) return invalid_argument("--max-model-len must not be negative");
  RETURN_IF_ERROR(parse_kv_dtype(o.kv_dtype).status());
  RETURN_IF_ERROR(parse_q_format(o.q_format).status());
  return parse_weight_format("--draft-weight-format", o.draft_weight_format).status();
}

Status check_options(const RunOptions& o) {
  if (o.model.empty()) return invalid_argument("--model is missing: name a Hugging Face model directory");
  if (!is_supported_tp_size(o.tensor_parallel_size))
    return invalid_argument(
        fmt::format("--tensor-parallel-size {}: must be 1, 2, 4 or 8", o.tensor_parallel_size));
  if (o.draft_tensor_parallel_size != 1)
    return unsupported(
        fmt::format("--draft-tensor-parallel-size {}: a draft model is not split over ranks; use 1",
                    o.draft_tensor_parallel_size));
  RETURN_IF_ERROR(check_drafter_options(o));
  if (o.draft_threads < 0 || o.draft_threads > 1024)
    return invalid_argument(fmt::format("--draft-threads {}: must be 0 to 1024", o.draft_threads));
  if (o.startup_timeout_s < 1) return invalid_argument("--startup-timeout must be at least 1 second");
  const int pinned = o.num_speculative_tokens.value_or(0);
  if (pinned < 0 || pinned > kMaxSpeculativeTokens)
    return invalid_argument(
        fmt::format("--num-speculative-tokens {}: must be 0 to {}", pinned, kMaxSpeculativeTokens));
  RETURN_IF_ERROR(parse_pipeline(o.pipeline).status());
  if (!o.synthetic_acceptance.empty()) {
    RETURN_IF_ERROR(
        AcceptanceProcess::parse(o.synthetic_acceptance, o.seed).status().in("--synthetic-acceptance"));
    if (o.logprobs >= 0)
      return invalid_argument(
          "--synthetic-acceptance: the tokens are not the model's, so --logprobs has no meaning");
  }
  RETURN_IF_ERROR(parse_link_emulation(o.emulate_link).status().in("--emulate-link"));
  if (parse_q_format(o.q_format)->kind == QKind::kHidden && !o.uses_draft_model())
    return invalid_argument(
        fmt::format("--q-format {} needs --draft-model, also for draft workers that join: the target makes q "
                    "with the draft model's output head; name that model, or use --q-format auto",
                    o.q_format));
  RETURN_IF_ERROR(parse_weight_format("--weight-format", o.weight_format).status());
  return check_pool_options(o);
}

}  // namespace outrider
