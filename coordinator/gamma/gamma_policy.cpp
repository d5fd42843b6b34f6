#include "coordinator/gamma/gamma_policy.h"

#include <algorithm>

#include "base/nearest.h"
#include "base/parse_number.h"
#include "base/shortened.h"
#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

// "; did you mean 'NAME'?", or nothing.
template <class T>
std::string did_you_mean(const std::vector<T>& known, std::string_view name) {
  std::vector<std::string_view> names;
  for (const T& k : known) names.push_back(k.name);
  const std::string_view nearest = nearest_name(names, name);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

Result<GammaArguments> parse_arguments(const GammaPolicyInfo& policy, std::string_view text) {
  GammaArguments arguments;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      return invalid_argument(
          fmt::format("gamma policy '{}': '{}' is not key=value", policy.name, shortened(item)));
    const std::string key(item.substr(0, equals));
    if (std::none_of(policy.keys.begin(), policy.keys.end(),
                     [&](const GammaKey& k) { return k.name == key; }))
      return invalid_argument(fmt::format(
          "gamma policy '{}' has no key '{}'{} (`outrider generate --gamma-policy list` shows all)",
          policy.name, shortened(key), did_you_mean(policy.keys, key)));
    if (!arguments.emplace(key, item.substr(equals + 1)).second)
      return invalid_argument(fmt::format("gamma policy '{}': key '{}' is given twice", policy.name, key));
  }
  for (const GammaKey& key : policy.keys) {
    if (arguments.contains(key.name)) continue;
    if (key.default_value.empty())
      return invalid_argument(
          fmt::format("gamma policy '{}' needs {}=... ({})", policy.name, key.name, key.meaning));
    arguments.emplace(key.name, key.default_value);
  }
  return arguments;
}

}  // namespace

