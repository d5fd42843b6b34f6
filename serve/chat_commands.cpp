#include "serve/chat_commands.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/nearest.h"
#include "base/parse_number.h"
#include "base/printable.h"
#include "base/trimmed.h"

namespace outrider {
namespace {

using Kind = ChatCommand::Kind;

struct CommandName {
  std::string_view name;
  Kind kind;
  std::string_view argument;  // empty: it takes none
  std::string_view help;
};

constexpr std::array<CommandName, 10> kCommands = {{
    {"/help", Kind::kHelp, "", "show these commands"},
    {"/clear", Kind::kClear, "", "begin a new conversation; the system message stays"},
    {"/system", Kind::kSystem, "TEXT", "set the system message and begin a new conversation"},
    {"/again", Kind::kAgain, "", "answer the last message anew, with the next seed"},
    {"/undo", Kind::kUndo, "", "forget the last message and its answer"},
    {"/set", Kind::kSet, "[NAME VALUE]",
     "change temperature, top-p, top-k, min-p, repetition-penalty, max-tokens or seed; alone: show them"},
    {"/save", Kind::kSave, "FILE", "write the conversation as a line of --prompts"},
    {"/exit", Kind::kExit, "", "leave; Ctrl-D does the same"},
    {"/bye", Kind::kExit, "", ""},
    {"/quit", Kind::kExit, "", ""},
}};

template <class Number>
Status set_number(std::string_view name, std::string_view value, Number& to) {
  const auto number = parse_number<Number>(value);
  if (!number) return invalid_argument(fmt::format("/set {}: {} is not a number", name, printable(value)));
  to = *number;
  return {};
}

}  // namespace

Result<ChatCommand> parse_chat_line(std::string_view line) {
  if (line.starts_with("//")) return ChatCommand{Kind::kMessage, std::string(line.substr(1))};
  if (!line.starts_with("/")) return ChatCommand{Kind::kMessage, std::string(line)};
  const size_t end = line.find_first_of(" \t");
  const std::string_view name = line.substr(0, end);
  const std::string_view rest = end == std::string_view::npos ? "" : trimmed(line.substr(end));
  for (const CommandName& command : kCommands) {
    if (command.name != name) continue;
    if (!command.argument.empty() && !command.argument.starts_with('[') && rest.empty())
      return invalid_argument(fmt::format("{} needs {}: {}", name, command.argument, command.help));
    if (command.argument.empty() && !rest.empty())
      return invalid_argument(fmt::format("{} takes nothing behind it", name));
    return ChatCommand{command.kind, std::string(rest)};
  }
  std::vector<std::string> names;
  for (const CommandName& command : kCommands) names.emplace_back(command.name);
  const std::string_view nearest = nearest_name(names, name);
  return invalid_argument(
      fmt::format("there is no command {}{}; /help lists them, and // begins a message with a slash",
                  printable(name, 64), nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest)));
}

std::string chat_help() {
  std::string text;
  for (const CommandName& command : kCommands)
    if (!command.help.empty())
      text += fmt::format("  {:<18}{}\n", fmt::format("{} {}", command.name, command.argument), command.help);
  return text +
         "  Ctrl-C stops an answer; what was written of it stays in the conversation.\n"
         "  A line that ends with \\ goes on in the next one. // begins a message with a slash.\n";
}

Status set_chat_parameter(std::string_view assignment, RequestParams& params) {
  const size_t end = assignment.find_first_of(" \t=");
  const std::string_view name = assignment.substr(0, end);
  const std::string_view value = end == std::string_view::npos ? "" : trimmed(assignment.substr(end + 1));
  if (value.empty()) return invalid_argument("/set needs a name and a value, such as /set temperature 0.8");
  if (name == "temperature") return set_number(name, value, params.temperature);
  if (name == "top-p") return set_number(name, value, params.top_p);
  if (name == "top-k") return set_number(name, value, params.top_k);
  if (name == "min-p") return set_number(name, value, params.min_p);
  if (name == "repetition-penalty") return set_number(name, value, params.repetition_penalty);
  if (name == "max-tokens") return set_number(name, value, params.max_tokens);
  if (name == "seed") return set_number(name, value, params.seed);
  return invalid_argument(
      fmt::format("/set knows temperature, top-p, top-k, min-p, repetition-penalty, max-tokens and seed, not "
                  "{}",
                  printable(name, 64)));
}

std::string chat_parameters(const RequestParams& params) {
  return fmt::format(
      "temperature {}, top-p {}, top-k {}, min-p {}, repetition-penalty {}, max-tokens {}, seed {}",
      params.temperature, params.top_p, params.top_k, params.min_p, params.repetition_penalty,
      params.max_tokens, params.seed);
}

std::string conversation_json(const std::vector<ChatMessage>& messages) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages)
    list.push_back({{"role", message.role}, {"content", message.content}});
  return json_text(nlohmann::ordered_json{{"messages", std::move(list)}}) + "\n";
}

}  // namespace outrider
