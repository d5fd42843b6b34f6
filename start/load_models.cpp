#include "start/load_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/program/progress.h"
#include "comm/device_group.h"
#include "draft_worker/drafter.h"
#include "start/device.h"
#include "start/tree_option.h"

namespace outrider {
namespace {

constexpr int64_t kDraftLogitRows = 32;

Result<ModelOptions> model_options(const ModelSettings& models, const Preparation& prepared,
                                   RoleThreads threads, int sequences) {
  RETURN_IF_ERROR(models.kv_dtype.status());
  const ModelOptions::Kv kv = *models.kv_dtype;
  // Room for a full block of drafts beyond the longest text, and for a partly filled KV block, in every
  // sequence.
  const int64_t per_sequence = prepared.max_model_len + kMaxSpeculativeTokens + kBlockTokens;
  return ModelOptions{.threads = threads.count,
                      .bytes_per_thread = threads.bytes_each,
                      .spin = threads.spin,
                      .max_positions = prepared.max_model_len,
                      .kv_tokens = sequences * per_sequence,
                      .state_sequences = sequences,
                      .kv = kv};
}

// Models of one process share its cores: a measurement beside a load or another measurement is wrong.
struct SharedCores {
  std::mutex mutex;
  std::condition_variable changed;
  int loading = 0;
  bool measuring = false;
};

SharedCores& shared_cores() {
  static SharedCores cores;
  return cores;
}

class LoadingModel {
 public:
  LoadingModel() {
    std::lock_guard lock(shared_cores().mutex);
    ++shared_cores().loading;
  }
  ~LoadingModel() {
    std::lock_guard lock(shared_cores().mutex);
    --shared_cores().loading;
    shared_cores().changed.notify_all();
  }
  LoadingModel(const LoadingModel&) = delete;
  LoadingModel& operator=(const LoadingModel&) = delete;
};

// Held while a model is measured, by the first rank of its group.
class MeasuringTurn {
 public:
  MeasuringTurn() {
    SharedCores& cores = shared_cores();
    std::unique_lock lock(cores.mutex);
    cores.changed.wait(lock, [&] { return cores.loading == 0 && !cores.measuring; });
    cores.measuring = true;
  }
  ~MeasuringTurn() {
    std::lock_guard lock(shared_cores().mutex);
    shared_cores().measuring = false;
    shared_cores().changed.notify_all();
  }
  MeasuringTurn(const MeasuringTurn&) = delete;
  MeasuringTurn& operator=(const MeasuringTurn&) = delete;
};

}  // namespace

std::function<void(const std::string&)> placed(const char* role, bool quiet) {
  if (quiet) return nullptr;
  return
      [role](const std::string& text) { std::fprintf(stderr, "outrider: %s on %s\n", role, text.c_str()); };
}

int target_ranks(const ModelSettings& models) { return models.groups() * models.tensor_parallel_size; }

namespace {

// As the role runs its passes: logits stay on a device where they are used there. Draft models of several
// ranks draw on the host.
bool run_pass(Model& model, std::span<const BatchSlice> batch, bool is_in_place) {
  if (!is_in_place) return model.forward(batch).ok();
  const Result<PlacedLogits> logits = model.forward_in_place(batch);
  if (!logits.ok()) return false;
  if (const auto* on_device = std::get_if<DeviceLogits>(&*logits))
    model.device_group()->wait(on_device->stream);
  return true;
}

}  // namespace

PassTimes warm_up(Model& model, Collectives& group, Role role, bool is_timed) {
  using Nanoseconds = uint64_t;
  constexpr Nanoseconds kFailed = std::numeric_limits<Nanoseconds>::max();
  constexpr size_t kTurns = 10;
  // Rows are settled after 20 ms, once two turns in a row lowered their least time by less than 1/16. In less
  // than 20 ms the machine may have given the core to others.
  constexpr int kSettledTurns = 2;
  constexpr Nanoseconds kLowered = 16, kSettling = 20'000'000;
  constexpr int64_t kPrefillRows = 32, kUsualRows = 5;  // a pass with a usual draft
  constexpr Nanoseconds kFewer = 400'000'000;           // after this time a turn ends behind the usual rows
  constexpr Nanoseconds kOneTurn = 700'000'000;         // after turns of this time no further one begins
  constexpr Nanoseconds kTooLong = 2'000'000'000;       // after such a pass no further one is timed
  std::optional<MeasuringTurn> alone;
  if (group.rank() == 0) alone.emplace();
  group.meet();
  // A target verifies drafts of one sequence and of several; a draft model drafts for one or several.
  std::vector<int64_t> rows =
      role == Role::kTarget ? std::vector<int64_t>{1, 2, 3, 5, 9, 17} : std::vector<int64_t>{1, 5};
  std::erase_if(rows, [&](int64_t r) { return r > model.max_positions(); });
  const std::vector<TokenId> tokens(kPrefillRows, TokenId(0));
  const KvHandle sequence = model.kv().create();
  const bool is_in_place = role == Role::kTarget || group.size() == 1;
  const auto pass = [&](int64_t count, int64_t logit_rows) {
    const BatchSlice slice{.sequence = sequence,
                           .tokens = std::span(tokens).first(static_cast<size_t>(count)),
                           .logit_rows = logit_rows};
    const auto begun = std::chrono::steady_clock::now();
    const bool done = run_pass(model, {&slice, 1}, is_in_place);
    const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - begun;
    Nanoseconds slowest = done ? static_cast<Nanoseconds>(time.count()) : kFailed;
    group.all_reduce_max(std::span(&slowest, 1));
    model.kv().truncate(sequence, 0);
    return slowest;
  };
  // Passes of one row may use another kernel, so both kinds have a first pass that does not count.
  if (!rows.empty() &&
      (std::max(pass(std::min(kUsualRows, rows.back()), 1), pass(1, 1)) >= kTooLong || !is_timed))
    rows.clear();
  // The least time of each number of rows: other programs, cold caches and sleeping threads only add to it.
  std::vector<Nanoseconds> times(rows.size(), kFailed);
  Nanoseconds spent = 0;
  std::vector<int> settled(rows.size());  // turns in a row
  for (size_t turn = 0; turn < kTurns && spent < kOneTurn && !rows.empty(); ++turn)
    for (size_t i = 0; i < rows.size() && (rows[i] <= kUsualRows || spent <= kFewer); ++i) {
      if (settled[i] >= kSettledTurns && spent > kSettling) continue;
      const Nanoseconds time = pass(rows[i], rows[i]);
      settled[i] = time < times[i] - times[i] / kLowered ? 0 : settled[i] + 1;
      times[i] = std::min(times[i], time);
      if (time == kFailed) {
        rows.resize(i);
        break;
      }
      spent += time;
    }
  PassTimes out;
  if (!rows.empty()) out.row_ns = static_cast<int64_t>(std::max<Nanoseconds>(1, times[0]));
  for (size_t i = 1; i < rows.size() && times[i] != kFailed; ++i)
    out.by_rows.push_back(
        {.rows = static_cast<int32_t>(rows[i]),
         .passes = static_cast<float>(static_cast<double>(times[i]) / static_cast<double>(out.row_ns))});
  if (role == Role::kDraft && out.row_ns > 0 && model.max_positions() >= kPrefillRows) {
    constexpr size_t kLeastPrefills = 2;
    constexpr Nanoseconds kPrefills = 50'000'000;  // after this time no further one begins
    Nanoseconds prefill = kFailed, in_prefills = 0;
    for (size_t turn = 0; turn < kLeastPrefills || (turn < kTurns && in_prefills < kPrefills); ++turn) {
      const Nanoseconds time = pass(kPrefillRows, 1);
      prefill = std::min(prefill, time);
      if (time == kFailed) break;
      in_prefills += time;
    }
    if (prefill != kFailed)
      out.prefill_token_ns =
          std::max<int64_t>(1, (static_cast<int64_t>(prefill) - out.row_ns) / kPrefillRows);
  }
  model.kv().release(sequence);
  return out;
}

Result<LoadedModel> load_target(const RoleSettings& settings, const Preparation& prepared,
                                RoleThreads threads, Collectives& group, int target_group, bool is_timed) {
  ASSIGN_OR_RETURN(ModelOptions model_opts,
                   model_options(settings.models, prepared, threads, settings.models.max_num_seqs));
  Progress progress("loading target", group.rank() == 0 && target_group == 0 && !settings.quiet);
  model_opts.device = device_of_worker(settings.models, target_group * group.size() + group.rank());
  model_opts.weight_format = *settings.models.weight_format;
  model_opts.activations = *settings.models.activation_format;
  model_opts.notice = placed("target", settings.quiet);
  model_opts.shard = {group.rank(), group.size()};
  if (settings.models.kv_cache_tokens > 0) model_opts.kv_tokens = settings.models.kv_cache_tokens;
  if (prepared.head && settings.models.head() && group.rank() == 0)
    model_opts.aux_layers = prepared.head->aux_layers;
  model_opts.max_rows = kMaxRowsPerStep;
  model_opts.max_logit_rows = kMaxRowsPerStep;
  if (settings.models.exits_early()) {
    model_opts.exit_layer = settings.models.exit_layer;
    // Several ranks draw on the host, from the logits of all ranks.
    if (group.size() == 1) model_opts.run_sequences = settings.models.max_num_seqs;
  }
  model_opts.progress = [&](int64_t done, int64_t total) { progress.update(done, total); };
  LoadedModel loaded;
  {
    const LoadingModel loading;
    ASSIGN_OR_RETURN(loaded.model, Model::load(settings.models.model, model_opts, group));
  }
  group.meet();  // ranks do not load equally fast, and passes have a deadline
  loaded.pass_times = warm_up(*loaded.model, group, Role::kTarget, is_timed && settings.times_passes);
  return loaded;
}

Result<LoadedModel> load_draft(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                               Collectives& group) {
  const int sequences = settings.models.sequences();
  ASSIGN_OR_RETURN(ModelOptions model_opts, model_options(settings.models, prepared, threads, sequences));
  Progress progress("loading draft", group.rank() == 0 && !settings.quiet);
  model_opts.shard = {group.rank(), group.size()};
  model_opts.device = device_of_worker(settings.models, target_ranks(settings.models) + group.rank());
  if (model_opts.device.kind != Device::Kind::kCpu && settings.models.draft_drafter != "off")
    return unsupported(
        fmt::format("--draft-drafter {} with --device {}: a device draws a draft's tokens in one go; "
                    "drop one of them",
                    settings.models.draft_drafter, settings.models.device.text()));
  model_opts.weight_format = *settings.models.draft_weight_format;
  model_opts.activations = *settings.models.activation_format;
  model_opts.notice = placed("draft", settings.quiet);
  model_opts.max_rows = settings.draft_prefill_rows;
  // Every sequence's next token in one pass, or that of the branches prepared for them.
  model_opts.max_logit_rows = std::max(kDraftLogitRows, int64_t{sequences});
  const int64_t outcomes =
      *settings.speculation.pipeline == Pipeline::kLockstep ? 0 : settings.speculation.fanout_budget;
  // Several ranks draw on the host, from the logits of all ranks.
  if (group.size() == 1) model_opts.run_sequences = runs_at_a_time(sequences, outcomes);
  int64_t branching = outcomes > 0 ? kv_tokens_for_outcomes(outcomes, kMaxSpeculativeTokens) : 0;
  const TreeOptions& tree = *settings.speculation.speculative_tree;
  if (!tree.shape.is_chain())  // each node may have a cache of its own, for one token; no sequence does both
    branching = std::max(branching, kv_tokens_for_outcomes(most_nodes(tree.shape, kMaxTreeNodes), 1));
  // Branches of a few sequences have states; with more, some are computed anew.
  model_opts.state_sequences += std::max(outcomes > 0 ? runs_at_a_time(sequences, outcomes) : 0,
                                         tree.shape.is_chain() ? 0 : most_nodes(tree.shape, kMaxTreeNodes));
  model_opts.kv_tokens += sequences * branching;
  model_opts.max_positions = std::min(prepared.max_model_len, prepared.draft->max_position_embeddings);
  model_opts.stand_in = kDraftStandIn;
  model_opts.output_ids = settings.models.draft_vocab_size;
  model_opts.progress = [&](int64_t done, int64_t total) { progress.update(done, total); };
  LoadedModel loaded;
  {
    const LoadingModel loading;
    ASSIGN_OR_RETURN(loaded.model, Model::load(settings.models.draft_model, model_opts, group));
  }
  if (group.size() == 1)
    loaded.pass_times = warm_up(*loaded.model, group, Role::kDraft, settings.times_passes);
  return loaded;
}

Result<std::shared_ptr<const DraftHead>> load_draft_head(const RoleSettings& settings, IndexRange ids,
                                                         RoleThreads threads) {
  if (settings.speculation.q_format->kind != QKind::kHidden || !settings.models.uses_draft_model())
    return std::shared_ptr<const DraftHead>();
  auto head = DraftHead::load(settings.models.draft_model, ids, threads.count);
  if (!head.ok()) return head.status().in(fmt::format("--q-format {}", settings.speculation.q_format.text()));
  return std::make_shared<const DraftHead>(std::move(head).value());
}

Result<std::shared_ptr<HeadCompute>> head_compute(const RoleSettings& settings, RoleThreads threads,
                                                  Model* target, int target_group,
                                                  std::optional<Device> elsewhere) {
  const ModelSettings& models = settings.models;
  const Device device = elsewhere.value_or(
      device_of_worker(models, target ? target_group * models.tensor_parallel_size : target_ranks(models)));
  if (device.kind == Device::Kind::kCuda) return make_device_compute(device, target);
  return make_host_compute(threads.count, threads.bytes_each);
}

Result<std::unique_ptr<Head>> load_head(const RoleSettings& settings, const Preparation& prepared,
                                        int32_t sequences, std::shared_ptr<HeadCompute> compute) {
  const ModelSettings& models = settings.models;
  const TreeOptions& tree = *settings.speculation.speculative_tree;
  const int64_t per_sequence = prepared.max_model_len + kMaxSpeculativeTokens + kBlockTokens;
  // Nodes whose children were computed may have been replaced by better ones since.
  const int64_t looked = tree.shape.is_chain() ? 0 : 2 * most_nodes(tree.shape, kMaxTreeNodes);
  auto head = Head::load(models.draft_model, models.model,
                         {.kind = *models.head(),
                          .compute = std::move(compute),
                          .max_rows = std::max(settings.draft_prefill_rows, int64_t{sequences}),
                          .max_sequences = sequences,
                          .max_positions = prepared.max_model_len,
                          .kv_tokens = sequences * per_sequence,
                          .tree_nodes = looked,
                          .weight_format = *models.draft_weight_format,
                          .notice = placed("head", settings.quiet)});
  if (!head.ok()) return head.status().in("--draft-model " + models.draft_model);
  return head;
}

}  // namespace outrider
