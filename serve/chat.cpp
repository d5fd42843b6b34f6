#include "serve/chat.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/program/interrupt.h"
#include "base/program/temporary_file.h"
#include "base/threads.h"
#include "requests/request_builder.h"
#include "serve/chat_commands.h"
#include "serve/engine/engine_run.h"
#include "start/coordinator_run.h"
#include "start/describe.h"
#include "start/flags/options.h"
#include "start/flags/speculative_config.h"
#include "start/tree_option.h"
#include "text/chat_template/chat_template.h"

namespace outrider {
namespace {

constexpr std::chrono::milliseconds kSignalPoll{100};  // how often a wait looks for a signal

std::atomic<int> ctrl_c_count{0};
extern "C" void count_ctrl_c(int) { ++ctrl_c_count; }

// Lines of standard input, read so that a signal is noticed while none comes.
class Console {
 public:
  Console() : is_terminal_(isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1) {}

  bool is_terminal() const { return is_terminal_; }

  // One message, which may have several lines. Nothing: the input has ended, or a signal ends the program.
  std::optional<std::string> message() {
    std::string text;
    for (;;) {
      const auto line = read_line(text.empty() ? "> " : ". ");
      if (!line) return std::nullopt;
      if (std::exchange(is_abandoned_, false)) {
        text.clear();
        continue;
      }
      text += is_terminal_ ? without_escapes(*line) : *line;
      if (!text.ends_with('\\')) return text;
      text.back() = '\n';
    }
  }

 private:
  std::optional<std::string> read_line(const char* prompt) {
    show(prompt);
    int seen = ctrl_c_count;
    for (;;) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return line;
      }
      if (noted_signal() != 0) return std::nullopt;
      if (ctrl_c_count != seen) {
        seen = ctrl_c_count;
        if (!is_terminal_) return std::nullopt;
        tell_error("Ctrl-D or /exit leaves");
        is_abandoned_ = true;  // with the lines before it
        return std::string();
      }
      if (has_ended_) return buffer_.empty() ? std::nullopt : std::optional(std::exchange(buffer_, {}));
      read_more();
    }
  }

  void read_more() {
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (poll(&input, 1, static_cast<int>(kSignalPoll.count())) <= 0) return;
    char bytes[4096];
    const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
    if (count > 0) buffer_.append(bytes, static_cast<size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) has_ended_ = true;
  }

  // Keys that move the cursor arrive as escape sequences, for lines cannot be edited here.
  static std::string without_escapes(const std::string& line) {
    std::string text;
    for (size_t at = 0; at < line.size(); ++at) {
      if (line[at] != '\x1b') {
        text += line[at];
        continue;
      }
      if (at + 1 < line.size() && (line[at + 1] == '[' || line[at + 1] == 'O')) ++at;
      while (at + 1 < line.size() && !std::isalpha(static_cast<unsigned char>(line[at + 1])) &&
             line[at + 1] != '~')
        ++at;
      ++at;
    }
    return text;
  }

  void show(const char* prompt) const {
    if (is_terminal_) std::fputs(prompt, stderr);
  }

  const bool is_terminal_;
  bool has_ended_ = false, is_abandoned_ = false;
  std::string buffer_;
};

// One answer on its way from the engine's thread to that of the conversation.
class AnswerSink final : public RequestSink {
 public:
  void emitted(const Emit& emit) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    text_ += emit.text;
    changed_.notify_one();
  }
  void finished(const Finish& finish) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    finish_ = finish;
    changed_.notify_one();
  }
  // The text since the last call; waits a moment for some. `end`: set once there is no more.
  std::string take(std::optional<Finish>& end) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kSignalPoll, [&] { return !text_.empty() || finish_; });
    end = finish_;
    return std::exchange(text_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  std::optional<Finish> finish_;
};

// A terminal obeys control characters, which a model must not use.
std::string shown_text(std::string text, bool to_terminal) {
  if (!to_terminal) return text;
  std::erase_if(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
  });
  return text;
}

