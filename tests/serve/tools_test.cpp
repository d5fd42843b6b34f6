// Calls of tools: how they are read out of a text that comes in pieces of any size, what requests say about
// forms and tools, and the grammars that follow from them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "read_calls.h"
#include "requests/asked_form.h"
#include "serve/api/request.h"
#include "serve/api/structure.h"
#include "serve/api/tool_parser.h"
#include "tests/coordinator/toy_tokenizer.h"

namespace outrider {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

using Read = testing::ReadCalls;

void expect_read(ToolFormat format, const std::string& text, const Read& expected) {
  testing::expect_read_calls({.format = format, .names = {"f", "g"}}, text, expected);
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
  // A mention, a damaged call, and one that lost its last bracket or a quote: calls behind them are found.
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const Read::Calls found{{"f", "{\"a\": 1}"}};
  hermes("<think>I may <tool_call> it.</think>\n" + call, {"<think>I may <tool_call> it.</think>\n", found});
  hermes("Use <tool_call></tool_call> tags.\n" + call, {"Use <tool_call></tool_call> tags.\n", found});
  hermes("<tool_call>\n{'name': 'g'}\n</tool_call>\n" + call,
         {"<tool_call>\n{'name': 'g'}\n</tool_call>\n", found});
  hermes("<tool_call>\n{\"nam: \"g\"\n</tool_call>\n" + call,
         {"<tool_call>\n{\"nam: \"g\"\n</tool_call>\n", found});
  hermes("<tool_call>\n{\"arguments\": {}, [\n</tool_call>\n" + call,
         {"<tool_call>\n{\"arguments\": {}, [\n</tool_call>\n", found});
  hermes("<tool_call>\n{\"name\": \"g\", \"arguments\": {\"b\": 2}\n</tool_call>\n" + call,
         {"", {{"g", "{\"b\": 2}"}, {"f", "{\"a\": 1}"}}});
  hermes("<tool_call>\n{\"name\": \"g\", \"arguments\": {\"b\": \"x}}\n</tool_call>\n" + call,
         {"", {{"g", "{\"b\": \"x}}\n"}, {"f", "{\"a\": 1}"}}});
  hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}</tool_call>",
         {"", {{"f", "{\"a\": \"</tool_call>\"}"}}});
  hermes(call + "\n<tool_call>{\"name", {"\n<tool_call>{\"name", found});
  // Arguments before the name keep their bytes; a text, null and nothing are those of no arguments.
  hermes(
      "<tool_call>{\"arguments\": {\"b\" : 1.50, \"a\":[ 1e2 ,\"\\u00e9\"]} , \"name\": \"f\"}</tool_call>",
      {"", {{"f", "{\"b\" : 1.50, \"a\":[ 1e2 ,\"\\u00e9\"]}"}}});
  for (const char* empty : {"null", "\"\"", "\" \""})
    hermes(fmt::format("<tool_call>{{\"name\": \"f\", \"arguments\": {}}}</tool_call>", empty),
           {"", {{"f", "{}"}}});
  // Deeper than JSON from outside may be.
  const std::string deep(50'000, '[');
  hermes("<tool_call>{\"arguments\": " + deep + std::string(50'000, ']') + ", \"name\": \"f\"}</tool_call>",
         {"<tool_call>{\"arguments\": " + deep + std::string(50'000, ']') + ", \"name\": \"f\"}</tool_call>",
          {}});
  hermes("<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
         {"<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>", {}});
  // Cut by max_tokens.
  hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", {"", {{"f", "{\"a\": "}}});
}

