#include "start/draft_child.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "start/own_program.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;

// A child that dies early is restarted at once, then at growing intervals; a life this long resets the
// interval.
constexpr milliseconds kFirstPause{100}, kLongestPause{10'000}, kLongLife{30'000};
constexpr milliseconds kLook{50};           // between two looks at the child and the line
constexpr milliseconds kLeavingTime{3000};  // for a child that got a Shutdown from the coordinator

// A file without a name, visible only to this process and its children (/proc/self/fd/N). Keys are passed in
// it.
class SecretFile {
 public:
  explicit SecretFile(const std::string& text) : fd_(memfd_create("outrider-key", 0)) {
    const bool written = fd_ >= 0 && fchmod(fd_, S_IRUSR | S_IWUSR) == 0 &&
                         write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    CHECK(written, "memfd: {}", std::strerror(errno));
  }
  ~SecretFile() { close(fd_); }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  const int fd_;
};

// The child does not inherit mpirun's variables of this rank, nor our own.
std::vector<char*> child_environment() {
  std::vector<char*> kept;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const bool of_mpi = text.starts_with("OMPI_") || text.starts_with("PMIX_") || text.starts_with("PMI_");
    const bool ours = text.starts_with("OUTRIDER_") && !text.starts_with("OUTRIDER_LOG=") &&
                      !text.starts_with("OUTRIDER_LOG_FORMAT=");
    if (!of_mpi && !ours) kept.push_back(*entry);
  }
  kept.push_back(nullptr);
  return kept;
}

class Child {
 public:
  explicit Child(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {}
  ~Child() { stop(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Status start() {
    std::vector<char*> argv;
    for (std::string& argument : arguments_) argv.push_back(argument.data());
    argv.push_back(nullptr);
    // Not fork(): an MPI process with registered memory must not be copied.
    const int error =
        posix_spawn(&pid_, own_program().c_str(), nullptr, nullptr, argv.data(), child_environment().data());
    if (error == 0) return {};
    pid_ = 0;
    return unavailable(
        fmt::format("cannot start a draft worker: {}; ulimit -u, ulimit -v and the control group's pids.max "
                    "limit processes",
                    std::strerror(error)));
  }
  bool runs() const { return pid_ != 0; }
  // The wait status, if the child has ended.
  std::optional<int> ended() {
    int status = 0;
    if (pid_ == 0 || waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
    pid_ = 0;
    return status;
  }
  void stop() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  std::vector<std::string> arguments_;
  pid_t pid_ = 0;
};

std::string describe(int status) {
  return WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                             : fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

bool told_to_leave(Transport& line) {
  const auto incoming = line.receive(Clock::now() + kLook);
  return incoming && std::holds_alternative<Shutdown>(incoming->message);
}

class Supervisor {
 public:
  Supervisor(std::vector<std::string> arguments, Transport& line)
      : child_(std::move(arguments)), line_(line) {}

  Status run() {
    // The coordinator sends the end of the job to every peer it has heard from.
    RETURN_IF_ERROR(line_.send(kCoordinatorPeer, Heartbeat{}));
    RETURN_IF_ERROR(start());
    while (!told_to_leave(line_)) {
      if (const auto status = child_.ended()) RETURN_IF_ERROR(note_end(*status));
      if (restart_at_ && Clock::now() >= *restart_at_) RETURN_IF_ERROR(start());
    }
    const auto deadline = Clock::now() + kLeavingTime;
    while (child_.runs() && !child_.ended() && Clock::now() < deadline) usleep(5000);
    return {};
  }

 private:
  Status start() {
    restart_at_.reset();
    started_at_ = Clock::now();
    ++lives_;
    return child_.start();
  }

  Status note_end(int status) {
    const bool cannot_work = WIFEXITED(status) && WEXITSTATUS(status) == kExitUsage;
    if (cannot_work && lives_ == 1)
      return invalid_argument("the draft worker cannot work; it says why above");
    const bool left = WIFEXITED(status) && WEXITSTATUS(status) == kExitOk;
    if (left || cannot_work) {
      if (cannot_work) say(describe(status) + " and is not started again");
      return {};
    }
    if (Clock::now() - started_at_ >= kLongLife) pause_ = kFirstPause;
    say(fmt::format("{}; another starts in {} ms", describe(status), pause_.count()));
    restart_at_ = Clock::now() + pause_;
    pause_ = std::min(pause_ * 2, kLongestPause);
    return {};
  }

  static void say(const std::string& text) { tell_error(thread_role() + ": its process " + text); }

  Child child_;
  Transport& line_;
  int lives_ = 0;
  milliseconds pause_ = kFirstPause;
  Clock::time_point started_at_;
  std::optional<Clock::time_point> restart_at_;
};

}  // namespace

std::vector<std::string> draft_child_arguments(const RoleSettings& o, const DraftChildOptions& child) {
  std::vector<std::string> arguments{"outrider",
                                     "draft-worker",
                                     "--connect",
                                     child.endpoint,
                                     "--parent",
                                     std::to_string(getpid()),
                                     "--retry-for",
                                     std::to_string(o.models.startup_timeout_s),
                                     "--max-num-seqs",
                                     std::to_string(std::min(o.models.sequences(), kMaxSequences)),
                                     "--max-model-len",
                                     std::to_string(o.models.max_model_len),
                                     "--threads",
                                     std::to_string(child.threads),
                                     "--cores",
                                     std::to_string(child.cores),
                                     "--kv-dtype",
                                     o.models.kv_dtype.text(),
                                     "--device",
                                     o.models.device.text(),
                                     "--isa",
                                     o.models.isa,
                                     "--fanout-budget",
                                     std::to_string(o.speculation.fanout_budget),
                                     "--speculative-tree",
                                     o.speculation.speculative_tree.text(),
                                     "--draft-weight-format",
                                     o.models.draft_weight_format.text(),
                                     "--draft-vocab-size",
                                     std::to_string(o.models.draft_vocab_size),
                                     "--draft-window",
                                     std::to_string(o.models.draft_window),
                                     "--activation-format",
                                     o.models.activation_format.text(),
                                     "--q-format",
                                     o.speculation.q_format.text(),
                                     "--quiet"};
  const auto add = [&](const char* flag, const std::string& value) {
    arguments.insert(arguments.end(), {flag, value});
  };
  if (o.models.draft_sinks) add("--draft-sinks", std::to_string(o.models.sinks()));
  if (!o.models.draft_model.empty()) add("--draft-model", o.models.draft_model);
  if (!o.models.uses_draft_model() || o.models.drafts_from_both()) add("--drafter", o.models.drafter);
  add("--draft-drafter", o.models.draft_drafter);
  if (o.models.head()) add("--model", o.models.model);
  add("--lookahead-ngram", std::to_string(o.models.lookahead_ngram));
  add("--draft-history-tokens", std::to_string(o.models.draft_history_tokens));
  return arguments;
}

Status supervise_draft_child(const RoleSettings& settings, const DraftChildOptions& child, Transport& line) {
  std::vector<std::string> arguments = draft_child_arguments(settings, child);
  std::optional<SecretFile> own, server;
  if (child.curve) {
    const CurveKeys& keys = *child.curve;
    own.emplace(fmt::format("public = {}\nsecret = {}\n", keys.own.public_key, keys.own.secret_key));
    server.emplace(fmt::format("public = {}\n", keys.server));
    arguments.insert(arguments.end(), {"--curve-secret-key", own->path(), "--server-key", server->path()});
  }
  return Supervisor(std::move(arguments), line).run();
}

}  // namespace outrider
