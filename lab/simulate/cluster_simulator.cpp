#include "lab/simulate/cluster_simulator.h"

#include <algorithm>

#include "base/hash.h"
#include "cluster/simulation/simulated_text.h"

namespace outrider {
namespace {

constexpr int64_t kEventLimit = int64_t{1} << 40;
constexpr double kSecondsLimit = 1e9;  // virtual

}  // namespace

Status ClusterSimulator::make_jobs() {
  int32_t longest = 1;
  for (const SimulatedRequest& asked : arrivals_->requests)
    longest = std::max(longest, asked.prompt_tokens + asked.output_tokens);
  for (int32_t i = 0; i < options_.jobs; ++i) {
    // A policy's sequences learn from each other, within a job.
    ASSIGN_OR_RETURN(auto gamma, parse_gamma_policy(options_.gamma_policy));
    jobs_.push_back(std::make_unique<SimulatedJob>(events_, options_.job, std::move(gamma), acceptance_,
                                                   longest, [this](Action& action) { perform(action); }));
  }
  return {};
}

// The prompt: its group's shared prefix, then its own part, the request's number in digits.
std::vector<TokenId> ClusterSimulator::prompt_of(SequenceId id, const SimulatedRequest& asked) const {
  const SharedPrefixes& prefixes = options_.prefixes;
  std::vector<TokenId> prompt(static_cast<size_t>(asked.prompt_tokens), kBestGuess);
  if (prefixes.tokens == 0) return prompt;
  const auto write = [&](size_t from, size_t to, uint64_t number) {
    for (size_t i = from; i < to && number > 0; ++i, number /= kGuesses)
      prompt[i] = TokenId(static_cast<int32_t>(number % kGuesses));
  };
  const size_t shared = std::min(static_cast<size_t>(prefixes.tokens), prompt.size() - 1);
  const auto kinds = static_cast<uint64_t>(std::max(1, prefixes.kinds));
  write(0, shared, hash_combine(prefixes.seed, id.value()) % kinds);
  write(shared, prompt.size(), id.value());
  return prompt;
}

void ClusterSimulator::submit(SequenceId id, const SimulatedRequest& asked) {
  Request request;
  request.prompt = prompt_of(id, asked);
  request.max_tokens = asked.output_tokens;
  request.ignore_eos = true;
  const auto least = std::min_element(jobs_.begin(), jobs_.end(), [](const auto& a, const auto& b) {
    return a->open_requests() < b->open_requests();
  });
  (*least)->step(Submit{id, std::move(request)});
}

void ClusterSimulator::submit_at(SimTime when, size_t index) {
  events_.at(when, [this, index] { submit(SequenceId(index + 1), arrivals_->requests[index]); });
}

// In a closed loop only the first request of every client.
void ClusterSimulator::await_arrivals() {
  const auto& requests = arrivals_->requests;
  next_ = arrivals_->clients > 0 ? std::min(static_cast<size_t>(arrivals_->clients), requests.size())
                                 : requests.size();
  for (size_t i = 0; i < next_; ++i) submit_at(sim_time(requests[i].arrival_s), i);
}

Result<SimulationResult> ClusterSimulator::run(const Arrivals& arrivals) {
  arrivals_ = &arrivals;
  const std::vector<SimulatedRequest>& requests = arrivals.requests;
  RETURN_IF_ERROR(make_jobs());
  await_arrivals();
  while (finished_ < requests.size() && error_.ok() && sim_seconds(events_.now()) < kSecondsLimit &&
         result_.events < kEventLimit) {
    CHECK(!events_.empty(), "{} of {} requests finished and nothing happens", finished_, requests.size());
    ++result_.events;
    events_.run_next();
  }
  RETURN_IF_ERROR(error_);
  result_.cost = jobs_.front()->protocol().cost();
  for (const auto& job : jobs_) {
    result_.totals.add(job->protocol().totals());
    const std::vector<double> busy = job->target_busy();
    result_.target_busy.insert(result_.target_busy.end(), busy.begin(), busy.end());
    result_.draft_busy += job->draft_busy();
    result_.bytes += job->draft_bytes();
  }
  const SimTime end = finished_ == requests.size() ? last_finish_ : events_.now();
  result_.seconds = requests.empty() ? 0 : sim_seconds(end) - requests.front().arrival_s;
  return result_;
}

void ClusterSimulator::perform(Action& action) {
  if (const auto* done = std::get_if<RoundDone>(&action)) {
    for (const int64_t part : {static_cast<int64_t>(done->request.value()), int64_t{done->drafted},
                               int64_t{done->accepted_count}, int64_t{events_.now()}})
      result_.fingerprint = hash_combine(result_.fingerprint, static_cast<uint64_t>(part));
  } else if (const auto* finish = std::get_if<Finish>(&action)) {
    ++finished_;
    last_finish_ = events_.now();
    if (next_ < arrivals_->requests.size()) submit_at(last_finish_ + sim_time(arrivals_->think_s), next_++);
    if (finish->reason == FinishReason::kError && error_.ok())
      error_ = finish->error.in(fmt::format("simulated request {}", finish->request.value()));
  }
}

}  // namespace outrider