// As Qwen2.5-Coder writes them: a call only if the whole answer is one object with a call of an
// offered tool, alone or as a block.
TEST(ToolCalls, OfHermesMayBeOneJsonObject) {
  const auto hermes = [](const std::string& text, const Read& expected) {
    expect_read(ToolFormat::kHermes, text, expected);
  };
  const std::string call = R"({"name": "f", "arguments": {"a": "}```", "b" : [1]}})";
  const Read found{"", {{"f", R"({"a": "}```", "b" : [1]})"}}};
  hermes(call, found);
  hermes("\n" + call + "\n", found);
  hermes("```json\n" + call + "\n```", found);
  hermes("\n ```json\n{\n  \"name\": \"f\",\n  \"arguments\": {\"a\": \"}```\", \"b\" : [1]}\n}\n```\n",
         found);
  for (const std::string& text :
       {"```json\n" + call + "\n``` is the call", "Here:\n```json\n" + call + "\n```",
        "```json\n" + call + "\n", "```json\n" + call + "\n```\n```json\n" + call + "\n```",
        "```\n" + call + "\n```", call + " and text", call + "\n```",
        std::string("```json\n{\"name\": \"other\", \"arguments\": {}}\n```"),
        std::string("```json\n{\"name\": \"f\", \"age\": 5}\n```"),
        std::string("```json\n{\"name\": \"f\", \"arguments\": {}, \"more\": 1}\n```"),
        std::string("```json\n{\"name\": \"f\", \"arguments\": [1]}\n```"),
        std::string("```json\n{\"arguments\": {}, \"name\": \"f\"}\n```"), std::string("```json\n{\"na"),
        std::string("```json\n{\"name\": \"f"),
        std::string("```json\n{\"name\": \"f\", \"arguments\": {]}\n```"), std::string("```"),
        std::string("```json\n{}\n```")})
    hermes(text, {text, {}});
  hermes("```json\n{\"name\": 5}\n```\n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
         {"```json\n{\"name\": 5}\n```\n", {{"g", "{}"}}});
  // A text that cannot become such a call any more is not held back.
  ToolCallParser parser({.format = ToolFormat::kHermes, .names = {"f"}});
  std::vector<ToolEvent> events;
  parser.append("```json\n{\"name\": \"Alice", events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "```json\n{\"name\": \"Alice");
}

// A grammar allows such an object as text: of a tool that is strict, or of a form beside tools.
TEST(ToolCalls, OfHermesAreNoBareObjectsWhereAGrammarExists) {
  for (const std::string text :
       {R"({"name": "f", "arguments": {"a": 1}})", "```json\n{\"name\": \"f\", \"arguments\": {}}\n```"}) {
    ToolCallParser parser({.format = ToolFormat::kHermes, .names = {"f"}, .has_grammar = true});
    std::vector<ToolEvent> events;
    parser.append(text, events);
    parser.finish(events);
    ASSERT_EQ(events.size(), 1u) << text;
    EXPECT_EQ(events[0].text, text);
    EXPECT_EQ(events[0].kind, ToolEvent::Kind::kText);
    EXPECT_EQ(parser.calls(), 0);
  }
}

