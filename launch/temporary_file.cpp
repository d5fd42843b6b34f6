#include "launch/temporary_file.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

namespace outrider {
namespace {

// Null-terminated name of the file to remove when a signal ends the program. A signal handler sees nothing
// but globals; one slot is enough, since a run writes its files one after the other.
std::atomic<const char*> remove_on_signal{nullptr};
static_assert(std::atomic<const char*>::is_always_lock_free);

extern "C" void remove_and_die(int signal) {
  if (const char* name = remove_on_signal.load()) unlink(name);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

std::string cannot_be_written(const std::string& path) {
  return fmt::format("{}: cannot be written: {}", path, std::strerror(errno));
}

}  // namespace

void remove_temporary_file_on_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    if (std::signal(signal, remove_and_die) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup
}

TemporaryFile::TemporaryFile(const std::string& path)
    : path_(path),
      name_(std::make_unique<const std::string>(fmt::format("{}.{}.partial", path, getpid()))),
      file_(std::fopen(name_->c_str(), "w"), &std::fclose) {
  if (file_) remove_on_signal.store(name_->c_str());
}

TemporaryFile::~TemporaryFile() {
  if (!name_ || !file_) return;  // moved from, never opened or committed
  std::remove(name_->c_str());
  const char* mine = name_->c_str();
  remove_on_signal.compare_exchange_strong(mine, nullptr);
}

Result<TemporaryFile> TemporaryFile::create(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return not_found(path + ": is a directory; name a file in it");
  TemporaryFile file(path);
  if (!file.file_)
    return not_found(cannot_be_written(path) + "; choose a path in a directory that exists and is yours");
  return file;
}

Status TemporaryFile::commit() {
  const bool written = std::ferror(file_.get()) == 0;
  const bool closed = std::fclose(file_.release()) == 0;
  Status status;
  if (!written || !closed || std::rename(name_->c_str(), path_.c_str()) != 0) {
    status = unavailable(cannot_be_written(path_));
    std::remove(name_->c_str());
  }
  const char* mine = name_->c_str();
  remove_on_signal.compare_exchange_strong(mine, nullptr);
  return status;
}

}  // namespace outrider
