#include "serve/monitor/access_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/json_text.h"
#include "base/printable.h"
#include "base/threads.h"

namespace outrider {
namespace {

constexpr std::chrono::milliseconds kLook{100};  // interval of retries while the file accepts nothing
constexpr std::chrono::milliseconds kFarewell{1000};
// A pipe that accepts anything accepts this many bytes at once.
constexpr size_t kPiece = PIPE_BUF;

// A FIFO is opened for reading, too: a writer alone could not open it before there is a reader, and would
// fail after the reader's end.
int open_log(const std::string& file) {
  struct stat info {};
  const bool is_fifo = stat(file.c_str(), &info) == 0 && S_ISFIFO(info.st_mode);
  return ::open(file.c_str(), (is_fifo ? O_RDWR : O_WRONLY | O_CREAT) | O_APPEND | O_CLOEXEC, 0666);
}

}  // namespace

std::string access_line(const HttpRecord& record, double seconds_since_1970) {
  const auto whole = static_cast<std::time_t>(seconds_since_1970);
  const auto milliseconds = static_cast<int>((seconds_since_1970 - static_cast<double>(whole)) * 1e3);
  return json_text(nlohmann::json{
             {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(whole), milliseconds)},
             {"client", record.client},
             {"method", record.method.substr(0, 40)},
             {"path", record.path.substr(0, 200)},
             {"status", record.status},
             {"whole", record.is_whole},
             {"ms", std::chrono::duration_cast<std::chrono::microseconds>(record.time).count() * 1e-3},
             {"bytes", record.bytes},
             {"request_id", record.request_id}}) +
         "\n";
}

// ---- the thread -----------------------------------------------------------------------------------------

struct AccessLog::State {
  // As many lines as one write takes.
  struct Piece {
    std::string text;
    int64_t lines = 0;
    int64_t told = 0;  // `dropped` as reported in its first line; 0: not reported
  };

  std::string name;
  int fd = -1;
  bool is_stderr = false;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> waiting;  // guarded by the mutex, as are the following members
  int64_t dropped = 0;
  std::optional<std::chrono::steady_clock::time_point> stop_by;
  bool is_over = false;

  // Used by the thread only.
  int64_t told_dropped = 0;
  int told_error = 0;  // errno; 0: the last write went well

  ~State() {
    if (fd >= 0 && !is_stderr) close(fd);
  }
  void run();
  std::optional<Piece> next();
  bool write(std::string_view text);
  bool may_wait() const {
    const std::lock_guard lock(mutex);
    return !stop_by || std::chrono::steady_clock::now() < *stop_by;
  }
  // Reports on standard error, unless that is the log file.
  void tell(const std::string& what) const {
    if (!is_stderr) tell_error(fmt::format("--access-log {}: {}", name, what));
  }
};

// Empty: the log ends.
std::optional<AccessLog::State::Piece> AccessLog::State::next() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return !waiting.empty() || stop_by; });
  if (waiting.empty()) return std::nullopt;
  Piece piece;
  if (dropped > told_dropped) {
    piece.text = fmt::format("{{\"dropped\":{}}}\n", dropped - told_dropped);
    piece.told = dropped;
  }
  while (!waiting.empty() && (piece.lines == 0 || piece.text.size() + waiting.front().size() <= kPiece)) {
    piece.text += waiting.front();
    ++piece.lines;
    waiting.pop_front();
  }
  return piece;
}

// False: the file accepted nothing until the log ended, or returned an error.
bool AccessLog::State::write(std::string_view text) {
  while (!text.empty()) {
    pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
    const int count = poll(&ready, 1, static_cast<int>(kLook.count()));
    if (count == 0 || (count < 0 && errno == EINTR)) {
      if (!may_wait()) return false;
      continue;
    }
    const ssize_t written = ::write(fd, text.data(), std::min(text.size(), kPiece));
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
    if (written >= 0 || errno == EINTR || errno == EAGAIN) continue;
    const int error = errno;
    if (std::exchange(told_error, error) != error)
      tell(fmt::format("cannot be written: {}; lines are dropped until it can be", std::strerror(error)));
    return false;
  }
  if (std::exchange(told_error, 0) != 0) tell("can be written again");
  return true;
}

void AccessLog::State::run() {
  set_thread_role("log");
  sigset_t broken_pipe;  // a reader that leaves must not end the program
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  while (const auto piece = next()) {
    const bool is_written = write(piece->text);
    if (is_written && piece->told > 0) {
      tell(fmt::format("{} lines were dropped", piece->told - told_dropped));
      told_dropped = piece->told;
    }
    const bool gives_up = !is_written && !may_wait();
    const std::lock_guard lock(mutex);
    if (!is_written) dropped += piece->lines;
    if (!gives_up) continue;
    dropped += static_cast<int64_t>(waiting.size());
    waiting.clear();
  }
  const std::lock_guard lock(mutex);
  if (dropped > told_dropped) tell(fmt::format("{} lines were dropped", dropped - told_dropped));
  is_over = true;
  changed.notify_all();
}

// ---- any thread -----------------------------------------------------------------------------------------

Result<std::unique_ptr<AccessLog>> AccessLog::open(const std::string& file) {
  if (file.empty()) return std::unique_ptr<AccessLog>();
  auto state = std::make_shared<State>();
  state->name = file;
  state->is_stderr = file == "-";
  state->fd = state->is_stderr ? STDERR_FILENO : open_log(file);
  if (state->fd < 0) return invalid_argument(fmt::format("--access-log {}: {}", file, std::strerror(errno)));
  return std::unique_ptr<AccessLog>(new AccessLog(std::move(state)));
}

AccessLog::AccessLog(std::shared_ptr<State> state)
    : state_(std::move(state)), thread_(start_thread([state = state_] { state->run(); })) {}

AccessLog::~AccessLog() {
  std::unique_lock lock(state_->mutex);
  state_->stop_by = std::chrono::steady_clock::now() + kFarewell;
  state_->changed.notify_all();
  const bool is_over = state_->changed.wait_for(lock, 2 * kFarewell, [&] { return state_->is_over; });
  lock.unlock();
  if (!is_over) thread_.detach();  // the disk hangs
}

void AccessLog::write(const HttpRecord& record) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string line = access_line(record, std::chrono::duration<double>(now).count());
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->waiting.size() >= kMaxWaiting) {
      ++state_->dropped;
      return;
    }
    state_->waiting.push_back(std::move(line));
  }
  state_->changed.notify_one();
}

int64_t AccessLog::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped;
}

}  // namespace outrider