// Each piece was parsed from the beginning of the object.
TEST(ToolCalls, OfManyMembersAreReadOnce) {
  ToolCallParser parser({.format = ToolFormat::kHermes, .names = {"f"}});
  std::vector<ToolEvent> events;
  parser.append("<tool_call>{", events);
  for (int i = 0; i < 200'000; ++i) parser.append("\"a\":\"b\",", events);
  parser.append("\"name\":\"f\",\"arguments\":{}}</tool_call>", events);
  parser.finish(events);
  EXPECT_EQ(parser.calls(), 0);  // JSON in which a key stands twice
  std::string members;
  for (int i = 0; i < 400; ++i) members += fmt::format("\"k{}\": \"v\", ", i);
  expect_read(ToolFormat::kHermes,
              "<tool_call>{" + members + "\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>",
              {"", {{"f", "{\"a\": 1}"}}});
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
  // JSON with a name of its own: none of a tool, or without parameters.
  for (const char* text :
       {"{\"answer\": 42}", "{\"name\": \"Alice\", \"age\": 30}", "{\"name\": \"\", \"b\": 2}",
        "{\"name\": \"John Smith\", \"parameters\": {}} is the record.", "{\"name\": \"f\"}",
        "{\"age\": 30, \"name\": \"Alice\", \"parameters\": {}}"})
    llama(text, {text, {}});
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
  mistral("[TOOL_CALLS]f[CALL_ID]abcdef123[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]abcdef124[ARGS]{}",
          {"", {{"f", "{\"a\": 1}"}, {"g", "{}"}}});
  mistral("[TOOL_CALLS] is the mark, {x}. [TOOL_CALLS]f{}",
          {"[TOOL_CALLS] is the mark, {x}. ", {{"f", "{}"}}});
  mistral("[a list, [TOOL", {"[a list, [TOOL", {}});
  mistral("[TOOL_CALLS]", {"[TOOL_CALLS]", {}});
  mistral("[TOOL_CALLS] [", {"[TOOL_CALLS] [", {}});
  mistral("[TOOL_CALLS] [5]", {"[TOOL_CALLS] [5]", {}});
}

TEST(ToolFormats, AreToldByWhatTheTemplateWrites) {
  const auto is = [](std::string_view chat_template, ToolFormat format) {
    const auto read = tool_format_of(chat_template);
    ASSERT_TRUE(read.ok()) << chat_template << ": " << read.status().message();
    EXPECT_EQ(*read, format) << chat_template;
  };
  is(R"({% if tools %}<tool_call>{"name": <n>, "arguments": <a>}</tool_call>)", ToolFormat::kHermes);
  is(R"({% if tools %}ipython {"name": n, "parameters": {}})", ToolFormat::kLlama);
  is(R"({{ tools }}[TOOL_CALLS][{"name"}])", ToolFormat::kMistral);
  is("{{ tools }}[TOOL_CALLS]{{ name }}[ARGS]{{ a }}", ToolFormat::kMistralNamed);
  is("{{ tools }}[TOOL_CALLS]{{ name }}[CALL_ID]{{ id }}[ARGS]{{ a }}", ToolFormat::kMistralIds);
  const auto refused = [](std::string_view chat_template, const char* by_name) {
    const std::string message = tool_format_of(chat_template).status().message();
    EXPECT_TRUE(message.starts_with("\"tools\"")) << message;
    EXPECT_NE(message.find(by_name), std::string::npos) << message;
  };
  refused("{{ messages }}", "has none");
  refused("{{ tools }}<function=f>{}</function>", "Functionary");
  is("{{ tools }}<|channel|>commentary to=functions.f<|message|>", ToolFormat::kChannels);
  is("{{ tools }}<tool_call>\n<function=f>\n<parameter=p>", ToolFormat::kQwenXml);
  is("{{ tools }}<seed:tool_call>\n<function=f>\n<parameter=p>", ToolFormat::kSeed);
  is("{{ tools }}<tool_call>f\n<arg_key>k</arg_key>", ToolFormat::kGlm);
  is("{{ tools }}<minimax:tool_call>", ToolFormat::kMiniMax);
  is("{{ tools }}<|tool_calls_section_begin|>", ToolFormat::kKimi);
  is("{{ tools }}<｜tool▁calls▁begin｜>", ToolFormat::kDeepSeek);
  is("{{ tools }}<｜tool▁calls▁begin｜>```json", ToolFormat::kDeepSeekV3);
  is("{{ tools }}<｜DSML｜function_calls>", ToolFormat::kDsml);
  is("{{ tools }}{% set mark = '｜DSML｜' %}{{ '<' + mark + 'tool_calls>' }}", ToolFormat::kDsmlTools);
  refused("{{ tools }}", "not known here");
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
  EXPECT_NE(refusal(R"({"tools": [{"type": "function", "function": {"name": "f"}},
                                  {"type": "function", "function": {"name": "f"}}]})")
                .find("two have the \"name\" f"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"tools": [{"type": "web_search"}]})").find("\"function\""), std::string::npos);
  const char* const other = R"({"tools": [{"type": "function", "function": {"name": "f"}}],
      "tool_choice": {"type": "function", "function": {"name": "g"}}})";
  EXPECT_NE(refusal(other).find("names g"), std::string::npos);
  EXPECT_NE(refusal(R"({"tools": [{"type": "function", "function": {"name": "f"}}]})", ApiKind::kCompletion)
                .find("chats"),
            std::string::npos);
}

