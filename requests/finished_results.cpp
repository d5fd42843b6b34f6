#include "requests/finished_results.h"

#include <bit>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "base/hash.h"
#include "base/json_file.h"
#include "base/json_text.h"
#include "base/text_hash.h"

namespace outrider {
namespace {

constexpr size_t kMaxResultBytes = size_t{256} << 20;  // a long text with many log-probabilities

uint64_t of_number(uint64_t hash, float value) { return hash_combine(hash, std::bit_cast<uint32_t>(value)); }

uint64_t of_sampling(uint64_t hash, const SamplingParams& p) {
  hash = hash_combine(hash, static_cast<uint64_t>(p.rule));
  hash = hash_combine(hash, static_cast<uint64_t>(p.top_k));
  hash = hash_combine(hash, static_cast<uint64_t>(p.logprobs));
  hash = hash_combine(hash, p.seed.value);
  for (const float value :
       {p.temperature, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty, p.frequency_penalty})
    hash = of_number(hash, value);
  hash = hash_combine(hash, p.logit_bias.size());
  for (const auto& [id, value] : p.logit_bias)
    hash = of_number(hash_combine(hash, static_cast<uint64_t>(id.value())), value);
  if (p.ends_from > 0) hash = hash_combine(hash, static_cast<uint64_t>(p.ends_from));
  for (const TokenId id : p.ends) hash = hash_combine(hash, static_cast<uint64_t>(id.value()));
  return hash;
}

std::optional<uint64_t> parse_fingerprint(const nlohmann::json& line) {
  const auto at = line.find("request");
  if (at == line.end() || !at->is_string()) return std::nullopt;
  const auto& text = at->get_ref<const std::string&>();
  uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string checksum_of(const nlohmann::json& result) {
  return format_fingerprint(fingerprint_of_text(json_text(result)));
}

// Empty, or the fault of the checksum.
std::string checksum_fault(nlohmann::json line) {
  const auto at = line.find("checksum");
  if (at == line.end()) return "has no \"checksum\", as lines of older versions";
  const nlohmann::json told = *at;
  line.erase(at);
  return told == checksum_of(line) ? "" : "was changed since it was written: its \"checksum\" is another's";
}

bool is_finished(const nlohmann::json& line) {
  const auto at = line.find("finish_reason");
  return at != line.end() &&
         (*at == finish_reason_name(FinishReason::kStop) || *at == finish_reason_name(FinishReason::kLength));
}

}  // namespace

uint64_t RequestFingerprints::operator()(const PromptRequest& asked) const {
  const Request& request = asked.request;
  uint64_t hash = hash_combine(model_, prefix_hash(request.prompt));
  hash = of_sampling(hash, request.sampling);
  hash = hash_combine(hash, static_cast<uint64_t>(request.max_tokens));
  hash = hash_combine(hash, request.ignore_eos ? 1 : 0);
  for (const std::string& stop : request.stop) hash = hash_combine(hash, fingerprint_of_text(stop));
  for (const TokenId id : request.stop_ids) hash = hash_combine(hash, static_cast<uint64_t>(id.value()) + 1);
  return asked.form == 0 ? hash : hash_combine(hash, asked.form);
}

std::string format_fingerprint(uint64_t fingerprint) { return fmt::format("{:016x}", fingerprint); }

std::string result_line(nlohmann::json result) {
  result.erase("checksum");
  result["checksum"] = checksum_of(result);
  return json_text(result) + "\n";
}

Result<FinishedResults> FinishedResults::read(const std::string& path) {
  std::ifstream file(path);
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(path, ignored))
    return not_found(fmt::format(
        "--resume {}: cannot be read; name the --output of an earlier run, or its .partial", path));
  FinishedResults results;
  std::string text;
  for (size_t number = 1; std::getline(file, text); ++number) {
    if (file.eof()) break;  // an incomplete line: its run was interrupted
    const std::string where = fmt::format("--resume {}:{}", path, number);
    ASSIGN_OR_RETURN(const nlohmann::json line,
                     parse_json(text, where, {.max_bytes = kMaxResultBytes, .max_depth = 16}));
    const std::optional<uint64_t> fingerprint = line.is_object() ? parse_fingerprint(line) : std::nullopt;
    if (!fingerprint)
      return invalid_argument(where + ": not a result with a \"request\"; name a file that --output wrote");
    if (const std::string fault = checksum_fault(line); !fault.empty())
      return malformed(fmt::format("{}: {}; remove that line, and its request runs again", where, fault));
    if (is_finished(line)) results.line_of_.emplace(*fingerprint, text);
  }
  return results;
}

std::optional<std::string> FinishedResults::line_for(const PromptRequest& request, size_t index) const {
  const auto found = line_of_.find(request.fingerprint);
  if (found == line_of_.end()) return std::nullopt;
  nlohmann::json line = nlohmann::json::parse(found->second);
  line["index"] = index;
  line.erase("id");
  if (!request.id.empty()) line["id"] = nlohmann::json::parse(request.id);
  return result_line(std::move(line));
}

}  // namespace outrider
