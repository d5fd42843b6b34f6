// Calls of tools in formats with tags: what models write, cut at every byte, and what templates write of it.
#include "serve/api/tagged_calls.h"
#include "read_calls.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include <nlohmann/json.hpp>

#include "serve/api/request.h"
#include "serve/api/structure.h"
#include "serve/api/tool_parser.h"
#include "tests/coordinator/toy_tokenizer.h"
#include "text/chat_template/chat_template.h"
#include "text/grammar/grammar_compiler.h"

namespace outrider::tagged_calls {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

const ordered_json kSchema = ordered_json::parse(R"({"type": "object", "properties": {
    "s": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}, "o": {"type": "object"},
    "l": {"$ref": "#/$defs/L"}, "m": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "any": {}},
    "$defs": {"L": {"type": "array", "items": {"type": "integer"}}}})");

using Read = testing::ReadCalls;

ToolReading reading(ToolFormat format) {
  return {.format = format, .names = {"f", "g"}, .parameters = {kSchema, kSchema}};
}

Read read(ToolFormat format, const std::vector<std::string>& pieces,
          std::vector<std::string>* ids = nullptr) {
  return testing::read_calls(reading(format), pieces, ids);
}

void expect_read(ToolFormat format, const std::string& text, const Read& expected) {
  testing::expect_read_calls(reading(format), text, expected);
}

// The pieces of a format, so that one table of outputs serves all formats.
struct Form {
  ToolFormat format;
  std::string begin, call, named, key, keyed, valued, called, between, end;
};
const std::vector<Form> kXml{
    {ToolFormat::kQwenXml, "<tool_call>\n", "<function=", ">\n", "<parameter=", ">\n", "\n</parameter>\n",
     "</function>\n", "</tool_call>\n<tool_call>\n", "</tool_call>"},
    {ToolFormat::kSeed, "<seed:tool_call>\n", "<function=", ">\n", "<parameter=", ">", "</parameter>\n",
     "</function>\n", "</seed:tool_call>\n<seed:tool_call>\n", "</seed:tool_call>"},
    {ToolFormat::kGlm, "<tool_call>", "", "\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "",
     "</tool_call>\n<tool_call>", "</tool_call>"},
    {ToolFormat::kGlm, "<tool_call>", "", "", "<arg_key>", "</arg_key><arg_value>", "</arg_value>", "",
     "</tool_call><tool_call>", "</tool_call>"},
    {ToolFormat::kMiniMax, "<minimax:tool_call>\n", "<invoke name=\"", "\">\n", "<parameter name=\"", "\">",
     "</parameter>\n", "</invoke>\n", "", "</minimax:tool_call>"},
    {ToolFormat::kDsml, "<｜DSML｜function_calls>\n", "<｜DSML｜invoke name=\"", "\">\n",
     "<｜DSML｜parameter name=\"", "\">", "</｜DSML｜parameter>\n", "</｜DSML｜invoke>\n", "",
     "</｜DSML｜function_calls>"},
    {ToolFormat::kDsmlTools, "<｜DSML｜tool_calls>\n", "<｜DSML｜invoke name=\"", "\">\n",
     "<｜DSML｜parameter name=\"", "\">", "</｜DSML｜parameter>\n", "</｜DSML｜invoke>\n", "",
     "</｜DSML｜tool_calls>"}};
const std::vector<Form> kJson{
    {ToolFormat::kDeepSeek, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "", "", "",
     "<｜tool▁call▁end｜>", "", "<｜tool▁calls▁end｜>"},
    {ToolFormat::kDeepSeekV3, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     "\n```json\n", "", "", "", "\n```<｜tool▁call▁end｜>", "\n", "<｜tool▁calls▁end｜>"},
    {ToolFormat::kKimi, "<|tool_calls_section_begin|>", "<|tool_call_begin|>functions.",
     ":0<|tool_call_argument_begin|>", "", "", "", "<|tool_call_end|>", "", "<|tool_calls_section_end|>"}};

std::string parameter(const Form& form, const std::string& key, const std::string& value) {
  const bool is_text = key == "s" || key == "any" || key == "other" || key == "e" || key == "z";
  const std::string_view type = !tags_of(form.format)->is_typed ? "" : is_text ? kIsText : kIsJson;
  return form.key + key + std::string(type) + form.keyed + value + form.valued;
}
std::string call_of(const Form& form, const std::string& name, const std::string& inside) {
  return form.call + name + form.named + inside + form.called;
}

