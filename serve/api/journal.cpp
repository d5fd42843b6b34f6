#include "serve/api/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/json_file.h"
#include "base/json_text.h"
#include "base/text_hash.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kEntryEnding = ".json", kUnfinished = ".partial";
constexpr int kJournalVersion = 1;
constexpr std::chrono::milliseconds kLockPoll{100};
constexpr size_t kMaxEntryBytes = size_t{2} << 30;

std::string why_it_failed() { return std::strerror(errno); }

std::string checksum_of(const json& entry) {
  return fmt::format("{:016x}", fingerprint_of_text(json_text(entry)));
}

// Writes all of it, to the disk.
bool write_through(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return fsync(fd) == 0;
}

// Makes new names in the directory last.
bool sync_directory(const std::string& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool synced = fsync(fd) == 0;
  close(fd);
  return synced;
}

int64_t modified_us(const fs::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return 0;
  return int64_t{info.st_mtim.tv_sec} * 1'000'000 + info.st_mtim.tv_nsec / 1000;
}

Result<JournalEntry> parsed(const std::string& id, const std::string& text, const std::string& path) {
  const Status damaged = malformed(path + ": is damaged: its checksum is wrong");
  auto whole = parse_json(text, path, {.max_bytes = kMaxEntryBytes});
  if (!whole.ok() || !whole->is_object()) return damaged;
  json& entry = *whole;
  const json checksum = entry.value("checksum", json());
  entry.erase("checksum");
  if (checksum != checksum_of(entry)) return damaged;
  try {
    if (entry.at("version") != kJournalVersion)
      return unsupported(path + ": was written by another version of outrider");
    JournalEntry out{.id = id,
                     .created_us = entry.at("created_us"),
                     .client = entry.at("client"),
                     .model = entry.at("model")};
    out.finished_at = entry.at("finished_at");
    out.response = entry.at("response");
    if (out.is_finished()) return out;
    out.body = entry.at("body");
    out.resolved = entry.at("resolved");
    out.prompt = entry.at("prompt").get<std::vector<int32_t>>();
    out.request = entry.at("request");
    return out;
  } catch (const json::exception&) {
    return damaged;
  }
}

}  // namespace

// The directory cannot be removed and made again, as a file in it can. But NFS locks no directory, so that
// the errors of its lock do not count.
Result<std::optional<JournalLock>> JournalLock::take(const std::string& directory) {
  JournalLock lock;
  lock.of_ = {::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
              ::open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
  if (lock.of_[0] < 0 || lock.of_[1] < 0) return not_found(why_it_failed());
  for (const int fd : lock.of_) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) continue;
    if (errno == EWOULDBLOCK) return std::optional<JournalLock>();
    if (fd == lock.of_[1]) return not_found(why_it_failed());
  }
  return std::optional(std::move(lock));
}

JournalLock::~JournalLock() {
  for (const int fd : of_)
    if (fd >= 0) close(fd);
}

bool JournalLock::is_of(const std::string& directory) const {
  struct stat locked {
  }, named{};
  return fstat(of_[0], &locked) == 0 && ::stat(directory.c_str(), &named) == 0 &&
         locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
}

Result<Journal> Journal::open(const std::string& directory, const std::function<void()>& on_wait) {
  const auto wrong = [&](const std::string& what) {
    return not_found(fmt::format("--journal {}: {}", directory, what));
  };
  if (directory.empty()) return not_found("--journal \"\": must be the name of a directory");
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return wrong(
        fmt::format("cannot be made: {}; name a directory in one that exists and is yours", why_it_failed()));
  if (access((directory + "/.").c_str(), R_OK | W_OK | X_OK) != 0)
    return wrong(fmt::format("cannot be written: {}; name a directory that is yours", why_it_failed()));
  for (bool waits = false;; waits = true) {
    auto lock = JournalLock::take(directory);
    // A standby makes no directory again that was removed: the server that it waits for may still run.
    if (!lock.ok() && !waits)
      return wrong(
          fmt::format("cannot be locked: {}; name a directory that is yours, of a file system with locks",
                      lock.status().message()));
    if (lock.ok() && *lock) return Journal(directory, **std::move(lock));
    if (!on_wait)
      return unavailable(
          fmt::format("--journal {}: another server uses it; each server needs a directory of "
                      "its own, or --standby to follow that one",
                      directory));
    if (!waits) on_wait();
    std::this_thread::sleep_for(kLockPoll);
  }
}

Status Journal::check() const {
  if (!lock_.is_of(directory_))
    return unavailable(fmt::format(
        "--journal {}: the directory was removed or replaced; new background requests are refused, and "
        "unfinished ones are lost at the end of this server; restart it when they are done",
        directory_));
  if (access((directory_ + "/.").c_str(), W_OK | X_OK) != 0)
    return unavailable(fmt::format("--journal {}: cannot be written: {}", directory_, why_it_failed()));
  return {};
}

std::string Journal::path_of(const std::string& id) const {
  return fmt::format("{}/{}{}", directory_, id, kEntryEnding);
}

std::vector<Journal::Found> Journal::all() const {
  std::vector<Found> found;
  std::error_code error;
  std::vector<fs::path> partial;
  for (fs::directory_iterator at(directory_, error), end; !error && at != end; at.increment(error)) {
    const fs::path& path = at->path();
    if (path.extension() == kUnfinished) partial.push_back(path);
    if (path.extension() == kEntryEnding)
      found.push_back({path.stem(), read(path.stem()), modified_us(path)});
  }
  for (const fs::path& path : partial) fs::remove(path, error);
  const auto order = [](const Found& f) { return std::pair(f.entry.ok() ? f.entry->created_us : 0, f.id); };
  std::sort(found.begin(), found.end(), [&](const Found& a, const Found& b) { return order(a) < order(b); });
  return found;
}

Result<JournalEntry> Journal::read(const std::string& id) const {
  const std::string path = path_of(id);
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(path, error)))
    return malformed(path + ": is no regular file; remove it");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return not_found(path + ": cannot be read");
  return parsed(id, text.str(), path);
}

Status Journal::write(const JournalEntry& entry) const {
  if (!lock_.is_of(directory_)) return check();  // another server may have the lock of a new directory
  json out{{"version", kJournalVersion}, {"created_us", entry.created_us},   {"client", entry.client},
           {"model", entry.model},       {"finished_at", entry.finished_at}, {"response", entry.response}};
  if (!entry.is_finished())
    out.update({{"body", entry.body},
                {"resolved", entry.resolved},
                {"prompt", entry.prompt},
                {"request", entry.request}});
  out["checksum"] = checksum_of(out);
  const std::string path = path_of(entry.id), partial = path + std::string(kUnfinished);
  const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool written = fd >= 0 && write_through(fd, json_text(out) + "\n");
  std::string why = written ? "" : why_it_failed();
  if (fd >= 0) close(fd);
  if (written) {
    if (rename(partial.c_str(), path.c_str()) == 0 && sync_directory(directory_)) return {};
    why = why_it_failed();
  }
  unlink(partial.c_str());
  return unavailable(fmt::format("--journal {}: {} cannot be written: {}", directory_, entry.id, why));
}

void Journal::remove(const std::string& id) const {
  unlink(path_of(id).c_str());
  (void)sync_directory(directory_);
}

}  // namespace outrider
