#include "start/rank_setup.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/hash.h"
#include "base/json_text.h"
#include "base/text_hash.h"
#include "kernels/cpu/cpu_ops.h"
#include "start/device.h"
#include "start/model_fingerprint.h"

namespace outrider {
namespace {

using nlohmann::json;

bool on_gpu(const ModelSettings& models) {
  return models.device.ok() && models.device->kind == Device::Kind::kCuda;
}
const char* device_kind(const ModelSettings& models) { return on_gpu(models) ? "cuda" : "cpu"; }
// Beside a GPU the host's instruction set computes nothing of the model.
std::string isa_of(const ModelSettings& models) { return on_gpu(models) ? "of the GPU" : isa_name(); }

// Which model it is, as far as that is cheap to read.
Status add_model(RankSetup& setup, const std::string& flag, const std::string& directory) {
  ASSIGN_OR_RETURN(const uint64_t shapes, fingerprint_of_shapes(directory));
  setup.facts.push_back(
      {fmt::format("config.json of {}", flag), fmt::format("{:016x}", fingerprint_of_config(directory))});
  setup.facts.push_back({fmt::format("the names, types and shapes of the tensors of {}", flag),
                         fmt::format("{:016x}", shapes)});
  return {};
}

void add_speculation(RankSetup& setup, const RoleSettings& settings) {
  const ModelSettings& m = settings.models;
  const SpeculationSettings& s = settings.speculation;
  setup.facts.insert(setup.facts.end(),
                     {{"--drafter", m.head() || m.exits_early() ? m.drafter : "of draft workers"},
                      {"--exit-layer", std::to_string(m.exit_layer)},
                      {"--head-place", m.head_place},
                      {"--q-format", s.q_format.text()},
                      {"--synthetic-acceptance", s.synthetic_acceptance}});
}

// Sizes and formats that the coordinator plans with and reports, and that target ranks allocate and compute
// with.
void add_target_sizes(RankSetup& setup, const RoleSettings& settings, const Preparation& prepared) {
  const ModelSettings& m = settings.models;
  setup.facts.insert(setup.facts.end(),
                     {{"--max-model-len", std::to_string(prepared.max_model_len)},
                      {"--max-num-seqs", std::to_string(m.max_num_seqs)},
                      {"--kv-cache-tokens", std::to_string(m.kv_cache_tokens)},
                      {"--weight-format", m.weight_format.text()},
                      {"--activation-format", m.activation_format.text()},
                      {"--kv-dtype", m.kv_dtype.text()},
                      {"--speculative-tree", settings.speculation.speculative_tree.text()}});
}

template <class T>
std::vector<T> gather(Collectives& world, const T& mine) {
  std::vector<T> all(static_cast<size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

// The setup of a rank as it travels, with who its files are.
struct Known {
  std::string ranks, name, host;
  std::vector<SetupFact> facts;
  struct Weights {
    std::string flag;
    uint64_t identity = 0;
  };
  std::vector<Weights> weights;
};

json to_json(const Known& known) {
  json facts = json::array(), weights = json::array();
  for (const SetupFact& fact : known.facts) facts.push_back({fact.what, fact.value});
  for (const auto& of : known.weights) weights.push_back({of.flag, of.identity});
  return {{"ranks", known.ranks},
          {"name", known.name},
          {"host", known.host},
          {"facts", facts},
          {"weights", weights}};
}

Known from_json(const json& text) {
  Known known;
  known.ranks = text.at("ranks").get<std::string>();
  known.name = text.at("name").get<std::string>();
  known.host = text.at("host").get<std::string>();
  for (const json& fact : text.at("facts"))
    known.facts.push_back({fact.at(0).get<std::string>(), fact.at(1).get<std::string>()});
  for (const json& of : text.at("weights"))
    known.weights.push_back({of.at(0).get<std::string>(), of.at(1).get<uint64_t>()});
  return known;
}

const Known::Weights* weights_of(const Known& known, const std::string& flag) {
  for (const auto& of : known.weights)
    if (of.flag == flag) return &of;
  return nullptr;
}

// One rank's part of the sum over a model's bytes; ranks of a host with the same files share the work.
struct Share {
  uint64_t sum = 0;
  bool failed = false;
};

// The ranks of this host that have the same files as `mine`.
std::vector<size_t> sharers(const std::vector<Known>& all, const Known& mine, const std::string& flag) {
  std::vector<size_t> found;
  const Known::Weights* const own = weights_of(mine, flag);
  for (size_t r = 0; r < all.size(); ++r) {
    const Known::Weights* const of = weights_of(all[r], flag);
    if (of && of->identity == own->identity && all[r].host == mine.host && all[r].ranks == mine.ranks)
      found.push_back(r);
  }
  return found;
}

// Whether files that are compared are not all the same ones.
bool has_copies(const std::vector<Known>& all, const std::string& ranks, const std::string& flag) {
  std::optional<uint64_t> first;
  for (const Known& known : all) {
    const Known::Weights* const of = known.ranks == ranks ? weights_of(known, flag) : nullptr;
    if (of && first.value_or(of->identity) != of->identity) return true;
    if (of) first = of->identity;
  }
  return false;
}

// Collective. Adds the fact of what a model's bytes are to every rank that has that model, where files
// differ.
Status add_sums(Collectives& world, std::vector<Known>& all, const RankSetup& mine, int threads) {
  std::map<std::string, std::vector<std::string>> kinds;  // flags, by who is compared
  for (const Known& known : all)
    for (const auto& of : known.weights)
      if (auto& flags = kinds[known.ranks]; std::find(flags.begin(), flags.end(), of.flag) == flags.end())
        flags.push_back(of.flag);
  const Known self = all[static_cast<size_t>(world.rank())];
  Status status;
  for (const auto& [ranks, flags] : kinds)
    for (const std::string& flag : flags) {
      if (!has_copies(all, ranks, flag)) continue;
      Share share;
      if (self.ranks == ranks && weights_of(self, flag)) {
        const auto with = sharers(all, self, flag);
        const auto at = std::find(with.begin(), with.end(), static_cast<size_t>(world.rank()));
        const auto of = std::find_if(mine.weights.begin(), mine.weights.end(),
                                     [&](const auto& weights) { return weights.flag == flag; });
        const auto sum = weights_sum(of->directory, static_cast<int>(at - with.begin()),
                                     static_cast<int>(with.size()), threads);
        share = {.sum = sum.ok() ? *sum : 0, .failed = !sum.ok()};
        if (!sum.ok() && status.ok()) status = sum.status().in(flag);
      }
      world.meet();  // hosts do not read equally fast
      const std::vector<Share> shares = gather(world, share);
      std::vector<std::string> values(all.size());
      for (size_t r = 0; r < all.size(); ++r) {
        if (all[r].ranks != ranks || !weights_of(all[r], flag)) continue;
        uint64_t sum = 0;
        bool failed = false;
        for (const size_t other : sharers(all, all[r], flag)) {
          sum += shares[other].sum;
          failed |= shares[other].failed;
        }
        values[r] = failed ? "unreadable" : fmt::format("{:016x}", sum);
      }
      for (size_t r = 0; r < all.size(); ++r)
        if (!values[r].empty()) all[r].facts.push_back({fmt::format("the weights of {}", flag), values[r]});
    }
  return status;
}

constexpr size_t kNamedRanks = 4, kNamedFacts = 3;

// "512 at rank 1 on host a and rank 2 on host a".
std::string describe(const std::string& value, const std::vector<const Known*>& ranks) {
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(ranks.size(), kNamedRanks); ++i)
    names.push_back(fmt::format("{} on host {}", ranks[i]->name, ranks[i]->host));
  if (ranks.size() > kNamedRanks) names.push_back(fmt::format("{} more", ranks.size() - kNamedRanks));
  return fmt::format("{} at {}", value.empty() ? "none" : value, fmt::join(names, ", "));
}

Status compare_facts(const std::vector<Known>& all) {
  std::vector<std::string> differences;
  std::string ranks;
  size_t more = 0;
  bool files = false;
  for (const Known& first : all)
    for (const SetupFact& fact : first.facts) {
      std::vector<std::pair<std::string, std::vector<const Known*>>> values;
      bool is_first = true;
      for (const Known& known : all) {
        if (known.ranks != first.ranks || known.ranks.empty()) continue;
        const auto at = std::find_if(known.facts.begin(), known.facts.end(),
                                     [&](const SetupFact& other) { return other.what == fact.what; });
        if (at == known.facts.end()) continue;
        if (values.empty()) is_first = &known == &first;
        auto of = std::find_if(values.begin(), values.end(),
                               [&](const auto& item) { return item.first == at->value; });
        if (of == values.end()) of = values.insert(values.end(), {at->value, {}});
        of->second.push_back(&known);
      }
      if (!is_first || values.size() < 2) continue;
      if (differences.size() == kNamedFacts) {
        ++more;
        continue;
      }
      std::vector<std::string> sides;
      for (const auto& [value, of] : values) sides.push_back(describe(value, of));
      differences.push_back(fmt::format("{} ({})", fact.what, fmt::join(sides, "; ")));
      files |= !fact.what.starts_with("--");
      ranks = first.ranks;
    }
  if (differences.empty()) return {};
  return invalid_argument(fmt::format(
      "{} differ in {}{}; {}", ranks, fmt::join(differences, ", in "),
      more > 0 ? fmt::format(", and in {} more", more) : "",
      files
          ? "copy the model again to where it is wrong, and start all ranks with the same flags and variables"
          : "start all ranks with the same flags and variables"));
}

}  // namespace

std::string this_host() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

std::vector<std::string> gather_texts(Collectives& world, const std::string& mine) {
  const std::vector<uint64_t> sizes = gather(world, uint64_t{mine.size()});
  const size_t slot = std::max<uint64_t>(1, *std::max_element(sizes.begin(), sizes.end()));
  std::vector<std::byte> own(slot), all(slot * sizes.size());
  std::memcpy(own.data(), mine.data(), mine.size());
  world.all_gather(own, all);
  std::vector<std::string> texts;
  for (size_t r = 0; r < sizes.size(); ++r)
    texts.emplace_back(reinterpret_cast<const char*>(all.data() + r * slot), sizes[r]);
  return texts;
}

Result<RankSetup> target_setup(const RoleSettings& settings, const Preparation& prepared, std::string name) {
  const ModelSettings& m = settings.models;
  RankSetup setup{.ranks = "the target ranks", .name = std::move(name), .facts = {}, .weights = {}};
  RETURN_IF_ERROR(add_model(setup, "--model", m.model));
  add_speculation(setup, settings);
  add_target_sizes(setup, settings, prepared);
  setup.facts.insert(setup.facts.end(), {{"--device", device_kind(m)}, {"--isa", isa_of(m)}});
  setup.weights.push_back({"--model", m.model});
  const auto& q = settings.speculation.q_format;
  const bool computes_q = q.ok() && q->kind == QKind::kHidden && m.uses_draft_model();
  if (computes_q || m.head()) {
    RETURN_IF_ERROR(add_model(setup, "--draft-model", m.draft_model));
    setup.facts.push_back({"--draft-weight-format", m.draft_weight_format.text()});
    setup.weights.push_back({"--draft-model", m.draft_model});
  }
  return setup;
}

Result<RankSetup> coordinator_setup(const RoleSettings& settings, const Preparation& prepared,
                                    std::string name) {
  RankSetup setup{.ranks = "the target ranks", .name = std::move(name), .facts = {}, .weights = {}};
  RETURN_IF_ERROR(add_model(setup, "--model", settings.models.model));
  add_speculation(setup, settings);
  add_target_sizes(setup, settings, prepared);
  return setup;
}

Result<RankSetup> draft_setup(const RoleSettings& settings, const Preparation& prepared,
                              const std::string& worker, std::string name) {
  const ModelSettings& m = settings.models;
  RankSetup setup{.ranks = "the ranks of " + worker, .name = std::move(name), .facts = {}, .weights = {}};
  RETURN_IF_ERROR(add_model(setup, "--draft-model", m.draft_model));
  const SpeculationSettings& s = settings.speculation;
  setup.facts.insert(setup.facts.end(), {{"--max-model-len", std::to_string(prepared.max_model_len)},
                                         {"--max-num-seqs", std::to_string(m.sequences())},
                                         {"--draft-weight-format", m.draft_weight_format.text()},
                                         {"--draft-vocab-size", std::to_string(m.draft_vocab_size)},
                                         {"--draft-window", std::to_string(m.draft_window)},
                                         {"--draft-sinks", std::to_string(m.sinks())},
                                         {"--activation-format", m.activation_format.text()},
                                         {"--kv-dtype", m.kv_dtype.text()},
                                         {"--device", device_kind(m)},
                                         {"--isa", isa_of(m)},
                                         {"--draft-drafter", m.draft_drafter},
                                         {"--pipeline", s.pipeline.text()},
                                         {"--fanout-budget", std::to_string(s.fanout_budget)},
                                         {"--speculative-tree", s.speculative_tree.text()}});
  setup.weights.push_back({"--draft-model", m.draft_model});
  return setup;
}

Status compare_setups(Collectives& world, const RankSetup& mine, int threads) {
  Known own{.ranks = mine.ranks, .name = mine.name, .host = this_host(), .facts = mine.facts, .weights = {}};
  Status status;
  for (const auto& of : mine.weights) {
    const auto identity = identity_of_weights(of.directory);
    if (!identity.ok() && status.ok()) status = identity.status().in(of.flag);
    own.weights.push_back({of.flag, identity.ok() ? *identity : 0});
  }
  const std::string text = json_text(to_json(own));
  std::vector<Known> all;
  for (const std::string& of : gather_texts(world, text)) all.push_back(from_json(json::parse(of)));
  const Status read = add_sums(world, all, mine, threads);
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(read);
  return compare_facts(all);
}

}  // namespace outrider
