#include "start/preflight_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/printable.h"
#include "start/rank_setup.h"

namespace outrider {
namespace {

constexpr size_t kNamedRanks = 8;
// Ranks of a host where all have begun leave the word to the others.
constexpr std::chrono::milliseconds kTimeOfOthers{500};

std::string environment_value(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};

// In the abstract namespace: it vanishes with its process.
Address address_of(const LaunchedRank& self, int rank) {
  Address out;
  out.name.sun_family = AF_UNIX;
  const std::string text = fmt::format("outrider-preflight-{}-{}-{}", getuid(), self.job, rank);
  const size_t length = std::min(text.size(), sizeof out.name.sun_path - 1);
  // The end of the text has the rank.
  std::memcpy(out.name.sun_path + 1, text.data() + (text.size() - length), length);
  out.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return out;
}

bool has_begun(const LaunchedRank& self, int rank) {
  if (rank == self.rank) return true;
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;
  const Address address = address_of(self, rank);
  const bool found = connect(fd, reinterpret_cast<const sockaddr*>(&address.name), address.size) == 0;
  close(fd);
  return found;
}

}  // namespace

LaunchedRank launched_rank() {
  LaunchedRank out{.job = environment_value("PMIX_NAMESPACE")};
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (const std::string value = environment_value(name); !value.empty()) {
      out.rank = std::atoi(value.c_str());
      break;
    }
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"})
    if (const std::string value = environment_value(name); !value.empty()) {
      out.size = std::atoi(value.c_str());
      break;
    }
  out.on_host = std::atoi(environment_value("OMPI_COMM_WORLD_LOCAL_SIZE").c_str());
  if (out.job.empty() && !environment_value("SLURM_JOB_ID").empty())
    out.job = environment_value("SLURM_JOB_ID") + "." + environment_value("SLURM_STEP_ID");
  return out;
}

PreflightWatch::PreflightWatch(LaunchedRank self, std::chrono::milliseconds limit, void (*end)())
    : self_(std::move(self)), limit_(limit), end_(end) {
  if (!self_.job.empty()) {
    const Address address = address_of(self_, self_.rank);
    sign_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sign_ >= 0) (void)bind(sign_, reinterpret_cast<const sockaddr*>(&address.name), address.size);
  }
  thread_ = std::thread([this] { wait(); });
}

void PreflightWatch::all_here() {
  {
    const std::lock_guard lock(mutex_);
    all_here_ = true;
  }
  woken_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (sign_ >= 0) close(sign_);
  sign_ = -1;
}

std::string PreflightWatch::missing() const {
  if (self_.job.empty()) return {};
  std::vector<int> absent;
  int here = 0;
  for (int rank = 0; rank < self_.size; ++rank)
    if (has_begun(self_, rank))
      ++here;
    else
      absent.push_back(rank);
  if (absent.empty() || here == self_.on_host) return {};
  // With several hosts it is not known which of the absent ranks are of this one.
  if (self_.on_host != self_.size)
    return self_.on_host > here ? fmt::format("{} of the {} ranks on host {}", self_.on_host - here,
                                              self_.on_host, this_host())
                                : std::string();
  const size_t named = std::min(absent.size(), kNamedRanks);
  return fmt::format("rank{} {}{} on host {}", absent.size() == 1 ? "" : "s",
                     fmt::join(absent.begin(), absent.begin() + static_cast<std::ptrdiff_t>(named), ", "),
                     absent.size() > named ? fmt::format(" and {} more", absent.size() - named) : "",
                     this_host());
}

void PreflightWatch::wait() {
  std::unique_lock lock(mutex_);
  if (woken_.wait_for(lock, limit_, [&] { return all_here_; })) return;
  const std::string absent = missing();
  bool speaks = true;
  for (int rank = 0; rank < self_.rank && !self_.job.empty(); ++rank) speaks &= !has_begun(self_, rank);
  if (absent.empty() && woken_.wait_for(lock, kTimeOfOthers, [&] { return all_here_; })) return;
  const double seconds = std::chrono::duration<double>(limit_).count();
  if (speaks)
    tell_error(
        fmt::format("--preflight: {} did not begin it within {} s (--preflight-timeout); start every rank "
                    "with `outrider` "
                    "and --preflight, and raise the timeout if hosts start slowly",
                    absent.empty() ? "some ranks of the job" : absent, seconds));
  // The others still see that this rank is here, and leave the word to it.
  std::this_thread::sleep_for(kTimeOfOthers);
  end_();
}

}  // namespace outrider
