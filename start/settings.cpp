// Meaning of the values of settings, and their allowed combinations.
#include "start/settings.h"

#include <algorithm>
#include <string_view>

#include "base/parse_number.h"
#include "base/shard.h"
#include "cluster/acceptance_process.h"
#include "comm/emulated_link.h"
#include "comm/message_check.h"
#include "start/tree_option.h"

namespace outrider {
namespace {

constexpr int32_t kAutoRowBytes = 1024;  // the entropy of a text does not shrink with the vocabulary

// Checks that no other setting conflicts with a head.
Status check_head_settings(const RoleSettings& settings) {
  const ModelSettings& m = settings.models;
  const SpeculationSettings& s = settings.speculation;
  if (m.head_place != "target" && m.head_place != "worker" && m.head_place != "auto")
    return invalid_argument(fmt::format("--head-place {}: choose target, worker or auto", m.head_place));
  if (!m.head() && m.head_place != "target")
    return invalid_argument(fmt::format(
        "--head-place {} needs a head: --drafter eagle3, eagle, mtp, medusa, hydra or dflash", m.head_place));
  if (m.exits_early() != (m.exit_layer != 0) || m.exit_layer < 0)
    return invalid_argument(
        m.exits_early() ? "--drafter layerskip needs --exit-layer E: draft with the target's first E layers"
                        : fmt::format("--exit-layer {} needs --drafter layerskip", m.exit_layer));
  if (!m.head() && !m.exits_early()) return {};
  const auto refuse = [&](const std::string& flag, const char* why) {
    return unsupported(fmt::format("{} and --drafter {}: {}", flag, m.drafter, why));
  };
  if (s.pipeline.ok() && *s.pipeline != Pipeline::kLockstep)
    return refuse("--pipeline " + s.pipeline.text(),
                  "nothing drafts while the target verifies; use --pipeline lockstep");
  if (m.draft_threads > 0 && m.drafts_beside_target())
    return refuse(fmt::format("--draft-threads {}", m.draft_threads),
                  m.head()
                      ? "a head beside the target has the target's threads; drop it, or use --head-place "
                        "worker or auto"
                      : "it drafts with the target's threads; drop it");
  if (s.record_guesses) return refuse("--record-rounds", "heads do not guess; drop it");
  if (!m.exits_early()) return {};
  if (!m.draft_model.empty())
    return invalid_argument("--drafter layerskip and --draft-model exclude each other; drop one");
  const auto& tree = s.speculative_tree;
  if (tree.ok() && (tree->automatic || !tree->shape.is_chain()))
    return refuse("--speculative-tree " + tree.text(), "it drafts chains; use --speculative-tree off");
  return {};
}

}  // namespace

std::vector<std::string> flags_without_drafter(const ClusterSettings& settings) {
  std::vector<std::string> told;
  if (settings.speculates()) return told;
  const SpeculationSettings &s = settings.speculation, usual;
  const auto tell = [&](bool is_given, const std::string& flag) {
    if (is_given)
      told.push_back(
          flag +
          " changes nothing: there is no drafter; name one with --draft-model DIR or --drafter, or let "
          "draft workers join with --listen");
  };
  if (s.num_speculative_tokens)
    tell(*s.num_speculative_tokens > 0,
         fmt::format("--num-speculative-tokens {}", *s.num_speculative_tokens));
  tell(!s.gamma_policy.empty() && s.gamma_policy != "fixed:gamma=0", "--gamma-policy " + s.gamma_policy);
  tell(s.pipeline != usual.pipeline, "--pipeline " + s.pipeline.text());
  tell(s.speculative_tree != usual.speculative_tree, "--speculative-tree " + s.speculative_tree.text());
  tell(s.q_format != usual.q_format, "--q-format " + s.q_format.text());
  tell(s.unload_drafter_s > 0, fmt::format("--unload-drafter {}", s.unload_drafter_s));
  return told;
}

std::string SpeculationSettings::policy() const {
  if (!gamma_policy.empty()) return gamma_policy;
  if (num_speculative_tokens) return fmt::format("fixed:gamma={}", *num_speculative_tokens);
  const int32_t depth = speculative_tree.ok() ? pinned_depth(*speculative_tree) : 0;
  return depth > 0 ? fmt::format("fixed:gamma={}", depth) : "ewma";
}

Result<WeightFormat> parse_target_format(const std::string& text) {
  return parse_weight_format("--weight-format", text);
}
Result<WeightFormat> parse_draft_format(const std::string& text) {
  return parse_weight_format("--draft-weight-format", text);
}

Result<DeviceChoice> parse_device(const std::string& text) {
  if (text == "cpu" || text == "auto") return DeviceChoice{};
  if (text == "cuda") return DeviceChoice{.kind = Device::Kind::kCuda};
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    const auto index = parse_number<int>(std::string_view(text).substr(kPrefix.size()));
    if (index && *index >= 0) return DeviceChoice{.kind = Device::Kind::kCuda, .index = *index};
  }
  return invalid_argument(fmt::format("--device {}: choose cpu, cuda, cuda:N or auto", text));
}

