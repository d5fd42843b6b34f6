#include <exception>
#include <optional>

#include "base/log_line.h"
#include "base/threads.h"
#include "cluster/acceptance_process.h"
#include "heads/early_exit_drafter.h"
#include "start/device.h"
#include "start/load_models.h"
#include "start/roles.h"
#include "start/row_links.h"
#include "start/tree_option.h"
#include "target_worker/target_worker.h"

namespace outrider {
namespace {

// Longer than the coordinator takes from a result to the next plan.
constexpr std::chrono::microseconds kBetweenPlans{200};

bool takes_slices(const RoleSettings& settings) {
  const auto& q = settings.speculation.q_format;
  return q.ok() && q->kind == QKind::kDense;
}

// Empty: rows come to the rank's endpoint.
RowLinks links_of_rank(const RoleSettings& settings, const Preparation& prepared, int rank,
                       const SliceEndpoints& endpoints, const RoleSeams& seams) {
  if (!takes_slices(settings) || !ranks_have_links(endpoints)) return {};
  const ModelSettings& models = settings.models;
  auto links = make_links(device_of_worker(models, rank), endpoints, prepared.target_info.vocab_size, rank,
                          models.max_num_seqs + 1, seams.q_links);
  if (links.ok()) return std::move(links).value();
  log_line(LogLevel::kWarning, "rows of q will not come from device to device: {}", links.status().message());
  return {};
}

// The leader's links to draft workers with a head. Empty: hidden states travel in results.
RowLinks links_of_hidden_states(const ModelSettings& models, const TargetOptions& target,
                                const SliceEndpoints& endpoints, const RoleSeams& seams) {
  if (!target.hidden_states || endpoints.of_rank.empty() || endpoints.of_rank.front().gpu.empty()) return {};
  auto links = make_hidden_state_sender(device_of_worker(models, 0), target.hidden_state_width,
                                        seams.hidden_state_links);
  if (links.ok()) return std::move(links).value();
  log_line(LogLevel::kWarning, "rows of states will not go from device to device: {}",
           links.status().message());
  return {};
}

Result<HiddenStateDrafterOptions> hidden_state_drafter_options(const RoleSettings& settings,
                                                               const Preparation& prepared) {
  const QFormat& q = *settings.speculation.q_format;
  const bool ends = settings.speculation.synthetic_acceptance.empty();
  return HiddenStateDrafterOptions{.max_sequences = settings.models.max_num_seqs,
                                   .eos_ids = ends ? prepared.target.eos : std::vector<TokenId>(),
                                   .q_kind = q.kind == QKind::kDense ? QKind::kDense : QKind::kSparse,
                                   .row_bytes = q.row_bytes(prepared.target.vocab_size)};
}

// The head that drafts beside the target, on its leader.
Result<std::shared_ptr<HiddenStateDrafter>> load_hidden_state_drafter(const RoleSettings& settings,
                                                                      const Preparation& prepared,
                                                                      std::shared_ptr<HeadCompute> compute,
                                                                      Model& target) {
  ASSIGN_OR_RETURN(auto options, hidden_state_drafter_options(settings, prepared));
  ASSIGN_OR_RETURN(auto head,
                   load_head(settings, prepared, settings.models.max_num_seqs, std::move(compute)));
  return std::make_shared<HiddenStateDrafter>(target, std::move(head), std::move(options));
}

// The reader that prepares the target's hidden states for a head at a draft worker, on the leader: the head's
// projection.
Result<std::shared_ptr<HiddenStateReader>> load_hidden_state_reader(const RoleSettings& settings,
                                                                    const Preparation& prepared,
                                                                    std::shared_ptr<HeadCompute> compute,
                                                                    Model& target) {
  const ModelSettings& models = settings.models;
  auto projection = HiddenStateProjection::load(
      models.draft_model, models.model, *prepared.head, prepared.target, *models.draft_weight_format,
      settings.draft_prefill_rows, std::move(compute), placed("states for the head", settings.quiet));
  if (!projection.ok()) return projection.status().in("--draft-model " + models.draft_model);
  return std::make_shared<HiddenStateReader>(target, std::move(projection).value(),
                                             static_cast<int64_t>(prepared.head->aux_layers.size()));
}

// Where the head of the run drafts, as far as a target rank has to do with it.
Status add_head(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                Collectives& group, int target_group, const Loaded& loaded, TargetOptions& target) {
  Model& model = *loaded.model;
  const auto compute_beside = [&] {
    return head_compute(settings, threads, &model, target_group, loaded.seams.head_device);
  };
  const bool leads = group.rank() == 0;
  if (settings.models.exits_early()) {
    target.co_located_drafter = prepared.draft_info.fingerprint;
    ASSIGN_OR_RETURN(const HiddenStateDrafterOptions options,
                     hidden_state_drafter_options(settings, prepared));
    target.drafter = std::make_shared<HiddenStateDrafter>(
        std::make_unique<EarlyExitDrafter>(
            model, group, settings.models.exit_layer,
            HeadDrafterOptions{.max_sequences = options.max_sequences, .eos_ids = options.eos_ids}),
        options);
    return {};
  }
  if (!prepared.head || !settings.models.head()) return {};
  if (settings.models.is_head_beside_target()) {
    target.co_located_drafter = prepared.draft_info.fingerprint;
    target.drafts_blocks = settings.models.drafts_blocks();
    if (leads) {
      ASSIGN_OR_RETURN(auto compute, compute_beside());
      ASSIGN_OR_RETURN(target.drafter,
                       load_hidden_state_drafter(settings, prepared, std::move(compute), model));
    }
  }
  if (!settings.models.is_head_at_workers()) return {};
  target.hidden_state_head = prepared.hidden_state_head;
  target.hidden_state_width = static_cast<int32_t>(prepared.head->layer.hidden_size);
  if (!leads) return {};
  ASSIGN_OR_RETURN(auto compute, compute_beside());
  ASSIGN_OR_RETURN(target.hidden_states,
                   load_hidden_state_reader(settings, prepared, std::move(compute), model));
  return {};
}

// The rank's part in handing prompts from group to group.
void add_block_end(BlockEnd blocks, const Collectives& group, const KvCache& kv, TargetOptions& target) {
  const BlockSource source{.model = target.info.fingerprint, .rank = group.rank(), .ranks = group.size()};
  if (blocks.connect)
    target.block_sender =
        std::make_shared<BlockSender>(std::move(blocks.connect), BlockSenderOptions{.source = source});
  if (!blocks.inbox) return;
  target.block_inbox = std::make_shared<BlockInbox>(
      std::move(blocks.inbox),
      BlockInboxOptions{.source = source,
                        .block_bytes = kv.block_bytes(),
                        .most_bytes = block_inbox_bytes(kv, target.info.max_context)});
  target.block_inbox_name = blocks.inbox_name;
}

Status serve_target(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                    Collectives& group, Transport* transport, Loaded loaded, const Lend& lend,
                    OpenSliceEndpoint endpoint, int target_group, BlockEnd blocks,
                    const JoinedLife& life = {}) {
  const IndexRange ids =
      vocab_range(prepared.target_info.vocab_size, {.tp_rank = group.rank(), .tp_size = group.size()});
  LoadedModel own;
  if (!loaded.model) {
    ASSIGN_OR_RETURN(own, load_target(settings, prepared, threads, group, target_group, loaded.is_timed));
    loaded.model = own.model.get();
    loaded.pass_times = own.pass_times;
  }
  if (!loaded.head) {
    ASSIGN_OR_RETURN(loaded.head, load_draft_head(settings, ids, threads));
  }
  std::optional<AcceptanceProcess> synthetic;
  if (!settings.speculation.synthetic_acceptance.empty()) {
    ASSIGN_OR_RETURN(synthetic, AcceptanceProcess::parse(settings.speculation.synthetic_acceptance,
                                                         settings.speculation.synthetic_seed));
  }
  const TreeOptions& tree = *settings.speculation.speculative_tree;
  TargetOptions target{.info = prepared.target_info,
                       .max_sequences = settings.models.max_num_seqs,
                       .generation = new_generation(),
                       .pass_times = loaded.pass_times,
                       .trees = !tree.shape.is_chain(),
                       .synthetic_acceptance = synthetic ? &*synthetic : nullptr,
                       .slice_timeout = loaded.seams.patience};
  if (life.asked_to_leave) {  // a broken connection ends this life, and the next one begins
    target.asked_to_leave = life.asked_to_leave;
    target.on_joined = life.on_joined;
    target.most_undelivered = 1;
    target.trees = true;  // the run that it joins decides
  }
  RETURN_IF_ERROR(add_head(settings, prepared, threads, group, target_group, loaded, target));
  add_block_end(std::move(blocks), group, loaded.model->kv(), target);
  if (endpoint.own)
    target.slice_inbox = std::make_shared<SliceInbox>(
        std::move(endpoint.own),
        SliceSlotsOptions{.range = ids,
                          .rank = group.rank(),
                          .sequences = settings.models.max_num_seqs,
                          .rows = takes_slices(settings) ? kMaxSpeculativeTokens : 0},
        links_of_rank(settings, prepared, group.rank(), endpoint.all, loaded.seams),
        links_of_hidden_states(settings.models, target, endpoint.all, loaded.seams));
  target.slices = std::move(endpoint.all);
  target.head = std::move(loaded.head);
  if (transport && loaded.model->threads() < threads.cores) transport->keep_looking(kBetweenPlans);
  TargetWorker worker(*loaded.model, group, std::move(target));
  Status status;
  if (!lend) {
    status = worker.run(transport);
  } else {
    RETURN_IF_ERROR(worker.join(*transport));
    lend(*transport, [&] {
      const auto stays = worker.turn(*transport);
      status = stays.status();
      return stays.ok() && *stays;
    });
  }
  if (loaded.seams.ended) loaded.seams.ended(Role::kTarget, *loaded.model);
  return status;
}

}  // namespace

Status run_target_rank(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                       Collectives& group, Transport* transport, Loaded loaded, const Lend& lend,
                       OpenSliceEndpoint endpoint, int target_group, BlockEnd blocks) {
  set_thread_role(settings.models.groups() == 1 ? fmt::format("target/{}", group.rank())
                                                : fmt::format("target/{}.{}", target_group, group.rank()));
  Status status;
  try {
    status = serve_target(settings, prepared, threads, group, transport, std::move(loaded), lend,
                          std::move(endpoint), target_group, std::move(blocks));
  } catch (const std::exception& error) {
    status = unavailable(what_failed(error));
  }
  if (!status.ok()) group.abort();  // so that the other ranks do not wait for a failed one
  return report_failure(transport, std::move(status));
}

Status run_joined_rank(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                       Collectives& group, Transport* transport, Loaded loaded, const JoinedLife& life) {
  return serve_target(settings, prepared, threads, group, transport, std::move(loaded), nullptr, {}, 0, {},
                      life);
}

}  // namespace outrider
