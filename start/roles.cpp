#include "start/roles.h"
#include "heads/early_exit_drafter.h"

#include <spdlog/spdlog.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <random>

#include "base/program/progress.h"
#include "base/threads.h"
#include "cluster/acceptance_process.h"
#include "comm/emulated_link.h"
#include "draft_worker/draft_worker.h"
#include "draft_worker/text_drafter.h"
#include "start/device.h"
#include "start/draft_ranks.h"
#include "start/row_links.h"
#include "start/tree_option.h"
#include "target_worker/target_worker.h"

namespace outrider {
namespace {

constexpr int32_t kMaxRowsPerStep = 512;
constexpr int32_t kPrefillChunk = 256;
constexpr int64_t kDraftPrefillRows = 256;
constexpr int64_t kDraftLogitRows = 32;
// Longer than the coordinator takes from a result to the next plan.
constexpr std::chrono::microseconds kBetweenPlans{200};

Result<ModelOptions> model_options(const ModelSettings& models, const Preparation& prepared,
                                   RoleThreads threads, int sequences) {
  ASSIGN_OR_RETURN(const ModelOptions::Kv kv, parse_kv_dtype(models.kv_dtype));
  // Room for a full block of drafts beyond the longest text, and for a partly filled KV block, in every
  // sequence.
  const int64_t per_sequence = prepared.max_model_len + kMaxSpeculativeTokens + kBlockTokens;
  return ModelOptions{.threads = threads.count,
                      .bytes_per_thread = threads.bytes_each,
                      .spin = threads.spin,
                      .max_positions = prepared.max_model_len,
                      .kv_tokens = sequences * per_sequence,
                      .kv = kv};
}

// In front of the drafters, where workers take devices in turn.
int target_ranks(const ModelSettings& models) {
  return models.data_parallel_size * models.tensor_parallel_size;
}

// Tells on standard error what a device is asked for.
std::function<void(const std::string&)> placed(const char* role, bool quiet) {
  if (quiet) return nullptr;
  return
      [role](const std::string& text) { std::fprintf(stderr, "outrider: %s on %s\n", role, text.c_str()); };
}

// Tells the coordinator, so that requests end at once and not at a deadline.
Status report(Transport* transport, Status status) {
  if (!status.ok() && transport) (void)transport->send(kCoordinatorPeer, Failure{status.message()});
  return status;
}

// Empty: rows come to the door.
RowLinks links_of_rank(const ModelSettings& models, const Preparation& prepared, int rank,
                       const SliceDoors& doors) {
  if (!ranks_have_links(doors)) return {};
  auto links = make_links(device_of_worker(models, rank), doors, prepared.target_info.vocab_size, rank,
                          models.max_num_seqs + 1);
  if (links.ok()) return std::move(links).value();
  spdlog::warn("rows of q will not come from device to device: {}", links.status().message());
  return {};
}

Result<StateDrafterOptions> state_drafter_options(const RoleSettings& settings, const Preparation& prepared) {
  ASSIGN_OR_RETURN(const QFormat q, parse_q_format(settings.speculation.q_format));
  const bool ends = settings.speculation.synthetic_acceptance.empty();
  return StateDrafterOptions{.max_sequences = settings.models.max_num_seqs,
                             .eos_ids = ends ? prepared.target.eos : std::vector<TokenId>(),
                             .q_kind = q.kind == QKind::kDense ? QKind::kDense : QKind::kSparse,
                             .row_bytes = q.row_bytes(prepared.target.vocab_size)};
}

// The head that drafts beside the target, on its leader.
Result<std::shared_ptr<StateDrafter>> load_state_drafter(const RoleSettings& settings,
                                                         const Preparation& prepared, RoleThreads threads,
                                                         Model& target) {
  ASSIGN_OR_RETURN(auto options, state_drafter_options(settings, prepared));
  ASSIGN_OR_RETURN(auto head, load_head(settings, prepared, threads, settings.models.max_num_seqs));
  return std::make_shared<StateDrafter>(target, std::move(head), std::move(options));
}

// What tells a head at a draft worker the target's states, on the leader: the head's projection.
Result<std::shared_ptr<StateReader>> load_state_reader(const RoleSettings& settings,
                                                       const Preparation& prepared, RoleThreads threads,
                                                       Model& target) {
  const ModelSettings& models = settings.models;
  ASSIGN_OR_RETURN(const WeightFormat format,
                   parse_weight_format("--draft-weight-format", models.draft_weight_format));
  auto projection = StateProjection::load(
      models.draft_model, models.model, *prepared.head, prepared.target,
      {.threads = threads.count, .bytes_per_thread = threads.bytes_each, .weight_format = format});
  if (!projection.ok()) return projection.status().in("--draft-model " + models.draft_model);
  return std::make_shared<StateReader>(target, std::move(projection).value(),
                                       static_cast<int64_t>(prepared.head->taps.size()), kDraftPrefillRows);
}

// Where the head of the run drafts, as far as a target rank has to do with it.
Status add_head(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                Collectives& group, Model& model, TargetOptions& target) {
  const bool leads = group.rank() == 0;
  if (settings.models.exits_early()) {
    target.own_drafter = prepared.draft_info.fingerprint;
    ASSIGN_OR_RETURN(const StateDrafterOptions options, state_drafter_options(settings, prepared));
    target.drafter = std::make_shared<StateDrafter>(
        std::make_unique<EarlyExitDrafter>(
            model, group, settings.models.exit_layer,
            HeadDrafterOptions{.max_sequences = options.max_sequences, .eos_ids = options.eos_ids}),
        options);
    return {};
  }
  if (!prepared.head || !settings.models.head()) return {};
  if (settings.models.is_head_beside_target()) {
    target.own_drafter = prepared.draft_info.fingerprint;
    if (leads) {
      ASSIGN_OR_RETURN(target.drafter, load_state_drafter(settings, prepared, threads, model));
    }
  }
  if (!settings.models.is_head_at_workers()) return {};
  target.state_head = prepared.state_head;
  target.state_width = static_cast<int32_t>(prepared.head->layer.hidden_size);
  if (!leads) return {};
  ASSIGN_OR_RETURN(target.states, load_state_reader(settings, prepared, threads, model));
  return {};
}

Status serve_target(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                    Collectives& group, Transport* transport, Loaded loaded, const Lend& lend,
                    OpenSliceDoor door, int target_group, const JoinedLife& life = {}) {
  const IndexRange ids =
      vocab_range(prepared.target_info.vocab_size, {.tp_rank = group.rank(), .tp_size = group.size()});
  std::unique_ptr<Model> own;
  if (!loaded.model) {
    ASSIGN_OR_RETURN(own, load_target(settings, prepared, threads, group, target_group));
    loaded.model = own.get();
  }
  if (!loaded.head) {
    ASSIGN_OR_RETURN(loaded.head, load_draft_head(settings, ids, threads));
  }
  std::optional<AcceptanceProcess> synthetic;
  if (!settings.speculation.synthetic_acceptance.empty()) {
    ASSIGN_OR_RETURN(synthetic, AcceptanceProcess::parse(settings.speculation.synthetic_acceptance,
                                                         settings.speculation.synthetic_seed));
  }
  ASSIGN_OR_RETURN(const TreeOptions tree, parse_speculative_tree(settings.speculation.speculative_tree));
  TargetOptions target{
      .info = prepared.target_info,
      .max_sequences = settings.models.max_num_seqs,
      .generation = new_generation(),
      .trees = !tree.shape.is_chain(),
      .successors = device_of_worker(settings.models, group.rank()).kind == Device::Kind::kCpu,
      .synthetic_acceptance = synthetic ? &*synthetic : nullptr};
  if (life.asked_to_leave) {  // a broken connection ends this life, and the next one begins
    target.asked_to_leave = life.asked_to_leave;
    target.on_joined = life.on_joined;
    target.most_undelivered = 1;
    target.trees = true;  // the run that it joins decides
  }
  RETURN_IF_ERROR(add_head(settings, prepared, threads, group, *loaded.model, target));
  if (door.own)
    target.slice_inbox =
        std::make_shared<SliceInbox>(std::move(door.own),
                                     SliceSlotsOptions{.range = ids,
                                                       .rank = group.rank(),
                                                       .sequences = settings.models.max_num_seqs,
                                                       .rows = kMaxSpeculativeTokens},
                                     links_of_rank(settings.models, prepared, group.rank(), door.all));
  target.slices = std::move(door.all);
  target.head = std::move(loaded.head);
  if (transport && loaded.model->threads() < threads.cores) transport->keep_looking(kBetweenPlans);
  TargetWorker worker(*loaded.model, group, std::move(target));
  if (!lend) return worker.run(transport);
  RETURN_IF_ERROR(worker.join(*transport));
  Status status;
  lend(*transport, [&] {
    const auto stays = worker.turn(*transport);
    status = stays.status();
    return stays.ok() && *stays;
  });
  return status;
}

using Pause = std::optional<std::chrono::milliseconds>;

Result<Pause> serve(DraftWorker worker, Transport& transport, const Lend& lend) {
  if (!lend) {
    RETURN_IF_ERROR(worker.run());
    return worker.rest();
  }
  RETURN_IF_ERROR(worker.join());
  lend(transport, [&] { return worker.turn(); });
  RETURN_IF_ERROR(worker.end());
  return worker.rest();
}

// One life of a worker, with its model. What it returns: how long it is to rest without one.
Result<Pause> live_once(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                        DraftRanks& ranks, Transport& transport, Loaded loaded, const Lend& lend) {
  DraftWorkerOptions worker_options{.info = prepared.draft_info,
                                    .generation = new_generation(),
                                    .max_sequences = settings.models.sequences(),
                                    .successors = settings.models.recycles(),
                                    .finds_text = settings.models.drafts_from_both(),
                                    // The target may still be loading.
                                    .join_timeout = std::chrono::seconds(settings.models.startup_timeout_s)};
  std::unique_ptr<Model> own;
  if (!loaded.model && settings.models.uses_draft_model()) {
    ASSIGN_OR_RETURN(own, ranks.load());
    loaded.model = own.get();
  }
  const bool ends = settings.speculation.synthetic_acceptance.empty();
  const auto eos = ends ? prepared.target.eos : std::vector<TokenId>();
  if (settings.models.head()) {
    ASSIGN_OR_RETURN(const auto state_head,
                     load_head(settings, prepared, threads, settings.models.sequences()));
    worker_options.state_head = prepared.state_head;
    worker_options.state_width = static_cast<int32_t>(state_head->hidden_size());
    const auto drafter = make_head_worker(settings.models, *state_head, eos);
    return serve(DraftWorker(*drafter, transport, worker_options), transport, lend);
  }
  const DraftHead* const head =
      offered_head(settings.models, target_ranks(settings.models), loaded.head.get());
  if (head) worker_options.head_fingerprint = head->fingerprint();
  const auto drafter =
      make_drafter(settings.models, prepared, loaded.model, prepared.target.vocab_size, eos, head);
  return serve(DraftWorker(*drafter, transport, worker_options), transport, lend);
}

Status serve_drafts(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                    Collectives& group, Transport& transport, const Loaded& loaded, const Lend& lend) {
  DraftRanks ranks(settings, prepared, threads, group);
  while (true) {
    ASSIGN_OR_RETURN(const Pause pause,
                     live_once(settings, prepared, threads, ranks, transport, loaded, lend));
    if (!pause || !rest_at(transport, *pause, {})) return {};
  }
}

}  // namespace

Result<std::unique_ptr<Head>> load_head(const RoleSettings& settings, const Preparation& prepared,
                                        RoleThreads threads, int32_t sequences) {
  const ModelSettings& models = settings.models;
  ASSIGN_OR_RETURN(const WeightFormat format,
                   parse_weight_format("--draft-weight-format", models.draft_weight_format));
  ASSIGN_OR_RETURN(const TreeOptions tree, parse_speculative_tree(settings.speculation.speculative_tree));
  const int64_t per_sequence = prepared.max_model_len + kMaxSpeculativeTokens + kBlockTokens;
  // What it looked behind may have found better nodes since then.
  const int64_t looked = tree.shape.is_chain() ? 0 : 2 * most_nodes(tree.shape, kMaxTreeNodes);
  auto head = Head::load(models.draft_model, models.model,
                         {.kind = *models.head(),
                          .threads = threads.count,
                          .bytes_per_thread = threads.bytes_each,
                          .max_rows = std::max(kDraftPrefillRows, int64_t{sequences}),
                          .max_sequences = sequences,
                          .max_positions = prepared.max_model_len,
                          .kv_tokens = sequences * per_sequence,
                          .tree_nodes = looked,
                          .weight_format = format});
  if (!head.ok()) return head.status().in("--draft-model " + models.draft_model);
  return head;
}

std::unique_ptr<Drafter> make_head_worker(const ModelSettings& models, Head& head,
                                          std::vector<TokenId> eos_ids) {
  return std::make_unique<HeadDrafting>(
      head, HeadDraftingOptions{.max_sequences = models.sequences(), .eos_ids = std::move(eos_ids)});
}

// Of its own text alone: what other requests said is nobody's to learn from how fast a draft came.
std::shared_ptr<TextGuesser> make_guesser(const std::string& kind) {
  if (kind == "ngram") return make_ngram_guesser({});
  if (kind == "suffix") return make_suffix_guesser({.history_tokens = 0});
  return nullptr;
}

std::unique_ptr<Drafter> make_drafter(const ModelSettings& models, const Preparation& prepared, Model* model,
                                      int64_t vocab_size, std::vector<TokenId> eos_ids, const DraftHead* head,
                                      RowSender* rows) {
  if (models.drafter == "suffix")
    return make_suffix_drafter({.max_sequences = models.sequences(),
                                .max_context = static_cast<int32_t>(prepared.max_model_len),
                                .history_tokens = models.draft_history_tokens});
  if (models.recycles())
    return make_recycling_drafter(
        {.max_sequences = models.sequences(), .max_context = static_cast<int32_t>(prepared.max_model_len)});
  if (!models.uses_draft_model())
    return make_ngram_drafter(
        {.max_sequences = models.sequences(), .max_context = static_cast<int32_t>(prepared.max_model_len)});
  auto of_model =
      make_model_drafter(*model, {.max_sequences = models.sequences(),
                                  .kept_texts = models.prefix_caching == "on" ? models.sequences() : 0,
                                  .eos_ids = std::move(eos_ids),
                                  .vocab_size = vocab_size,
                                  .rows = rows,
                                  .head = head,
                                  .guesser = make_guesser(models.draft_drafter)});
  if (!models.drafts_from_both()) return of_model;
  return make_text_or_model_drafter(std::move(of_model),
                                    make_suffix_guesser({.history_tokens = models.draft_history_tokens}));
}

const DraftHead* offered_head(const ModelSettings& models, int worker, const DraftHead* head) {
  return device_of_worker(models, worker).kind == Device::Kind::kCpu ? head : nullptr;
}

Result<std::shared_ptr<const DraftHead>> load_draft_head(const RoleSettings& settings, IndexRange ids,
                                                         RoleThreads threads) {
  ASSIGN_OR_RETURN(const QFormat q, parse_q_format(settings.speculation.q_format));
  if (q.kind != QKind::kHidden || !settings.models.uses_draft_model())
    return std::shared_ptr<const DraftHead>();
  auto head = DraftHead::load(settings.models.draft_model, ids, threads.count);
  if (!head.ok()) return head.status().in(fmt::format("--q-format {}", settings.speculation.q_format));
  return std::make_shared<const DraftHead>(std::move(head).value());
}

Generation new_generation() {
  std::random_device random;
  return Generation(static_cast<uint64_t>(random()) << 32 | random());
}

Result<std::unique_ptr<Model>> load_target(const RoleSettings& settings, const Preparation& prepared,
                                           RoleThreads threads, Collectives& group, int target_group) {
  ASSIGN_OR_RETURN(ModelOptions model_opts,
                   model_options(settings.models, prepared, threads, settings.models.max_num_seqs));
  Progress progress("loading target", group.rank() == 0 && target_group == 0 && !settings.quiet);
  model_opts.device = device_of_worker(settings.models, target_group * group.size() + group.rank());
  ASSIGN_OR_RETURN(model_opts.weight_format,
                   parse_weight_format("--weight-format", settings.models.weight_format));
  model_opts.notice = placed("target", settings.quiet);
  model_opts.shard = {group.rank(), group.size()};
  if (settings.models.kv_cache_tokens > 0) model_opts.kv_tokens = settings.models.kv_cache_tokens;
  if (prepared.head && settings.models.head() && group.rank() == 0) model_opts.taps = prepared.head->taps;
  model_opts.max_rows = kMaxRowsPerStep;
  model_opts.max_logit_rows = kMaxRowsPerStep;
  model_opts.progress = [&](int64_t done, int64_t total) { progress.update(done, total); };
  return Model::load(settings.models.model, model_opts, group);
}

Result<std::unique_ptr<Model>> load_draft(const RoleSettings& settings, const Preparation& prepared,
                                          RoleThreads threads, Collectives& group) {
  const int sequences = settings.models.sequences();
  ASSIGN_OR_RETURN(ModelOptions model_opts, model_options(settings.models, prepared, threads, sequences));
  Progress progress("loading draft", group.rank() == 0 && !settings.quiet);
  model_opts.shard = {group.rank(), group.size()};
  model_opts.device = device_of_worker(settings.models, target_ranks(settings.models));
  if (model_opts.device.kind != Device::Kind::kCpu && settings.models.draft_drafter != "off")
    return unsupported(
        fmt::format("--draft-drafter {} with --device {}: a device draws a draft's tokens in one go; "
                    "drop one of them",
                    settings.models.draft_drafter, settings.models.device));
  ASSIGN_OR_RETURN(model_opts.weight_format,
                   parse_weight_format("--draft-weight-format", settings.models.draft_weight_format));
  model_opts.notice = placed("draft", settings.quiet);
  model_opts.max_rows = kDraftPrefillRows;
  // Every sequence's next token in one pass, or that of the branches prepared for them.
  model_opts.max_logit_rows = std::max(kDraftLogitRows, int64_t{sequences});
  const int64_t outcomes =
      settings.speculation.pipeline == "lockstep" ? 0 : settings.speculation.fanout_budget;
  model_opts.run_sequences = runs_at_a_time(sequences, outcomes);
  int64_t branching = outcomes > 0 ? kv_tokens_for_outcomes(outcomes, kMaxSpeculativeTokens) : 0;
  ASSIGN_OR_RETURN(const TreeOptions tree, parse_speculative_tree(settings.speculation.speculative_tree));
  if (!tree.shape.is_chain())  // each node may have a cache of its own, for one token; no sequence does both
    branching = std::max(branching, kv_tokens_for_outcomes(most_nodes(tree.shape, kMaxTreeNodes), 1));
  model_opts.kv_tokens += sequences * branching;
  model_opts.max_positions = std::min(prepared.max_model_len, prepared.draft->max_position_embeddings);
  model_opts.stand_in = kDraftStandIn;
  model_opts.progress = [&](int64_t done, int64_t total) { progress.update(done, total); };
  return Model::load(settings.models.draft_model, model_opts, group);
}

Status run_target_rank(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                       Collectives& group, Transport* transport, Loaded loaded, const Lend& lend,
                       OpenSliceDoor door, int target_group) {
  set_thread_role(settings.models.data_parallel_size == 1
                      ? fmt::format("target/{}", group.rank())
                      : fmt::format("target/{}.{}", target_group, group.rank()));
  Status status;
  try {
    status = serve_target(settings, prepared, threads, group, transport, std::move(loaded), lend,
                          std::move(door), target_group);
  } catch (const std::exception& error) {
    status = unavailable(what_failed(error));
  }
  if (!status.ok()) group.abort();  // nobody waits for a rank that is gone
  return report(transport, std::move(status));
}

Status run_joined_rank(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                       Collectives& group, Transport* transport, Loaded loaded, const JoinedLife& life) {
  return serve_target(settings, prepared, threads, group, transport, std::move(loaded), nullptr, {}, 0, life);
}

Status run_draft_worker(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                        Collectives& group, Transport& transport, Loaded loaded, const Lend& lend) {
  Status status;
  try {
    status = serve_drafts(settings, prepared, threads, group, transport, std::move(loaded), lend);
  } catch (const std::exception& error) {
    status = unavailable(what_failed(error));
  }
  if (!status.ok()) group.abort();  // nobody waits for a rank that is gone
  return report(&transport, std::move(status));
}

Status wait_until_ready(Coordinator& coordinator, size_t workers, std::chrono::seconds timeout,
                        const ErrorOf& error) {
  const auto deadline = Clock::now() + timeout;
  while (true) {
    RETURN_IF_ERROR(error());
    Status status = coordinator.wait_for_peers(workers, Clock::now() + std::chrono::milliseconds(100));
    if (status.code() != StatusCode::kDeadlineExceeded || !coordinator.protocol().target_status().ok())
      return status;
    if (Clock::now() >= deadline) return status.in(fmt::format("--startup-timeout {}", timeout.count()));
  }
}

Result<std::unique_ptr<Coordinator>> make_coordinator(const ClusterSettings& settings,
                                                      const Preparation& prepared,
                                                      std::unique_ptr<Transport> transport,
                                                      GammaPolicyFactory policy,
                                                      CoordinatorCallbacks callbacks, Trace* trace) {
  ASSIGN_OR_RETURN(ProtocolOptions limits, protocol_options(settings, prepared));
  if (!settings.speculation.emulate_link.empty())  // checked with the settings
    transport = make_emulated_link(std::move(transport),
                                   parse_link_emulation(settings.speculation.emulate_link).value());
  return std::make_unique<Coordinator>(std::move(transport), std::move(limits), std::move(policy),
                                       prepared.tokenizer.get(), std::move(callbacks), trace);
}

Result<ProtocolOptions> protocol_options(const ClusterSettings& settings, const Preparation& prepared) {
  ASSIGN_OR_RETURN(const QFormat q, parse_q_format(settings.speculation.q_format));
  ProtocolOptions protocol;
  protocol.max_num_seqs = settings.models.max_num_seqs;
  protocol.target_groups = settings.models.data_parallel_size;
  protocol.by_priority = settings.models.scheduling_policy == "priority";
  if (settings.targets_join()) {
    protocol.targets_join = true;
    protocol.groups_to_begin = settings.pool.wait_for_target_groups.value_or(1);
    protocol.target_fingerprint = prepared.target_info.fingerprint;
    protocol.target_timeout = std::chrono::seconds(settings.pool.target_timeout_s);
  }
  protocol.max_queued = 1 << 20;  // the requests of a file are read and checked before the first one runs
  protocol.max_queued_tokens = int64_t{1} << 40;
  protocol.target_join_timeout = std::chrono::seconds(settings.models.startup_timeout_s);
  protocol.max_rows_per_step = kMaxRowsPerStep;
  protocol.prefill_chunk = kPrefillChunk;
  protocol.gamma_max = kMaxSpeculativeTokens;
  protocol.max_context = static_cast<int32_t>(prepared.max_model_len);
  protocol.prefix_caching = settings.models.prefix_caching == "on";
  protocol.eos_ids = prepared.target.eos;
  protocol.q_kind = q.kind;
  protocol.row_bytes = q.row_bytes(prepared.target.vocab_size);
  if (q.kind == QKind::kHidden)
    protocol.code_bits = q.code_bits(prepared.target.vocab_size, prepared.draft->hidden_size);
  ASSIGN_OR_RETURN(protocol.pipeline, parse_pipeline(settings.speculation.pipeline));
  protocol.fanout = settings.speculation.fanout_budget;
  ASSIGN_OR_RETURN(protocol.tree, parse_speculative_tree(settings.speculation.speculative_tree));
  if (!settings.speculation.synthetic_acceptance.empty()) {
    ASSIGN_OR_RETURN(AcceptanceProcess process,
                     AcceptanceProcess::parse(settings.speculation.synthetic_acceptance,
                                              settings.speculation.synthetic_seed));
    protocol.synthetic_acceptance = std::make_shared<AcceptanceProcess>(std::move(process));
  }
  protocol.unload_after =
      std::chrono::milliseconds(static_cast<int64_t>(settings.speculation.unload_drafter_s * 1000));
  protocol.record_guesses =
      settings.speculation.record_guesses && settings.speculation.synthetic_acceptance.empty();
  return protocol;
}

}  // namespace outrider