Result<LinkEmulation> parse_link(const std::string& text) {
  auto link = parse_link_emulation(text);
  if (!link.ok()) return link.status().in("--emulate-link");
  return link;
}

Result<Pipeline> parse_pipeline(const std::string& text) {
  if (text == "lockstep") return Pipeline::kLockstep;
  if (text == "ahead") return Pipeline::kAhead;
  if (text == "fanout") return Pipeline::kFanout;
  if (text == "auto") return Pipeline::kAuto;
  return invalid_argument(fmt::format("--pipeline {}: choose lockstep, ahead, fanout or auto", text));
}

Result<QFormat> parse_q_format(const std::string& text) {
  if (text == "auto") return QFormat{};
  if (text == "dense") return QFormat{.kind = QKind::kDense};
  if (text.starts_with("budget:")) {
    const auto bytes = parse_number<int32_t>(std::string_view(text).substr(7));
    if (bytes && *bytes >= kMinRowBytes) return QFormat{.kind = QKind::kSparse, .bytes = *bytes};
  }
  if (text == "hidden") return QFormat{.kind = QKind::kHidden};
  if (text.starts_with("hidden:")) {
    const auto bits = parse_number<int32_t>(std::string_view(text).substr(7));
    if (bits && *bits >= kMinHiddenBits && *bits <= kMaxHiddenBits)
      return QFormat{.kind = QKind::kHidden, .bits = *bits};
  }
  return invalid_argument(fmt::format(
      "--q-format {}: choose auto, dense, budget:BYTES with at least {}, or hidden:BITS with {} to {}", text,
      kMinRowBytes, kMinHiddenBits, kMaxHiddenBits));
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
                  : static_cast<int32_t>(std::clamp<int64_t>(room / hidden_size, kLeast, kMaxHiddenBits));
}

Result<ModelOptions::Kv> parse_kv_dtype(const std::string& text) {
  if (text == "auto") return ModelOptions::Kv::kAuto;
  if (text == "fp32" || text == "float32") return ModelOptions::Kv::kFloat32;
  if (text == "bf16" || text == "bfloat16") return ModelOptions::Kv::kBFloat16;
  return invalid_argument(fmt::format("--kv-dtype {}: choose auto, fp32 or bf16", text));
}

static Status check_draft_ranks(const ModelSettings& m) {
  const int ranks = m.draft_tensor_parallel_size;
  if (!is_supported_tp_size(ranks))
    return invalid_argument(fmt::format("--draft-tensor-parallel-size {}: must be 1, 2, 4 or 8", ranks));
  if (ranks > 1 && !m.uses_draft_model())
    return invalid_argument(fmt::format(
        "--draft-tensor-parallel-size {} needs a draft model (--draft-model DIR, not a head)", ranks));
  return {};
}

static Status check_draft_vocab(const ModelSettings& m, const SpeculationSettings& s) {
  if (m.draft_vocab_size == 0) return {};
  if (m.draft_vocab_size < 0)
    return invalid_argument(fmt::format("--draft-vocab-size {}: must not be negative", m.draft_vocab_size));
  if (m.draft_vocab_size == 1)
    return invalid_argument(
        "--draft-vocab-size 1: every draft would be the token with id 0; give 0 for all ids, or some "
        "thousands");
  if (!m.uses_draft_model())
    return invalid_argument(fmt::format(
        "--draft-vocab-size {} needs a draft model (--draft-model DIR, not a head)", m.draft_vocab_size));
  RETURN_IF_ERROR(s.q_format.status());
  if (s.q_format->kind == QKind::kHidden)
    return invalid_argument(
        "--draft-vocab-size and --q-format hidden exclude each other: from hidden states the target computes "
        "q over all ids; drop one");
  return {};
}

