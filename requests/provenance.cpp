#include "requests/provenance.h"

#include <fmt/chrono.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "base/version.h"
#include "comm/cores.h"
#include "kernels/cpu/isa.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr std::string_view kHidden = "***";

// Reports are shared, so keys are hidden.
bool is_secret(std::string_view flag) { return flag == "--api-key"; }
bool is_secret_variable(std::string_view name) { return name == "OUTRIDER_API_KEY"; }

// The kernel keeps the original arguments, each with a terminating zero.
json command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return without_secrets(std::move(arguments));
}

json outrider_environment() {
  json out = json::object();
  for (char** e = environ; *e; ++e) {
    const std::string_view entry = *e;
    const size_t equals = entry.find('=');
    if (entry.starts_with("OUTRIDER_") && equals != std::string_view::npos)
      out[std::string(entry.substr(0, equals))] =
          std::string(is_secret_variable(entry.substr(0, equals)) ? kHidden : entry.substr(equals + 1));
  }
  return out;
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const size_t colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "unknown";
}

}  // namespace

std::vector<std::string> without_secrets(std::vector<std::string> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    if (!is_secret(std::string_view(arguments[i]).substr(0, equals))) continue;
    if (equals != std::string::npos)
      arguments[i].replace(equals + 1, std::string::npos, kHidden);
    else if (i + 1 < arguments.size())
      arguments[++i] = kHidden;
  }
  return arguments;
}

// The program defines its own (launch/CMakeLists.txt), so a new commit relinks only the program.
__attribute__((weak)) std::string build_commit() { return "unknown"; }

json provenance(const json& seeds) {
  utsname system{};
  uname(&system);
  std::array<double, 3> load{};
  getloadavg(load.data(), static_cast<int>(load.size()));
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return {{"version", kVersion},
          {"commit", build_commit()},
          {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))},
          {"host", system.nodename},
          {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
          {"processor", processor()},
          {"cores", usable_cores()},
          {"isa", isa_name()},
          {"load", load},
          {"command_line", command_line()},
          {"environment", outrider_environment()},
          {"seeds", seeds}};
}

std::string version_text() {
  const auto built = [](bool has) { return has ? "built in" : "not built in"; };
  return fmt::format(
      "outrider {}\n"
      "commit  {}\n"
      "CPU     {} (this machine has {})\n"
      "CUDA    {}\n"
      "NCCL    {}\n"
      "MPI     {}",
      kVersion, build_commit(), isa_name(), fmt::join(available_isas(), ", "), built(kHasCuda),
      built(kHasNccl), built(kHasMpi));
}

}  // namespace outrider
