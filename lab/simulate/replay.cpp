#include "lab/simulate/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>

#include "base/hash.h"
#include "base/sampling_params.h"
#include "comm/chances.h"
#include "coordinator/costs/settled_passes.h"

namespace outrider {
namespace {

// The cost of a step in which sequences draft together and are verified together.
struct StepCost {
  int32_t rows = 0, longest = 0, total = 0;      // of what is sent
  int32_t longest_passes = 0, total_passes = 0;  // of the draft model; its last token may be withheld
  int64_t context = 0;
};

double draft_seconds(const RecordedCosts& costs, const StepCost& step) {
  return costs.draft.per_step * step.longest_passes +
         costs.draft.per_further * (step.total_passes - step.longest_passes);
}

RecordedCosts with(RecordedCosts costs, const ReplayCosts& given, double pass) {
  if (given.draft > 0) costs.draft = {.per_step = given.draft * pass, .per_further = 0};
  return costs;
}

int64_t ns_of(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

double recorded_acceptance(const RoundRecord& record) {
  RoundSums sums;
  for (const RecordedRound& r : record.rounds) sums.add_round(r.drafted, r.accepted, r.emitted, false);
  return sums.acceptance();
}

class Replay {
 public:
  Replay(const RoundRecord& record, const GammaPolicyFactory& policy, const ReplayCosts& costs)
      : record_(record),
        policy_(policy),
        given_(costs),
        pass_(record.costs.verify.base + record.costs.verify.per_row),
        costs_(with(record.costs, costs, pass_)),
        chance_(recorded_acceptance(record)) {
    tell_costs();
    std::map<int64_t, std::unique_ptr<RecordedText>> by_id;
    for (const RecordedRequest& request : record.requests)
      by_id[request.id] = std::make_unique<RecordedText>(request, record.max_context);
    for (const RecordedRound& round : record.rounds) by_id.at(round.request)->add(round);
    for (auto& [id, text] : by_id)
      if (text->request().emitted > 0) waiting_.push_back(std::move(text));
  }

  ReplayResult run() {
    admit();
    while (!live_.empty()) {
      step();
      std::erase_if(live_, [](const Live& live) { return live.base >= live.text->end(); });
      admit();
    }
    return std::move(result_);
  }

 private:
  struct Live {
    std::unique_ptr<RecordedText> text;
    std::unique_ptr<GammaPolicy> policy;
    int32_t base = 0;
    int32_t asked = 0;
    bool was_read = false;  // the draft model has prefilled its prompt
    RecordedRound round;
    int32_t passes = 0;  // of the draft model
    std::vector<float> margins;
  };

  double verify_seconds(const StepCost& step) const {
    const RecordedCosts& c = record_.costs;
    if (!given_.rows.points().empty()) return pass_ * given_.rows.of(step.rows);
    return c.verify.base + c.verify.per_row * step.rows +
           c.verify.per_context * static_cast<double>(step.context);
  }

  // Gives the cost model the times that target and worker measure before they join.
  void tell_costs() {
    if (!given_.given()) return;
    PassTimes target{.row_ns = ns_of(pass_), .by_rows = {}};
    for (const int32_t rows : {2, 3, 5, 9, 17})
      target.by_rows.push_back(
          {rows, static_cast<float>(verify_seconds({.rows = rows}) / verify_seconds({.rows = 1}))});
    cost_.expect_passes(target);
    cost_.expect_drafts({.row_ns = ns_of(costs_.draft.per_step),
                         .by_rows = {},
                         .prefill_token_ns = ns_of(given_.draft_prefill * pass_)});
  }

  double prefill_seconds(const Live& live) const {
    return live.was_read ? 0 : given_.draft_prefill * pass_ * live.base;
  }

  // As DraftTerms::remaining.
  int32_t remaining(const Live& live) const {
    constexpr int64_t kTelling = 8;  // texts
    const RecordedRequest& request = live.text->request();
    const int32_t most = request.max_tokens - (live.base - request.prompt_tokens);
    if (ended_ < kTelling) return most;
    return static_cast<int32_t>(std::min<int64_t>(most, ended_tokens_ / ended_));
  }

  // The round that ends the prefill commits one token; no policy chooses it.
  void admit() {
    while (!waiting_.empty() && live_.size() < static_cast<size_t>(record_.max_num_seqs)) {
      Live live{.text = std::move(waiting_.front()), .policy = policy_(), .round = {}};
      waiting_.pop_front();
      const RecordedRequest& request = live.text->request();
      live.base = request.prompt_tokens + 1;
      result_.rounds.push_back({.request = request.id, .base = request.prompt_tokens, .emitted = 1});
      if (live.base < live.text->end()) live_.push_back(std::move(live));
    }
  }

  void step() {
    StepCost step;
    for (Live& live : live_) {
      choose(live);
      step.rows += live.round.drafted + 1;
      step.context += live.base;
      step.longest = std::max(step.longest, live.round.drafted);
      step.total += live.round.drafted;
      step.longest_passes = std::max(step.longest_passes, live.passes);
      step.total_passes += live.passes;
    }
    for (Live& live : live_) {
      if (live.asked == 0) continue;
      result_.seconds += prefill_seconds(live);
      live.was_read = true;
    }
    const double busy = draft_seconds(costs_, step), verify = verify_seconds(step);
    const double wait = step.longest_passes > 0 ? busy + costs_.exchange : 0;
    if (step.longest > 0) cost_.observe_draft_phase(step.longest, step.total, busy, wait);
    if (step.longest > 0) passes_.draft();
    if (passes_.next()) cost_.observe_verify(step.rows, step.context, verify);
    result_.seconds += wait + verify;
    for (Live& live : live_) finish(live, wait + verify);
  }

  void choose(Live& live) {
    const int32_t limit = live.text->limit(live.base, record_.gamma_max);
    live.asked = std::clamp(live.policy->next({.limit = limit,
                                               .batch_size = static_cast<int32_t>(live_.size()),
                                               .context_length = live.base,
                                               .cost = &cost_,
                                               .local = given_.given(),
                                               .prefill_seconds = prefill_seconds(live),
                                               .remaining = remaining(live)}),
                            0, limit);
    live.round = live.text->round(live.base, live.asked, chance_, result_.gaps);
    live.passes = live.round.drafted;
    live.margins.clear();
    if (live.asked > 0) stop(live, live.policy->stop_rule());
  }

  // Ends the draft where the rule ends it.
  void stop(Live& live, const StopRule& rule) {
    RecordedRound& round = live.round;
    if (rule.kind == StopKind::kNone) return;
    if (rule.kind == StopKind::kChances)
      live.margins = live.text->margins(live.base, round.drafted, round.accepted, result_.gaps);
    if (live.margins.empty()) {
      result_.stops_early = true;
      return;
    }
    double survival = 1;
    int32_t length = 0;
    bool withholds = false;
    while (length < static_cast<int32_t>(live.margins.size())) {
      const auto place = static_cast<size_t>(length);
      survival *= chance_of(rule, place, static_cast<double>(live.margins[place]));
      withholds = stops_before(rule, place, survival);
      if (withholds) break;
      ++length;
      if (stops_after(rule, place, survival)) break;
    }
    round.eos &= length == round.drafted;
    round.drafted = std::min(round.drafted, length);
    live.passes = length + (withholds ? 1 : 0);
    live.margins.resize(static_cast<size_t>(round.drafted));
    if (round.accepted <= round.drafted) return;
    round.accepted = round.drafted;
    round.emitted = std::min(round.accepted + 1, live.text->end() - live.base);
  }

  void finish(Live& live, double seconds) {
    const RecordedRound& r = live.round;
    const bool cut = r.emitted <= r.accepted;  // as Verdicts::teach
    live.policy->update({.proposed = live.asked,
                         .drafted = cut ? r.emitted : r.drafted,
                         .accepted = cut ? r.emitted : r.accepted,
                         .round_ns = static_cast<int64_t>(seconds * 1e9),
                         .batch_size = static_cast<int32_t>(live_.size()),
                         .cost = &cost_,
                         .margins = live.margins});
    result_.sums.add_round(r.drafted, r.accepted, r.emitted, false);
    live.base += r.emitted;
    result_.rounds.push_back(r);
    if (live.base < live.text->end()) return;
    ++ended_;
    ended_tokens_ += live.text->request().emitted;
  }

  const RoundRecord& record_;
  const GammaPolicyFactory& policy_;
  const ReplayCosts given_;
  const double pass_;  // seconds of a pass of one row
  const RecordedCosts costs_;
  const double chance_;
  int64_t ended_ = 0, ended_tokens_ = 0;  // texts, and their tokens
  CostModel cost_;  // learns from the replay as the coordinator's does from a run
  SettledPasses passes_;
  std::deque<std::unique_ptr<RecordedText>> waiting_;
  std::vector<Live> live_;
  ReplayResult result_;
};

}  // namespace

RecordedText::RecordedText(const RecordedRequest& request, int32_t max_context)
    : request_(request),
      max_context_(max_context),
      guesses_(static_cast<size_t>(request.emitted), Guess::kUnknown) {}

void RecordedText::know(int32_t position, Guess guess) {
  const int32_t at = position - request_.prompt_tokens;
  if (at >= 0 && at < request_.emitted) guesses_[static_cast<size_t>(at)] = guess;
}

Guess RecordedText::at(int32_t position) const {
  const int32_t at = position - request_.prompt_tokens;
  return at >= 0 && at < request_.emitted ? guesses_[static_cast<size_t>(at)] : Guess::kUnknown;
}

void RecordedText::add(const RecordedRound& round) {
  for (int32_t i = 0; i < round.accepted; ++i) know(round.base + i, Guess::kRight);
  if (round.accepted < round.drafted) {
    know(round.base + round.accepted, Guess::kWrong);
    if (round.eos) rejected_[round.base + round.accepted] = round.drafted - round.accepted;
  } else if (round.eos && round.drafted > 0) {
    know(round.base + round.drafted - 1, Guess::kRightAndEnds);
  }
  if (round.guess != Guess::kUnknown) know(round.base - 1, round.guess);
  for (int32_t i = 0; i < static_cast<int32_t>(round.margins.size()) && i <= round.accepted; ++i)
    margins_[round.base + i] = round.margins[static_cast<size_t>(i)];
  if (static_cast<int32_t>(round.margins.size()) > round.accepted + 1)
    behind_[round.base + round.accepted].assign(round.margins.begin() + round.accepted + 1,
                                                round.margins.end());
}

std::vector<float> RecordedText::margins(int32_t base, int32_t drafted, int32_t accepted,
                                         int64_t& gaps) const {
  std::vector<float> out;
  if (margins_.empty()) return out;
  const auto behind = behind_.find(base + accepted);
  float last = kMaxMargin;
  for (int32_t i = 0; i < drafted; ++i) {
    const auto known = i <= accepted ? margins_.find(base + i) : margins_.end();
    const auto after = static_cast<size_t>(std::max(0, i - accepted - 1));
    if (known != margins_.end())
      last = known->second;
    else if (i <= accepted)
      ++gaps;
    else if (behind != behind_.end() && after < behind->second.size())
      last = behind->second[after];
    out.push_back(last);
  }
  return out;
}

int32_t RecordedText::limit(int32_t base, int32_t gamma_max) const {
  const int32_t emitted = base - request_.prompt_tokens;
  return std::max(0, std::min({gamma_max, request_.max_tokens - emitted - 1, max_context_ - base - 1}));
}

RecordedRound RecordedText::round(int32_t base, int32_t gamma, double chance_at_gaps, int64_t& gaps) const {
  RecordedRound out{.request = request_.id, .base = base, .gamma = gamma, .drafted = gamma};
  bool right = true;
  while (out.accepted < out.drafted && right) {
    const int32_t position = base + out.accepted;
    Guess guess = at(position);
    if (guess == Guess::kUnknown) {
      ++gaps;
      const uint64_t bits = hash_combine(static_cast<uint64_t>(request_.id), static_cast<uint64_t>(position));
      guess = static_cast<double>(bits >> 11) * 0x1.0p-53 < chance_at_gaps ? Guess::kRight : Guess::kWrong;
    }
    right = guess != Guess::kWrong;
    if (guess == Guess::kRightAndEnds) out.drafted = out.accepted + 1, out.eos = true;
    out.accepted += right;
  }
  if (const auto ends = rejected_.find(base + out.accepted);
      ends != rejected_.end() && out.accepted < out.drafted && out.accepted + ends->second <= out.drafted) {
    out.drafted = out.accepted + ends->second;
    out.eos = true;
  }
  out.emitted = std::min(out.accepted + 1, end() - base);
  return out;
}

ReplayResult replay(const RoundRecord& record, const GammaPolicyFactory& policy, const ReplayCosts& costs) {
  return Replay(record, policy, costs).run();
}

std::vector<std::string> replay_caveats(const RoundRecord& record) {
  std::vector<std::string> out;
  for (const RecordedRequest& request : record.requests) {
    const auto rule = rule_from_name(request.rule);
    if (rule && is_match_rule(*rule)) continue;
    out.push_back(
        fmt::format("rule {}: a token is accepted by a draw that another round would draw anew, so "
                    "this is one likely course, not what would have happened",
                    request.rule));
    break;
  }
  if (record.drafter == "ngram" || record.drafter == "suffix" || record.drafter == "recycling" ||
      record.drafter == "lookahead")
    out.push_back("drafter " + record.drafter +
                  ": what it drafts depends on where a draft begins, not on the text alone");
  if (record.synthetic)
    out.push_back("synthetic acceptance: what a draft's place decides is taken from the recorded place");
  if (record.dropped > 0)
    out.push_back(fmt::format("{} rounds found no room in the record and are gaps", record.dropped));
  return out;
}

}  // namespace outrider
