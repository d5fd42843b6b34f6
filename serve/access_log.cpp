#include "serve/access_log.h"

#include <fmt/chrono.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace outrider {

std::string access_line(const HttpRecord& record, double seconds_since_1970) {
  const auto whole = static_cast<std::time_t>(seconds_since_1970);
  const auto milliseconds = static_cast<int>((seconds_since_1970 - static_cast<double>(whole)) * 1e3);
  return json_text(nlohmann::json{
             {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(whole), milliseconds)},
             {"client", record.client},
             {"method", record.method},
             {"path", record.path.substr(0, 200)},
             {"status", record.status},
             {"whole", record.is_whole},
             {"ms", std::chrono::duration_cast<std::chrono::microseconds>(record.time).count() * 1e-3},
             {"bytes", record.bytes},
             {"request_id", record.request_id}}) +
         "\n";
}

Result<std::unique_ptr<AccessLog>> AccessLog::open(const std::string& file) {
  if (file.empty()) return std::unique_ptr<AccessLog>();
  if (file == "-") return std::unique_ptr<AccessLog>(new AccessLog(stderr));
  std::FILE* const opened = std::fopen(file.c_str(), "ae");
  if (!opened) return invalid_argument(fmt::format("--access-log {}: {}", file, std::strerror(errno)));
  return std::unique_ptr<AccessLog>(new AccessLog(opened));
}

void AccessLog::write(const HttpRecord& record) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string line = access_line(record, std::chrono::duration<double>(now).count());
  std::fwrite(line.data(), 1, line.size(), file_.get());
  std::fflush(file_.get());
}

}  // namespace outrider
