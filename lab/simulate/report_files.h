// Output files and flag limits, shared by the commands under `outrider simulate`.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"
#include "lab/report/report.h"
#include "start/flags/number_range.h"

namespace outrider {

CLI::Validator milliseconds();
CLI::Validator gigabits();

// Empty: nowhere.
struct ReportFiles {
  std::string json, html;
};
void add_report_options(CLI::App& app, ReportFiles& files);
// Before any work, as of generate.
Status check(const ReportFiles& files);
Status write(const ReportFiles& files, const nlohmann::json& json, const report::Report& page);

}  // namespace outrider