std::string summary_of(const RequestMetrics& metrics) {
  const RoundSums& steps = metrics.rounds;
  std::string text = fmt::format("{} tokens", steps.emitted);
  if (metrics.first_token_at && metrics.last_token_at && steps.emitted > 1) {
    const double seconds =
        std::chrono::duration<double>(*metrics.last_token_at - *metrics.first_token_at).count();
    if (seconds > 0)
      text += fmt::format(", {:.1f} tokens/s", static_cast<double>(steps.emitted - 1) / seconds);
    text += fmt::format(", first after {:.2f} s", metrics.ttft_ms() / 1e3);
  }
  if (steps.drafted > 0)
    text += fmt::format(", {} of {} drafted tokens accepted", steps.accepted, steps.drafted);
  return text;
}

class ChatSession {
 public:
  ChatSession(const ChatSettings& settings, const RequestBuilder& builder, Engine& engine)
      : params_(settings.request),
        quiet_(settings.cluster.quiet),
        first_message_(settings.first_message),
        builder_(builder),
        engine_(engine) {
    set_system(settings.system);
  }

  // Until the user leaves, or a signal comes, or an answer cannot be written.
  void run() {
    set_thread_role("chat");
    if (console_.is_terminal() && !quiet_) tell_error("/help lists the commands, Ctrl-D leaves");
    std::string first = first_message_;
    while (!is_over_ && noted_signal() == 0 && std::ferror(stdout) == 0) {
      const std::optional<std::string> line =
          first.empty() ? console_.message() : std::optional(std::exchange(first, {}));
      if (!line) break;
      const auto command = parse_chat_line(*line);
      const Status done = command.ok() ? obey(*command) : command.status();
      if (done.ok()) continue;
      tell_error(done.message());
      has_failed_ = true;
    }
    if (console_.is_terminal()) std::fputs("\n", stderr);
    is_over_ = true;
  }
  bool is_over() const { return is_over_; }
  // A message of a pipe was not answered. At a terminal the user has seen it, and gone on.
  bool has_failed() const { return has_failed_ && !console_.is_terminal(); }

 private:
  using Kind = ChatCommand::Kind;

  Status obey(const ChatCommand& command) {
    switch (command.kind) {
      case Kind::kMessage:
        return command.text.find_first_not_of(" \t\n") == std::string::npos ? Status() : ask(command.text);
      case Kind::kHelp:
        std::fputs(chat_help().c_str(), stderr);
        return {};
      case Kind::kClear:
        set_system(system_);
        confirm("a new conversation begins");
        return {};
      case Kind::kSystem:
        set_system(command.text);
        confirm("a new conversation begins, with this system message");
        return {};
      case Kind::kAgain:
        RETURN_IF_ERROR(ask_again());
        if (params_.temperature == 0 || params_.top_k == 1)
          confirm(
              "the answer is the same again, because nothing is drawn at temperature 0 or top-k 1; /set "
              "temperature 0.8 lets it differ");
        return {};
      case Kind::kUndo: {
        ASSIGN_OR_RETURN(const std::string text, undo());
        confirm(fmt::format("forgot the message \"{}\" and its answer", printable(text, kShownOfMessage)));
        return {};
      }
      case Kind::kSet:
        return set(command.text);
      case Kind::kSave:
        return save(command.text);
      case Kind::kExit:
        is_over_ = true;
        return {};
    }
    return {};
  }

  // A line about a command that shows nothing else.
  void confirm(const std::string& what) const {
    if (!quiet_) tell_error(what);
  }

  void set_system(const std::string& text) {
    system_ = text;
    dropped_.clear();
    messages_.clear();
    if (!text.empty()) messages_.push_back({"system", text});
  }

