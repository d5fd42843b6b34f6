#include <exception>
#include <memory>
#include <optional>

#include "base/threads.h"
#include "draft_worker/draft_worker.h"
#include "start/draft_life.h"
#include "start/draft_ranks.h"
#include "start/load_models.h"
#include "start/roles.h"

namespace outrider {
namespace {

using Pause = std::optional<std::chrono::milliseconds>;

// One life of a worker, with its model. Returns the pause for which it is unloaded.
Result<Pause> live_once(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                        DraftRanks& ranks, Transport& transport, const Loaded& loaded, const Lend& lend) {
  LoadedModel own;
  std::unique_ptr<Head> hidden_state_head;
  std::shared_ptr<const DraftHead> head = loaded.head;
  if (!head && prepared.draft) {
    ASSIGN_OR_RETURN(head, load_draft_head(settings, {0, prepared.draft->vocab_size}, threads));
  }
  DraftModels models{.draft = loaded.model, .pass_times = loaded.pass_times, .head = head.get()};
  if (!loaded.model && settings.models.uses_draft_model()) {
    ASSIGN_OR_RETURN(own, ranks.load());
    models.draft = own.model.get();
    models.pass_times = own.pass_times;
  }
  if (settings.models.head()) {
    ASSIGN_OR_RETURN(auto compute, head_compute(settings, threads, nullptr));
    ASSIGN_OR_RETURN(hidden_state_head,
                     load_head(settings, prepared, settings.models.sequences(), std::move(compute)));
    models.hidden_state_head = hidden_state_head.get();
  }
  auto pause = live_as_drafter(settings, prepared, models, transport, {.lend = lend}, loaded.seams);
  if (loaded.seams.ended && models.draft) loaded.seams.ended(Role::kDraft, *models.draft);
  return pause;
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
    status = serve_drafts(settings, prepared, threads, group, transport, loaded, lend);
  } catch (const std::exception& error) {
    status = unavailable(what_failed(error));
  }
  if (!status.ok()) group.abort();  // so that the other ranks do not wait for a failed one
  return report_failure(&transport, std::move(status));
}

}  // namespace outrider
