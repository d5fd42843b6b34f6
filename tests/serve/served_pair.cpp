#include "served_pair.h"

#include <gtest/gtest.h>

#include "start/make_coordinator.h"
#include "start/roles.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {

void Client::emitted(const Emit& emit) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = ids_.empty();
    text_ += emit.text;
    ids_.insert(ids_.end(), emit.ids.begin(), emit.ids.end());
  }
  changed_.notify_all();
  if (first && on_first_token) on_first_token();
}

void Client::finished(const Finish& finish) {
  {
    const std::lock_guard lock(mutex_);
    finish_ = finish;
    ++ends_;
  }
  changed_.notify_all();
}

void Client::wait_for_tokens(size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ids_.size() >= count || ends_ > 0; });
}

Finish Client::wait_for_end() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ends_ > 0; });
  return finish_;
}

std::string Client::text() const {
  const std::lock_guard lock(mutex_);
  return text_;
}
std::vector<TokenId> Client::ids() const {
  const std::lock_guard lock(mutex_);
  return ids_;
}
int Client::ends() const {
  const std::lock_guard lock(mutex_);
  return ends_;
}

ClusterSettings demo_pair(bool drafts) {
  ClusterSettings cluster;
  cluster.models.model = source_dir() / "launch/demo_pair/target";
  if (drafts) cluster.models.draft_model = source_dir() / "launch/demo_pair/draft";
  cluster.quiet = true;
  return cluster;
}

ServedPair::ServedPair(const ClusterSettings& cluster, Settings settings)
    : cluster_(cluster),
      settings_(std::move(settings)),
      prepared_(std::move(prepare(cluster_)).value()),
      engine_(settings_.limits) {
  thread_ = std::thread([this] {
    const Status status = serve();
    const std::lock_guard lock(mutex_);
    status_ = status;
    ready_ = true;  // or it never will be
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ready_; });
  EXPECT_TRUE(status_.ok()) << status_.message();
}

Status ServedPair::serve() {
  LocalCluster cluster(cluster_, prepared_);
  ASSIGN_OR_RETURN(auto end,
                   cluster.start(cluster_.models.has_drafter() ? 1 : 0, !cluster_.pool.listen.empty()));
  if (settings_.wire) end = settings_.wire(std::move(end));
  ASSIGN_OR_RETURN(const auto policy, parse_gamma_policy(cluster_.speculation.policy()));
  ASSIGN_OR_RETURN(const auto coordinator, make_coordinator(cluster_, prepared_, std::move(end), policy,
                                                            engine_.callbacks(), nullptr));
  Status status = wait_until_ready(*coordinator, cluster_.models.has_drafter() ? 1 : 0,
                                   std::chrono::seconds(60), [&] { return cluster.error(); });
  const auto asked_to_drain = [this] {
    const std::lock_guard lock(mutex_);
    ready_ = true;  // the engine takes requests when it looks here
    changed_.notify_all();
    return drains_.load();
  };
  if (status.ok()) status = engine_.serve(*coordinator, asked_to_drain, settings_.drain_limit);
  coordinator->shutdown();
  return status;
}

Request ServedPair::request(const std::string& prompt, int max_tokens) const {
  Request request{.prompt = prepared_.tokenizer->encode(prompt, SpecialTokens::kAdd).value(),
                  .max_tokens = max_tokens};
  request.ignore_eos = true;
  return request;
}

Ticket ServedPair::submit(Request request, const std::shared_ptr<Client>& client) {
  const auto ticket = engine_.submit(std::move(request), client);
  EXPECT_TRUE(ticket.ok()) << ticket.status().message();
  return ticket.ok() ? *ticket : Ticket{};
}

void ServedPair::ask_to_drain() {
  drains_ = true;
  engine_.cancel(Ticket{});  // a ticket without a request: only wakes the engine
}

Status ServedPair::end() {
  if (thread_.joinable()) {
    ask_to_drain();
    thread_.join();
  }
  return status_;
}

}  // namespace outrider::testing
