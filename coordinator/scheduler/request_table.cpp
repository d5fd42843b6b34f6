#include "coordinator/scheduler/request_table.h"

#include <algorithm>

namespace outrider {

// ---- who waits ------------------------------------------------------------------------------------------

Status RequestQueue::check_room(size_t prompt_tokens) const {
  if (order_.size() < static_cast<size_t>(options_.max_queued) &&
      tokens_ + static_cast<int64_t>(prompt_tokens) <= options_.max_queued_tokens)
    return {};
  return resource_exhausted(fmt::format("the queue is full ({} requests, {} prompt tokens); try again later",
                                        order_.size(), tokens_));
}

LiveRequest& RequestQueue::add(SequenceId id, Request request) {
  auto live = std::make_unique<LiveRequest>(id, std::move(request));
  tokens_ += live->sequence.prompt_length();
  order_.insert(place_of(*live));
  return *live_.emplace(id, std::move(live)).first->second;
}

LiveRequest* RequestQueue::find(SequenceId id) const {
  const auto at = live_.find(id);
  return at == live_.end() ? nullptr : at->second.get();
}

LiveRequest* RequestQueue::first() const {
  return order_.empty() ? nullptr : live_.at(order_.begin()->second).get();
}

std::unique_ptr<LiveRequest> RequestQueue::take(SequenceId id) {
  auto at = live_.extract(id);
  CHECK(!at.empty(), "request {} does not wait", id.value());
  order_.erase(place_of(*at.mapped()));
  tokens_ -= at.mapped()->sequence.prompt_length();
  return std::move(at.mapped());
}

// ---- who runs -------------------------------------------------------------------------------------------

LiveRequest& RequestTable::add(std::unique_ptr<LiveRequest> live) {
  ++running_;
  const SequenceId id = live->id();
  index_[id.value()] = live.get();
  return *live_.emplace(id, std::move(live)).first->second;
}

template <class Ends>
void RequestTable::forget(const Ends& ends) {
  std::erase_if(live_, [&](const auto& item) {
    if (!ends(*item.second)) return false;
    const auto at = index_.find(item.first.value());
    if (at != index_.end() && at->second == item.second.get()) index_.erase(at);  // else it runs elsewhere
    return true;
  });
}

int64_t RequestTable::lose_group() {
  int64_t back = 0;
  forget([](const LiveRequest& live) { return live.finished(); });
  for (auto& [id, live] : live_) back += live->lose_group();
  return back;
}

std::unique_ptr<LiveRequest> RequestTable::take(SequenceId id) {
  auto at = live_.extract(id);
  CHECK(!at.empty() && !at.mapped()->finished(), "request {} does not run here", id.value());
  --running_;
  index_.erase(id.value());
  return std::move(at.mapped());
}

// The plan that is out refers to the one that stays. Closing it reads its sequence and its cache_salt.
std::unique_ptr<LiveRequest> RequestTable::take_from_late(SequenceId id) {
  LiveRequest& stays = *live_.at(id);
  auto goes = std::make_unique<LiveRequest>(std::move(stays));
  stays.sequence = goes->sequence;
  stays.request.cache_salt = goes->request.cache_salt;
  stays.link = {};
  stays.handoff = {};
  index_.erase(id.value());
  finish(stays);
  (void)goes->lose_group();
  return goes;
}

RequestMap RequestTable::take_all() {
  running_ = 0;
  for (const auto& [id, live] : live_) index_.erase(id.value());
  return std::exchange(live_, {});
}

LiveRequest* RequestTable::find(SequenceId id) const {
  const auto at = live_.find(id);
  return at == live_.end() ? nullptr : at->second.get();
}

std::vector<LiveRequest*> RequestTable::in_state(RequestState state) const {
  std::vector<LiveRequest*> found;
  for (const auto& [id, live] : live_) {
    if (live->state == state) found.push_back(live.get());
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const LiveRequest* a, const LiveRequest* b) { return a->ready_at < b->ready_at; });
  return found;
}

void RequestTable::finish(LiveRequest& live) {
  --running_;
  live.become(RequestState::kFinished);
}

void RequestTable::sweep() {
  forget([](const LiveRequest& live) { return live.finished() && !live.sequence.target.open; });
}

}  // namespace outrider
