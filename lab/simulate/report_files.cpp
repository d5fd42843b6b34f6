#include "lab/simulate/report_files.h"

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/program/temporary_file.h"
#include "requests/output.h"
#include "requests/provenance.h"

namespace outrider {

CLI::Validator number_in(double least, double most) {
  return {[=](const std::string& text) {
            double value = 0;
            const bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
            return fits ? std::string() : fmt::format("{} must be {} to {}", text, least, most);
          },
          ""};
}
CLI::Validator milliseconds() { return number_in(0, 1e7); }
CLI::Validator gigabits() { return number_in(0, 1e6); }

void add_report_option(CLI::App& app, std::string& path) {
  app.add_option("--report", path, "Write every figure here, as JSON");
}

Status check_report(const std::string& path) {
  return path.empty() ? Status() : TemporaryFile::check(path).in("--report");
}

Status write_report(const std::string& path, const nlohmann::json& json) {
  if (path.empty()) return {};
  nlohmann::json report = json;
  report["provenance"] = provenance(nlohmann::json::object());
  return write_file(path, json_text(report, 1) + "\n").in("--report");
}

}  // namespace outrider
