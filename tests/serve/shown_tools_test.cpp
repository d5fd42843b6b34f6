// Which format published templates have, and how tools reach those that do not read the variable "tools".
#include "serve/api/shown_tools.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve_api_fixture.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::ServeApi;

// The lines of published templates that tell their formats.
TEST(ShownTools, PublishedTemplatesHaveTheirFormats) {
  const auto is = [](std::string_view chat_template, ToolFormat format) {
    const auto read = tool_format_of(chat_template);
    ASSERT_TRUE(read.ok()) << chat_template << ": " << read.status().message();
    EXPECT_EQ(*read, format) << chat_template;
  };
  // LFM2-8B-A1B, LFM2.5-Instruct and LFM2.5-8B-A1B.
  is(R"({%- if tools -%}{%- set ns.system_prompt = "List of tools: <|tool_list_start|>[" -%})",
     ToolFormat::kLfm);
  is(R"({%- if tools -%}{%- set ns.system_prompt = ns.system_prompt + "List of tools: [" -%}{{- "<|im_start|>system\n" -}})",
     ToolFormat::kLfm);
  is(R"({%- if tools -%}{{- "<|tool_call_start|>[" + (calls | join(", ")) + "]<|tool_call_end|>" -}})",
     ToolFormat::kLfm);
  // OLMo 3.
  is(R"({{- "\n<function_calls>\nget_weather(city='New York')\n</function_calls>" }}{% for tool in tools %})",
     ToolFormat::kOlmo);
  // Gemma 4.
  is(R"({%- if tools -%}{{- '<|tool_call>call:' + function['name'] + '{' -}}{{- '<|"|>' + argument + '<|"|>' -}})",
     ToolFormat::kGemma);
  // Granite 3.3 and 4.0.
  is(R"({%- if tools and not available_tools -%}respond only with <|tool_call|> followed by a JSON list of tools used.)",
     ToolFormat::kGranite);
  is(R"(return a json object within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>{% if tools %})",
     ToolFormat::kHermes);
  // Phi-4-mini, and its template of vLLM.
  is(R"({% if message['role'] == 'system' and 'tools' in message %}{{ '<|tool|>' + message['tools'] + '<|/tool|>' }})",
     ToolFormat::kPhi);
  is(R"({% if tools %}functools[{"name": "f", "arguments": {}}])", ToolFormat::kFunctools);
  is(R"({%- if tools -%}{{- '<TOOLCALL>[{{"name": "tool_name1", "arguments": "tool_args1"}}, ' -}})",
     ToolFormat::kNemotron);
  // Hunyuan-A13B, Apriel 1.6, MiniMax-M1.
  is(R"({% if tools %}<tool_calls>[{\"name\": \"func_name1\", \"arguments\": {}}]</tool_calls>)",
     ToolFormat::kToolCalls);
  is(R"({% if tools %}{{ '\n<tool_calls>[' }}{{ '{"name": "' + n }})", ToolFormat::kToolCalls);
  is(R"({% if tools %}<tool_calls></tool_calls> tags:\n<tool_calls>\n{"name": <tool-name>, "arguments": <args>}\n {% if role == "ipython" %})",
     ToolFormat::kToolCallLines);
  // Command R7B and R+.
  is(R"({% for tool in tools %}<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>)",
     ToolFormat::kCommand);
  is(R"({% for tool in tools %}{{-'Write \'Action:\' followed by a json-formatted list of actions'}})",
     ToolFormat::kCommandPlus);
  // SmolLM3.
  is(R"({%- if xml_tools or python_tools -%}<tool_call>\n{\"name\": <function-name>})", ToolFormat::kHermes);
  // DeepSeek V3.1, which has calls and no tools.
  is("{%- for tool in message['tool_calls'] -%}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'}}",
     ToolFormat::kDeepSeek);
  EXPECT_FALSE(
      tool_format_of("{%- for tool in message['tool_calls'] -%}{{'<｜tool▁calls▁begin｜>```json'}}").ok());
}

class ToolsOf : public ServeApi {
 protected:
  std::string prompt(const std::string& source, json messages) {
    chat_ = parse_chat_template(source, "", "");
    const json tool{{"type", "function"},
                    {"function",
                     {{"name", "add"},
                      {"description", "Adds."},
                      {"parameters", {{"type", "object"}, {"properties", {{"a", {{"type", "number"}}}}}}}}}};
    const auto api = read({{"messages", std::move(messages)}, {"tools", {tool}}}, ApiKind::kChat);
    return api.ok() ? prepared_.tokenizer->decode(api->requests[0].prompt) : api.status().message();
  }
  static constexpr const char* kParameters = R"({"properties": {"a": {"type": "number"}}, "type": "object"})";
};

TEST_F(ToolsOf, DeepSeekStandInTheSystemMessage) {
  const std::string source =
      "{%- set ns = namespace(p='') -%}{%- for m in messages if m['role'] == 'system' -%}"
      "{%- set ns.p = ns.p + ('\\n\\n' if ns.p else '') + m['content'] -%}{%- endfor -%}{{ ns.p }}"
      "{%- for m in messages -%}{%- for tool in m['tool_calls'] -%}{{'<｜tool▁calls▁begin｜>'}}{%- endfor -%}"
      "{%- if m['role'] == 'user' -%}{{ '<｜User｜>' + m['content'] }}{%- endif -%}{%- endfor -%}";
  const std::string words =
      "## Tools\nYou have access to the following tools:\n\n### add\nDescription: Adds.\n\nParameters: " +
      std::string(kParameters) +
      "\n\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<"
      "｜tool▁call▁end｜>"
      "{additional_tool_calls}<｜tool▁calls▁end｜>\n\nWhere:\n";
  const std::string alone = prompt(source, {{{"role", "user"}, {"content", "hello"}}});
  EXPECT_TRUE(alone.starts_with(words)) << alone;
  EXPECT_TRUE(alone.ends_with("without separators or spaces<｜User｜>hello")) << alone;
  const std::string beside = prompt(
      source, {{{"role", "system"}, {"content", "be brief"}}, {{"role", "user"}, {"content", "hello"}}});
  EXPECT_TRUE(beside.starts_with("be brief\n\n" + words)) << beside;
}

TEST_F(ToolsOf, PhiStandInAFieldOfTheSystemMessage) {
  const std::string source =
      "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and "
      "message['tools'] is "
      "not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + "
      "'<|/tool|>' "
      "+ '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif "
      "%}{% "
      "endfor %}";
  const std::string tools = R"(<|tool|>[{"name": "add", "description": "Adds.", "parameters": )";
  const std::string alone = prompt(source, {{{"role", "user"}, {"content", "hello"}}});
  EXPECT_TRUE(alone.starts_with("<|system|>You are a helpful assistant with some tools.<|tool|>[{")) << alone;
  EXPECT_NE(alone.find("\"name\": \"add\""), std::string::npos) << alone;
  EXPECT_TRUE(alone.ends_with("}]<|/tool|><|end|><|user|>hello<|end|>")) << alone;
  const std::string beside = prompt(
      source, {{{"role", "system"}, {"content", "be brief"}}, {{"role", "user"}, {"content", "hello"}}});
  EXPECT_TRUE(beside.starts_with("<|system|>be brief<|tool|>[{")) << beside;
}

TEST_F(ToolsOf, SmolLm3AreItsXmlTools) {
  const std::string source =
      "{% if xml_tools or python_tools %}{{ xml_tools[0].function.name }}<tool_call>{% endif %}{{ "
      "messages[0].content }}";
  EXPECT_EQ(prompt(source, {{{"role", "user"}, {"content", "hello"}}}), "add<tool_call>hello");
}

}  // namespace
}  // namespace outrider
