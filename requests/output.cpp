#include "requests/output.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "base/program/interrupt.h"
#include "requests/finished_results.h"

namespace outrider {
namespace {

// The token as text, not as the vocabulary spells it; special tokens have no text, so they appear by name.
nlohmann::json logprob_json(const TokenLogprob& token, const Tokenizer& tokenizer) {
  return {{"id", token.id.value()},
          {"token", tokenizer.is_special(token.id) ? std::string(tokenizer.token(token.id))
                                                   : tokenizer.token_bytes(token.id)},
          {"logprob", token.logprob}};
}

// "--output PATH: why", from "PATH: why".
Status named(const std::string& flag, const Status& status) {
  return status.ok() ? status : Status(status.code(), flag + " " + status.message());
}

// Leaves no new file there; an existing one stays.
Status check_writable(const std::string& flag, const std::string& path) {
  return path.empty() ? Status() : named(flag, TemporaryFile::check(path));
}

Status check_distinct(const RunFiles& files) {
  std::error_code ignored;  // a run may continue its own output, which is read before it is replaced
  const bool goes_on = std::filesystem::equivalent(files.resume, files.output, ignored);
  const std::pair<const char*, std::string> all[] = {
      {"--prompts", files.prompts}, {"--output", files.output}, {"--resume", goes_on ? "" : files.resume},
      {"--report", files.report},   {"--trace", files.trace},   {"--record-rounds", files.record_rounds},
      {"--rounds", files.rounds}};
  return outrider::check_distinct(all);
}

}  // namespace

Status check_distinct(std::span<const std::pair<const char*, std::string>> files) {
  namespace fs = std::filesystem;
  std::map<fs::path, const char*> flags;
  for (const auto& [flag, path] : files) {
    std::error_code ignored;
    const bool is_stream = path == "-" || (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored));
    if (path.empty() || is_stream) continue;
    const auto [other, is_new] =
        flags.emplace(fs::weakly_canonical(fs::absolute(path, ignored), ignored), flag);
    if (!is_new)
      return invalid_argument(
          fmt::format("{} {}: is the file of {} too; choose another one", flag, path, other->second));
  }
  return {};
}

Status check_overwritten(const char* flag, const std::string& file, bool overwrite,
                         const std::string& resume) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (overwrite || file.empty() || file == "-" || !TemporaryFile::replaces(file)) return {};
  if (!resume.empty() && fs::equivalent(file, resume, ignored)) return {};
  return invalid_argument(
      fmt::format("{} {}: exists already; choose another name, or add --overwrite", flag, file));
}

Status write_file(const std::string& path, const std::string& content) {
  ASSIGN_OR_RETURN(TemporaryFile file, TemporaryFile::create(path));
  std::fwrite(content.data(), 1, content.size(), file.stream());
  return file.commit();
}

Status write_trace(const std::string& path, const Trace& trace) {
  ASSIGN_OR_RETURN(TemporaryFile file, TemporaryFile::create(path));
  trace.write(file.stream());
  return file.commit();
}

std::vector<float> Generated::chances(size_t begin, size_t count) const {
  std::vector<float> out;
  if (begin > logprobs.size() || count > logprobs.size() - begin) return out;
  for (size_t i = begin; i < begin + count; ++i) out.push_back(std::exp(logprobs[i].chosen.logprob));
  return out;
}

std::optional<float> Generated::prompt_chance() const {
  if (prompt_logprobs.empty()) return std::nullopt;
  double sum = 0;
  for (const PositionLogprobs& position : prompt_logprobs) sum += std::exp(position.chosen.logprob);
  return static_cast<float>(sum / static_cast<double>(prompt_logprobs.size()));
}

