// Calls of tools: how they are read out of a text that comes in pieces of any size, what requests say about
// forms and tools, and the grammars that follow from them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/api/request.h"
#include "serve/api/structure.h"
#include "serve/api/tool_parser.h"

namespace outrider {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

struct Read {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Read&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Read& read) {
  out << "'" << read.text << "'";
  for (const auto& [name, arguments] : read.calls) out << " " << name << "(" << arguments << ")";
  return out;
}

Read read(ToolFormat format, const std::string& text, size_t piece) {
  ToolCallParser parser(format);
  std::vector<ToolEvent> events;
  for (size_t at = 0; at < text.size(); at += piece) parser.append(text.substr(at, piece), events);
  parser.finish(events);
  Read out;
  for (const ToolEvent& event : events) {
    if (event.kind == ToolEvent::Kind::kText) out.text += event.text;
    if (event.kind == ToolEvent::Kind::kCall) {
      EXPECT_EQ(event.index, static_cast<int>(out.calls.size()));
      out.calls.emplace_back(event.text, "");
    }
    if (event.kind == ToolEvent::Kind::kArguments)
      out.calls.at(static_cast<size_t>(event.index)).second += event.text;
  }
  EXPECT_EQ(parser.calls(), static_cast<int>(out.calls.size()));
  return out;
}

void expect_read(ToolFormat format, const std::string& text, const Read& expected) {
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, text.size()})
    EXPECT_EQ(read(format, text, piece), expected) << text << " in pieces of " << piece;
}

TEST(ToolCalls, OfHermesAreFoundInText) {
  const auto hermes = [](const std::string& text, const Read& expected) {
    expect_read(ToolFormat::kHermes, text, expected);
  };
  hermes("just text < 5 <tool", {"just text < 5 <tool", {}});
  hermes("\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}<\\\"\", \"b\": [1, {}]}}\n</tool_call>",
         {"", {{"f", "{\"a\": \"}<\\\"\", \"b\": [1, {}]}"}}});
  hermes(
      "I look. <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\": \"g\", "
      "\"arguments\": {\"x\": 1}}\n</tool_call>",
      {"I look. ", {{"f", "{}"}, {"g", "{\"x\": 1}"}}});
  // Keys in another order, and arguments that are a text.
  hermes("<tool_call>{\"arguments\": {\"b\":1,\"a\":2}, \"name\": \"f\"}</tool_call>",
         {"", {{"f", "{\"b\":1,\"a\":2}"}}});
  hermes("<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call> and on",
         {" and on", {{"f", "{}"}}});
  hermes("<tool_call>{\"name\": \"f\"}</tool_call>", {"", {{"f", "{}"}}});
  // No calls.
  hermes("<tool_call>nothing", {"<tool_call>nothing", {}});
  hermes("<tool_call>{\"name\": 5}</tool_call>", {"<tool_call>{\"name\": 5}</tool_call>", {}});
  hermes("<tool_call>{\"name", {"<tool_call>{\"name", {}});
  hermes("<tool_call>", {"<tool_call>", {}});
  hermes("\nWell. <tool_call>\n", {"\nWell. <tool_call>\n", {}});
  hermes("\n<tool_call>", {"\n<tool_call>", {}});
  hermes("", {"", {}});
  hermes("  ", {"  ", {}});
  // Cut by max_tokens.
  hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", {"", {{"f", "{\"a\": "}}});
}

TEST(ToolCalls, OfLlamaAreTheWholeText) {
  const auto llama = [](const std::string& text, const Read& expected) {
    expect_read(ToolFormat::kLlama, text, expected);
  };
  llama("{\"name\": \"f\", \"parameters\": {\"a\": 1}}", {"", {{"f", "{\"a\": 1}"}}});
  llama("<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", {"", {{"f", "{}"}}});
  llama("{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
        {"", {{"f", "{}"}, {"g", "{}"}}});
  llama("The answer is {\"name\": 1}", {"The answer is {\"name\": 1}", {}});
  llama("{\"answer\": 42}", {"{\"answer\": 42}", {}});
  llama("<|python", {"<|python", {}});
  llama("<|python_tag|>", {"<|python_tag|>", {}});
  llama("<|python_tag|>print(5)", {"<|python_tag|>print(5)", {}});
}

TEST(ToolCalls, OfMistralAreAListOrNamed) {
  const auto mistral = [](const std::string& text, const Read& expected) {
    expect_read(ToolFormat::kMistral, text, expected);
  };
  mistral("[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
          {"", {{"f", "{\"a\": 1}"}, {"g", "{}"}}});
  mistral("[TOOL_CALLS]f{\"a\": 1}[TOOL_CALLS]g[ARGS]{\"b\": 2}",
          {"", {{"f", "{\"a\": 1}"}, {"g", "{\"b\": 2}"}}});
  mistral("[a list, [TOOL", {"[a list, [TOOL", {}});
  mistral("[TOOL_CALLS]", {"[TOOL_CALLS]", {}});
  mistral("[TOOL_CALLS] [", {"[TOOL_CALLS] [", {}});
  mistral("[TOOL_CALLS] [5]", {"[TOOL_CALLS] [5]", {}});
}

// ---- what requests say ----------------------------------------------------------------------------------

Result<Structure> structure(const char* body, ApiKind kind = ApiKind::kChat) {
  return read_structure(kind, ordered_json::parse(body));
}
std::string refusal(const char* body, ApiKind kind = ApiKind::kChat) {
  return structure(body, kind).status().message();
}

