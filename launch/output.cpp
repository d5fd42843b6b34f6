#include "launch/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace outrider {
namespace {

std::string temporary_name(const std::string& path) { return fmt::format("{}.{}.partial", path, getpid()); }

std::string reason(const std::string& path) { return fmt::format("{}: cannot be written: {}", path, std::strerror(errno)); }

nlohmann::json logprob_json(const TokenLogprob& token, const Tokenizer& tokenizer) {
  return {{"id", token.id.value()}, {"token", std::string(tokenizer.token(token.id))}, {"logprob", token.logprob}};
}

// Text from a model may hold half a character at a cut: written as U+FFFD, never refused.
std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Status write_file(const std::string& path, const std::string& content) {
  const std::string temporary = temporary_name(path);
  std::FILE* file = std::fopen(temporary.c_str(), "w");
  if (!file) return not_found(reason(path));
  const bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  const bool closed = std::fclose(file) == 0;
  if (written && closed && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const Status status = unavailable(reason(path));
  std::filesystem::remove(temporary);
  return status;
}

Result<Output> Output::open(const RunOptions& options, const Tokenizer& tokenizer) {
  Output output(options, tokenizer);
  if (options.output_file.empty()) return output;
  output.temporary_ = temporary_name(options.output_file);
  output.file_.reset(std::fopen(output.temporary_.c_str(), "w"));
  if (!output.file_) return not_found("--output " + reason(options.output_file));
  return output;
}

Output::~Output() {
  if (file_) std::filesystem::remove(temporary_);  // never closed: the run failed
}

void Output::stream(const std::string& text) {
  if (!options_->prompt || !options_->output_file.empty() || text.empty()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  ends_with_newline_ = text.back() == '\n';
}

nlohmann::json Output::line_of(size_t index, const PromptRequest& request, const Generated& generated) const {
  nlohmann::json line{{"index", index}, {"text", generated.text}, {"finish_reason", finish_reason_name(generated.reason)}};
  if (!request.request.client_id.empty()) line["id"] = request.request.client_id;
  if (!generated.error.ok()) line["error"] = generated.error.message();
  line["usage"] = {{"prompt_tokens", request.request.prompt.size()}, {"completion_tokens", generated.ids.size()}};
  auto& ids = line["token_ids"] = nlohmann::json::array();
  for (TokenId id : generated.ids) ids.push_back(id.value());
  if (request.request.sampling.logprobs < 0) return line;
  auto& logprobs = line["logprobs"] = nlohmann::json::array();
  for (const PositionLogprobs& position : generated.logprobs) {
    nlohmann::json entry = logprob_json(position.chosen, *tokenizer_);
    entry["top"] = nlohmann::json::array();
    for (const TokenLogprob& token : position.top) entry["top"].push_back(logprob_json(token, *tokenizer_));
    logprobs.push_back(std::move(entry));
  }
  return line;
}

void Output::result(size_t index, const PromptRequest& request, const Generated& generated) {
  const bool plain_text = options_->prompt && options_->output_file.empty();
  if (plain_text && options_->logprobs < 0) return;  // it was streamed
  waiting_[index] = dump(line_of(index, request, generated)) + "\n";
  if (plain_text && !ends_with_newline_) waiting_[index].insert(0, "\n");
  std::FILE* to = file_ ? file_.get() : stdout;
  for (auto at = waiting_.find(next_); at != waiting_.end(); at = waiting_.find(++next_)) {
    failed_ |= std::fwrite(at->second.data(), 1, at->second.size(), to) != at->second.size();
    waiting_.erase(at);
  }
  std::fflush(to);
}

Status Output::close() {
  if (!file_) return {};
  failed_ |= std::fclose(file_.release()) != 0;
  if (!failed_ && std::rename(temporary_.c_str(), options_->output_file.c_str()) == 0) return {};
  const Status status = unavailable("--output " + reason(options_->output_file));
  std::filesystem::remove(temporary_);
  return status;
}

}  // namespace outrider