static Status check_draft_window(const ModelSettings& m) {
  constexpr int kMost = 1 << 24;
  if (m.draft_window < 0 || m.draft_window > kMost)
    return invalid_argument(fmt::format("--draft-window {}: must be 0 to {}", m.draft_window, kMost));
  if (m.sinks() < 0 || m.sinks() > kMost)
    return invalid_argument(fmt::format("--draft-sinks {}: must be 0 to {}", m.sinks(), kMost));
  if (m.draft_sinks && m.draft_window == 0)
    return invalid_argument(fmt::format(
        "--draft-sinks {} is of --draft-window, which is missing; add --draft-window N, or drop it",
        m.sinks()));
  if (m.draft_window > 0 && !m.uses_draft_model())
    return invalid_argument(
        fmt::format("--draft-window {} needs a draft model (--draft-model DIR, not a head)", m.draft_window));
  return {};
}

Status check_drafter_settings(const RoleSettings& settings) {
  const ModelSettings& m = settings.models;
  const SpeculationSettings& s = settings.speculation;
  if (m.drafts_from_text() && !m.draft_model.empty())
    return invalid_argument(
        fmt::format("--drafter {} and --draft-model exclude each other; drop one", m.drafter));
  if (m.draft_history_tokens < 0 || m.draft_history_tokens > kMaxDraftHistoryTokens)
    return invalid_argument(fmt::format("--draft-history-tokens {}: must be 0 to {}", m.draft_history_tokens,
                                        kMaxDraftHistoryTokens));
  if (m.lookahead_ngram < kMinLookaheadNgram || m.lookahead_ngram > kMaxLookaheadNgram)
    return invalid_argument(fmt::format("--lookahead-ngram {}: must be {} to {}", m.lookahead_ngram,
                                        kMinLookaheadNgram, kMaxLookaheadNgram));
  if (m.looks_ahead() && s.speculative_tree == "off")
    return invalid_argument(
        "--drafter lookahead drafts trees, in which its window stands; add --speculative-tree best-first:24");
  if (m.draft_drafter != "off" && !m.uses_draft_model())
    return invalid_argument(fmt::format(
        "--draft-drafter {} needs a draft model (--draft-model DIR, not a head)", m.draft_drafter));
  if ((m.drafter == "model" || m.drafts_from_both() || m.head()) && m.draft_model.empty())
    return invalid_argument(fmt::format("--drafter {} needs --draft-model", m.drafter));
  RETURN_IF_ERROR(check_draft_ranks(m));
  RETURN_IF_ERROR(check_draft_vocab(m, s));
  RETURN_IF_ERROR(check_draft_window(m));
  if (m.threads < 0 || m.threads > 1024)
    return invalid_argument(fmt::format("--threads {}: must be 0 to 1024", m.threads));
  if (s.fanout_budget < 1 || s.fanout_budget > kMaxFanoutBudget)
    return invalid_argument(
        fmt::format("--fanout-budget {}: must be 1 to {}", s.fanout_budget, kMaxFanoutBudget));
  if (m.max_num_seqs < 1 || m.max_num_seqs > kMaxSequences)
    return invalid_argument(fmt::format("--max-num-seqs {}: must be 1 to {}", m.max_num_seqs, kMaxSequences));
  if (m.max_model_len < 0 || m.max_model_len == 1)
    return invalid_argument(
        fmt::format("--max-model-len {}: a context holds 2 tokens at least, one of a prompt and one of its "
                    "text; 0 is the "
                    "model's own",
                    m.max_model_len));
  if (m.kv_cache_tokens != 0 && m.kv_cache_tokens < kMinKvCacheTokens)
    return invalid_argument(
        fmt::format("--kv-cache-tokens {}: must be 0, or at least {}", m.kv_cache_tokens, kMinKvCacheTokens));
  RETURN_IF_ERROR(m.kv_dtype.status());
  RETURN_IF_ERROR(s.q_format.status());
  RETURN_IF_ERROR(m.activation_format.status());
  RETURN_IF_ERROR(s.speculative_tree.status());
  return m.draft_weight_format.status();
}

