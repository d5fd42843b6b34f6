// The target group as the protocol sees it, on the toy model.
#pragma once

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "comm/messages.h"

namespace outrider {

ModelInfo toy_info();

// Replays StepPlans as the messages define them and refuses whatever a target rank would call a bug.
class ToyTarget {
 public:
  explicit ToyTarget(int32_t max_rows) : max_rows_(max_rows) {}
  // `lost`: whose drafts are given up, because a rank misses its slices of q.
  StepResult handle(const StepPlan& plan, const std::set<SequenceId>& lost = {});
  size_t open_sequences() const { return sequences_.size(); }
  const std::string& error() const { return error_; }  // of the first violation
  double nonfinite_chance = 0;
  std::mt19937_64* random = nullptr;

 private:
  struct Held {
    std::vector<TokenId> ids;
    int32_t kv_length = 0;
    Epoch epoch;
    int64_t last_round = -1;
    SamplingParams sampling;
  };
  void check(bool condition, const char* what);
  void handle_entry(const PlanEntry& entry, bool lost, StepResult* result);

  int32_t max_rows_;
  uint64_t next_step_ = 0;
  std::map<SequenceId, Held> sequences_;
  std::string error_;
};

}  // namespace outrider
