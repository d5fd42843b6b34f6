// The origin of a result: program, machine, time and command; the same in every file of results.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace outrider {

// The commit of the checkout that the program was built from, e.g. "0928b5f1a2c3", or "0928b5f1a2c3-dirty"
// with uncommitted changes; "unknown" outside git, and in programs other than `outrider`.
std::string build_commit();

// version, commit, date (UTC, now), host, system, processor, cores (usable), isa, load (averages of 1, 5 and
// 15 minutes), command_line (a list), environment (the OUTRIDER_ variables, as an object) and `seeds` (an
// object by what they are for). API keys are hidden; other keys are given as files.
nlohmann::json provenance(const nlohmann::json& seeds);
// A copy of a command line with "***" in place of keys.
std::vector<std::string> without_secrets(std::vector<std::string> arguments);

// The text of `--version`: version, commit, and the built-in back-ends.
std::string version_text();

}  // namespace outrider