TEST(Structures, SchemasLoseWhatForbidsNothingAndTheLibraryRefuses) {
  const auto adapted = [](const char* schema) {
    auto out = schema_for_library(ordered_json::parse(schema));
    if (!out.ok()) return out.status().message();
    if (out->is_object()) out->erase("x-guidance");
    return out->dump();
  };
  EXPECT_EQ(adapted(R"({"type":"array","uniqueItems":false,"items":{"type":"string","format":"binary"}})"),
            R"({"type":"array","items":{"type":"string"}})");
  EXPECT_EQ(
      adapted(R"({"anyOf":[{"format":"date"},{"format":"password"}],"$defs":{"a":{"format":"int64"}}})"),
      R"({"anyOf":[{"format":"date"},{}],"$defs":{"a":{}}})");
  // Schema parts that stay: constraints, properties that only share a keyword's name, and values that are not
  // schemas.
  for (const char* kept : {R"({"uniqueItems":true})",
                           R"({"properties":{"format":{"enum":["x"]},"uniqueItems":{"const":false}}})",
                           R"({"default":{"format":"x"},"enum":[{"format":"x"}]})",
                           R"({"propertyNames":{"pattern":"^a"}})", "true"})
    EXPECT_EQ(adapted(kept), kept);
  EXPECT_EQ(
      adapted(R"({"propertyNames":{},"dependentRequired":{},"unevaluatedProperties":true,"not":false})"),
      "{}");
  // Beyond 2^53 the library writes other numbers than those of a constant, and may write some beyond a bound.
  for (const char* wrong :
       {R"({"const":9007199254740993})", R"({"enum":[1,18446744073709551615]})",
        R"({"properties":{"a":{"const":-9007199254740993}}})", R"({"const":[[1152921504606846976]]})"})
    EXPECT_NE(adapted(wrong).find("2^53"), std::string::npos) << wrong;
  EXPECT_EQ(adapted(R"({"const":9007199254740992})"), R"({"const":9007199254740992})");
  EXPECT_EQ(adapted(R"({"minimum":-9007199254740993,"maximum":9007199254740995})"),
            R"({"minimum":-9007199254740992,"maximum":9007199254740994})");
  EXPECT_EQ(adapted(R"({"minimum":0,"maximum":18446744073709551615})"),
            R"({"minimum":0,"maximum":18446744073709551615})");
  EXPECT_EQ(adapted(R"({"minimum":-9223372036854775808,"maximum":9223372036854775807})"),
            R"({"minimum":-9223372036854774784,"maximum":9223372036854775807})");
  for (const char* wrong :
       {R"({"minimum":9223372036854775808})", R"({"exclusiveMinimum":9223372036854775807})"})
    EXPECT_NE(adapted(wrong).find("64 bits"), std::string::npos) << wrong;
  // Options of its own stand beside the blanks.
  const auto own =
      schema_for_library(ordered_json::parse(R"({"x-guidance":{"coerce_one_of":true}})")).value();
  EXPECT_EQ(own["x-guidance"]["coerce_one_of"], true);
  EXPECT_EQ(own["x-guidance"]["whitespace_flexible"], false);
  EXPECT_EQ(schema_for_library(ordered_json::parse(R"({"x-guidance":{"whitespace_flexible":true}})"))->dump(),
            R"({"x-guidance":{"whitespace_flexible":true}})");
}

TEST(Structures, ASchemaBesideJsonObjectIsObeyedAndOtherKeysAreRefused) {
  const auto read =
      structure(R"({"response_format": {"type": "json_object", "schema": {"required": ["a"]}}})");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_TRUE(read->grammar->spec.text.starts_with(R"({"required":["a"])")) << read->grammar->spec.text;
  EXPECT_NE(refusal(R"({"response_format": {"type": "json_object", "schema": 5}})").find("JSON schema"),
            std::string::npos);
  for (const char* body : {R"({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}})",
                           R"({"response_format": {"type": "text", "schema": {}}})"})
    EXPECT_NE(refusal(body).find("has no meaning"), std::string::npos) << body;
}

class ToolGrammars : public ::testing::Test {
 protected:
  std::string lark(const char* body, ToolFormat format = ToolFormat::kHermes) const {
    const auto read = structure(body);
    EXPECT_TRUE(read.ok()) << read.status().message();
    const auto grammar = tool_grammar(*read->tools, read->grammar, format, tokenizer_);
    if (!grammar.ok()) return grammar.status().message();
    return *grammar ? (*grammar)->spec.text : "";
  }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  const ToyTokenizer tokenizer_;
};

TEST_F(ToolGrammars, SchemasOfArgumentsAreGrammarsOfTheirOwn) {
  // "#" is the schema itself, wherever the call has it.
  const char* const schema =
      R"({"type":"object","properties":{"p":{"$ref":"#/$defs/P"},"kids":{"items":{"$ref":"#"}}},"$defs":{"P":{"type":"integer"}})";
  const std::string body = fmt::format(
      R"({{"tool_choice":"required","tools":[{{"type":"function","function":{{"name":"f","parameters":{}}}}}}}]}})",
      schema);
  for (const ToolFormat format : {ToolFormat::kHermes, ToolFormat::kLlama, ToolFormat::kMistral,
                                  ToolFormat::kMistralNamed, ToolFormat::kMistralIds})
    EXPECT_TRUE(has(lark(body.c_str(), format), std::string("args_0: %json ") + schema + ",\"x-guidance\""))
        << lark(body.c_str(), format);
}