  Status set(const std::string& assignment) {
    if (assignment.empty()) {
      tell_error(chat_parameters(params_));
      return {};
    }
    RequestParams changed = params_;
    RETURN_IF_ERROR(set_chat_parameter(assignment, changed));
    if (const Status good = builder_.build(changed, RequestBuilder::Names::kFlags).status(); !good.ok())
      return good.message().starts_with("--")
                 ? Status(good.code(), "/set " + good.message().substr(std::string_view("--").size()))
                 : good;
    params_ = std::move(changed);
    answers_ = 0;
    confirm(chat_parameters(params_));
    return {};
  }

  // The message that was taken back.
  Result<std::string> undo() {
    const auto last = std::find_if(messages_.rbegin(), messages_.rend(), is_of_user);
    if (last == messages_.rend()) return invalid_argument("there is no message yet");
    std::string text = last->content;
    messages_.erase(std::prev(last.base()), messages_.end());
    return text;
  }

  Status ask_again() {
    const std::vector<ChatMessage> before = messages_;
    ASSIGN_OR_RETURN(const std::string text, undo());
    const Status asked = ask(text);
    if (!asked.ok()) messages_ = before;
    return asked;
  }

  Status save(const std::string& file) {
    if (std::none_of(messages_.begin(), messages_.end(), is_of_user))
      return invalid_argument("/save: there is nothing to save, because the conversation has no message yet");
    if (TemporaryFile::replaces(file))
      return invalid_argument(
          fmt::format("/save {}: it exists already; choose another name", printable(file)));
    auto opened = TemporaryFile::create(file);
    if (!opened.ok()) return opened.status().in("/save");
    const std::vector<ChatMessage> all = whole_conversation();
    const std::string text = conversation_json(all);
    std::fputs(text.c_str(), opened->stream());
    RETURN_IF_ERROR(opened->commit().in("/save"));
    tell_error(fmt::format(
        "{} messages are in {}{}", all.size(), file,
        dropped_.empty() ? "" : fmt::format(", with {} that the full context has dropped", dropped_.size())));
    return {};
  }

  // Also what no longer fits into the context, behind the system message.
  std::vector<ChatMessage> whole_conversation() const {
    std::vector<ChatMessage> all = messages_;
    const auto first = std::find_if(all.begin(), all.end(), is_of_user);
    all.insert(first, dropped_.begin(), dropped_.end());
    return all;
  }

  // A message that is not answered leaves the conversation as it was.
  Status ask(const std::string& text) {
    const std::vector<ChatMessage> before = messages_;
    const size_t dropped = dropped_.size();
    messages_.push_back({"user", text});
    const Status asked = answer();
    if (asked.ok()) return asked;
    messages_ = before;
    dropped_.resize(dropped);
    return asked;
  }

  Result<std::vector<TokenId>> prompt() const {
    ASSIGN_OR_RETURN(const std::string rendered, builder_.render(messages_, {}));
    return builder_.encode(rendered, SpecialTokens::kOmit, RequestBuilder::Names::kFlags);
  }

  int64_t room_behind(const std::vector<TokenId>& prompt) const {
    return builder_.max_context() - static_cast<int64_t>(prompt.size());
  }

  // Removes the oldest message of the user and its answer; the system message stays. False: only the message
  // to be answered is left.
  bool drop_oldest_exchange() {
    const auto first = std::find_if(messages_.begin(), messages_.end(), is_of_user);
    if (first == messages_.end()) return false;
    const auto second = std::find_if(std::next(first), messages_.end(), is_of_user);
    if (second == messages_.end()) return false;
    dropped_.insert(dropped_.end(), std::make_move_iterator(first), std::make_move_iterator(second));
    messages_.erase(first, second);
    return true;
  }