Status check_settings(const RoleSettings& settings) {
  const ModelSettings& m = settings.models;
  const SpeculationSettings& s = settings.speculation;
  if (m.model.empty())
    return invalid_argument(
        "--model is missing: name a GGUF file, a model directory, or org/name of the Hugging Face cache");
  if (!is_supported_tp_size(m.tensor_parallel_size))
    return invalid_argument(
        fmt::format("--tensor-parallel-size {}: must be 1, 2, 4 or 8", m.tensor_parallel_size));
  if (m.data_parallel_size < 1 || m.data_parallel_size > kMaxTargetGroups)
    return invalid_argument(
        fmt::format("--data-parallel-size {}: must be 1 to {}", m.data_parallel_size, kMaxTargetGroups));
  if (m.prefill_groups < 0 || m.groups() > kMaxTargetGroups)
    return invalid_argument(fmt::format("--prefill-groups {}: must be 0 to {}, beside {} that decode",
                                        m.prefill_groups, kMaxTargetGroups - m.data_parallel_size,
                                        m.data_parallel_size));
  if (m.min_prefill_tokens && *m.min_prefill_tokens < 1)
    return invalid_argument(
        fmt::format("--min-prefill-tokens {}: must be at least 1", *m.min_prefill_tokens));
  if (m.groups() > 1 && s.record_guesses)
    return unsupported(
        fmt::format("--record-rounds and {} target groups: a record is of one group's rounds; use one group",
                    m.groups()));
  if (m.scheduling_policy != "fcfs" && m.scheduling_policy != "priority")
    return invalid_argument(
        fmt::format("--scheduling-policy {}: choose fcfs or priority", m.scheduling_policy));
  RETURN_IF_ERROR(check_drafter_settings(settings));
  if (m.draft_threads < 0 || m.draft_threads > 1024)
    return invalid_argument(fmt::format("--draft-threads {}: must be 0 to 1024", m.draft_threads));
  if (m.startup_timeout_s < 1) return invalid_argument("--startup-timeout must be at least 1 second");
  const int pinned = s.num_speculative_tokens.value_or(0);
  if (pinned < 0 || pinned > kMaxSpeculativeTokens)
    return invalid_argument(
        fmt::format("--num-speculative-tokens {}: must be 0 to {}", pinned, kMaxSpeculativeTokens));
  if (s.num_speculative_tokens && !s.gamma_policy.empty() &&
      s.gamma_policy != fmt::format("fixed:gamma={}", pinned))
    return invalid_argument(fmt::format(
        "--num-speculative-tokens {} and --gamma-policy {} both say how long drafts get; drop one", pinned,
        s.gamma_policy));
  RETURN_IF_ERROR(s.pipeline.status());
  if (!(s.unload_drafter_s >= 0 && s.unload_drafter_s <= kMaxUnloadSeconds))
    return invalid_argument(fmt::format("--unload-drafter {}: must be 0 to {:.0f} seconds",
                                        s.unload_drafter_s, kMaxUnloadSeconds));
  if (!s.synthetic_acceptance.empty())
    RETURN_IF_ERROR(AcceptanceProcess::parse(s.synthetic_acceptance, s.synthetic_seed)
                        .status()
                        .in("--synthetic-acceptance"));
  RETURN_IF_ERROR(check_head_settings(settings));
  RETURN_IF_ERROR(s.emulate_link.status());
  if (s.q_format->kind == QKind::kHidden && !m.uses_draft_model())
    return invalid_argument(
        fmt::format("--q-format {} needs --draft-model, also for draft workers that join: the target makes q "
                    "with the draft model's output head; name that model, or use --q-format auto",
                    s.q_format.text()));
  return m.weight_format.status();
}

static Status check_prefill_tokens(const ClusterSettings& settings) {
  const ModelSettings& m = settings.models;
  if (!m.min_prefill_tokens || m.prefill_groups > 0 ||
      settings.mpi.layout.find("prefill:") != std::string::npos)
    return {};
  return invalid_argument(
      fmt::format("--min-prefill-tokens {} needs groups that only prefill: --prefill-groups N, or "
                  "target=prefill:... in --layout",
                  *m.min_prefill_tokens));
}