Result<Output> Output::open(OutputOptions options, const Tokenizer& tokenizer) {
  const RunFiles files = options.files;
  RETURN_IF_ERROR(check_distinct(files));
  RETURN_IF_ERROR(check_overwritten("--output", files.output, files.overwrite, files.resume));
  RETURN_IF_ERROR(check_overwritten("--record-rounds", files.record_rounds, files.overwrite));
  RETURN_IF_ERROR(check_writable("--report", files.report));
  RETURN_IF_ERROR(check_writable("--trace", files.trace));
  RETURN_IF_ERROR(check_writable("--record-rounds", files.record_rounds));
  RETURN_IF_ERROR(check_writable("--rounds", files.rounds));
  const bool quiet = options.quiet;
  Output output(std::move(options), tokenizer);
  if (files.output.empty() || files.output == "-") return output;
  auto file = TemporaryFile::create(files.output);
  if (!file.ok()) return named("--output", file.status());
  output.file_.emplace(std::move(file).value());
  if (!quiet && output.keeps_results())
    for (const std::string& other : output.file_->others()) {
      std::error_code none;
      if (std::filesystem::equivalent(other, files.resume, none)) continue;  // its results are taken over
      tell_error(
          other +
          " keeps what another run has finished, which did not come to its end or is still at it; this "
          "run leaves that file alone (--resume takes results over)");
    }
  return output;
}

void Output::write(const std::string& text) {
  if (failed()) return;
  std::FILE* const to = file_ ? file_->stream() : stdout;
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), to) == text.size() && std::fflush(to) == 0;
  if (written)
    bytes_ += static_cast<int64_t>(text.size());
  else
    error_ = errno != 0 ? errno : EIO;
}

void Output::stream(const std::string& text) {
  if (!is_streamed() || text.empty()) return;
  if (!options_.synthetic_acceptance.empty() && !std::exchange(marked_, true))
    write("[synthetic acceptance: this text means nothing] ");
  write(text);
}

nlohmann::json Output::line_of(size_t index, const PromptRequest& request, const Generated& generated) const {
  nlohmann::json line{
      {"index", index}, {"text", generated.text}, {"finish_reason", finish_reason_name(generated.reason)}};
  if (!options_.synthetic_acceptance.empty()) line["synthetic_acceptance"] = options_.synthetic_acceptance;
  if (!request.id.empty()) line["id"] = nlohmann::json::parse(request.id);
  if (!generated.error.ok()) line["error"] = generated.error.message();
  line["request"] = format_fingerprint(request.fingerprint);
  line["usage"] = {{"prompt_tokens", request.request.prompt.size()},
                   {"completion_tokens", generated.ids.size()}};
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

// A streamed text ends with one added newline; a request that failed before its first token leaves standard
// output empty.
void Output::result(size_t index, const PromptRequest& request, const Generated& generated) {
  const bool streamed = is_streamed();
  if (streamed && (generated.reason != FinishReason::kError || !generated.text.empty())) write("\n");
  if (streamed && request.request.sampling.logprobs < 0) return;
  add_line(index, result_line(line_of(index, request, generated)), generated.error.ok());
}

void Output::finished_line(size_t index, std::string line) { add_line(index, std::move(line), true); }

void Output::add_line(size_t index, std::string line, bool finished) {
  waiting_[index] = {std::move(line), finished};
  finished_ += finished ? 1 : 0;
  // From now on a signal lets results after a missing one be written, too.
  if (finished_ == 1 && keeps_results()) note_first_signal();
  for (auto at = waiting_.find(next_); at != waiting_.end(); at = waiting_.find(++next_)) {
    write_line(at->second);
    waiting_.erase(at);
  }
  keep_results();
}

void Output::write_line(const Line& line) {
  write(line.text);
  if (!failed() && line.finished) ++kept_;
}

// A second signal ends the program at once, and keeps the lines written so far.
void Output::keep_results() {
  if (finished_ > 0 && bytes_ > 0 && keeps_results()) file_->keep();
}

void Output::give_up(size_t requests) {
  if (finished_ == 0 || !keeps_results()) return;
  for (const auto& [index, line] : waiting_) write_line(line);
  if (bytes_ == 0) return;  // the disk is full
  keep_results();
  tell_error(fmt::format("{} of {} requests were finished; their results are in {}", kept_, requests,
                         file_->leave(bytes_)));
}

Status Output::close() {
  if (failed())
    return unavailable(fmt::format("{}: cannot be written: {}",
                                   file_ ? "--output " + options_.files.output : "standard output",
                                   std::strerror(error_)));
  return file_ ? named("--output", file_->commit()) : Status();
}

}  // namespace outrider
