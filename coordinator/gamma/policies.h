// The policies behind gamma_policy.h's factory, and their descriptions for the factory.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/gamma/gamma_policy.h"

namespace outrider {

using GammaArguments = std::map<std::string, std::string, std::less<>>;

struct GammaKey {
  std::string name;
  std::string meaning;
  std::string default_value;  // empty: must be given
  bool is_length = false;     // of drafts, or a list of BATCH:LENGTH
};

struct GammaPolicyInfo {
  std::string name;
  std::string summary;
  std::string source;  // publication; docs/policies.md has the reasons for its constants
  std::vector<GammaKey> keys;
  // `arguments` has every key, with its default if it was not given.
  Result<GammaPolicyFactory> (*make)(const GammaArguments& arguments);
  bool reads_file = false;  // reads a file named by its arguments
};

const std::vector<GammaPolicyInfo>& gamma_policy_table();

// "arguments[key]" as an integer in [low, high], or an error naming policy, key and range.
Result<int32_t> gamma_integer(const GammaArguments& arguments, const std::string& key, int32_t low,
                              int32_t high);

// "arguments[key]" as a number in [low, high], or an error naming policy, key and range.
Result<double> gamma_number(const GammaArguments& arguments, const std::string& key, double low, double high);

// Always g, clamps only.
std::unique_ptr<GammaPolicy> make_fixed_gamma(int32_t gamma);
Result<GammaPolicyFactory> fixed_gamma_from(const GammaArguments& arguments);

// +2 after a fully accepted round, else -1. The rule came with the Hugging Face library; cap, floor and guard
// are ours. It settles near alpha^gamma = 1/3, whatever drafting costs.
struct HeuristicOptions {
  int32_t start = 5, min = 1, max = 16;
  bool guard = true;  // plain_guard.h
};
std::unique_ptr<GammaPolicy> make_heuristic_gamma(const HeuristicOptions& options);
Result<GammaPolicyFactory> heuristic_gamma_from(const GammaArguments& arguments);

// Gammas from a file, one per speculative round; the last one repeats.
Result<GammaPolicyFactory> replay_gamma_from(const GammaArguments& arguments);

// One file each; the table describes them.
Result<GammaPolicyFactory> ewma_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> logistic_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> position_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> confidence_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> svip_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> adaedl_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> threshold_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> bandit_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> goodput_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> pipelined_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> table_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> tiers_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> turbospec_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> goodspeed_gamma_from(const GammaArguments& arguments);
Result<GammaPolicyFactory> vllm_gamma_from(const GammaArguments& arguments);

}  // namespace outrider
