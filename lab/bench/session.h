// Runs prompts through a real cluster in this process, on models that stay loaded, and divides the time of
// its rounds by phase.
#pragma once

#include <string>
#include <vector>

#include "coordinator/coordinator.h"
#include "requests/by_category.h"
#include "requests/requests.h"
#include "start/local_cluster.h"

namespace outrider {

// Seconds of one round. They add up to `wall`.
struct RoundSeconds {
  double draft = 0;         // drafting, including the prefill of committed tokens
  double transfer = 0;      // messages under way, wake-ups of threads
  double forward = 0;       // the target's pass
  double verification = 0;  // over the vocabulary
  double commit = 0;        // tokens and KV of the target
  double idle = 0;          // the coordinator: protocol, scheduling, text
  double wall = 0;

  RoundSeconds& operator+=(const RoundSeconds& other);
  RoundSeconds operator/(double count) const;
  double overhead() const { return transfer + idle; }
};

// One run over all prompts, one sequence at a time. Rounds are timed from the second decode round on, because
// the draft model prefills in the first one, up to the first round whose draft is cut by the end of the text.
struct RunTimes {
  std::vector<std::vector<TokenId>> texts;  // by prompt
  std::vector<RoundSeconds> rounds;         // timed ones
  RoundSums sums;                           // of timed rounds
  double seconds = 0;                       // of timed rounds
  std::vector<RequestResult> requests;      // by prompt: all of each, its prompt included
  double first_token_seconds = 0;           // from the call until the first token

  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(sums.emitted) / seconds : 0; }
  double median_overhead() const;
};

// The draft length policy of a run, and the longest draft that it asks for away from a text's end; 0: plain
// decoding, without a drafter attached.
struct BenchPolicy {
  std::string policy;
  int longest = 0;
  static BenchPolicy fixed(int gamma);
};

class BenchSession {
 public:
  // All three must outlive it.
  BenchSession(const ClusterSettings& cluster, const Preparation& prepared, LocalModels& models)
      : cluster_(cluster), prepared_(prepared), models_(models) {}

  Result<RunTimes> run(const std::vector<PromptRequest>& prompts, const BenchPolicy& policy);

 private:
  const ClusterSettings& cluster_;
  const Preparation& prepared_;
  LocalModels& models_;
};

}  // namespace outrider
