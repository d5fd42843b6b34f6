#include "lab/bench/session.h"

#include "base/statistics.h"
#include "start/make_coordinator.h"

namespace outrider {
namespace {

constexpr int kUntimedRounds = 2;  // the pass that ends the prompt, and the round after it

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }
double seconds_of_ns(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// Follows one request: with a single sequence every round is one pass, so differences of the totals between
// rounds are that pass's own.
class RoundRecorder {
 public:
  RoundRecorder(RunTimes& times, int longest) : times_(times), longest_(longest) {}

  void begin_request(int max_tokens) {
    seen_ = 0;
    left_ = max_tokens;
  }

  void add(const RoundDone& round, const Totals& totals) {
    const RoundSeconds parts = split(round, totals);
    const bool whole = left_ > longest_;  // near its end a text asks for shorter drafts
    left_ -= round.emitted;
    if (++seen_ > kUntimedRounds && whole) {
      times_.rounds.push_back(parts);
      times_.sums.add_round(round.drafted, round.accepted_count, round.emitted, false, round.tested);
      times_.seconds += parts.wall;
    }
    last_done_ = round.done_at;
    forward_ns_ = totals.forward_ns;
    verify_ns_ = totals.verify_ns;
  }

 private:
  RoundSeconds split(const RoundDone& round, const Totals& totals) const {
    RoundSeconds parts{.draft = seconds_of_ns(round.draft_ns),
                       .forward = seconds_of_ns(totals.forward_ns - forward_ns_),
                       .verification = seconds_of_ns(totals.verify_ns - verify_ns_ - round.commit_ns),
                       .commit = seconds_of_ns(round.commit_ns)};
    if (seen_ == 0) return parts;
    parts.wall = seconds(round.done_at - last_done_);
    const double away =
        seconds(round.decided_at - round.begun_at) + seconds(round.done_at - round.planned_at);
    parts.transfer = away - parts.draft - parts.forward - parts.verification - parts.commit;
    parts.idle = parts.wall - away;
    return parts;
  }

  RunTimes& times_;
  const int longest_;
  int seen_ = 0, left_ = 0;
  Clock::time_point last_done_;
  int64_t forward_ns_ = 0, verify_ns_ = 0;
};

RequestResult result_of(const PromptRequest& prompt, double took, const Totals& before, const Totals& after) {
  const RoundSums &from = before.rounds, &to = after.rounds;
  return {.id = prompt.id.empty() ? nlohmann::json() : nlohmann::json::parse(prompt.id),
          .category = prompt.category,
          .seconds = took,
          .tokens = to.emitted - from.emitted,
          .passes = to.rounds - from.rounds,
          .acceptance = {.count = to.accepted - from.accepted, .of = to.tested - from.tested}};
}

}  // namespace

RoundSeconds& RoundSeconds::operator+=(const RoundSeconds& o) {
  draft += o.draft;
  transfer += o.transfer;
  forward += o.forward;
  verification += o.verification;
  commit += o.commit;
  idle += o.idle;
  wall += o.wall;
  return *this;
}

RoundSeconds RoundSeconds::operator/(double count) const {
  return {draft / count,  transfer / count, forward / count, verification / count,
          commit / count, idle / count,     wall / count};
}

double RunTimes::median_overhead() const {
  std::vector<double> overheads;
  for (const RoundSeconds& round : rounds) overheads.push_back(round.overhead());
  return median(std::move(overheads));
}

BenchPolicy BenchPolicy::fixed(int gamma) {
  return {.policy = fmt::format("fixed:gamma={}", gamma), .longest = gamma};
}

Result<RunTimes> BenchSession::run(const std::vector<PromptRequest>& prompts, const BenchPolicy& asked) {
  ASSIGN_OR_RETURN(const auto policy, parse_gamma_policy(asked.policy));
  const bool drafts = asked.longest > 0;
  ASSIGN_OR_RETURN(ProtocolOptions limits, protocol_options(cluster_, prepared_));
  limits.prefix_caching = false;  // turns repeat their prompts, and each is to cost what it costs alone
  const auto started = Clock::now();
  RunTimes times;
  RoundRecorder recorder(times, asked.longest);
  Status error;
  Coordinator* running = nullptr;
  const CoordinatorCallbacks callbacks{
      .on_emit =
          [&](const Emit& emit) {
            if (times.first_token_seconds == 0) times.first_token_seconds = seconds(Clock::now() - started);
            auto& text = times.texts.back();
            text.insert(text.end(), emit.ids.begin(), emit.ids.end());
          },
      .on_finish =
          [&](const Finish& finish) {
            if (finish.reason == FinishReason::kError) error = finish.error;
          },
      .on_round = [&](const RoundDone& round) { recorder.add(round, running->totals()); },
  };
  std::optional<LocalCluster> cluster(std::in_place, cluster_, prepared_, &models_);
  Coordinator coordinator(cluster->coordinator_end(), std::move(limits), policy, prepared_.tokenizer.get(),
                          callbacks);
  running = &coordinator;
  RETURN_IF_ERROR(cluster->start_target());
  if (drafts) RETURN_IF_ERROR(cluster->start_drafter());
  Status status =
      wait_until_ready(coordinator, drafts ? 1 : 0, std::chrono::seconds(cluster_.models.startup_timeout_s),
                       [&] { return cluster->error(); });
  Request asked_last;
  for (size_t i = 0; status.ok() && i < prompts.size(); ++i) {
    times.texts.emplace_back();
    recorder.begin_request(prompts[i].request.max_tokens);
    const Totals before = coordinator.totals();
    Request request = prompts[i].request;
    if (prompts[i].follows) {
      auto turn = request_of_turn(prompts[i], asked_last, times.texts[i - 1], prepared_.max_model_len);
      if (!turn.ok()) {
        status = turn.status();
        break;
      }
      request = std::move(turn).value();
    }
    asked_last = request;
    const auto submitted = Clock::now();
    coordinator.submit(std::move(request));
    status = coordinator.run();
    times.requests.push_back(
        result_of(prompts[i], seconds(Clock::now() - submitted), before, coordinator.totals()));
    if (status.ok()) status = error;
  }
  coordinator.shutdown();
  cluster
      .reset();  // while its last results can still be delivered: a rank that fails aborts the models' group
  RETURN_IF_ERROR(status);
  return times;
}

}  // namespace outrider
