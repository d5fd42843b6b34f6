// What the commands under `outrider simulate` share: where their results go, and what their flags may be.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"

namespace outrider {

// As CLI::Range, which lets NaN pass.
CLI::Validator number_in(double least, double most);
CLI::Validator milliseconds();
CLI::Validator gigabits();

void add_report_option(CLI::App& app, std::string& path);
// Before any work, as of generate.
Status check_report(const std::string& path);
Status write_report(const std::string& path, const nlohmann::json& json);

}  // namespace outrider