// Checks --listen-targets and the settings that belong to it.
static Status check_joining_targets(const ClusterSettings& settings) {
  const PoolSettings& p = settings.pool;
  const int groups = settings.models.data_parallel_size;
  if (p.listen_targets.empty()) {
    if (p.wait_for_target_groups || !p.allowed_target_keys.empty())
      return invalid_argument("--wait-for-target-groups and --allowed-target-keys need --listen-targets");
    return {};
  }
  if (settings.models.prefill_groups > 0)
    return unsupported(
        "--prefill-groups and --listen-targets: groups that join decode what they prefill; start the groups "
        "with the coordinator, in one process or with mpirun");
  const int waits_for = p.wait_for_target_groups.value_or(1);
  if (waits_for < 1 || waits_for > groups)
    return invalid_argument(fmt::format(
        "--wait-for-target-groups {}: must be {}, the groups that may join (--data-parallel-size)", waits_for,
        groups == 1 ? "1" : fmt::format("1 to {}", groups)));
  if (p.target_timeout_s < 0 || p.target_timeout_s > 86400)
    return invalid_argument(fmt::format("--target-timeout {}: must be 0 to 86400", p.target_timeout_s));
  if (p.curve_secret_key.empty() != p.allowed_target_keys.empty())
    return invalid_argument(
        "--curve-secret-key and --allowed-target-keys go together with --listen-targets: our key, and those "
        "of the groups");
  if (settings.models.tensor_parallel_size > 1)
    return invalid_argument(fmt::format(
        "--tensor-parallel-size {} and --listen-targets: each group says itself of how many ranks it is; "
        "give the flag to `outrider target-group`",
        settings.models.tensor_parallel_size));
  if (!settings.speculation.synthetic_acceptance.empty())
    return unsupported(
        "--synthetic-acceptance and --listen-targets: groups that join do not have that flag; drop one");
  return {};
}

Status check_pool_settings(const ClusterSettings& settings) {
  if (settings.mpi.preflight_timeout_s && !settings.mpi.preflight)
    return invalid_argument(
        fmt::format("--preflight-timeout {} is of --preflight, which is missing; add --preflight, or drop it",
                    *settings.mpi.preflight_timeout_s));
  const PoolSettings& p = settings.pool;
  if (p.num_draft_workers < 1 || p.num_draft_workers > kMaxDraftWorkers)
    return invalid_argument(
        fmt::format("--num-draft-workers {}: must be 1 to {}", p.num_draft_workers, kMaxDraftWorkers));
  if (p.num_draft_workers > 1 && !settings.models.has_draft_workers())
    return invalid_argument(
        "--num-draft-workers needs --draft-model DIR or --drafter suffix, and a head --head-place worker or "
        "auto");
  if (settings.models.drafts_beside_target() && !p.listen.empty())
    return unsupported(fmt::format(
        "--listen and --drafter {}: {} drafts beside the target, and draft workers cannot; drop one{}",
        settings.models.drafter, settings.models.head() ? "the head" : "it",
        settings.models.head() ? ", or use --head-place worker or auto" : ""));
  const int waits_for = p.wait_for_draft_workers.value_or(0);
  if (waits_for < 0 || waits_for > kMaxDraftWorkers || (waits_for > 0 && p.listen.empty()))
    return invalid_argument(fmt::format("--wait-for-draft-workers {}: must be 0 to {}, and needs --listen",
                                        waits_for, kMaxDraftWorkers));
  RETURN_IF_ERROR(check_prefill_tokens(settings));
  RETURN_IF_ERROR(check_joining_targets(settings));
  const bool has_key = !p.curve_secret_key.empty();
  if (has_key != (!p.allowed_keys.empty() || !p.allowed_target_keys.empty()) ||
      (has_key && !p.listen.empty() && p.allowed_keys.empty()))
    return invalid_argument(
        p.listen_targets.empty()
            ? "--curve-secret-key and --allowed-keys go together: our key, and those of the workers"
            : "--curve-secret-key goes with --allowed-keys where there is --listen, and with "
              "--allowed-target-keys where there is --listen-targets");
  if (!p.curve_secret_key.empty() && p.listen.empty() && p.listen_targets.empty())
    return invalid_argument("--curve-secret-key needs --listen: nothing else here uses keys from files");
  return {};
}

}  // namespace outrider