TEST(TaggedCalls, OfXmlHaveTheTypesOfTheirSchema) {
  for (const Form& form : kXml) {
    const auto expect = [&](const std::string& text, const Read& expected) {
      expect_read(form.format, text, expected);
    };
    const auto alone = [&](const std::string& inside) {
      return form.begin + call_of(form, "f", inside) + form.end;
    };
    const auto arguments = [&](const std::string& key, const std::string& value, const std::string& as) {
      expect(alone(parameter(form, key, value)), {"", {{"f", "{\"" + key + "\": " + as + "}"}}});
    };
    expect("just text < 5 <tool <minimax", {"just text < 5 <tool <minimax", {}});
    expect("", {"", {}});
    expect(alone(""), {"", {{"f", "{}"}}});
    expect("I look. " + alone("") + " and on", {"I look.  and on", {{"f", "{}"}}});
    arguments("s", "5", "\"5\"");
    arguments("s", "", "\"\"");
    arguments("s", "a \"b\" \\ </param <b>\n\n\tünï 🙂",
              "\"a \\\"b\\\" \\\\ </param <b>\\n\\n\\tünï 🙂\"");
    arguments("s", "\x01", "\"\\u0001\"");
    arguments("any", "x", "\"x\"");
    arguments("other", "[1]", "\"[1]\"");
    arguments("n", "5", "5");
    arguments("n", "five", "\"five\"");
    arguments("b", "true", "true");
    arguments("b", "True", "true");
    arguments("o", "{\"a\": [1, {\"b\": \"<x>\"}]}", "{\"a\": [1, {\"b\": \"<x>\"}]}");
    arguments("o", "{\"a\": ", "\"{\\\"a\\\": \"");
    arguments("l", "[1,\n 2]", "[1,\n 2]");
    arguments("m", "null", "null");
    arguments("m", "nothing", "\"nothing\"");
    if (!tags_of(form.format)->is_typed) arguments("m", "7", "\"7\"");
    expect(form.begin + call_of(form, "f", parameter(form, "s", "x") + parameter(form, "n", "1")) +
               form.between + call_of(form, "unknown", parameter(form, "s", "y")) + form.end,
           {"", {{"f", R"({"s": "x", "n": 1})"}, {"unknown", R"({"s": "y"})"}}});
    // Cut by max_tokens.
    const std::string whole = alone(parameter(form, "s", "cut here"));
    expect(whole.substr(0, whole.find(" here")), {"", {{"f", R"({"s": "cut)"}}});
    expect(whole.substr(0, whole.find("f" + form.named)),
           {whole.substr(0, whole.find("f" + form.named)), {}});
    // A mention of the tag.
    const std::string tag(tags_of(form.format)->begin);
    expect("Use " + tag + " tags. " + alone(""), {"Use " + tag + " tags. ", {{"f", "{}"}}});
    expect(tag, {tag, {}});
    expect(tag + "\n{\"name\": \"f\"}\n", {tag + "\n{\"name\": \"f\"}\n", {}});
  }
}

TEST(TaggedCalls, OfJsonKeepTheirBytes) {
  for (const Form& form : kJson) {
    const auto expect = [&](const std::string& text, const Read& expected) {
      expect_read(form.format, text, expected);
    };
    const auto alone = [&](const std::string& inside) {
      return form.begin + call_of(form, "f", inside) + form.end;
    };
    expect("just text < 5 <｜tool▁calls <|tool", {"just text < 5 <｜tool▁calls <|tool", {}});
    for (const char* inside :
         {"{}", "{\"a\" : 1.50}", "{\"a\": \"}<\\\"\\\\\", \"b\": [1, {}], \"c\": \"ü<🙂\\n\"}"})
      expect(alone(inside), {"", {{"f", inside}}});
    expect(alone(""), {"", {{"f", "{}"}}});
    expect("I look.\n" + form.begin + call_of(form, "f", "{}") + form.between +
               call_of(form, "unknown", "{\"x\": 2}") + form.end,
           {"I look.\n", {{"f", "{}"}, {"unknown", "{\"x\": 2}"}}});
    // Cut, or without a bracket or a quote.
    expect(form.begin + form.call + "f" + form.named + "{\"a\": ", {"", {{"f", "{\"a\": "}}});
    const std::string end(tags_of(form.format)->call_end);
    expect(form.begin + form.call + "f" + form.named + "{\"a\": \"x}" + end + call_of(form, "g", "{}") +
               form.end,
           {"", {{"f", "{\"a\": \"x}"}, {"g", "{}"}}});
    expect(form.begin, {form.begin, {}});
    expect(form.begin + "nothing", {form.begin + "nothing", {}});
    expect("As " + form.begin + " says " + alone("{}"), {"As " + form.begin + " says ", {{"f", "{}"}}});
  }
}

// The mark behind a key is believed, whatever the schema says; without one the schema decides.
TEST(TaggedCalls, OfDsmlSayTheirTypes) {
  const auto one = [](const std::string& key, const std::string& value) {
    return "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"" + key + "\">" +
           value + "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  };
  const auto expect = [&](const std::string& key, const std::string& value, const std::string& arguments) {
    expect_read(ToolFormat::kDsmlTools, one(key, value), {"", {{"f", arguments}}});
  };
  expect("s\" string=\"true", "5", R"({"s": "5"})");
  expect("s\" string=\"false", "5", R"({"s": 5})");
  expect("n\" string=\"true", "5", R"({"n": "5"})");
  expect("n\" string=\"false", "5", R"({"n": 5})");
  expect("new\" string=\"false", "[1, {}]", R"({"new": [1, {}]})");
  expect("n", "5", R"({"n": 5})");
  expect("s", "5", R"({"s": "5"})");
}

TEST(TaggedCalls, OfKimiKeepTheirIds) {
  std::vector<std::string> ids;
  const Read got =
      read(ToolFormat::kKimi,
           {"<|tool_calls_section_begin|><|tool_call_begin|>functions.a.b:12<|tool_call_argument_begin|>{}"
            "<|tool_call_end|><|tool_calls_section_end|>"},
           &ids);
  EXPECT_EQ(got, (Read{"", {{"a.b", "{}"}}}));
  EXPECT_EQ(ids, std::vector<std::string>{"functions.a.b:12"});
}

// The calls that a template writes of a conversation are read back. The templates were written
// for this test, in the way in which those of the families write.
TEST(TaggedCalls, AreReadAsTemplatesWriteThem) {
  const std::string each =
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{% set c = c.function %}";
  const std::string value = "{{ v if v is string else v | tojson }}";
  const std::pair<ToolFormat, std::string> templates[] = {
      {ToolFormat::kQwenXml,
       each +
           "\n<tool_call>\n<function={{ c.name }}>\n{% for k, v in c.arguments | items %}<parameter={{ k "
           "}}>\n" +
           value + "\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}{% endfor %}"},
      {ToolFormat::kGlm, each +
                             "\n<tool_call>{{ c.name }}\n{% for k, v in c.arguments | items %}<arg_key>{{ k "
                             "}}</arg_key>\n<arg_value>" +
                             value + "</arg_value>\n{% endfor %}</tool_call>{% endfor %}{% endfor %}"},
      {ToolFormat::kMiniMax,
       "{% for m in messages %}{{ m.content }}\n<minimax:tool_call>\n{% for c in m.tool_calls %}{% set c = "
       "c.function %}"
       "<invoke name=\"{{ c.name }}\">{% for k, v in c.arguments | items %}<parameter name=\"{{ k }}\">" +
           value + "</parameter>{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>{% endfor %}"},
      {ToolFormat::kDsml,
       "{% for m in messages %}{{ m.content }}\n<｜DSML｜function_calls>\n{% for c in m.tool_calls %}{% set "
       "c = "
       "c.function %}<｜DSML｜invoke name=\"{{ c.name }}\">\n{% for k, v in c.arguments | items %}"
       "<｜DSML｜parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">" +
           value +
           "</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n{% endfor %}</｜DSML｜function_calls>{% "
           "endfor %}"},
      {ToolFormat::kDeepSeek,
       "{% for m in messages %}{{ m.content }}<｜tool▁calls▁begin｜>{% for c in m.tool_calls "
       "%}<｜tool▁call▁begin｜>"
       "{{ c.function.name }}<｜tool▁sep｜>{{ c.function.arguments | tojson }}<｜tool▁call▁end｜>{% endfor "
       "%}<｜tool▁calls▁end｜>{% endfor %}"},
      {ToolFormat::kKimi,
       "{% for m in messages %}{{ m.content }}<|tool_calls_section_begin|>{% for c in m.tool_calls "
       "%}<|tool_call_begin|>"
       "functions.{{ c.function.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>{{ c.function.arguments "
       "| tojson }}<|tool_call_end|>{% endfor %}"
       "<|tool_calls_section_end|>{% endfor %}"}};
  const std::string arguments[] = {
      R"({"s": "a \"b\"\n<c> ü", "n": -5, "l": [1, 2], "m": null, "o": {"k": "</x>"}})", R"({"b": false})"};
  ordered_json calls = ordered_json::array();
  Read expected{"Look.", {}};
  for (size_t i = 0; i < 2; ++i) {
    const std::string name = i == 0 ? "f" : "g";
    calls.push_back({{"type", "function"},
                     {"function", {{"name", name}, {"arguments", ordered_json::parse(arguments[i])}}}});
    expected.calls.emplace_back(name, arguments[i]);
  }
  ChatMessage message{"assistant", "Look."};
  message.fields["tool_calls"] = calls;
  for (const auto& [format, source] : templates) {
    const auto parsed = parse_chat_template(source, "", "");
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    const auto text = (*parsed)->render({message}, {.add_generation_prompt = false});
    ASSERT_TRUE(text.ok()) << text.status().message();
    Read got = read(format, {*text});
    while (got.text.ends_with('\n')) got.text.pop_back();
    EXPECT_EQ(got, expected) << *text;
  }
}

// A token for every byte, and the end.
class Bytes final : public ToyTokenizer {
 public:
  int32_t vocab_size() const override { return 257; }
  std::string token_bytes(TokenId id) const override {
    return id.value() == 256 ? "" : std::string(1, static_cast<char>(id.value()));
  }
  bool is_special(TokenId id) const override { return id.value() == 256; }
};

TEST(TaggedCalls, AreAllowedByTheirGrammarAndNothingElseIs) {
  const char* const library = std::getenv("OUTRIDER_TEST_GRAMMAR_LIBRARY");
  if (!library)
    GTEST_SKIP() << "OUTRIDER_TEST_GRAMMAR_LIBRARY is not set: llguidance/_lib.abi3.so or libllguidance.so";
  const Bytes bytes;
  const auto compiler =
      make_grammar_compiler(bytes, {.libraries = {library}, .ends = {TokenId(256)}, .vocab_size = 257})
          .value();
  const auto allows = [&](ToolFormat format, const char* choice, const std::string& text) {
    const std::string body =
        std::string(
            R"({"tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters": {
        "type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "e": {"enum": ["x", "y"]}},
        "required": ["s"], "additionalProperties": false}}}], )") +
        choice + "}";
    const auto read = read_structure(ApiKind::kChat, ordered_json::parse(body)).value();
    const auto asked = tool_grammar(*read.tools, {}, format, bytes);
    EXPECT_TRUE(asked.ok()) << asked.status().message();
    const auto grammar = compiler->compile((*asked)->spec);
    EXPECT_TRUE(grammar.ok()) << grammar.status().message() << "\n" << (*asked)->spec.text;
    if (!grammar.ok()) return false;
    const auto matcher = (*grammar)->matcher();
    for (const char c : text)
      if (!matcher->accept(TokenId(static_cast<unsigned char>(c)))) return false;
    std::vector<uint32_t> bits(9);
    return matcher->allow(bits).ok() && (bits[8] & 1);
  };
  const char *const required = R"("tool_choice": "required")", *const may = R"("tool_choice": "auto")",
                    *const one = R"("tool_choice": "required", "parallel_tool_calls": false)";
  std::vector<Form> all = kXml;
  all.insert(all.end(), kJson.begin(), kJson.end());
  for (const Form& form : all) {
    const bool is_json = form.key.empty();
    const auto f = [&](const std::string& s, const std::string& n, const std::string& more = "") {
      return call_of(form, "f",
                     is_json ? "{\"s\": \"" + s + "\", \"n\": " + n + more + "}"
                             : parameter(form, "s", s) + parameter(form, "n", n) + more);
    };
    const std::string good = form.begin + f("a <b> é", "5") + form.end;
    const std::string two = form.begin + f("a", "5") + form.between + f("b", "6") + form.end;
    EXPECT_TRUE(allows(form.format, required, good)) << good;
    EXPECT_TRUE(allows(form.format, required, two)) << two;
    EXPECT_TRUE(allows(form.format, one, good)) << good;
    EXPECT_FALSE(allows(form.format, one, two)) << two;
    EXPECT_TRUE(allows(form.format, may, "A text. " + good)) << good;
    EXPECT_TRUE(allows(form.format, may, "A text.")) << good;
    EXPECT_FALSE(allows(form.format, required, "A text.")) << good;
    for (const std::string& wrong :
         {form.begin + f("a", "five") + form.end, form.begin + call_of(form, "g", "") + form.end,
          form.begin + call_of(form, "f", "") + form.end,
          form.begin + f("a", "5", is_json ? ", \"z\": 1" : parameter(form, "z", "1")) + form.end}) {
      EXPECT_FALSE(allows(form.format, required, wrong)) << wrong;
      EXPECT_FALSE(allows(form.format, may, wrong)) << wrong;
    }
    EXPECT_FALSE(allows(form.format, required, form.begin)) << form.begin;
    if (is_json) continue;
    EXPECT_TRUE(allows(
        form.format, required,
        form.begin + call_of(form, "f", parameter(form, "s", "") + parameter(form, "e", "y")) + form.end));
    EXPECT_FALSE(allows(
        form.format, required,
        form.begin + call_of(form, "f", parameter(form, "s", "") + parameter(form, "e", "z")) + form.end));
  }
}

}  // namespace
}  // namespace outrider::tagged_calls