  // The prompt of the conversation, without its oldest exchanges if they would leave hardly any room for an
  // answer.
  Result<std::vector<TokenId>> fitting_prompt() {
    const int64_t wanted = std::min<int64_t>(params_.max_tokens, builder_.max_context() / kRoomForAnswer);
    ASSIGN_OR_RETURN(std::vector<TokenId> ids, prompt());
    int dropped = 0;
    for (; room_behind(ids) < wanted && drop_oldest_exchange(); ++dropped) {
      ASSIGN_OR_RETURN(ids, prompt());
    }
    if (room_behind(ids) < 1)
      return invalid_argument(fmt::format(
          "the message, with what the template and the system message add, has {} tokens and the context {}; "
          "shorten it, or allow more with --max-model-len",
          ids.size(), builder_.max_context()));
    if (dropped > 0)
      tell_error(fmt::format("the {} dropped, because the conversation fills the context of {} tokens",
                             dropped == 1 ? "oldest message and its answer are"
                                          : fmt::format("{} oldest messages and their answers are", dropped),
                             builder_.max_context()));
    return ids;
  }

  Status answer() {
    ASSIGN_OR_RETURN(auto prompt, fitting_prompt());
    const int64_t room = room_behind(prompt);
    RequestParams params = params_;
    const std::string limit = room < params.max_tokens
                                  ? fmt::format("the end of the context of {} tokens", builder_.max_context())
                                  : fmt::format("--max-tokens {}", params.max_tokens);
    params.max_tokens = static_cast<int>(std::min<int64_t>(params.max_tokens, room));
    params.seed = hash_combine(params.seed, answers_++);
    ASSIGN_OR_RETURN(Request request, builder_.build(std::move(params), RequestBuilder::Names::kFlags));
    RETURN_IF_ERROR(builder_.set_prompt(request, std::move(prompt)));
    const auto sink = std::make_shared<AnswerSink>();
    ctrl_c_count = 0;
    ASSIGN_OR_RETURN(const Ticket ticket, engine_.submit(std::move(request), sink));
    return show(*sink, ticket, limit);
  }

  // `limit`: what cuts the answer, if the model does not end it.
  Status show(AnswerSink& sink, Ticket ticket, const std::string& limit) {
    const bool to_terminal = isatty(STDOUT_FILENO) == 1;
    std::string answer;
    std::optional<Finish> end;
    for (bool stopped = false; !end;) {
      const std::string text = sink.take(end);
      answer += text;
      const std::string shown = shown_text(text, to_terminal);
      std::fwrite(shown.data(), 1, shown.size(), stdout);
      std::fflush(stdout);
      if (stopped || (ctrl_c_count == 0 && noted_signal() == 0 && std::ferror(stdout) == 0)) continue;
      engine_.cancel(ticket);
      stopped = true;
    }
    std::fputs("\n", stdout);
    std::fflush(stdout);
    if (end->reason == FinishReason::kError) return end->error;
    messages_.push_back({"assistant", answer});
    if (quiet_) return {};
    std::string about = summary_of(end->metrics);
    if (end->reason == FinishReason::kCancelled) about += "; stopped";
    if (end->reason == FinishReason::kLength) about += "; cut at " + limit;
    tell_error(about);
    return {};
  }

  static bool is_of_user(const ChatMessage& message) { return message.role == "user"; }

  static constexpr size_t kShownOfMessage = 40;  // bytes
  static constexpr int64_t kRoomForAnswer = 8;   // an answer may have this part of the context at least

  RequestParams params_;
  const bool quiet_;
  const std::string first_message_;
  const RequestBuilder& builder_;
  Engine& engine_;
  Console console_;
  std::string system_;
  std::vector<ChatMessage> messages_;
  std::vector<ChatMessage> dropped_;  // the oldest of the conversation, which are not in the context
  uint64_t answers_ = 0;              // each has a seed of its own
  bool has_failed_ = false;
  std::atomic<bool> is_over_{false};
};

