#include "launch/local_cluster.h"

#include <algorithm>

#include "comm/cores.h"

namespace outrider {
namespace {

int total_threads(const RunOptions& options) {
  return options.threads > 0 ? options.threads : usable_cores();
}

}  // namespace

LocalCluster::LocalCluster(const RunOptions& options, const Preparation& prepared)
    : options_(options), prepared_(prepared), hub_(make_inproc_hub()) {}

LocalCluster::~LocalCluster() {
  for (std::thread& thread : threads_) thread.join();
}

void LocalCluster::start_target() {
  const int ranks = options_.tensor_parallel_size;
  const RoleThreads threads{.count = std::max(1, total_threads(options_) / ranks),
                            .spin = total_threads(options_) <= usable_cores() && ranks <= usable_cores()};
  if (ranks == 1)
    group_.push_back(make_single_collectives());
  else
    group_ = make_thread_collectives(ranks);
  for (int r = 0; r < ranks; ++r) {
    std::shared_ptr<Transport> transport = r == 0 ? hub_->connect() : nullptr;
    threads_.emplace_back([this, r, threads, transport] {
      note(run_target_rank(options_, prepared_, threads, *group_[static_cast<size_t>(r)], transport.get()));
    });
  }
}

void LocalCluster::start_drafter() {
  // Draft and target take turns, so the drafter may use every thread too.
  const RoleThreads threads{.count = total_threads(options_),
                            .spin = total_threads(options_) <= usable_cores()};
  std::shared_ptr<Transport> transport = hub_->connect();
  threads_.emplace_back(
      [this, threads, transport] { note(run_draft_worker(options_, prepared_, threads, *transport)); });
}

void LocalCluster::note(const Status& status) {
  std::lock_guard lock(mutex_);
  if (error_.ok()) error_ = status;
}

Status LocalCluster::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace outrider
