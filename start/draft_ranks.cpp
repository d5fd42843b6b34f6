#include "start/draft_ranks.h"

#include <exception>
#include <vector>

#include "base/log_line.h"
#include "base/printable.h"
#include "base/threads.h"
#include "model/led_model.h"
#include "start/load_models.h"

namespace outrider {
namespace {

// Rank 0's decision for all ranks: load a model and follow, or end.
bool goes_on(Collectives& group, bool leader_goes_on) {
  std::vector<std::byte> word{leader_goes_on ? std::byte{1} : std::byte{0}};
  group.broadcast_message(word, 0, 1);
  return word.at(0) != std::byte{0};
}

// Every rank's part, or an error on all ranks: a rank without a part aborts the group, since the others may
// wait for it in a collective of their loading.
Result<LoadedModel> load_part(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                              Collectives& group) {
  auto part = load_draft(settings, prepared, threads, group);
  if (!part.ok()) {
    group.abort();
    return part;
  }
  group.meet();  // ranks load at different speeds, and passes have a deadline
  part->pass_times = warm_up(*part->model, group, Role::kDraft, settings.times_passes);
  return part;
}

}  // namespace

DraftRanks::~DraftRanks() {
  if (group_.size() == 1) return;
  try {
    (void)goes_on(group_, false);
  } catch (const CollectiveError& error) {
    log_line(LogLevel::kDebug, "the ranks of a draft worker could not be stopped: {}", error.what());
  }
}

Result<LoadedModel> DraftRanks::load() {
  if (group_.size() == 1) return load_draft(settings_, prepared_, threads_, group_);
  (void)goes_on(group_, true);
  ASSIGN_OR_RETURN(auto part, load_part(settings_, prepared_, threads_, group_));
  part.model = make_led_model(std::move(part.model), group_);
  return part;
}

Status run_draft_follower(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                          Collectives& group) {
  Status status;
  try {
    while (status.ok() && goes_on(group, true)) {
      auto part = load_part(settings, prepared, threads, group);
      status = part.ok() ? follow_leader(*part->model, group) : part.status();
    }
  } catch (const std::exception& error) {
    status = unavailable(what_failed(error));
  }
  if (!status.ok()) group.abort();  // so that the other ranks do not wait for a failed one
  return status;
}

}  // namespace outrider