TEST_F(ToolGrammars, OfTagsAreSections) {
  const std::string tools = R"({"tools":[{"type":"function","function":{"name":"f"}}],)";
  const std::string required = tools + R"("tool_choice":"required"})";
  const std::string one = tools + R"("tool_choice":"required","parallel_tool_calls":false})";
  for (const ToolFormat format : {ToolFormat::kDeepSeek, ToolFormat::kDeepSeekV3, ToolFormat::kKimi}) {
    EXPECT_TRUE(has(lark(required.c_str(), format), "one)*")) << lark(required.c_str(), format);
    EXPECT_FALSE(has(lark(one.c_str(), format), "one)*")) << lark(one.c_str(), format);
  }
  EXPECT_TRUE(has(lark(required.c_str(), ToolFormat::kDeepSeekV3), R"("f\n```json\n" args_0 "\n```")"))
      << lark(required.c_str(), ToolFormat::kDeepSeekV3);
  EXPECT_TRUE(has(lark(required.c_str(), ToolFormat::kKimi),
                  R"("functions.f:" /[0-9]+/ "<|tool_call_argument_begin|>")"))
      << lark(required.c_str(), ToolFormat::kKimi);
}

TEST_F(ToolGrammars, OneThatIsNamedIsCalledOnce) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}])";
  const std::string named = "{" + tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}}})";
  const std::string required = "{" + tools + R"(,"tool_choice":"required"})";
  for (const ToolFormat format :
       {ToolFormat::kHermes, ToolFormat::kMistral, ToolFormat::kMistralNamed, ToolFormat::kMistralIds}) {
    EXPECT_TRUE(has(lark(required.c_str(), format), ")*") || has(lark(required.c_str(), format), "one*"));
    const std::string one = lark(named.c_str(), format);
    EXPECT_FALSE(has(one, ")*") || has(one, "one*")) << one;
    EXPECT_TRUE(has(one, "body: call_1\n")) << one;
  }
}

TEST_F(ToolGrammars, AToolWithoutParametersTakesNone) {
  const auto of = [&](const std::string& parameters) {
    return lark((R"({"tool_choice":"required","tools":[{"type":"function","function":{"name":"f")" +
                 parameters + "}}]}")
                    .c_str());
  };
  for (const char* none : {"", R"(,"parameters":{})", R"(,"parameters":{"type":"object","properties":{}})",
                           R"(,"parameters":{"type":"object"})"})
    EXPECT_TRUE(has(of(none), R"("additionalProperties":false)")) << of(none);
  for (const char* some :
       {R"(,"parameters":{"properties":{"a":{}}})", R"(,"parameters":{"$ref":"#/$defs/a","$defs":{"a":{}}})",
        R"(,"parameters":{"type":"object","additionalProperties":{"type":"string"}})"})
    EXPECT_FALSE(has(of(some), R"("additionalProperties":false)")) << of(some);
  EXPECT_TRUE(has(of(R"(,"parameters":{"properties":{"a":{}}})"), R"("type":"object")"));
  EXPECT_TRUE(has(of(R"(,"parameters":{"properties":{"a":{"const":9007199254740993}}})"),
                  "\"tools\": the \"parameters\" of f: "));
}

TEST_F(ToolGrammars, AFormBesideToolsIsThatOfATextThatDoesNotCall) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  const auto of = [&](const std::string& form) { return lark(("{" + tools + "," + form + "}").c_str()); };
  EXPECT_EQ(lark(("{" + tools + "}").c_str()), "");
  EXPECT_TRUE(has(of(R"("response_format":{"type":"json_object"})"),
                  "start: calls | form\nform: %json {\"type\":\"object\""));
  EXPECT_TRUE(has(of(R"("guided_choice":["a","b"])"), "form: \"a\" | \"b\"\n"));
  EXPECT_TRUE(has(of(R"("guided_regex":"a/b\\/\nc")"), "FORM: /a\\/b\\/\\nc/\n"))
      << of(R"("guided_regex":"a/b\\/\nc")");
  EXPECT_TRUE(has(of(R"("guided_grammar":"start: /a/")"), "\"guided_grammar\": a grammar together with"));
  // A text that must call has no other form.
  EXPECT_FALSE(has(of(R"("tool_choice":"required","guided_choice":["a"])"), "form"));
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
