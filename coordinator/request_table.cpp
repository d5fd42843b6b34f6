#include "coordinator/request_table.h"

#include <algorithm>

namespace outrider {

Status RequestTable::check_room(size_t prompt_tokens) const {
  if (queue_.size() < static_cast<size_t>(options_.max_queued) &&
      queued_tokens_ + static_cast<int64_t>(prompt_tokens) <= options_.max_queued_tokens)
    return {};
  return resource_exhausted(fmt::format("the queue is full ({} requests, {} prompt tokens); try again later",
                                        queue_.size(), queued_tokens_));
}

LiveRequest& RequestTable::add(SequenceId id, Request request) {
  auto live = std::make_unique<LiveRequest>(id, std::move(request));
  queued_tokens_ += live->sequence.prompt_length();
  queue_.push_back(id);
  return *live_.emplace(id, std::move(live)).first->second;
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

LiveRequest* RequestTable::first_in_queue() const {
  return queue_.empty() ? nullptr : live_.at(queue_.front()).get();
}

void RequestTable::leave_queue(LiveRequest& live) {
  std::erase(queue_, live.id());
  queued_tokens_ -= live.sequence.prompt_length();
}

void RequestTable::admit_first() {
  LiveRequest& live = *first_in_queue();
  leave_queue(live);
  live.become(RequestState::kPrefill);
  ++running_;
}

void RequestTable::finish(LiveRequest& live) {
  if (live.state == RequestState::kQueued)
    leave_queue(live);
  else
    --running_;
  live.become(RequestState::kFinished);
}

void RequestTable::sweep() {
  std::erase_if(
      live_, [](const auto& item) { return item.second->finished() && !item.second->sequence.target.open; });
}

}  // namespace outrider
