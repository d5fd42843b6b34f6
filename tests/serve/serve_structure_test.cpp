// Forms and tools over HTTP: with choices everywhere, and with llguidance where it is.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "served_program.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

const json kChat{{"messages", {{{"role", "user"}, {"content", "Tom had a red ball."}}}},
                 {"max_tokens", 100},
                 {"temperature", 1},
                 {"seed", 3}};
const json kTools = json::parse(
    R"([{"type": "function", "function": {"name": "get", "parameters": {"type": "object",
        "properties": {"what": {"enum": ["ball", "cake"]}}, "required": ["what"], "additionalProperties": false}}}])");

class ServeStructure : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::vector<std::string> flags{
        "--draft-model",  demo_draft(), "--num-speculative-tokens", "4",      "--quiet",
        "--max-num-seqs", "4",          "--chat-template",          template_};
    if (const char* const libraries = std::getenv("OUTRIDER_TEST_GRAMMAR_LIBRARY"))
      flags.insert(flags.end(), {"--grammar-library", libraries});
    server_ = std::make_unique<ServedProgram>(flags);
  }
  static void TearDownTestSuite() { server_.reset(); }
  static bool has_library() { return std::getenv("OUTRIDER_TEST_GRAMMAR_LIBRARY") != nullptr; }

  static json chat(const json& more) {
    return server_->ask("/v1/chat/completions", with(kChat, more))["choices"];
  }
  static json refusal(const json& more, int status = 400) {
    const HttpAnswer answer = server_->post("/v1/chat/completions", with(kChat, more));
    EXPECT_EQ(answer.status, status) << answer.body;
    return json::parse(answer.body)["error"];
  }
  static std::vector<json> stream(const json& more) {
    HttpClient client = server_->client();
    client.send(post_text("/v1/chat/completions", with(with(kChat, more), {{"stream", true}}).dump()));
    EXPECT_EQ(client.head().status, 200);
    return read_events(client).chunks;
  }
  // The same without drafts.
  static void expect_plain_is_same(const json& more) {
    EXPECT_EQ(chat(more), chat(with(more, {{"num_speculative_tokens", 0}}))) << more;
  }

  static inline TemporaryDirectory directory_;
  static inline std::string template_ = directory_.write(
      "chat.jinja",
      "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}<tool_call>{% endif %}"
      "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}"
      "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}");
  static inline std::unique_ptr<ServedProgram> server_;
};

TEST_F(ServeStructure, ChoicesNeedNoLibrary) {
  const json texts{"yes", "no", "per🙂haps", "yes, and no"};
  std::set<std::string> seen;
  for (int seed = 0; seed < 12; ++seed) {
    const json more{{"structured_outputs", {{"choice", texts}}}, {"seed", seed}, {"logprobs", true}};
    const json one = chat(more)[0];
    const std::string text = one["message"]["content"];
    EXPECT_NE(std::find(texts.begin(), texts.end(), json(text)), texts.end()) << text;
    EXPECT_EQ(one["finish_reason"], "stop");
    seen.insert(text);
    std::string streamed;
    for (const json& event : stream(more)) streamed += event["choices"][0]["delta"].value("content", "");
    EXPECT_EQ(streamed, text);
    expect_plain_is_same(more);
  }
  EXPECT_GT(seen.size(), 1u);
  const json completion = server_->complete(
      {{"prompt", "Is it so?"}, {"guided_choice", {"yes", "no"}}, {"n", 3}, {"temperature", 1}, {"seed", 1}});
  for (const json& choice : completion["choices"])
    EXPECT_TRUE(choice["text"] == "yes" || choice["text"] == "no");
  // Cut in the middle, by length or a stop text.
  EXPECT_EQ(chat({{"structured_outputs", {{"choice", {"a long text of many words"}}}},
                  {"max_tokens", 2}})[0]["finish_reason"],
            "length");
  EXPECT_EQ(chat({{"structured_outputs", {{"choice", {"a long text of many words"}}}},
                  {"stop", " of"}})[0]["message"]["content"],
            "a long text");
}

