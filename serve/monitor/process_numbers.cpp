#include "serve/monitor/process_numbers.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace outrider {
namespace {

namespace fs = std::filesystem;

// Field `number` of /proc/self/stat, as proc(5) counts them. The second field, in parentheses, may contain
// blanks.
class Stat {
 public:
  Stat() {
    std::ifstream file("/proc/self/stat");
    std::getline(file, text_);
    text_.erase(0, text_.rfind(')') == std::string::npos ? 0 : text_.rfind(')') + 2);
  }
  double field(int number) const {
    std::istringstream in(text_);
    std::string word;
    for (int i = 3; i <= number; ++i) in >> word;
    return word.empty() ? 0 : std::strtod(word.c_str(), nullptr);
  }

 private:
  std::string text_;
};

double seconds_of_boot() {
  std::ifstream file("/proc/stat");
  for (std::string name; file >> name; file.ignore(1 << 16, '\n'))
    if (double at = 0; name == "btime" && file >> at) return at;
  return 0;
}

}  // namespace

ProcessNumbers process_numbers() {
  const Stat stat;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  ProcessNumbers out{.cpu_seconds = (stat.field(14) + stat.field(15)) / ticks,
                     .resident_bytes = static_cast<int64_t>(stat.field(24)) * sysconf(_SC_PAGESIZE),
                     .virtual_bytes = static_cast<int64_t>(stat.field(23)),
                     .threads = static_cast<int64_t>(stat.field(20)),
                     .started_at = seconds_of_boot() + stat.field(22) / ticks};
  std::error_code error;
  for (fs::directory_iterator at("/proc/self/fd", error), end; !error && at != end; at.increment(error))
    ++out.open_descriptors;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) out.most_descriptors = static_cast<int64_t>(limit.rlim_cur);
  return out;
}

}  // namespace outrider
