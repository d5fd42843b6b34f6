#include "requests/published_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/parse_number.h"
#include "base/shell_text.h"

namespace outrider {
namespace {

using nlohmann::json;

bool has_text(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string();
}

std::string id_of(const json& object, const char* key) {
  const auto found = object.find(key);
  const bool usable = found != object.end() && (found->is_string() || found->is_number_integer());
  return usable ? json_text(*found) : "";
}

bool has_turns(const json& object) {
  const auto turns = object.find("turns");
  return turns != object.end() && turns->is_array() && !turns->empty() &&
         std::all_of(turns->begin(), turns->end(), [](const json& turn) { return turn.is_string(); });
}

// The contents of messages that are all the user's.
std::optional<json> turns_of_user(const json& object) {
  const auto messages = object.find("messages");
  if (messages == object.end() || !messages->is_array() || messages->empty()) return std::nullopt;
  json turns = json::array();
  for (const json& message : *messages) {
    if (!message.is_object() || message.value("role", json()) != "user" || !has_text(message, "content"))
      return std::nullopt;
    turns.push_back(message["content"]);
  }
  return turns;
}

// A question of one or more turns; `turns` are texts.
PublishedLine question(const json& object, const json& turns) {
  PublishedLine line{.prompt = turns.front().get<std::string>(),
                     .category = has_text(object, "category") ? object["category"].get<std::string>() : "",
                     .id = id_of(object, "question_id"),
                     .later_turns = {}};
  for (size_t turn = 1; turn < turns.size(); ++turn)
    line.later_turns.push_back(turns[turn].get<std::string>());
  return line;
}

std::string_view without_carriage_return(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

std::optional<PublishedLine> published_line(const json& object) {
  if (object.contains("question_id") && has_turns(object)) return question(object, object["turns"]);
  if (object.contains("question_id"))
    if (const auto turns = turns_of_user(object)) {
      PublishedLine line = question(object, *turns);
      line.is_chat = true;
      return line;
    }
  if (has_text(object, "task_id") && has_text(object, "prompt") && has_text(object, "canonical_solution"))
    return PublishedLine{.prompt = object["prompt"].get<std::string>(),
                         .category = "humaneval",
                         .id = id_of(object, "task_id"),
                         .later_turns = {}};
  if (has_text(object, "question") && has_text(object, "answer"))
    return PublishedLine{
        .prompt = object["question"].get<std::string>(), .category = "gsm8k", .id = {}, .later_turns = {}};
  return std::nullopt;
}

bool is_trace_header(std::string_view line) {
  return without_carriage_return(line) == "TIMESTAMP,ContextTokens,GeneratedTokens";
}

Result<TraceLine> trace_line(std::string_view line) {
  line = without_carriage_return(line);
  const auto wrong = [] {
    return invalid_argument("a line of a trace is TIMESTAMP,ContextTokens,GeneratedTokens");
  };
  const size_t last = line.rfind(',');
  if (last == std::string_view::npos || last == 0) return wrong();
  const size_t first = line.rfind(',', last - 1);
  if (first == std::string_view::npos) return wrong();
  const auto number = [](std::string_view text, int64_t& to) {
    to = parse_number<int64_t>(text).value_or(0);
    return to > 0;
  };
  TraceLine out;
  if (!number(line.substr(first + 1, last - first - 1), out.prompt_tokens) ||
      !number(line.substr(last + 1), out.output_tokens))
    return invalid_argument("ContextTokens and GeneratedTokens must be whole numbers above 0");
  return out;
}

std::string how_to_unpack(std::string_view first_bytes, std::string_view path) {
  const auto with = [&](const char* program) {
    return fmt::format(
        "it is compressed, and this program unpacks nothing: `{} {}`, and name what comes of it", program,
        shell_word(std::string(path)));
  };
  if (first_bytes.starts_with("\x1f\x8b")) return with("gunzip -k");
  if (first_bytes.starts_with("\x28\xb5\x2f\xfd")) return with("unzstd -k");
  if (first_bytes.starts_with("PK\x03\x04")) return with("unzip");
  return "";
}

}  // namespace outrider
