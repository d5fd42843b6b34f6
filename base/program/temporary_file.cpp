#include "base/program/temporary_file.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

namespace outrider {
namespace {

// Null-terminated name of the file to remove when a signal ends the program. A signal handler can use globals
// only; one slot is enough, since a run writes its files one after the other.
std::atomic<const char*> remove_on_signal{nullptr};
std::atomic<const char*> directory_to_remove{nullptr};
static_assert(std::atomic<const char*>::is_always_lock_free);

extern "C" void remove_and_die(int signal) {
  remove_temporary_file();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

constexpr std::string_view kEnding = ".partial";

std::string cannot_be_written(const std::string& path) {
  return fmt::format("{}: cannot be written: {}", path, std::strerror(errno));
}

Status unwritable(const std::string& path) {
  return not_found(cannot_be_written(path) + "; choose a path in a directory that exists and is yours");
}

// Does not use /dev/stdout, which would be opened again: earlier output must come first, and a closed stream
// must stay closed.
constexpr std::string_view kStandardOutput = "-";
std::FILE* standard_output() {
  std::fflush(stdout);
  const int copy = dup(STDOUT_FILENO);
  if (copy < 0) return nullptr;
  std::FILE* const file = fdopen(copy, "a");
  if (!file) close(copy);
  return file;
}

struct Destination {
  std::string path;
  bool in_place = false;
};

// Follows symbolic links by hand, because /dev/stdout ends in a link of /proc that can only be opened.
Result<Destination> destination_of(const std::string& path) {
  namespace fs = std::filesystem;
  if (path == kStandardOutput) return Destination{path, true};
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return not_found(path + ": is a directory; name a file in it");
  fs::path at = path;
  constexpr int kMaxLinks = 40;  // like the kernel; a circle of links fails on opening
  for (int i = 0; i < kMaxLinks && fs::is_symlink(at, ignored); ++i) {
    const fs::path folder = fs::canonical(fs::absolute(at).parent_path(), ignored);
    if (folder.string().starts_with("/proc/")) return Destination{at, true};
    at = folder / fs::read_symlink(at, ignored);
  }
  return Destination{at, fs::exists(at, ignored) && !fs::is_regular_file(at, ignored)};
}

}  // namespace

void remove_directory_on_signals(const char* name) { directory_to_remove.store(name); }

void remove_temporary_file() {
  if (const char* name = remove_on_signal.load()) unlink(name);
  const char* const directory = directory_to_remove.load();
  if (!directory) return;
  // A handler must not read directories with libc, which allocates; another program may.
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/rm", "rm", "-rf", "--", directory, static_cast<char*>(nullptr));
    _exit(127);
  }
  if (child > 0) waitpid(child, nullptr, 0);
}

void remove_temporary_file_on_signals() {
  std::signal(SIGXFSZ, SIG_IGN);  // a file above `ulimit -f` is a write that fails
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    if (std::signal(signal, remove_and_die) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup
}

TemporaryFile::TemporaryFile(const std::string& path, bool in_place)
    : path_(path),
      name_(in_place ? nullptr
                     : std::make_unique<const std::string>(fmt::format("{}.{}{}", path, getpid(), kEnding))),
      // Appends, because standard output may be a file with earlier contents.
      file_(path == kStandardOutput ? standard_output()
            : in_place              ? std::fopen(path.c_str(), "a")
                                    : std::fopen(name_->c_str(), "w"),
            &std::fclose) {
  if (!file_ || !name_) return;
  remove_on_signal.store(name_->c_str());
  struct stat replaced {};
  if (stat(path.c_str(), &replaced) == 0) (void)fchmod(fileno(file_.get()), replaced.st_mode & 0777);
}

void TemporaryFile::forget() {
  if (!name_) return;
  const char* mine = name_->c_str();
  remove_on_signal.compare_exchange_strong(mine, nullptr);
}

void TemporaryFile::remove() {
  if (kept_) return;
  std::remove(name_->c_str());
  forget();
}

TemporaryFile::~TemporaryFile() {
  if (name_ && file_) remove();  // else moved from, never opened, committed, left or in place
}

Result<TemporaryFile> TemporaryFile::create(const std::string& path) {
  ASSIGN_OR_RETURN(const Destination to, destination_of(path));
  TemporaryFile file(to.path, to.in_place);
  if (!file.file_) return unwritable(path);
  return file;
}

bool TemporaryFile::replaces(const std::string& path) {
  std::error_code ignored;
  const auto to = destination_of(path);
  return to.ok() && !to->in_place && std::filesystem::is_regular_file(to->path, ignored);
}

Status TemporaryFile::check(const std::string& path) {
  ASSIGN_OR_RETURN(const Destination to, destination_of(path));
  if (!to.in_place || path == kStandardOutput) return create(path).status();
  return access(to.path.c_str(), W_OK) == 0 ? Status() : unwritable(path);  // opening a pipe would block
}

Status TemporaryFile::commit() {
  const bool written = std::ferror(file_.get()) == 0;
  const bool closed = std::fclose(file_.release()) == 0;
  if (written && closed && (!name_ || std::rename(name_->c_str(), path_.c_str()) == 0)) {
    if (name_) forget();
    return {};
  }
  const Status status = unavailable(cannot_be_written(path_));
  if (name_) remove();
  return status;
}

void TemporaryFile::keep() {
  if (!name_) return;
  kept_ = true;
  forget();
}

std::string TemporaryFile::leave(int64_t bytes) {
  file_.reset();  // its unwritten rest may be cut again
  if (!name_) return path_;
  (void)truncate(name_->c_str(), bytes);
  return *name_;
}

std::vector<std::string> TemporaryFile::others() const {
  namespace fs = std::filesystem;
  std::vector<std::string> found;
  const fs::path folder = fs::path(path_).parent_path();
  std::error_code error;
  fs::directory_iterator at(folder.empty() ? "." : folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::string path = (folder / at->path().filename()).string();
    const std::string_view rest = std::string_view(path).substr(std::min(path.size(), path_.size()));
    const bool fits = path.starts_with(path_) && rest.starts_with(".") && rest.ends_with(kEnding) &&
                      rest.find_first_not_of("0123456789", 1) == rest.size() - kEnding.size();
    if (fits && path != *name_) found.push_back(path);
  }
  return found;
}

}  // namespace outrider
