#include "coordinator/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/json_text.h"
#include "coordinator/trace_writer.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Place = TraceWriter::Place;

constexpr size_t kMaxDrafted = 4096;

enum Process { kCoordinator = 1, kDraftWorkers = 2, kTarget = 3, kWire = 4 };

Json args_of(const RoundDone& round) {
  Json args{{"request", round.request.value()},
            {"round", round.round.value()},
            {"base", round.base.value()},
            {"step", round.step},
            {"gamma", round.gamma},
            {"drafted", round.drafted},
            {"accepted_count", round.accepted_count},
            {"emitted", round.emitted}};
  if (round.gamma > 0) args["drafted_at"] = round.own ? "target" : "worker";
  if (!round.parents.empty()) {
    args["parents"] = round.parents;
    args["path"] = round.path;
  }
  return args;
}

// Limits a peer's reported time to the wait for it.
TraceSpan busy_within(TraceSpan wait, int64_t busy_ns) {
  const auto length = std::max<Clock::duration>(wait.end - wait.begin, Clock::duration(0));
  const auto busy =
      std::clamp<Clock::duration>(std::chrono::nanoseconds(busy_ns), Clock::duration(0), length);
  const auto begin = wait.begin + (length - busy) / 2;
  return {begin, begin + busy};
}

// A step of a target group.
using PassName = std::pair<int32_t, uint64_t>;
PassName pass_of(const RoundDone& round) { return {round.group, round.step}; }

// Names a group by number, except the first: most runs have only one.
std::string in_group(int32_t group, const char* what) {
  return group == 0 ? what : fmt::format("group {}: {}", group, what);
}

// All rounds that one target pass verified.
struct Pass {
  int32_t group = 0;
  uint64_t step = 0;
  Clock::time_point planned_at, done_at;
  int64_t target_ns = 0, commit_ns = 0;
  int texts = 0, drafting = 0, gamma = 0, drafted = 0, accepted = 0, emitted = 0;
  uint32_t queued = 0;

  void add(const RoundDone& round, uint32_t waiting) {
    if (texts == 0 || round.planned_at < planned_at) planned_at = round.planned_at;
    done_at = std::max(done_at, round.done_at);
    group = round.group, step = round.step;
    target_ns = round.target_ns, commit_ns = round.commit_ns;
    ++texts, drafting += round.gamma > 0, gamma += round.gamma;
    drafted += round.drafted, accepted += round.accepted_count, emitted += round.emitted;
    queued = waiting;
  }
};

class Drawing {
 public:
  Drawing(std::FILE* file, Clock::time_point zero) : out_(file, zero) {
    out_.name_process(kCoordinator, "coordinator");
    out_.name_process(kDraftWorkers,
                      "draft workers (busy times as reported, placed within the wait for them)");
    out_.name_process(kTarget, "target (busy times as reported, placed within the wait for them)");
    out_.name_process(kWire, "wire and wake-ups (measured there and back; split in halves)");
  }

  // Rounds of one request, in their order.
  void request(const std::vector<const RoundDone*>& rounds) {
    const std::string id = fmt::format("request {}", rounds.front()->request.value());
    Clock::time_point reached = rounds.front()->begun_at;
    out_.begin(kCoordinator, id, id, reached);
    for (const RoundDone* round : rounds) {
      reached = std::max(reached, round->begun_at);
      const auto until = std::max(round->done_at, reached);
      out_.begin(kCoordinator, id, "round", reached, args_of(*round));
      const auto phase = [&](const char* name, Clock::time_point end) {
        end = std::clamp(end, reached, until);
        if (end == reached) return;
        out_.begin(kCoordinator, id, name, reached);
        out_.end(kCoordinator, id, name, end);
        reached = end;
      };
      phase(round->gamma > 0 ? "waits for its draft" : "waits", round->decided_at);
      phase("waits for a pass", round->planned_at);
      phase("waits for the verdict", until);
      out_.end(kCoordinator, id, "round", until);
      reached = until;
    }
    out_.end(kCoordinator, id, id, reached);
  }

  void draft(const RoundDone& round, PeerId worker) {
    const TraceSpan wait{round.begun_at, round.decided_at};
    if (round.gamma == 0 || round.draft_ns == 0) return;
    const TraceSpan busy = busy_within(wait, round.draft_ns);
    legs("proposal", "draft", wait, busy, fmt::format("draft of request {}", round.request.value()));
    if (const auto place = out_.slice(kDraftWorkers, lane_of(worker), "draft", busy, placed(args_of(round))))
      drafts_.insert_or_assign({pass_of(round), round.request}, *place);
  }

  // A worker prepares from its last draft until its next Propose. Over links that is longer than seen from
  // here, by one way at either end.
  void preparation(const RoundDone& round, PeerId worker, Clock::time_point last_draft) {
    const Clock::duration busy = std::chrono::nanoseconds(round.prepare_ns);
    const auto late = std::max(Clock::duration(0), busy - (round.begun_at - last_draft));
    const auto begin = last_draft - late / 2;
    out_.slice(kDraftWorkers, lane_of(worker), "prepare", {begin, begin + busy}, placed(args_of(round)));
  }

