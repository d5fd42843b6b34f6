// Calls of tools that are a list of JSON objects between marks, or in notations like Python's: what models
// write, cut at every byte, what templates write of it, and what grammars allow.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "read_calls.h"
#include "serve/api/loose_arguments.h"
#include "serve/api/structure.h"
#include "serve/api/tool_parser.h"
#include "tests/coordinator/toy_tokenizer.h"
#include "text/chat_template/chat_template.h"
#include "text/grammar/grammar_compiler.h"

namespace outrider::list_calls {
namespace {

using nlohmann::ordered_json;

using Read = testing::ReadCalls;

ToolReading reading(ToolFormat format) {
  return {.format = format, .names = {"f", "g"}, .parameters = {{}, {}}};
}

void expect_read(ToolFormat format, const std::string& text, const Read& expected) {
  testing::expect_read_calls(reading(format), text, expected);
}

// How a format writes calls of JSON: what stands around a list and between its calls.
struct Form {
  ToolFormat format;
  std::string begin, comma, end, name = "name", arguments = "arguments", id = {};
  std::string call(const std::string& tool, const std::string& value) const {
    return "{" + id + "\"" + name + "\": \"" + tool + "\", \"" + arguments + "\": " + value + "}";
  }
};
const std::vector<Form> kLists{
    {ToolFormat::kGranite, "<|tool_call|>[", ", ", "]"},
    {ToolFormat::kPhi, "<|tool_call|>[", ", ", "]<|/tool_call|>"},
    {ToolFormat::kNemotron, "<TOOLCALL>[", ", ", "]</TOOLCALL>"},
    {ToolFormat::kToolCalls, "<tool_calls>[", ", ", "]</tool_calls>"},
    {ToolFormat::kToolCallLines, "<tool_calls>\n", "\n", "\n</tool_calls>"},
    {ToolFormat::kFunctools, "functools[", ", ", "]"},
    {ToolFormat::kCommand, "<|START_ACTION|>[\n    ", ",\n    ", "\n]<|END_ACTION|>", "tool_name",
     "parameters", "\"tool_call_id\": \"0\", "},
    {ToolFormat::kCommandPlus, "Action:\n```json\n[\n", ",\n", "\n]```", "tool_name", "parameters"}};

TEST(ListCalls, AreFoundInText) {
  for (const Form& form : kLists) {
    const auto expect = [&](const std::string& text, const Read& expected) {
      expect_read(form.format, text, expected);
    };
    const std::string args = R"({"a": "}]<\"", "b": [1, {}], "c": "ü"})";
    expect(form.begin + form.call("f", args) + form.end, {"", {{"f", args}}});
    expect(form.begin + form.call("f", args) + form.comma + form.call("unknown", "{}") + form.end,
           {"", {{"f", args}, {"unknown", "{}"}}});
    expect("I look. " + form.begin + form.call("g", "{}") + form.end + "Done.",
           {"I look. Done.", {{"g", "{}"}}});
    expect("Just < text, Act, func, <tool", {"Just < text, Act, func, <tool", {}});
    const std::string mark(json_calls_of(form.format)->begin);
    expect("As " + mark + " says", {"As " + mark + " says", {}});
    expect(form.begin + "5" + form.end, {form.begin + "5" + form.end, {}});
    // Cut by max_tokens.
    const std::string whole = form.begin + form.call("f", "{\"a\": 1}");
    expect(whole.substr(0, whole.find("1}")), {"", {{"f", "{\"a\": "}}});
  }
  // Keys in another order, and arguments that are a text, which Nemotron's template shows.
  expect_read(ToolFormat::kNemotron, R"(<TOOLCALL>[{"arguments": {"a": 1}, "name": "f"}]</TOOLCALL>)",
              {"", {{"f", "{\"a\": 1}"}}});
  expect_read(ToolFormat::kNemotron, R"(<TOOLCALL>[{"name": "f", "arguments": "{\"a\": 1}"}]</TOOLCALL>)",
              {"", {{"f", "{\"a\": 1}"}}});
  // A call that lost its last brackets ends with its section.
  expect_read(ToolFormat::kToolCalls, R"(<tool_calls>[{"name": "f", "arguments": {"a": 1}</tool_calls>)",
              {"", {{"f", "{\"a\": 1}"}}});
}