TEST_F(ServeStructure, SaysWhatIsMissingOrWrong) {
  EXPECT_EQ(refusal({{"structured_outputs", {{"choice", json::array()}}}})["param"], "structured_outputs");
  EXPECT_EQ(refusal({{"structured_outputs", {{"choice", {"a"}}}}, {"ignore_eos", true}})["param"],
            "structured_outputs");
  const json endless = refusal({{"structured_outputs", {{"choice", {"yes"}}}}, {"min_tokens", 20}});
  EXPECT_EQ(endless["param"], "min_tokens") << endless;
  EXPECT_EQ(chat({{"structured_outputs", {{"choice", {"yes"}}}}, {"min_tokens", 1}})[0]["message"]["content"],
            "yes");
  for (const json& more :
       {json{{"response_format", {{"type", "json_object"}}}}, json{{"structured_outputs", {{"regex", "a"}}}},
        json{{"tools", kTools}, {"tool_choice", "required"}}}) {
    if (has_library()) break;
    const json missing = refusal(more, 501);
    EXPECT_EQ(missing["code"], "no_grammar_library");
    const std::string message = missing["message"];
    EXPECT_NE(message.find("--grammar-library"), std::string::npos) << message;
  }
}

// The model was never trained to call; that its text is looked through shows in nothing else.
TEST_F(ServeStructure, ToolsThatMayBeCalledChangeNoText) {
  const json one = chat({{"tools", kTools}, {"max_tokens", 20}})[0];
  EXPECT_TRUE(one["message"]["content"].is_string());
  EXPECT_FALSE(one["message"].contains("tool_calls"));
  std::string streamed;
  for (const json& event : stream({{"tools", kTools}, {"max_tokens", 20}}))
    streamed += event["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(streamed, one["message"]["content"]);
  // Earlier tool calls and their results are part of the prompt.
  json messages = kChat["messages"];
  messages.push_back(json::parse(R"({"role": "assistant", "content": null, "tool_calls": [{"id": "1",
      "type": "function", "function": {"name": "get", "arguments": "{\"z\": 1, \"a\": 2}"}}]})"));
  messages.push_back({{"role", "tool"}, {"tool_call_id", "1"}, {"content", "here"}});
  const json told = server_->ask("/tokenize", {{"messages", messages}});
  const json text = server_->ask("/detokenize", {{"tokens", told["tokens"]}});
  EXPECT_NE(text["prompt"].get<std::string>().find(R"(get{"z": 1, "a": 2}here)"), std::string::npos) << text;
}

TEST_F(ServeStructure, TheLibraryLimitsTextsAndCalls) {
  if (!has_library())
    GTEST_SKIP() << "OUTRIDER_TEST_GRAMMAR_LIBRARY is not set: llguidance/_lib.abi3.so or libllguidance.so";
  const json regex{{"structured_outputs", {{"regex", "[A-Z][a-z]+( [a-z]+){2} é\\."}}}, {"max_tokens", 60}};
  const json schema{
      {"response_format",
       {{"type", "json_schema"},
        {"json_schema",
         {{"name", "n"},
          {"schema",
           {{"type", "object"},
            {"properties", {{"name", {{"enum", {"Tom", "Lily"}}}}, {"old", {{"type", "boolean"}}}}},
            {"required", {"name", "old"}},
            {"additionalProperties", false}}}}}}}};
  for (int seed = 0; seed < 4; ++seed) {
    const json one = chat(with(schema, {{"seed", seed}}))[0];
    const json object = json::parse(one["message"]["content"].get<std::string>(), nullptr, false);
    EXPECT_TRUE(object.is_object() && object["old"].is_boolean()) << one;
    expect_plain_is_same(with(schema, {{"seed", seed}}));
    expect_plain_is_same(with(regex, {{"seed", seed}, {"n", 2}}));
    const json calls{
        {"tools", kTools}, {"tool_choice", "required"}, {"parallel_tool_calls", false}, {"seed", seed}};
    const json called = chat(calls)[0];
    EXPECT_EQ(called["finish_reason"], "tool_calls") << called;
    const json call = called["message"]["tool_calls"][0]["function"];
    EXPECT_EQ(call["name"], "get");
    EXPECT_TRUE(json::parse(call["arguments"].get<std::string>()).contains("what")) << call;
    std::string arguments;
    for (const json& event : stream(calls))
      for (const json& piece : event["choices"][0]["delta"].value("tool_calls", json::array()))
        arguments += piece["function"]["arguments"];
    EXPECT_EQ(arguments, call["arguments"]);
  }
  EXPECT_EQ(refusal({{"structured_outputs", {{"regex", "(a"}}}})["param"], "structured_outputs");
}