const std::vector<GammaPolicyInfo>& gamma_policy_table() {
  const GammaKey max{"max", "never above", "16", true};
  const GammaKey guard{"guard", "1: plain decoding where no length is predicted to pay; 0: never", "1"};
  static const std::vector<GammaPolicyInfo> table = {
      {"fixed",
       "always the same draft length",
       "Leviathan, Kalman, Matias 2023 (2211.17192)",
       {{"gamma", "draft length, 0 = plain decoding", "5", true}},
       &fixed_gamma_from},
      {"ewma",
       "most tokens per second of the batch, from decayed acceptance and measured costs (default)",
       "ours; docs/default-policy.md",
       {max,
        {"decay", "of what rounds taught, per round", "0.95"},
        {"prior", "acceptance believed at first", "0.7"},
        {"prior-tests", "weight of that belief, in tested tokens", "10"},
        {"found-max", "longest draft of --drafter suffix, which ends each where rows stop paying", "64",
         true},
        {"switch-gain", "predicted gain before the length changes", "0.01"},
        {"surprise", "chance of a run of rejections, or of acceptances, that halves the evidence; 0: never",
         "0.005"},
        {"shrink", "tests that the rest of the batch is worth in a sequence's estimate", "1000"}},
       &ewma_gamma_from},
      {"logistic",
       "as ewma, but a draft ends where its tokens are too unlikely for what they cost, by the drafter's "
       "margins",
       "after vLLM's adaptive verification (2026); docs/policies.md",
       {max,
        {"memory", "of a tested token, at the next", "0.998"},
        {"ridge", "tested tokens that a place's own coefficients have to outweigh", "50"},
        {"known-from", "tested tokens before drafts are ended", "100"}},
       &logistic_gamma_from},
      {"heuristic",
       "+2 after a fully accepted round, else -1",
       "Hugging Face transformers, assisted generation",
       {{"start", "first draft length", "5", true}, {"min", "never below", "1", true}, max, guard},
       &heuristic_gamma_from},
      {"position",
       "as ewma, with an acceptance of its own for each place in the draft (Beta posteriors)",
       "ours, after the places of SSD (2603.03251)",
       {max,
        {"decay", "of what rounds taught, per test of a place", "0.98"},
        {"explore", "chance of one token more", "0.03125"}},
       &position_gamma_from},
      {"confidence",
       "the draft ends after a token that the drafter gives less than `threshold`",
       "Hugging Face transformers, assistant_confidence_threshold",
       {{"threshold", "probability under the draft model", "0.4"}, max, guard},
       &confidence_gamma_from},
      {"svip",
       "the draft ends before a token with sqrt(scale * entropy) > threshold (Zhang et al. 2024)",
       "Zhang et al. 2024 (2411.18462)",
       {{"threshold", "of the root", "0.3"}, {"scale", "of the entropy in nats", "0.15"}, max, guard},
       &svip_gamma_from},
      {"adaedl",
       "the draft ends before a token with 1 - sqrt(scale * entropy) < threshold (Agrawal et al. 2024)",
       "Agrawal et al. 2024 (2410.18351)",
       {{"threshold", "least estimated acceptance", "0.4"},
        {"scale", "of the entropy in nats", "0.2"},
        max,
        guard},
       &adaedl_gamma_from},
      {"threshold",
       "confidence, with a threshold steered to a target share of accepted draft tokens (Zhang et al. 2023)",
       "Zhang et al. 2023, Draft & Verify (2309.08168)",
       {{"target", "share of draft tokens to be accepted", "0.9"},
        {"start", "first threshold", "0.6"},
        max,
        guard},
       &threshold_gamma_from},
      {"bandit",
       "upper confidence bounds on measured tokens per second, over lengths 0 1 2 3 4 6 8 12 16",
       "after BanditSpec (2505.15141)",
       {{"explore", "width of the bounds", "0.3"}, {"discount", "of what rounds taught, per round", "0.99"}},
       &bandit_gamma_from},
      {"goodput",
       "for the batch, the draft tokens most likely to be reached (SmartSpec); ewma is this, with shared "
       "evidence",
       "Liu et al. 2024, SmartSpec (2406.14066)",
       {max},
       &goodput_gamma_from},
      {"pipelined",
       "for --pipeline ahead: as many tokens as a verification lasts, one after a rejection; else ewma",
       "Liu et al. 2024, PEARL (2408.11850)",
       {max},
       &pipelined_gamma_from},
      {"table",
       "a draft length for each batch size",
       "what engines offer whose users profile by hand",
       {{"steps", "BATCH:GAMMA from that batch size on, separated by '/'", "1:5/8:3/16:1/32:0", true}},
       &table_gamma_from},
      {"tiers",
       "a few lengths for each batch size, chosen by a moving average of accepted tokens",
       "SGLang 0.5, adaptive speculation (strategy ema)",
       {{"steps", "BATCH:LENGTHS from that batch size on, separated by '/'", "1:1-3-5-7/8:0-1-3/32:0-1/64:0",
         true},
        {"alpha", "weight of a batch in the average", "0.2"},
        {"interval", "batches between decisions", "5"},
        {"warmup", "batches before the first decision", "10"}},
       &tiers_gamma_from},
      {"turbospec",
       "one length for the batch, of the largest predicted goodput, by one acceptance of all sequences "
       "(TurboSpec)",
       "Liu et al. 2025, TurboSpec (2406.14066, version 3)",
       {max, {"decay", "of what rounds taught, per round", "0.95"}},
       &turbospec_gamma_from},
      {"goodspeed",
       "shares a budget of draft tokens so that the sum of log(goodput) of the sequences grows fastest "
       "(GOODSPEED)",
       "Tran et al. 2025, GOODSPEED (2512.09963)",
       {max,
        {"budget", "draft tokens of a step", "16"},
        {"eta", "weight of a round in a sequence's acceptance", "0.1"},
        {"beta", "weight of a round in a sequence's goodput", "0.1"}},
       &goodspeed_gamma_from},
      {"vllm",
       "verifies the tokens whose chance, by one slope and an offset for each place, is worth their row",
       "vLLM 0.33, adaptive verification (2026)",
       {max},
       &vllm_gamma_from},
      {"replay",
       "draft lengths from a file, one per speculative round; the last one repeats",
       "for studies",
       {{"file", "integers, one per line or a JSON array; '#' starts a comment", ""}},
       &replay_gamma_from,
       true},
  };
  return table;
}

Result<int32_t> gamma_integer(const GammaArguments& arguments, const std::string& key, int32_t low,
                              int32_t high) {
  const std::string& text = arguments.find(key)->second;
  const auto value = parse_number<int32_t>(text);
  if (!value || *value < low || *value > high)
    return invalid_argument(
        fmt::format("gamma policy: {}={} is not an integer in {}..{}", key, shortened(text), low, high));
  return *value;
}

Result<double> gamma_number(const GammaArguments& arguments, const std::string& key, double low,
                            double high) {
  const std::string& text = arguments.find(key)->second;
  const auto value = parse_number<double>(text);
  if (!value || !(*value >= low && *value <= high))
    return invalid_argument(
        fmt::format("gamma policy: {}={} is not a number in {}..{}", key, shortened(text), low, high));
  return *value;
}

