#include "start/local_cluster.h"

#include <optional>

#include "base/threads.h"
#include "comm/cores.h"
#include "start/block_ends.h"
#include "start/draft_ranks.h"
#include "start/listener.h"
#include "start/load_models.h"

namespace outrider {
namespace {

LocalThreads threads_of(const ModelSettings& models) {
  return local_threads(models.threads, models.draft_threads, models.groups() * models.tensor_parallel_size,
                       usable_cores(), models.draft_tensor_parallel_size);
}
RoleThreads target_threads(const ModelSettings& models) { return threads_of(models).target; }
RoleThreads draft_threads(const ModelSettings& models) { return threads_of(models).draft; }

std::vector<std::unique_ptr<Collectives>> make_group(int ranks) {
  if (ranks > 1) return make_thread_collectives(ranks);
  std::vector<std::unique_ptr<Collectives>> group;
  group.push_back(make_single_collectives());
  return group;
}

// Turns an exception of a loading thread into an error.
template <class Load>
auto guarded(Load load) -> decltype(load()) {
  try {
    return load();
  } catch (const std::exception& error) {
    return unavailable(what_failed(error));
  }
}

// One head for all roles, with all ids.
Result<std::shared_ptr<const DraftHead>> load_whole_head(const RoleSettings& settings,
                                                         const Preparation& prepared) {
  return load_draft_head(settings, {0, prepared.target.vocab_size},
                         role_threads(settings.models.threads, usable_cores()));
}

}  // namespace

Result<LocalModels> LocalModels::load(const RoleSettings& settings, const Preparation& prepared) {
  LocalModels models{.group = make_group(settings.models.tensor_parallel_size),
                     .single = make_single_collectives()};
  const size_t ranks = models.group.size();
  std::vector<std::optional<Result<LoadedModel>>> loaded(ranks);
  std::optional<Result<LoadedModel>> draft;
  run_on_threads(static_cast<int>(1 + ranks), [&](int i) {
    if (i > 0) {
      const auto index = static_cast<size_t>(i) - 1;
      Collectives& rank = *models.group[index];
      set_thread_role(fmt::format("target/{}", i - 1));
      loaded[index] =
          guarded([&] { return load_target(settings, prepared, target_threads(settings.models), rank); });
      if (!loaded[index]->ok()) rank.abort();  // so that the other ranks do not wait for a failed one
    } else if (settings.models.uses_draft_model() && settings.models.draft_tensor_parallel_size == 1) {
      draft = guarded(
          [&] { return load_draft(settings, prepared, draft_threads(settings.models), *models.single); });
    }
  });
  if (draft) {
    if (!draft->ok()) return draft->status();
    models.draft = std::move(draft->value().model);
    models.draft_times = draft->value().pass_times;
  }
  for (auto& rank : loaded) {
    if (!rank->ok()) return rank->status();
    models.target_times = rank->value().pass_times;  // the same on every rank
    models.target.push_back(std::move(rank->value().model));
  }
  ASSIGN_OR_RETURN(models.head, load_whole_head(settings, prepared));
  return models;
}

LocalCluster::LocalCluster(const ClusterSettings& settings, const Preparation& prepared, LocalModels* models,
                           RoleSeams seams)
    : settings_(settings),
      prepared_(prepared),
      models_(models),
      seams_(std::move(seams)),
      hub_(make_inproc_hub()) {}

LocalCluster::~LocalCluster() { threads_.clear(); }

// Starts a role's thread. If that fails, the ranks of its group are aborted, so that they do not wait for it.
// Started roles leave when the coordinator's end is destroyed.
Status LocalCluster::start_role(std::function<void()> role) {
  try {
    threads_.push_back(start_thread(std::move(role)));
    return {};
  } catch (const NoThread& error) {
    if (models_) models_->group.front()->abort();
    for (const auto& group : groups_) group.front()->abort();
    for (const auto& group : draft_groups_) group.front()->abort();
    return unavailable(error.what());
  }
}

Lend LocalCluster::lend(Role role) const {
  const bool draft_overlaps =
      *settings_.speculation.pipeline != Pipeline::kLockstep || settings_.models.draft_threads > 0;
  const ModelSettings& models = settings_.models;
  if (settings_.targets_join() || models.tensor_parallel_size > 1 || models.groups() > 1 ||
      models.draft_tensor_parallel_size > 1 || (role == Role::kDraft && draft_overlaps))
    return nullptr;
  return [this](Transport& worker, const std::function<bool()>& turn) { hub_->lend(worker, turn); };
}

Result<std::unique_ptr<Transport>> LocalCluster::listening_end() {
  if (settings_.pool.listen.empty() && !settings_.targets_join()) return coordinator_end();
  return open_to_others(settings_, prepared_, *hub_);
}

Status LocalCluster::start_target() {
  if (!models_)
    for (int g = 0; g < settings_.models.groups(); ++g)
      groups_.push_back(make_group(settings_.models.tensor_parallel_size));
  ASSIGN_OR_RETURN(head_, models_ ? models_->head : load_whole_head(settings_, prepared_));
  const size_t groups = models_ ? 1 : groups_.size();
  const LocalBlockEnds ends(settings_.models, prepared_);
  for (size_t g = 0; g < groups; ++g) {
    const auto& group = models_ ? models_->group : groups_[g];
    for (size_t r = 0; r < group.size(); ++r) {
      std::shared_ptr<Transport> transport = r == 0 ? hub_->connect() : nullptr;
      Model* const model = models_ ? models_->target[r].get() : nullptr;
      const PassTimes times = models_ ? models_->target_times : PassTimes();
      const auto place = static_cast<int>(g);
      const BlockEnd blocks = ends.end(place, static_cast<int>(r));
      RETURN_IF_ERROR(start_role([this, place, &rank = *group[r], transport, model, times, blocks] {
        note(run_target_rank(settings_, prepared_, target_threads(settings_.models), rank, transport.get(),
                             {model, times, head_, settings_.speculates(), seams_}, lend(Role::kTarget), {},
                             place, blocks));
      }));
    }
  }
  return {};
}

Status LocalCluster::start_drafter() {
  std::shared_ptr<Transport> transport = hub_->connect();
  // Models that outlive the cluster serve one drafter.
  Model* const model = models_ && drafters_ == 0 ? models_->draft.get() : nullptr;
  const int index = drafters_++;
  const auto& group = draft_groups_.emplace_back(make_group(settings_.models.draft_tensor_parallel_size));
  RETURN_IF_ERROR(start_role([this, transport, model, index, &leader = *group.front()] {
    set_thread_role(fmt::format("draft/{}", index));
    note(run_draft_worker(settings_, prepared_, draft_threads(settings_.models), leader, *transport,
                          {.model = model,
                           .pass_times = model ? models_->draft_times : PassTimes(),
                           .head = head_,
                           .seams = seams_},
                          lend(Role::kDraft)));
  }));
  for (size_t r = 1; r < group.size(); ++r)
    RETURN_IF_ERROR(start_role([this, index, r, &rank = *group[r]] {
      set_thread_role(fmt::format("draft/{}.{}", index, r));
      note(run_draft_follower(settings_, prepared_, draft_threads(settings_.models), rank));
    }));
  return {};
}

Result<std::unique_ptr<Transport>> LocalCluster::start(int drafters, bool listens) {
  auto end = listens || settings_.targets_join() ? listening_end() : coordinator_end();
  if (!end.ok()) return end;
  if (!settings_.targets_join()) RETURN_IF_ERROR(start_target());
  for (int i = 0; i < drafters; ++i) RETURN_IF_ERROR(start_drafter());
  return end;
}

void LocalCluster::note(const Status& status) {
  std::lock_guard lock(mutex_);
  if (error_.ok()) error_ = status;
}

Status LocalCluster::wait() {
  threads_.clear();
  return error();
}

Status LocalCluster::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace outrider