// References are those of the parameters, wherever a call has them; a tool that is named is called once; a
// form beside tools is that of a text which does not call.
TEST_F(ServeStructure, CallsFitTheirParametersAndFormsStandBesideTools) {
  if (!has_library())
    GTEST_SKIP() << "OUTRIDER_TEST_GRAMMAR_LIBRARY is not set: llguidance/_lib.abi3.so or libllguidance.so";
  const json tools = json::parse(
      R"([{"type": "function", "function": {"name": "get", "parameters": {"$ref": "#/$defs/P", "$defs": {"P": {"type": "object",
          "properties": {"what": {"enum": ["ball", "cake"]}, "in": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
          "required": ["what", "in"], "additionalProperties": false}}}}},
          {"type": "function", "function": {"name": "now"}}])");
  const std::function<bool(const json&)> fits = [&fits](const json& v) {
    return v.is_object() && v.size() == 2 && (v["what"] == "ball" || v["what"] == "cake") &&
           (v["in"].is_null() || fits(v["in"]));
  };
  size_t whole = 0;
  for (int seed = 0; seed < 4; ++seed)
    for (const char* name : {"get", "now"}) {
      const json named{{"tools", tools},
                       {"tool_choice", {{"type", "function"}, {"function", {{"name", name}}}}},
                       {"seed", seed},
                       {"temperature", 1},
                       {"max_tokens", 80}};
      const json one = chat(named)[0];
      const json& calls = one["message"]["tool_calls"];
      ASSERT_EQ(calls.size(), 1u) << one;
      EXPECT_EQ(calls[0]["function"]["name"], name);
      const std::string arguments = calls[0]["function"]["arguments"];
      const bool takes_none = std::string_view(name) == "now";
      if (takes_none) {
        EXPECT_EQ(arguments, "{}");
      }
      if (one["finish_reason"] != "tool_calls") continue;
      ++whole;
      EXPECT_TRUE(takes_none || fits(json::parse(arguments))) << arguments;
    }
  EXPECT_GE(whole, 4u);
  const json choice = chat({{"tools", tools}, {"structured_outputs", {{"choice", {"yes", "no"}}}}})[0];
  const json& text = choice["message"]["content"];
  EXPECT_TRUE(text == "yes" || text == "no" || choice["message"].contains("tool_calls")) << choice;
  // A constant that the library would write as another number; a hint that says where its option goes.
  const auto schema = [](json of) {
    return json{{"response_format",
                 {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", std::move(of)}}}}}};
  };
  EXPECT_NE(refusal(schema({{"const", 9007199254740993}}))["message"].get<std::string>().find("2^53"),
            std::string::npos);
  const json overlap =
      refusal(schema({{"oneOf", {{{"type", "object"}}, {{"type", "object"}, {"required", {"a"}}}}}}));
  EXPECT_EQ(overlap["param"], "response_format");
  EXPECT_NE(overlap["message"].get<std::string>().find("\"x-guidance\": {\"coerce_one_of\": true}"),
            std::string::npos)
      << overlap;
}

}  // namespace
}  // namespace outrider::testing