TEST(Structures, SchemasKeepTheirOrder) {
  for (
      const char* body :
      {R"({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"z": 1, "a": 2}}}})",
       R"({"structured_outputs": {"json": {"z": 1, "a": 2}}})", R"({"guided_json": {"z": 1, "a": 2}})",
       R"({"structured_outputs": {"json": "{\"z\":1,\"a\":2}", "regex": null}})"}) {
    const auto read = structure(body);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->grammar->spec.kind, GrammarSpec::Kind::kJson);
    EXPECT_TRUE(read->grammar->spec.text.starts_with(R"({"z":1,"a":2,"x-guidance":)")) << body;
  }
  EXPECT_TRUE(structure(R"({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"z": 1}}}})",
                        ApiKind::kResponses)
                  ->grammar->spec.text.starts_with(R"({"z":1,)"));
  EXPECT_FALSE(
      structure(R"({"response_format": {"type": "text"}, "tools": [], "tool_choice": "auto"})")->grammar);
  EXPECT_EQ(structure(R"({"structured_outputs": {"choice": ["a", "b"]}})")->grammar->spec.choices,
            (std::vector<std::string>{"a", "b"}));
}

// A text within the body has a depth of its own. 50,000 levels ended the server.
TEST(Structures, SchemasThatAreTextsHaveABoundOfTheirDepth) {
  std::string deep;
  for (int i = 0; i < 50'000; ++i) deep += R"({"a":)";
  deep += "1" + std::string(50'000, '}');
  for (const auto& [body, field] :
       {std::pair(ordered_json{{"guided_json", deep}}, "\"guided_json\""),
        std::pair(ordered_json{{"structured_outputs", {{"json", deep}}}}, "\"structured_outputs\"")}) {
    const Status status = read_structure(ApiKind::kCompletion, body).status();
    EXPECT_TRUE(status.message().starts_with(field)) << status.message();
    EXPECT_NE(status.message().find("nested more than 32 levels deep"), std::string::npos)
        << status.message();
  }
  EXPECT_NE(refusal(R"({"guided_json": "{\"a\": 1, \"a\": 2}"})").find("appears twice"), std::string::npos);
  EXPECT_NE(refusal(R"({"guided_json": "[1]"})").find("JSON schema"), std::string::npos);
  EXPECT_NE(refusal(R"({"guided_json": "a text"})").find("\"guided_json\""), std::string::npos);
}

TEST(Structures, AreRefusedByName) {
  EXPECT_NE(refusal(R"({"response_format": {"type": "xml"}})").find("\"response_format\""),
            std::string::npos);
  EXPECT_NE(refusal(R"({"response_format": {"type": "json_schema"}})").find("\"schema\""), std::string::npos);
  EXPECT_NE(refusal(R"({"response_format": 5})").find("\"response_format\""), std::string::npos);
  EXPECT_NE(refusal(R"({"structured_outputs": {"regex": "a", "choice": ["b"]}})").find("two forms"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"structured_outputs": {"structural_tag": "a"}})").find("structural_tag"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"structured_outputs": {"choice": [1]}})").find("list of texts"), std::string::npos);
  EXPECT_NE(
      refusal(R"({"guided_regex": "a", "response_format": {"type": "json_object"}})").find("leave one out"),
      std::string::npos);
  EXPECT_NE(refusal(R"({"tool_choice": "required"})").find("no \"tools\""), std::string::npos);
  EXPECT_NE(refusal(R"({"tools": 5})").find("\"tools\""), std::string::npos);
  EXPECT_NE(
      refusal(R"({"tools": [{"type": "function", "function": {"name": "a b"}}]})").find("1 to 64 letters"),
      std::string::npos);
  EXPECT_NE(refusal(R"({"tools": [{"type": "web_search"}]})").find("\"function\""), std::string::npos);
  const char* const other = R"({"tools": [{"type": "function", "function": {"name": "f"}}],
      "tool_choice": {"type": "function", "function": {"name": "g"}}})";
  EXPECT_NE(refusal(other).find("names g"), std::string::npos);
  EXPECT_NE(refusal(R"({"tools": [{"type": "function", "function": {"name": "f"}}], "guided_choice": ["a"]})")
                .find("together"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"tools": [{"type": "function", "function": {"name": "f"}}]})", ApiKind::kCompletion)
                .find("chats"),
            std::string::npos);
}

TEST(Structures, ToolsOfEachKindBecomeThoseOfChats) {
  const auto chat = structure(
      R"({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": true}}],
          "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": false})");
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  EXPECT_EQ(chat->tools->named, "f");
  EXPECT_TRUE(chat->tools->tools[0].strict);
  EXPECT_FALSE(chat->tools->is_parallel);
  const auto responses = structure(
      R"({"tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}],
          "tool_choice": {"type": "function", "name": "f"}})",
      ApiKind::kResponses);
  ASSERT_TRUE(responses.ok()) << responses.status().message();
  EXPECT_EQ(responses->tools->definitions[0]["function"]["name"], "f");
  const auto messages = structure(
      R"({"tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
          "tool_choice": {"type": "any", "disable_parallel_tool_use": true}})",
      ApiKind::kMessages);
  ASSERT_TRUE(messages.ok()) << messages.status().message();
  EXPECT_EQ(
      messages->tools->definitions[0].dump(),
      R"({"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}})");
  EXPECT_EQ(messages->tools->choice, ToolUse::Choice::kRequired);
  EXPECT_FALSE(messages->tools->is_parallel);
  EXPECT_FALSE(
      structure(R"({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"})")
          ->tools);
}

}  // namespace
}  // namespace outrider