// ---- Python and Gemma 4 -----------------------------------------------------------------------------------

std::string json_of(Notation notation, const std::string& text) {
  std::string whole;
  LooseArguments reader(notation);
  EXPECT_EQ(reader.read(text, true, whole), text.size()) << text;
  for (size_t i = 0; i <= text.size(); ++i) {
    std::string json, pending;
    LooseArguments cut(notation);
    for (const std::string& piece : {text.substr(0, i), text.substr(i)}) {
      pending += piece;
      pending.erase(0, cut.read(pending, false, json));
    }
    cut.read(pending, true, json);
    EXPECT_EQ(json, whole) << text << "\ncut at " << i;
  }
  return whole;
}

TEST(LooseArguments, OfPythonBecomeJson) {
  const auto python = [](const std::string& text) { return json_of(Notation::kPython, text); };
  EXPECT_EQ(python("()"), "{}");
  EXPECT_EQ(python("(a=1, b=-2.5e3)"), R"({"a": 1, "b": -2.5e3})");
  EXPECT_EQ(python("(a=True,b=False,c=None,d=true,e=null)"),
            R"({"a": true, "b": false, "c": null, "d": true, "e": null})");
  EXPECT_EQ(python(R"((a='x', b="y"))"), R"({"a": "x", "b": "y"})");
  EXPECT_EQ(python("(a='', b=\"\")"), R"({"a": "", "b": ""})");
  EXPECT_EQ(python(R"((a='it\'s', b="say \"x\"", c='a\\b\n\t\x41\u00e9\d'))"),
            R"({"a": "it's", "b": "say \"x\"", "c": "a\\b\n\t\u0041\u00e9\\d"})");
  // Templates and models write a quote plainly.
  EXPECT_EQ(python("(a='it's', b='x')"), R"({"a": "it's", "b": "x"})");
  EXPECT_EQ(python("(a='line 1\nline 2')"), R"({"a": "line 1\nline 2"})");
  EXPECT_EQ(python("(code='''def f():\n  return 'x'\n''')"), R"({"code": "def f():\n  return 'x'\n"})");
  EXPECT_EQ(python("(l=[1, 'a', [True,], ('x', 2)], o={'k': {\"n\": None}, 'e': {}})"),
            R"({"l": [1, "a", [true], ["x", 2]], "o": {"k": {"n": null}, "e": {}}})");
  EXPECT_EQ(python("( a = 1 , b = 'x' )"), R"({"a": 1, "b": "x"})");
  EXPECT_EQ(python("(city=Paris France, n=007)"), R"({"city": "Paris France", "n": "007"})");
  EXPECT_EQ(python("(url='http://a/?b=1&c=2')"), R"({"url": "http://a/?b=1&c=2"})");
  EXPECT_EQ(python("(a='cut"), R"({"a": "cut)");
}

TEST(LooseArguments, OfGemmaBecomeJson) {
  const auto gemma = [](const std::string& text) { return json_of(Notation::kGemma, text); };
  EXPECT_EQ(gemma("{}"), "{}");
  EXPECT_EQ(gemma(R"({a:<|"|>x<|"|>,b:5,c:true,d:null})"), R"({"a": "x", "b": 5, "c": true, "d": null})");
  EXPECT_EQ(gemma(R"({a:<|"|>it's "x" \n, {y: [1]} < <|"|>})"), R"({"a": "it's \"x\" \\n, {y: [1]} < "})");
  EXPECT_EQ(gemma(R"({l:[1,<|"|>a<|"|>,[]],o:{k:<|"|>v<|"|>,n:{}}})"),
            R"({"l": [1, "a", []], "o": {"k": "v", "n": {}}})");
  EXPECT_EQ(gemma(R"({<|"|>a<|"|>:<|"|><|"|>})"), R"({"a": ""})");
  EXPECT_EQ(gemma(R"({a:<|"|>cut)"), R"({"a": "cut)");
}

TEST(LooseArguments, AreAlwaysValidJson) {
  const auto python = [](const std::string& text) { return json_of(Notation::kPython, text); };
  const auto gemma = [](const std::string& text) { return json_of(Notation::kGemma, text); };
  // Values without a key, keys without a value, and what stands behind a value.
  for (const char* none : {"('x')", "(x)", "('x', 5)", "([1, {'a': 2}])", "({'a': 1})", "(,)"})
    EXPECT_EQ(python(none), "{}") << none;
  EXPECT_EQ(python("('x', a=1, 2, [3, 'y'], b=4)"), R"({"a": 1, "b": 4})");
  EXPECT_EQ(python("(a=, b=1, c=)"), R"({"a": null, "b": 1, "c": null})");
  EXPECT_EQ(python("(a=[1] + [2, {'x': 3}], b=[1,,2], c='x':5)"), R"({"a": [1], "b": [1, 2], "c": "x"})");
  EXPECT_EQ(python("(a={'x', 'y': 1, [2]: 3, 'z'})"), R"({"a": {"y": 1}})");
  EXPECT_EQ(python("(a=1=2, b==5)"), R"({"a": "1=2", "b": "=5"})");
  EXPECT_EQ(gemma("{x,a:1,[2],b:}"), R"({"a": 1, "b": null})");
  // Characters by their number.
  EXPECT_EQ(python(R"((a='\U0001F600\ud83d\ude00\U0000e9'))"),
            R"({"a": "\ud83d\ude00\ud83d\ude00\\U0000e9"})");
  EXPECT_EQ(python(R"((a='\ud83d', b='\ude00x\ud83d\ud83d\ude00', c='\ud83d\u0041\U0000D800'))"),
            R"({"a": "\ufffd", "b": "\ufffdx\ufffd\ud83d\ude00", "c": "\ufffd\u0041\ufffd"})");
  EXPECT_EQ(python(R"((a='\U00110000'))"), R"({"a": "\\U00110000"})");
  // Letters before quotes.
  EXPECT_EQ(python(R"((a=r'x\d, \'y', b=f"{n}, {m}", c=Rb'', d=u'z'))"),
            R"({"a": "x\\d, \\'y", "b": "{n}, {m}", "c": "", "d": "z"})");
  EXPECT_EQ(gemma(R"({a:"x, y",b:"say \"z\"",c:[""],"d":1})"),
            R"({"a": "x, y", "b": "say \"z\"", "c": [""], "d": 1})");
  // Any three pieces.
  const std::vector<std::string> pieces{"a", "=", ":", ",", "'", "\"", "(",   ")",       "[",      "]",
                                        "{", "}", "5", " ", "r", "\\", "\\u", "\\ud83d", "<|\"|>", "\n"};
  for (const Notation notation : {Notation::kPython, Notation::kGemma})
    for (const std::string& first : pieces)
      for (const std::string& second : pieces)
        for (const std::string& third : pieces) {
          const std::string text =
              (notation == Notation::kGemma ? "{k:1," : "(k=1,") + first + second + third;
          LooseArguments reader(notation);
          std::string json;
          reader.read(text, true, json);
          reader.close_all(json);
          ASSERT_TRUE(ordered_json::accept(json)) << text << ": " << json;
        }
}

TEST(LooseCalls, WithoutKeysAreText) {
  for (const char* call :
       {"f(\"x\")", "f(x)", "f({'a': 1})", "f(**a)", "f('x', a=1)", "f(", "f(x", "f(=1)"}) {
    const std::string text = std::string("<|tool_call_start|>[") + call + "]<|tool_call_end|>";
    expect_read(ToolFormat::kLfm, text, {text, {}});
  }
  for (const char* call : {"f{x}", "f{<|\"", "f{[1]}"}) {
    const std::string text = std::string("<|tool_call>call:") + call + "<tool_call|>";
    expect_read(ToolFormat::kGemma, text, {text, {}});
  }
  expect_read(ToolFormat::kLfm, "<|tool_call_start|>[f( a = 1), g( )]<|tool_call_end|>",
              {"", {{"f", R"({"a": 1})"}, {"g", "{}"}}});
}

TEST(LooseCalls, AreFoundInText) {
  const auto lfm = [](const std::string& text, const Read& expected) {
    expect_read(ToolFormat::kLfm, text, expected);
  };
  lfm("<|tool_call_start|>[f(a=\"12345\")]<|tool_call_end|>Checking.",
      {"Checking.", {{"f", R"({"a": "12345"})"}}});
  lfm("Look. <|tool_call_start|>[f(a=1), g()]<|tool_call_end|>",
      {"Look. ", {{"f", R"({"a": 1})"}, {"g", "{}"}}});
  lfm("<|tool_call_start|>[f(a='x)]<|tool_call_end|>", {"", {{"f", R"({"a": "x)]"})"}}});
  lfm("<|tool_call_start|>[f(a=", {"", {{"f", "{\"a\": "}}});
  lfm("<|tool_call_start|>[]<|tool_call_end|>", {"<|tool_call_start|>[]<|tool_call_end|>", {}});
  lfm("Use <|tool_call_start|> well", {"Use <|tool_call_start|> well", {}});
  lfm("plain < text", {"plain < text", {}});
  const auto olmo = [](const std::string& text, const Read& expected) {
    expect_read(ToolFormat::kOlmo, text, expected);
  };
  olmo("<function_calls>\nf(a='x')\ng(b=[1])\n</function_calls>",
       {"", {{"f", R"({"a": "x"})"}, {"g", R"({"b": [1]})"}}});
  olmo("A <function_calls>\nf(a='b < c')\n</function_calls>", {"A ", {{"f", R"({"a": "b < c"})"}}});
  const auto gemma = [](const std::string& text, const Read& expected) {
    expect_read(ToolFormat::kGemma, text, expected);
  };
  gemma("<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>", {"", {{"f", R"({"a": "x"})"}}});
  gemma("Well.<|tool_call>call:f{}<tool_call|><|tool_call>call:g{n:5}<tool_call|>",
        {"Well.", {{"f", "{}"}, {"g", R"({"n": 5})"}}});
  gemma("<|tool_call>call f", {"<|tool_call>call f", {}});
  gemma("<|tool_call>call:f{a:<|\"|>x<tool_call|><|tool_call>call:g{}<tool_call|>",
        {"", {{"f", R"({"a": "x"})"}, {"g", "{}"}}});
}

// ---- templates
// -----------------------------------------------------------------------------------------------

// The calls that a template writes of a conversation are read back. The templates were written for this test,
// in the way in which those of the families write.
TEST(ListCalls, AreReadAsTemplatesWriteThem) {
  const auto list = [](const std::string& begin, const std::string& keys, const std::string& end) {
    return "{% for m in messages %}{{ m.content }}" + begin + "{% for c in m.tool_calls %}" + keys +
           "{{ ', ' if not loop.last }}{% endfor %}" + end + "{% endfor %}";
  };
  const std::string plain =
      R"({{ '{"name": "' + c.function.name + '", "arguments": ' + (c.function.arguments | tojson) + '}' }})";
  const std::string command =
      R"({{ '{"tool_call_id": "0", "tool_name": "' + c.function.name + '", "parameters": ' + (c.function.arguments | tojson) + '}' }})";
  const std::string python =
      "{{ c.function.name }}({% for k, v in c.function.arguments | items %}{{ k }}={% if v is string %}'{{ v "
      "}}'{% elif v is "
      "mapping %}{{ v | tojson }}{% else %}{{ v }}{% endif %}{{ ', ' if not loop.last }}{% endfor %})";
  const std::pair<ToolFormat, std::string> templates[] = {
      {ToolFormat::kNemotron, list("<TOOLCALL>[", plain, "]</TOOLCALL>")},
      {ToolFormat::kToolCalls, list("<tool_calls>[", plain, "]</tool_calls>")},
      {ToolFormat::kCommand, list("<|START_ACTION|>[\n", command, "\n]<|END_ACTION|>")},
      {ToolFormat::kLfm, list("<|tool_call_start|>[", python, "]<|tool_call_end|>")}};
  ordered_json calls = ordered_json::array();
  Read expected{"Look.", {}};
  const std::string arguments[] = {
      R"({"s": "a (b), it's", "n": -5, "l": [1, 2], "m": null, "o": {"k": "x"}})", R"({"b": false})"};
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
    EXPECT_EQ(testing::read_calls(reading(format), {*text}), expected) << *text;
  }
}

// ---- grammars
// ------------------------------------------------------------------------------------------------

constexpr ToolFormat kNotJson[] = {ToolFormat::kLfm,     ToolFormat::kOlmo, ToolFormat::kGemma,
                                   ToolFormat::kQwenXml, ToolFormat::kSeed, ToolFormat::kGlm,
                                   ToolFormat::kMiniMax, ToolFormat::kDsml};

// The grammar of a required call whose arguments have this schema.
Result<std::optional<AskedGrammar>> grammar_of(const ordered_json& schema, ToolFormat format,
                                               const Tokenizer& tokenizer) {
  const ordered_json body{
      {"tool_choice", "required"},
      {"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}}}}};
  const Structure structure = read_structure(ApiKind::kChat, body).value();
  return tool_grammar(*structure.tools, {}, format, tokenizer);
}

// An object with ten properties that are objects of its kind.
ordered_json recursive_schema() {
  ordered_json node{{"type", "object"}, {"properties", ordered_json::object()}};
  for (int i = 0; i < 10; ++i)
    node["properties"][fmt::format("p{}", i)] = {{"$ref", "#/$defs/Node"}, {"description", "a child"}};
  return {{"$ref", "#/$defs/Node"}, {"$defs", {{"Node", node}}}};
}

// A request of 300 bytes would have made 10^8 rules.
TEST(SchemasOfCalls, ThatReferToThemselvesHaveOneRule) {
  for (const ToolFormat format : kNotJson) {
    const auto grammar = grammar_of(recursive_schema(), format, ToyTokenizer());
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    EXPECT_LT((*grammar)->spec.text.size(), 20'000u) << (*grammar)->spec.text.substr(0, 2000);
  }
}

TEST(SchemasOfCalls, ThatReferToThemselvesAreSearchedOnce) {
  ordered_json schema =
      ordered_json::parse(R"({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"anyOf": []}}})");
  for (int i = 0; i < 1000; ++i) schema["$defs"]["A"]["anyOf"].push_back({{"$ref", "#/$defs/A"}});
  EXPECT_EQ(types_of(schema, "a"), 0);
  schema["$defs"]["A"]["anyOf"][0] = {{"type", "integer"}};
  schema["$defs"]["A"]["anyOf"][1] = {{"$ref", "#/$defs/B"}};
  schema["$defs"]["B"] = {{"oneOf", {{{"const", "x"}}, {{"$ref", "#/$defs/A"}}}}};
  EXPECT_EQ(types_of(schema, "a"), kNumber | kText);
}

TEST(SchemasOfCalls, ThatMakeALongGrammarAreRefused) {
  ordered_json schema{{"type", "object"}};
  for (int i = 0; i < 100; ++i)
    schema["properties"][fmt::format("p{}", i)] = {{"type", "array"}, {"items", {{"$ref", "#/$defs/D"}}}};
  schema["$defs"]["D"]["enum"] = ordered_json::array({1});
  for (int i = 0; i < 1000; ++i) schema["$defs"]["D"]["enum"].push_back(10'000 + i);
  for (const ToolFormat format : kNotJson) {
    if (format == ToolFormat::kGemma) continue;  // writes D once
    const Status status = grammar_of(schema, format, ToyTokenizer()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_NE(status.message().find("\"parameters\" of f: the schema makes a grammar of more than"),
              std::string::npos)
        << status.message();
  }
  EXPECT_TRUE(grammar_of(schema, ToolFormat::kGemma, ToyTokenizer()).ok());
  // Values without references need no definitions.
  schema["properties"] = ordered_json::object();
  for (int i = 0; i < 100; ++i) schema["properties"][fmt::format("p{}", i)] = {{"type", "integer"}};
  for (const ToolFormat format : kNotJson) EXPECT_TRUE(grammar_of(schema, format, ToyTokenizer()).ok());
}

TEST(SchemasOfCalls, ThatReferToNoObjectAreRefused) {
  for (const char* schema : {R"({"$ref": "#/x", "x": true})", R"({"$ref": "#/x", "x": [1]})",
                             R"({"$ref": "#/y", "x": {}})", R"({"$ref": "other.json"})"})
    for (const ToolFormat format : kNotJson) {
      const Status status = grammar_of(ordered_json::parse(schema), format, ToyTokenizer()).status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << schema;
      EXPECT_NE(status.message().find("leads to no object"), std::string::npos) << status.message();
    }
  for (const char* property : {R"({"$ref": "#/x", "type": "object"})", R"({"$ref": "#/x"})",
                               R"({"$ref": "#/properties/a"})", "true", "5", R"({"type": 5})"})
    for (const ToolFormat format : {ToolFormat::kGemma, ToolFormat::kQwenXml}) {
      const ordered_json schema{{"type", "object"},
                                {"properties", {{"a", ordered_json::parse(property)}}},
                                {"x", true},
                                {"required", 5}};
      const auto grammar = grammar_of(schema, format, ToyTokenizer());
      EXPECT_TRUE(grammar.ok()) << property << ": " << grammar.status().message();
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

class CallGrammars : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const library = std::getenv("OUTRIDER_TEST_GRAMMAR_LIBRARY");
    if (!library)
      GTEST_SKIP() << "OUTRIDER_TEST_GRAMMAR_LIBRARY is not set: llguidance/_lib.abi3.so or libllguidance.so";
    compiler_ =
        make_grammar_compiler(bytes_, {.libraries = {library}, .ends = {TokenId(256)}, .vocab_size = 257})
            .value();
  }
  bool allows(ToolFormat format, const char* choice, const std::string& text) {
    const std::string body =
        std::string(
            R"({"tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters": {
        "type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "e": {"enum": ["x", "y"]},
        "b": {"type": "boolean"}, "m": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "l": {"type": "array", "items": {"type": "integer"}},
        "o": {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"], "additionalProperties": false}},
        "required": ["s"], "additionalProperties": false}}}], )") +
        choice + "}";
    const auto read = read_structure(ApiKind::kChat, ordered_json::parse(body)).value();
    const auto asked = tool_grammar(*read.tools, {}, format, bytes_);
    EXPECT_TRUE(asked.ok()) << asked.status().message();
    return accepts(**asked, text);
  }
  bool accepts(const AskedGrammar& asked, const std::string& text) {
    const auto grammar = compiler_->compile(asked.spec);
    EXPECT_TRUE(grammar.ok()) << grammar.status().message() << "\n" << asked.spec.text;
    if (!grammar.ok()) return false;
    const auto matcher = (*grammar)->matcher();
    for (const char c : text)
      if (!matcher->accept(TokenId(static_cast<unsigned char>(c)))) return false;
    std::vector<uint32_t> bits(9);
    return matcher->allow(bits).ok() && (bits[8] & 1);
  }

  static constexpr const char *kRequired = R"("tool_choice": "required")", *kMay = R"("tool_choice": "auto")",
                              *kOne = R"("tool_choice": "required", "parallel_tool_calls": false)";
  const Bytes bytes_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(CallGrammars, OfListsAllowTheirCallsAndNothingElse) {
  for (const Form& form : kLists) {
    const std::string good = form.begin + form.call("f", R"({"s": "a", "n": 5})") + form.end;
    const std::string two = form.begin + form.call("f", R"({"s": "a"})") + form.comma +
                            form.call("f", R"({"s": "b"})") + form.end;
    EXPECT_TRUE(allows(form.format, kRequired, good)) << good;
    EXPECT_TRUE(allows(form.format, kRequired, two)) << two;
    EXPECT_TRUE(allows(form.format, kOne, good)) << good;
    EXPECT_FALSE(allows(form.format, kOne, two)) << two;
    EXPECT_TRUE(allows(form.format, kMay, "A text. " + good)) << good;
    EXPECT_TRUE(allows(form.format, kMay, "A text.")) << good;
    EXPECT_FALSE(allows(form.format, kRequired, "A text.")) << good;
    for (const std::string& wrong :
         {form.call("f", R"({"s": "a", "n": "five"})"), form.call("g", R"({"s": "a"})"), form.call("f", "{}"),
          form.call("f", R"({"s": "a", "z": 1})")})
      EXPECT_FALSE(allows(form.format, kRequired, form.begin + wrong + form.end)) << wrong;
  }
}

TEST_F(CallGrammars, OfPythonAllowTheirCallsAndNothingElse) {
  for (const auto& [format, begin, comma, end] :
       {std::tuple(ToolFormat::kLfm, "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
        std::tuple(ToolFormat::kOlmo, "<function_calls>\n", "\n", "\n</function_calls>")}) {
    const auto one = [&](const std::string& call) { return begin + call + end; };
    for (const char* good : {"f(s='a')", "f(s=\"a, b\")", "f(s='it\\'s', n=5)", "f(s='a', e='x')",
                             "f(s='', b=True)", "f(s='a', m=None)", "f(s='a', m=\"x\")",
                             "f(s='a', n=-3, e=\"y\", b=False, m='', l=[1, 2], o={\"k\": \"v\"})"})
      EXPECT_TRUE(allows(format, kRequired, one(good))) << good;
    for (const char* wrong :
         {"f()", "g(s='a')", "f(n=5)", "f(s=5)", "f(s='a', n='b')", "f(s='a', e='z')", "f(s='a', b=1)",
          "f(s='a', l=['x'])", "f(s='a', z=1)", "f(s='a',)", "f(s='a', o={})"})
      EXPECT_FALSE(allows(format, kRequired, one(wrong))) << wrong;
    const std::string two = begin + std::string("f(s='a')") + comma + "f(s='b')" + end;
    EXPECT_TRUE(allows(format, kRequired, two));
    EXPECT_FALSE(allows(format, kOne, two));
    EXPECT_TRUE(allows(format, kMay, "A text. " + one("f(s='a')")));
    EXPECT_TRUE(allows(format, kMay, "A text."));
    EXPECT_FALSE(allows(format, kMay, one("f()")));
    EXPECT_FALSE(allows(format, kRequired, "A text."));
  }
}

TEST_F(CallGrammars, OfGemmaAllowTheirCallsAndNothingElse) {
  const auto one = [](const std::string& inside) { return "<|tool_call>call:f{" + inside + "}<tool_call|>"; };
  const std::string s = R"(s:<|"|>a, {b} "c"<|"|>)";
  for (const std::string& good : {s, s + ",n:5", s + R"(,e:<|"|>x<|"|>)", s + ",b:true", s + ",m:null",
                                  s + R"(,m:<|"|><|"|>)", s + R"(,n:5,l:[1,2],o:{k:<|"|>v<|"|>})"})
    EXPECT_TRUE(allows(ToolFormat::kGemma, kRequired, one(good))) << good;
  for (const std::string& wrong :
       {std::string(), std::string("n:5"), s + R"(,n:<|"|>x<|"|>)", s + R"(,e:<|"|>z<|"|>)", s + ",b:1",
        s + ",z:1", s + R"(,l:[<|"|>x<|"|>])", s + ",o:{}", s + R"(,o:{z:<|"|>v<|"|>})"})
    EXPECT_FALSE(allows(ToolFormat::kGemma, kRequired, one(wrong))) << wrong;
  EXPECT_TRUE(allows(ToolFormat::kGemma, kRequired, one(s) + one(s)));
  EXPECT_FALSE(allows(ToolFormat::kGemma, kOne, one(s) + one(s)));
  EXPECT_TRUE(allows(ToolFormat::kGemma, kMay, "Look." + one(s)));
  EXPECT_TRUE(allows(ToolFormat::kGemma, kMay, "A text."));
  EXPECT_FALSE(allows(ToolFormat::kGemma, kMay, one("n:5")));
}

TEST_F(CallGrammars, OfSchemasThatReferToThemselvesAllowAnyDepth) {
  std::string gemma, json;
  for (int i = 0; i < 12; ++i)
    gemma += fmt::format("{{p{}:", i % 10), json += fmt::format("{{\"p{}\": ", i % 10);
  gemma += "{}" + std::string(12, '}'), json += "{}" + std::string(12, '}');
  const auto of = [&](ToolFormat format) { return *grammar_of(recursive_schema(), format, bytes_).value(); };
  EXPECT_TRUE(accepts(of(ToolFormat::kGemma), "<|tool_call>call:f{p3:" + gemma + "}<tool_call|>"));
  gemma.insert(gemma.find("{}") + 1, "p3:5");
  EXPECT_FALSE(accepts(of(ToolFormat::kGemma), "<|tool_call>call:f{p3:" + gemma + "}<tool_call|>"));
  EXPECT_TRUE(accepts(of(ToolFormat::kLfm), "<|tool_call_start|>[f(p3=" + json + ")]<|tool_call_end|>"));
  json.insert(json.find("{}") + 1, "\"p3\": 5");
  EXPECT_FALSE(accepts(of(ToolFormat::kLfm), "<|tool_call_start|>[f(p3=" + json + ")]<|tool_call_end|>"));
}

}  // namespace
}  // namespace outrider::list_calls