  void pass(const Pass& pass, const std::vector<const RoundDone*>& rounds) {
    const Json args{{"step", pass.step},
                    {"texts", pass.texts},
                    {"drafted", pass.drafted},
                    {"accepted", pass.accepted},
                    {"emitted", pass.emitted}};
    const TraceSpan wait{pass.planned_at, pass.done_at}, busy = busy_within(wait, pass.target_ns);
    const auto commit = std::clamp<Clock::duration>(std::chrono::nanoseconds(pass.commit_ns),
                                                    Clock::duration(0), busy.end - busy.begin);
    out_.slice(kCoordinator, in_group(pass.group, "passes"), fmt::format("pass of {} texts", pass.texts),
               wait, args);
    const std::string lane = in_group(pass.group, "target rank 0, which leads");
    const auto verify = out_.slice(kTarget, lane, "verify", {busy.begin, busy.end - commit}, placed(args));
    out_.slice(kTarget, lane, "commit", {busy.end - commit, busy.end}, placed(args));
    legs("plan", "result", wait, busy, in_group(pass.group, "pass ") + std::to_string(pass.step));
    for (const RoundDone* round : rounds)
      if (const auto from = drafts_.find({pass_of(*round), round->request}); verify && from != drafts_.end())
        out_.arrow(from->second, *verify, "draft to verdict");
    if (pass.drafting > 0)
      out_.counter(kCoordinator, "gamma", "mean of a pass", pass.done_at,
                   static_cast<double>(pass.gamma) / pass.texts);
    if (pass.drafted > 0)
      out_.counter(kCoordinator, "acceptance", "share of a pass", pass.done_at,
                   static_cast<double>(pass.accepted) / pass.drafted);
    out_.counter(kCoordinator, "requests in the queue", "requests", pass.done_at, pass.queued);
    out_.counter(kCoordinator, "texts in a pass", "texts", pass.done_at, pass.texts);
  }

 private:
  static Json placed(Json args) {
    args["placed"] = "assumed";
    return args;
  }

  // Peers report only busy times, so each way gets half of the remaining wait.
  void legs(const char* there, const char* back, TraceSpan wait, TraceSpan busy, const std::string& id) {
    const Json args{{"placed", "assumed"}};
    const auto leg = [&](const char* name, TraceSpan span) {
      if (span.end <= span.begin) return;
      out_.begin(kWire, id, name, span.begin, args);
      out_.end(kWire, id, name, span.end);
    };
    leg(there, {wait.begin, busy.begin});
    leg(back, {busy.end, wait.end});
  }

  // Numbered in order of the first draft.
  std::string lane_of(PeerId worker) {
    if (worker == PeerId()) return "some draft worker";
    const auto number = workers_.try_emplace(worker, workers_.size() + 1).first->second;
    return fmt::format("draft worker {}", number);
  }

  TraceWriter out_;
  std::map<PeerId, size_t> workers_;
  std::map<std::pair<PassName, SequenceId>, Place> drafts_;  // by pass and request
};

}  // namespace

void Trace::note_draft(SequenceId request, Round round, PeerId worker) {
  if (drafted_.size() >= kMaxDrafted) drafted_.clear();
  drafted_.insert_or_assign(request, Drafted{round, worker});
}

void Trace::add(const RoundDone& round, size_t queued) {
  Aside aside{.worker = {}, .queued = static_cast<uint32_t>(queued)};
  const auto drafted = drafted_.find(round.request);
  if (drafted != drafted_.end() && drafted->second.round == round.round)
    aside.worker = drafted->second.worker;
  if (drafted != drafted_.end()) drafted_.erase(drafted);
  if (rounds_.size() >= max_rounds_) {
    ++dropped_;
    return;
  }
  rounds_.push_back(round);
  asides_.push_back(aside);
}

void Trace::write(std::FILE* file) const {
  Clock::time_point zero = Clock::time_point::max();
  for (const RoundDone& round : rounds_) zero = std::min(zero, round.begun_at);
  const std::string other = json_text(Json{{"dropped_rounds", dropped_}});
  std::fprintf(file, "{\"displayTimeUnit\":\"ms\",\"otherData\":%s,\"traceEvents\":[", other.c_str());
  Drawing drawing(file, zero);
  std::map<SequenceId, std::vector<const RoundDone*>> requests;
  std::map<PassName, std::pair<Pass, std::vector<const RoundDone*>>> passes;
  std::vector<size_t> by_begin;
  for (size_t i = 0; i < rounds_.size(); ++i) {
    const RoundDone& round = rounds_[i];
    requests[round.request].push_back(&round);
    auto& [pass, judged] = passes[pass_of(round)];
    pass.add(round, asides_[i].queued);
    judged.push_back(&round);
    by_begin.push_back(i);
  }
  for (const auto& [id, rounds] : requests) drawing.request(rounds);
  std::stable_sort(by_begin.begin(), by_begin.end(),
                   [&](size_t a, size_t b) { return rounds_[a].begun_at < rounds_[b].begun_at; });
  std::map<SequenceId, Clock::time_point> last_draft;
  for (const size_t i : by_begin) {
    const RoundDone& round = rounds_[i];
    const auto before = last_draft.find(round.request);
    if (before != last_draft.end()) drawing.preparation(round, asides_[i].worker, before->second);
    last_draft[round.request] = round.decided_at;
    drawing.draft(round, asides_[i].worker);
  }
  for (const auto& [name, pass] : passes) drawing.pass(pass.first, pass.second);
  std::fputs("\n]}\n", file);
}

}  // namespace outrider
