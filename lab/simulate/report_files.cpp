#include "lab/simulate/report_files.h"

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/program/temporary_file.h"
#include "lab/report/html.h"
#include "requests/output.h"
#include "requests/provenance.h"

namespace outrider {

CLI::Validator milliseconds() { return number_in(0, 1e7); }
CLI::Validator gigabits() { return number_in(0, 1e6); }

void add_report_options(CLI::App& app, ReportFiles& files) {
  app.add_option("--report", files.json, "Write every figure here, as JSON");
  app.add_option("--html", files.html, "Write a page with figures and tables here");
}

Status check(const ReportFiles& files) {
  if (!files.json.empty()) RETURN_IF_ERROR(TemporaryFile::check(files.json).in("--report"));
  return files.html.empty() ? Status() : TemporaryFile::check(files.html).in("--html");
}

Status write(const ReportFiles& files, const nlohmann::json& json, const report::Report& page) {
  if (!files.json.empty()) {
    nlohmann::json report = json;
    report["provenance"] = provenance(nlohmann::json::object());
    RETURN_IF_ERROR(write_file(files.json, json_text(report, 1) + "\n").in("--report"));
  }
  return files.html.empty() ? Status() : write_file(files.html, report::html_page(page)).in("--html");
}

}  // namespace outrider
