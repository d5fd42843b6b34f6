#include "coordinator/rounds/hidden_state_relay.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr size_t kAskBytes = 24;  // on the wire

}  // namespace

bool HiddenStateRelay::reads_hidden_states(const LiveRequest& live) const {
  const PoolWorker* worker = live.running() ? pool_.of(live) : nullptr;
  return worker && worker->needs_hidden_states() && !worker->is_silent() && live.link.opened &&
         live.sequence.target.open;
}

// Where the target can draft, too, rows are sent only for sequences whose worker drafts now or will soon.
// During a rehearsal no further rows are sent: rows of the next round would end the draft.
bool HiddenStateRelay::is_worth_rows(const LiveRequest& live) const {
  const HeadPlace& place = target_.place;
  if (!target_.drafts() || place.at_worker() || live.state == RequestState::kDrafting) return true;
  return place.tells_rows() && !live.link.probe_draft;
}

int32_t HiddenStateRelay::told_behind(const LiveRequest& live) const {
  const OutstandingPlan* plan = target_.planner.outstanding();
  const int32_t now = live.sequence.target.kv_length;
  if (!plan) return now;
  const auto entry = std::find_if(plan->entries.begin(), plan->entries.end(),
                                  [&](const PlannedEntry& planned) { return planned.live == &live; });
  if (entry == plan->entries.end()) return now;
  return now + entry->input_count + (entry->sampling ? live.round.drafted() : 0);
}

bool HiddenStateRelay::is_awaited(const RequestMap& requests) const {
  if (target_.hidden_state_head() == 0 || target_.planner.outstanding()) return false;
  return std::any_of(requests.begin(), requests.end(), [this](const auto& item) {
    const LiveRequest& live = *item.second;
    return live.state == RequestState::kDrafting && reads_hidden_states(live) &&
           live.link.hidden_states < live.sequence.committed() - 1;
  });
}

void HiddenStateRelay::ask(const RequestMap& requests, StepPlan& step) {
  asked_.clear();
  if (target_.hidden_state_head() == 0) return;
  int64_t rows = kMaxHiddenStateBytes / (2 * std::max<int64_t>(1, target_.hidden_state_width()));
  size_t bytes = target_.planner.outstanding()->bytes;
  for (const auto& [id, live] : requests) {
    if (!reads_hidden_states(*live) || !is_worth_rows(*live)) continue;
    const int64_t count = std::min<int64_t>(rows, told_behind(*live) - live->link.hidden_states);
    bytes += kAskBytes;
    if (count <= 0 || bytes > options_.max_bytes_per_step) continue;
    rows -= count;
    asked_.push_back({.sequence = id,
                      .first = Position(live->link.hidden_states),
                      .count = static_cast<int32_t>(count),
                      .worker = pool_.of(*live)->generation()});
  }
  step.hidden_states = asked_;
}

Status HiddenStateRelay::check(const StepResult& result) const {
  auto ask = asked_.begin();
  int64_t told = 0;  // of this request
  for (const HiddenStateRows& rows : result.hidden_states) {
    if (ask != asked_.end() && ask->sequence != rows.sequence) told = 0;
    ask = std::find_if(ask, asked_.end(),
                       [&](const HiddenStateRequest& asked) { return asked.sequence == rows.sequence; });
    const auto width = static_cast<size_t>(std::max(1, target_.hidden_state_width()));
    const bool is_whole = rows.transfer > 0 ? rows.values.empty() : rows.values.size() % width == 0;
    if (ask == asked_.end() || rows.first.value() != ask->first.value() + told ||
        rows.width != target_.hidden_state_width() || !rows.ids.empty() || !is_whole || rows.rows() <= 0 ||
        rows.rows() > ask->count - told)
      return malformed(
          fmt::format("brings states of sequence {} that were not asked for", rows.sequence.value()));
    told += rows.rows();
  }
  return {};
}

// Rows by a link went only to the worker that they were requested for.
bool HiddenStateRelay::is_here_for(const HiddenStateRows& rows, const LiveRequest& live) const {
  const auto ask = std::find_if(asked_.begin(), asked_.end(), [&](const HiddenStateRequest& asked) {
    return asked.sequence == rows.sequence;
  });
  return rows.transfer == 0 || pool_.of(live)->generation() == ask->worker;
}

void HiddenStateRelay::pass_on(StepResult& result, RequestTable& requests, Turn& turn) {
  for (HiddenStateRows& rows : result.hidden_states) {
    if (rows.transfer > 0)
      totals_.hidden_state_link_bytes += rows.rows() * rows.width * int64_t{sizeof(uint16_t)};
    LiveRequest* live = requests.find(rows.sequence);
    if (!live || !reads_hidden_states(*live) || !is_here_for(rows, *live)) continue;
    // The sequence may have another worker than at the request.
    const int32_t first = rows.first.value();
    const auto count = std::min(static_cast<int32_t>(rows.rows()), live->sequence.committed() - 1 - first);
    if (first > live->link.hidden_states || count <= 0) continue;
    if (rows.transfer > 0)
      rows.count = count;
    else
      rows.values.resize(static_cast<size_t>(count) * static_cast<size_t>(rows.width));
    const auto ids = live->sequence.ids_from(first + 1).first(static_cast<size_t>(count));
    rows.ids.assign(ids.begin(), ids.end());
    live->link.hidden_states = std::max(live->link.hidden_states, first + count);
    turn.send(*live->link.peer, std::move(rows));
  }
  for (const HiddenStateRequest& ask : asked_) {
    LiveRequest* live = requests.find(ask.sequence);
    const bool is_stuck = live && live->state == RequestState::kDrafting && reads_hidden_states(*live) &&
                          live->link.hidden_states == ask.first.value();
    if (is_stuck) live->go_plain(turn.now());
  }
  asked_.clear();
}

}  // namespace outrider