Result<int> coordinate(const ChatSettings& settings, const ClusterSettings& cluster,
                       const Preparation& prepared, MpiCluster* mpi) {
  ASSIGN_OR_RETURN(auto policy, parse_gamma_policy(cluster.speculation.policy()));
  RETURN_IF_ERROR(check_rule_of_trees(cluster.speculation.speculative_tree, settings.request.rule));
  const auto chat = load_chat_template(cluster.models.model, settings.chat_template);
  if (chat.status().code() == StatusCode::kNotFound && settings.chat_template.empty())
    return not_found(
        fmt::format("--model {}: the model has no chat template, which chat needs; give "
                    "--chat-template FILE",
                    cluster.models.model));
  if (!chat.ok()) return chat.status().in(settings.chat_template.empty() ? "--model" : "--chat-template");
  const RequestBuilder builder(request_model(cluster.models, cluster.speculation, prepared, chat));
  RETURN_IF_ERROR(builder.build(settings.request, RequestBuilder::Names::kFlags).status());
  CoordinatorEngine engine({.max_num_seqs = cluster.models.sequences(),
                            .max_queued_requests = 1,
                            .max_queued_tokens = std::numeric_limits<int64_t>::max() / 2,
                            .outlives_targets = cluster.targets_join()});
  if (cluster.mpi.preflight) return preflight(cluster, prepared, mpi);
  if (mpi) RETURN_IF_ERROR(mpi->start());
  ChatSession session(settings, builder, engine);
  std::jthread thread;
  auto ended = run_engine({.cluster = cluster,
                           .prepared = prepared,
                           .files = settings.files,
                           .engine = engine,
                           .policy = std::move(policy),
                           .on_ready =
                               [&] {
                                 note_first_signal();
                                 if (std::signal(SIGINT, count_ctrl_c) == SIG_IGN)
                                   std::signal(SIGINT, SIG_IGN);  // nohup
                                 thread = start_thread([&session] { session.run(); });
                               },
                           .asked_to_drain = [&] { return session.is_over() || noted_signal() != 0; },
                           .drained = [] {},
                           .drain_limit = std::chrono::seconds(0),
                           .tells_activity = false},
                          mpi);
  if (thread.joinable()) thread.join();
  RETURN_IF_ERROR(ended.status());
  return session.has_failed() ? kExitRequestFailed : kExitOk;
}

}  // namespace

void add_chat_options(CLI::App& app, ChatSettings& settings) {
  settings.request.temperature = 0.7F;
  settings.request.max_tokens = 2048;
  settings.cluster.models.max_num_seqs = 1;
  add_model_options(app, settings.cluster);
  add_pool_options(app, settings.cluster.pool);
  app.add_option("MESSAGE", settings.first_message,
                 "The first message; further ones are read from the input");
  app.add_option("--system", settings.system, "The system message. Default: what the template writes itself")
      ->group("Requests");
  app.add_option("--chat-template", settings.chat_template,
                 "A file with a chat template, instead of the model's own")
      ->group("Requests");
  app.add_option("-n,--max-tokens", settings.request.max_tokens, "Tokens of an answer at most")
      ->group("Requests")
      ->capture_default_str();
  app.add_option("-s,--seed", settings.request.seed, "Seed of the answers; each mixes in its number")
      ->group("Requests")
      ->capture_default_str();
  add_sampling_options(app, settings.request, settings.generation_config);
  add_speculation_options(app, settings.cluster.speculation, settings.request.rule);
  add_speculative_config_option(app, settings.cluster, settings.request.rule);
  add_report_options(app, settings.files, settings.cluster.quiet);
  app.footer(
      "Examples:\n"
      "  outrider chat MODEL.gguf --draft-model DRAFT.gguf\n"
      "  outrider chat MODEL 'What is a prime number?' --system 'Answer in one sentence.' --temperature 0\n"
      "  echo 'What is a prime number?' | outrider chat MODEL --quiet\n"
      "Within it /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.\n"
      "Exit codes: 0 the user left, 1 a message from a pipe was not answered, 2 bad flag or file, 3 a rank "
      "failed.");
}

int run_chat(const ChatSettings& settings) {
  set_thread_role("coordinator");
  return run_coordinator(settings.cluster, [&settings](const ClusterSettings& cluster,
                                                       const Preparation& prepared, MpiCluster* mpi) {
    return coordinate(settings, cluster, prepared, mpi);
  });
}

}  // namespace outrider