namespace {

// Decides like the policy inside, and limits drafts to `most` tokens.
class CappedGamma final : public GammaPolicy {
 public:
  CappedGamma(std::unique_ptr<GammaPolicy> policy, int32_t most) : policy_(std::move(policy)), most_(most) {}
  int32_t next(const GammaContext& context) override {
    GammaContext capped = context;
    capped.limit = std::min(context.limit, most_);
    return std::min(policy_->next(capped), most_);
  }
  void update(const RoundOutcome& outcome) override { policy_->update(outcome); }
  StopRule stop_rule() const override { return policy_->stop_rule(); }
  int32_t longest_suffix_match() const override { return std::min(policy_->longest_suffix_match(), most_); }
  int32_t probe_draft() const override { return std::min(policy_->probe_draft(), most_); }
  void observe_probe_draft(int32_t drafted, int32_t accepted) override {
    policy_->observe_probe_draft(drafted, accepted);
  }

 private:
  const std::unique_ptr<GammaPolicy> policy_;
  const int32_t most_;
};

// Values that are not numbers are refused elsewhere.
bool asks_for_more(std::string_view value, int32_t most) {
  while (!value.empty()) {
    const std::string_view step = value.substr(0, value.find('/'));
    value.remove_prefix(std::min(value.size(), step.size() + 1));
    const size_t colon = step.find(':');
    std::string_view lengths = colon == std::string_view::npos ? step : step.substr(colon + 1);
    while (!lengths.empty()) {
      const std::string_view one = lengths.substr(0, lengths.find('-'));
      lengths.remove_prefix(std::min(lengths.size(), one.size() + 1));
      const auto length = parse_number<int64_t>(one);
      if (length && *length > most) return true;
    }
  }
  return false;
}

Status check_lengths(std::string_view text, int32_t most) {
  const std::string_view name = text.substr(0, text.find(':'));
  std::string_view rest = name.size() < text.size() ? text.substr(name.size() + 1) : std::string_view();
  for (const GammaPolicyInfo& policy : gamma_policy_table()) {
    if (policy.name != name) continue;
    while (!rest.empty()) {
      const std::string_view item = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), item.size() + 1));
      for (const GammaKey& key : policy.keys)
        if (key.is_length && item.starts_with(key.name + "=") &&
            asks_for_more(item.substr(key.name.size() + 1), most))
          return invalid_argument(
              fmt::format("gamma policy '{}': {} is more than {} tokens, the longest draft "
                          "that a request may ask for",
                          name, shortened(item), most));
    }
  }
  return {};
}

}  // namespace

Result<GammaPolicyFactory> parse_capped_gamma_policy(std::string_view text, PolicyFiles files, int32_t most) {
  RETURN_IF_ERROR(check_lengths(text, most));
  ASSIGN_OR_RETURN(GammaPolicyFactory make, parse_gamma_policy(text, files));
  return GammaPolicyFactory(
      [make = std::move(make), most] { return std::make_unique<CappedGamma>(make(), most); });
}

Result<GammaPolicyFactory> parse_gamma_policy(std::string_view text, PolicyFiles files) {
  const std::string_view name = text.substr(0, text.find(':'));
  const std::string_view rest = name.size() < text.size() ? text.substr(name.size() + 1) : std::string_view();
  const auto& table = gamma_policy_table();
  const auto policy =
      std::find_if(table.begin(), table.end(), [&](const GammaPolicyInfo& p) { return p.name == name; });
  if (policy == table.end())
    return invalid_argument(
        fmt::format("there is no gamma policy '{}'{} (`outrider generate --gamma-policy list` shows all)",
                    shortened(name), did_you_mean(table, name)));
  if (policy->reads_file && files == PolicyFiles::kRefused)
    return invalid_argument(fmt::format(
        "gamma policy '{}' reads a file, which no request may name; it is for the flag of the program",
        name));
  ASSIGN_OR_RETURN(const GammaArguments arguments, parse_arguments(*policy, rest));
  return policy->make(arguments);
}

std::string list_gamma_policies() {
  std::string text;
  for (const GammaPolicyInfo& policy : gamma_policy_table()) {
    text += fmt::format("{:<11} {}\n{:<11} source: {}\n", policy.name, policy.summary, "", policy.source);
    for (const GammaKey& key : policy.keys)
      text += fmt::format("{:<11}   {}={}  {}\n", "", key.name,
                          key.default_value.empty() ? "..." : key.default_value, key.meaning);
  }
  text +=
      "\nPolicies that weigh measured costs decide differently in every run. Greedy, invariant and naive "
      "text does\n"
      "not depend on that; token and block text does, in its bytes, not in its law. fixed, replay and every\n"
      "policy with guard=0 repeat themselves.\n";
  return text;
}

}  // namespace outrider
