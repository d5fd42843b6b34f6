#include "lab/study/cell_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "base/nearest.h"
#include "cluster/acceptance_process.h"
#include "coordinator/gamma/gamma_policy.h"
#include "start/flags/options.h"

namespace outrider {
namespace {

// Each cell reports to the study, which repeats it; a layout is for mpirun.
constexpr std::array<std::string_view, 8> kTaken{"report",        "output", "quiet",  "trace",
                                                 "record-rounds", "rounds", "layout", "compare-turns"};

// The options of `generate` without those layers that read the environment: a cell is what its file says.
struct GenerateOptions {
  GenerateOptions() {
    add_model_options(app, options.cluster);
    add_generate_options(app, options);
  }
  Status parse(std::vector<std::string> arguments) {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    try {
      app.parse(std::move(arguments));
    } catch (const CLI::ParseError& error) {
      return invalid_argument(error.what());
    }
    return {};
  }
  CLI::App app;
  RunOptions options;
};

std::vector<std::string> allowed_keys(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      if (name != "help" && std::find(kTaken.begin(), kTaken.end(), name) == kTaken.end())
        names.push_back(name);
  return names;
}

}  // namespace

Status check_cell_key(const std::string& key) {
  if (std::find(kTaken.begin(), kTaken.end(), key) != kTaken.end())
    return invalid_argument("a study sets this itself; remove it");
  const GenerateOptions known;
  const auto names = allowed_keys(known.app);
  if (std::find(names.begin(), names.end(), key) != names.end()) return {};
  const std::string_view nearest = nearest_name(names, key);
  return invalid_argument(fmt::format("`outrider generate` has no such option{}",
                                      nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
}

bool is_repeatable(const std::string& key) {
  const GenerateOptions known;
  return known.app.get_option("--" + key)->get_expected_max() > 1;
}

Status check_cell_value(const std::string& key, const std::string& value) {
  GenerateOptions generate;
  RETURN_IF_ERROR(generate.parse({fmt::format("--{}={}", key, value)}));
  const std::string& policy = generate.options.cluster.speculation.gamma_policy;
  if (!policy.empty()) RETURN_IF_ERROR(parse_gamma_policy(policy).status());
  return {};
}

Status check_cell_arguments(const std::vector<std::string>& arguments) {
  GenerateOptions generate;
  RETURN_IF_ERROR(generate.parse(arguments));
  RETURN_IF_ERROR(check_options(generate.options));
  return sampling_of(generate.options.request).status();
}

}  // namespace outrider
