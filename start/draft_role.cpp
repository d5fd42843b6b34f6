#include <exception>
#include <optional>

#include "base/threads.h"
#include "draft_worker/draft_worker.h"
#include "start/draft_ranks.h"
#include "start/load_models.h"
#include "start/make_drafter.h"
#include "start/roles.h"

namespace outrider {
namespace {

using Pause = std::optional<std::chrono::milliseconds>;

Result<Pause> serve(DraftWorker worker, Transport& transport, const Lend& lend) {
  if (!lend) {
    RETURN_IF_ERROR(worker.run());
    return worker.rest();
  }
  RETURN_IF_ERROR(worker.begin_to_join());
  lend(transport, [&] { return worker.turn(); });
  RETURN_IF_ERROR(worker.end());
  return worker.rest();
}

// One life of a worker, with its model. Returns the pause for which it is unloaded.
Result<Pause> live_once(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                        DraftRanks& ranks, Transport& transport, Loaded loaded, const Lend& lend) {
  DraftWorkerOptions worker_options{.info = prepared.draft_info,
                                    .generation = new_generation(),
                                    .max_sequences = settings.models.sequences(),
                                    .successors = settings.models.reads_successors(),
                                    .finds_text = settings.models.finds_text(),
                                    .max_prefill = settings.models.draft_max_prefill(),
                                    .process = this_process(),
                                    // The target may still be loading.
                                    .join_timeout = std::chrono::seconds(settings.models.startup_timeout_s)};
  LoadedModel own;
  if (!loaded.model && settings.models.uses_draft_model()) {
    ASSIGN_OR_RETURN(own, ranks.load());
    loaded.model = own.model.get();
    loaded.pass_times = own.pass_times;
  }
  worker_options.pass_times = loaded.pass_times;
  const bool ends = settings.speculation.synthetic_acceptance.empty();
  const auto eos = ends ? prepared.target.eos : std::vector<TokenId>();
  if (settings.models.head()) {
    ASSIGN_OR_RETURN(auto compute, head_compute(settings, threads, nullptr));
    ASSIGN_OR_RETURN(const auto hidden_state_head,
                     load_head(settings, prepared, settings.models.sequences(), std::move(compute)));
    worker_options.hidden_state_head = prepared.hidden_state_head;
    worker_options.hidden_state_width = static_cast<int32_t>(hidden_state_head->hidden_size());
    const auto drafter = make_head_worker(settings.models, *hidden_state_head, eos);
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
    if (!pause || !stay_unloaded(transport, *pause, {})) return {};
  }
}

}  // namespace

Status run_draft_worker(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                        Collectives& group, Transport& transport, Loaded loaded, const Lend& lend) {
  Status status;
  try {
    status = serve_drafts(settings, prepared, threads, group, transport, std::move(loaded), lend);
  } catch (const std::exception& error) {
    status = unavailable(what_failed(error));
  }
  if (!status.ok()) group.abort();  // so that the other ranks do not wait for a failed one
  return report_failure(&transport, std::move(status));
}

}  // namespace outrider
