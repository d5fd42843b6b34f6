#include "cluster/simulation/simulated_drafter.h"

#include <cmath>
#include <utility>

#include "base/hash.h"
#include "cluster/simulation/simulated_text.h"
#include "comm/chances.h"

namespace outrider {

void SimulatedDrafter::receive(const Message& message) {
  if (const auto* open = std::get_if<Open>(&message)) {
    sequences_[open->sequence] = {
        .committed = static_cast<int32_t>(open->ids.size()),
        .cached = open->prefix_length,  // of a head beside the target, whose hidden states are kept there
        .hash = prefix_hash(open->ids),
        .job = {}};
  } else if (const auto* close = std::get_if<Close>(&message)) {
    sequences_.erase(close->sequence);
  } else if (const auto* asked = std::get_if<Propose>(&message)) {
    propose(*asked);
  }
}

void SimulatedDrafter::propose(const Propose& message) {
  const auto at = sequences_.find(message.sequence);
  if (at == sequences_.end()) return;
  Sequence& s = at->second;
  if (s.drafting && s.job.round == message.round) return;  // a repeated Propose
  const auto told = static_cast<int32_t>(message.committed.size());
  if (told < message.base.value() - s.committed)  // the message with the ids between was lost
    return send_(Resync{.sequence = message.sequence,
                        .epoch = message.epoch,
                        .committed = Position(s.committed),
                        .hash = s.hash});
  for (int32_t i = told - (message.base.value() - s.committed); i < told; ++i)
    s.hash = extend_prefix_hash(s.hash, message.committed[static_cast<size_t>(i)]);
  s.committed = message.base.value();
  // Tokens drafted before and accepted are in the cache; the last committed one must be fed in any case.
  s.cached = std::min(s.cached, s.committed - 1);
  s.job = message;
  s.drafting = message.gamma > 0;
  s.drafted = 0;
  s.survival = 1;
  s.margins.clear();
  s.ingest_ns = s.draft_ns = 0;
  // With gamma 0 the tokens are prefilled while the drafter is idle, or as one free row of its next pass.
  if (message.gamma == 0) s.cached = s.committed - 1;
  // Messages that arrive at the same time are handled before the pass starts.
  if (!std::exchange(running_, true)) events_.after(0, [this] { start_pass(); });
}

void SimulatedDrafter::start_pass() {
  std::vector<SequenceId> taking_part;
  int64_t rows = 0, context = 0;
  for (const auto& [id, s] : sequences_) {
    if (!s.drafting) continue;
    taking_part.push_back(id);
    rows += (s.drafted > 0 ? 1 : s.committed - s.cached) + cost_.block_rows;
    context += s.committed;
  }
  running_ = !taking_part.empty();
  if (!running_) return;
  const double seconds = cost_.seconds(rows, context);
  const auto run = [this, seconds, taking_part = std::move(taking_part)] {
    events_.after(sim_time(seconds), [this, seconds, taking_part] { end_pass(seconds, taking_part); });
  };
  if (turns_)
    turns_->ask(DeviceTurns::Kind::kDraft, run);
  else
    run();
}

void SimulatedDrafter::end_pass(double seconds, const std::vector<SequenceId>& taking_part) {
  busy_ += seconds;
  if (turns_) turns_->end(DeviceTurns::Kind::kDraft);
  const int64_t share = static_cast<int64_t>(seconds * 1e9) / static_cast<int64_t>(taking_part.size());
  for (const SequenceId id : taking_part) {
    const auto at = sequences_.find(id);
    if (at == sequences_.end() || !at->second.drafting) continue;
    Sequence& s = at->second;
    (s.drafted == 0 ? s.ingest_ns : s.draft_ns) += share;
    bool is_over = false;
    do {
      s.cached = s.committed + s.drafted++;
      const bool ends = s.job.stop.kind == StopKind::kChances ? weigh(s) : stops(s);
      is_over = ends || s.drafted >= s.job.gamma;
    } while (cost_.block_rows > 0 && !is_over);
    if (is_over) answer(s);
  }
  start_pass();
}

// The drafter's confidence in a simulated token is its true chance: a calibrated drafter.
bool SimulatedDrafter::stops(const Sequence& s) const {
  const StopRule& rule = s.job.stop;
  if (rule.kind == StopKind::kNone) return false;
  const auto chance = [&](int32_t place) {
    return acceptance_.rate(s.job.sequence, s.committed + place, place);
  };
  const auto threshold = static_cast<double>(rule.threshold);
  if (rule.kind == StopKind::kConfidence) return chance(s.drafted - 1) < threshold;
  // Entropy such that AdaEDL's estimate at its usual scale of 0.2 is the chance.
  const double root = (1 - chance(s.drafted)) * std::sqrt(static_cast<double>(rule.scale) / 0.2);
  return rule.kind == StopKind::kSvip ? root > threshold : 1 - root < threshold;
}

// Like the model drafter; the margin of a token is the log odds of its chance.
bool SimulatedDrafter::weigh(Sequence& s) const {
  const auto place = static_cast<size_t>(s.drafted - 1);
  const double chance = acceptance_.rate(s.job.sequence, s.committed + s.drafted - 1, s.drafted - 1);
  const auto most = static_cast<double>(kMaxMargin);
  const double margin = std::clamp(std::log(chance / (1 - chance)), -most, most);
  s.survival *= chance_of(s.job.stop, place, margin);
  if (stops_before(s.job.stop, place, s.survival)) {
    --s.drafted;
    return true;
  }
  s.margins.push_back(static_cast<float>(margin));
  return stops_after(s.job.stop, place, s.survival);
}

void SimulatedDrafter::answer(Sequence& s) {
  s.drafting = false;
  send_(Draft{.sequence = s.job.sequence,
              .epoch = s.job.epoch,
              .round = s.job.round,
              .base = s.job.base,
              .ids = std::vector<TokenId>(static_cast<size_t>(s.drafted), kBestGuess),
              .parents = {},
              .prefix_hash = s.hash,
              .q_kind = QKind::kNone,
              .q = {},
              .margins = std::move(s.margins),
              .sent_after_us = s.job.sent_after_us,
              .ingest_ns = s.ingest_ns,
              .draft_ns = s.draft_ns});
}

}  // namespace outrider
