// Reasoning apart from answers, however a stream cuts the text.
#include "serve/api/thought_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "serve_api_fixture.h"

namespace outrider {
namespace {

using Parted = std::pair<std::string, std::string>;  // thoughts and answer

// The text in pieces that end at `cuts`.
Parted parted(const std::string& text, const std::vector<size_t>& cuts, bool is_open) {
  ThoughtParser parser({.is_open = is_open});
  std::vector<TextPart> parts;
  size_t from = 0;
  for (const size_t cut : cuts) {
    parser.append(text.substr(from, cut - from), parts);
    from = cut;
  }
  parser.append(text.substr(from), parts);
  parser.finish(parts);
  Parted out;
  bool is_answer = false;
  for (const TextPart& part : parts) {
    EXPECT_FALSE(part.text.empty());
    EXPECT_FALSE(is_answer && part.is_thought) << "thoughts behind the answer";
    is_answer = !part.is_thought;
    (part.is_thought ? out.first : out.second) += part.text;
  }
  return out;
}

TEST(ThoughtParser, PartsTextsWhereverTheyAreCut) {
  struct Case {
    const char* text;
    bool is_open;
    Parted expected;
  };
  const Case cases[] = {
      {"<think>\nA b.\n</think>\n\nYes.\n", false, {"A b.", "Yes.\n"}},
      {"\n<think>a</think>b", false, {"a", "b"}},
      {"<think>\n\n</think>\n\nYes", false, {"", "Yes"}},
      {"a < b </thin> c\n</think>Yes", true, {"a < b </thin> c", "Yes"}},
      {"<think>\na</think>Yes", true, {"a", "Yes"}},
      {"cut off </thi", true, {"cut off </thi", ""}},
      {"cut off \n", true, {"cut off", ""}},
      {" \n", true, {"", ""}},
      {"No thoughts <think>here</think>.", false, {"", "No thoughts <think>here</think>."}},
      {"<thin ice>", false, {"", "<thin ice>"}},
      {"<th", false, {"", "<th"}},
      {" \n", false, {"", " \n"}},
      {"", false, {"", ""}},
      {"<think>a</think>b <think>c</think>", false, {"a", "b <think>c</think>"}},
      {"<think>\xC3\xA4 \xE2\x82\xAC</think>\xC3\xB6", false, {"\xC3\xA4 \xE2\x82\xAC", "\xC3\xB6"}}};
  for (const Case& c : cases) {
    const std::string text = c.text;
    EXPECT_EQ(parted(text, {}, c.is_open), c.expected) << text;
    std::vector<size_t> all;
    for (size_t i = 1; i < text.size(); ++i) {
      all.push_back(i);
      EXPECT_EQ(parted(text, {i}, c.is_open), c.expected) << text << " cut at " << i;
    }
    EXPECT_EQ(parted(text, all, c.is_open), c.expected) << text;
  }
}

TEST(ThoughtParser, DropsThoughtsThatAreNotToldAndKeepsTheAnswer) {
  ThoughtParser parser({.is_open = true, .is_told = false});
  std::vector<TextPart> parts;
  parser.append("a b</thi", parts);
  EXPECT_TRUE(parts.empty());
  parser.append("nk>Yes", parts);
  parser.finish(parts);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_FALSE(parts[0].is_thought);
  EXPECT_EQ(parts[0].text, "Yes");
}

using testing::ServeApi;

TEST_F(ServeApi, ChatsOfModelsThatThinkHaveTheirThoughtsApart) {
  using nlohmann::json;
  const json chat{{"messages", {{{"role", "user"}, {"content", "hello"}}}}};
  EXPECT_FALSE(read(chat, ApiKind::kChat)->thoughts) << "the template knows none";
  const auto with_template = [&](const std::string& end) {
    chat_ = parse_chat_template("{# </think> #}{{ messages[0].content }}" + end, "", "");
  };
  with_template("");
  ASSERT_TRUE(read(chat, ApiKind::kChat)->thoughts);
  EXPECT_FALSE(read(chat, ApiKind::kChat)->thoughts->is_open);
  with_template("<think>{{ '\\n' }}");
  ASSERT_TRUE(read(chat, ApiKind::kChat)->thoughts);
  EXPECT_TRUE(read(chat, ApiKind::kChat)->thoughts->is_open);
  json inside = chat;
  inside["separate_reasoning"] = false;
  EXPECT_FALSE(read(inside, ApiKind::kChat)->thoughts);
  EXPECT_FALSE(read({{"prompt", "x"}})->thoughts);
  json message = chat;
  message["max_tokens"] = 5;
  EXPECT_TRUE(read(message, ApiKind::kMessages)->thoughts);
  EXPECT_TRUE(read({{"input", "hello"}}, ApiKind::kResponses)->thoughts);
}

// Each family has marks of its own; the sources are lines of its published template.
TEST_F(ServeApi, MarksOfThoughtsAreThoseOfTheTemplate) {
  using nlohmann::json;
  const json chat{{"messages", {{{"role", "user"}, {"content", "hello"}}}}};
  for (const auto& [source, open, close] :
       {std::tuple("{%- set think_end_token = '</seed:think>' -%}", "<seed:think>", "</seed:think>"),
        std::tuple("{%- set think_end_token = '</mm:think>' -%}", "<mm:think>", "</mm:think>"),
        std::tuple("{{- '[THINK]' + block['thinking'] + '[/THINK]' }}", "[THINK]", "[/THINK]"),
        std::tuple("<|START_THINKING|>{{message.reasoning_content}}<|END_THINKING|>", "<|START_THINKING|>",
                   "<|END_THINKING|>"),
        std::tuple("{{- '<|channel>thought\\n' + thinking_text + '\\n<channel|>' -}}", "<|channel>thought",
                   "<channel|>")}) {
    const std::string quiet = "{% if false %}" + std::string(source) + "{% endif %}{{ messages[0].content }}";
    chat_ = parse_chat_template(quiet, "", "");
    const auto closed = read(chat, ApiKind::kChat);
    ASSERT_TRUE(closed.ok() && closed->thoughts) << source;
    EXPECT_EQ(closed->thoughts->marks.open, open);
    EXPECT_FALSE(closed->thoughts->is_open);
    chat_ = parse_chat_template(quiet + open + "{{ '\n' }}", "", "");
    EXPECT_TRUE(read(chat, ApiKind::kChat)->thoughts->is_open) << source;
    for (const size_t piece : {size_t{1}, size_t{5}, size_t{1000}}) {
      const std::string text = std::string(open) + "\nhm <a>\n" + close + "Yes.";
      ThoughtParser parser(*closed->thoughts);
      std::vector<TextPart> parts;
      for (size_t at = 0; at < text.size(); at += piece) parser.append(text.substr(at, piece), parts);
      parser.finish(parts);
      std::string thoughts, answer;
      for (const TextPart& part : parts) (part.is_thought ? thoughts : answer) += part.text;
      EXPECT_EQ(thoughts, "hm <a>") << source;
      EXPECT_EQ(answer, "Yes.") << source;
    }
  }
}

TEST_F(ServeApi, ThinkingOfChatsIsTheTemplatesSwitch) {
  using nlohmann::json;
  chat_ = parse_chat_template(
      "{# </think> #}{{ enable_thinking }} {{ thinking }} {{ thinking_mode }} {{ clear_thinking }} "
      "{{ reasoning_effort }}",
      "", "");
  const auto with = [&](const json& thinking, const json& more = json::object()) {
    json out{{"messages", {{{"role", "user"}, {"content", "hello"}}}}, {"thinking", thinking}};
    out.update(more);
    return out;
  };
  const auto prompt = [&](const json& asked) {
    const auto api = read(asked, ApiKind::kChat);
    return api.ok() ? prepared_.tokenizer->decode(api->requests[0].prompt) : api.status().message();
  };
  EXPECT_EQ(prompt(with({{"type", "enabled"}})), "True True enabled  ");
  EXPECT_EQ(prompt(with({{"type", "disabled"}})), "False False disabled  ");
  EXPECT_EQ(prompt(with({{"type", "enabled"}, {"clear_thinking", false}})), "True True enabled False ");
  EXPECT_EQ(prompt(with(nullptr)), "    ");
  EXPECT_EQ(prompt(with({{"type", "disabled"}}, {{"reasoning_effort", "high"}})),
            "False False disabled  high")
      << "the switch is plainer than an effort";
  EXPECT_EQ(prompt(with({{"type", "enabled"}}, {{"chat_template_kwargs", {{"enable_thinking", false}}}})),
            "False True enabled  ");
  EXPECT_FALSE(read(with({{"type", "disabled"}}), ApiKind::kChat)->thoughts->is_told);
  for (const json& wrong :
       {json(true), json::object(), json{{"type", "on"}}, json{{"type", "enabled"}, {"tokens", 1}},
        json{{"type", "enabled"}, {"clear_thinking", 1}}})
    EXPECT_TRUE(error(with(wrong), ApiKind::kChat).starts_with("\"thinking\"")) << wrong;
}

TEST_F(ServeApi, EffortReachesTheTemplate) {
  using nlohmann::json;
  chat_ = parse_chat_template("{{ reasoning_effort }} {{ enable_thinking }}", "", "");
  const json messages{{{"role", "user"}, {"content", "hello"}}};
  const auto prompt = [&](ApiKind kind, const json& more) {
    json body{{"messages", messages}, {"max_tokens", 5}};
    if (kind == ApiKind::kResponses) body = {{"input", "hello"}};
    body.update(more);
    const auto api = read(body, kind);
    return api.ok() ? prepared_.tokenizer->decode(api->requests[0].prompt) : api.status().message();
  };
  EXPECT_EQ(prompt(ApiKind::kChat, {{"reasoning_effort", "high"}}), "high True");
  EXPECT_EQ(prompt(ApiKind::kChat, {{"reasoning_effort", "minimal"}}), "minimal False");
  EXPECT_EQ(prompt(ApiKind::kChat, {{"reasoning_effort", nullptr}}), " ");
  EXPECT_EQ(prompt(ApiKind::kChat,
                   {{"reasoning_effort", "none"}, {"chat_template_kwargs", {{"enable_thinking", true}}}}),
            "none True");
  EXPECT_EQ(prompt(ApiKind::kResponses, {{"reasoning", {{"effort", "none"}, {"summary", "auto"}}}}),
            "none False");
  EXPECT_EQ(prompt(ApiKind::kResponses, {{"reasoning", json::object()}}), " ");
  EXPECT_EQ(prompt(ApiKind::kMessages, {{"output_config", {{"effort", "low"}}}}), "low True");
  EXPECT_EQ(prompt(ApiKind::kChat, {{"reasoning_effort", "much"}}),
            "\"reasoning_effort\" must be one of \"none\", \"minimal\", \"low\", \"medium\", \"high\", "
            "\"xhigh\", \"max\"");
  EXPECT_TRUE(prompt(ApiKind::kChat, {{"reasoning_effort", 1}}).starts_with("\"reasoning_effort\" must"));
  EXPECT_TRUE(
      prompt(ApiKind::kResponses, {{"reasoning", {{"effort", 1}}}}).starts_with("\"reasoning\": \"eff"));
  EXPECT_TRUE(
      prompt(ApiKind::kResponses, {{"reasoning", {{"efort", "low"}}}}).starts_with("\"reasoning\": there"));
  EXPECT_TRUE(prompt(ApiKind::kMessages, {{"output_config", {{"effrt", "low"}}}})
                  .starts_with("\"output_config\": there is no key \"effrt\""));
  EXPECT_TRUE(prompt(ApiKind::kMessages, {{"output_config", "low"}}).starts_with("\"output_config\" must"));
  EXPECT_TRUE(prompt(ApiKind::kResponses, {{"reasoning", "low"}}).starts_with("\"reasoning\" must"));
  EXPECT_TRUE(error({{"prompt", "x"}, {"reasoning_effort", "low"}}).starts_with("\"reasoning_effort\""))
      << "a completion has no template";
}

TEST_F(ServeApi, ThinkingOfMessagesIsTheTemplatesSwitch) {
  using nlohmann::json;
  chat_ = parse_chat_template(
      "{# </think> #}{{ enable_thinking }} {{ thinking }} {{ thinking_budget }}{% if enable_thinking "
      "%}<think>{% endif %}",
      "", "");
  const json body{{"messages", {{{"role", "user"}, {"content", "hello"}}}}, {"max_tokens", 5}};
  const auto with = [&](const json& thinking, const json& variables = nullptr) {
    json out = body;
    out["thinking"] = thinking;
    if (!variables.is_null()) out["chat_template_kwargs"] = variables;
    return out;
  };
  const auto prompt = [&](const json& asked) {
    const auto api = read(asked, ApiKind::kMessages);
    return api.ok() ? prepared_.tokenizer->decode(api->requests[0].prompt) : api.status().message();
  };
  EXPECT_EQ(prompt(with({{"type", "enabled"}, {"budget_tokens", 2000}})), "True True 2000<think>");
  EXPECT_EQ(prompt(with({{"type", "disabled"}})), "False False ");
  EXPECT_EQ(prompt(with({{"type", "adaptive"}})), "  ");
  EXPECT_EQ(prompt(with({{"type", "disabled"}}, {{"enable_thinking", true}})), "True False <think>")
      << "the template's own variable comes first";
  EXPECT_TRUE(read(with({{"type", "enabled"}}), ApiKind::kMessages)->thoughts->is_told);
  EXPECT_FALSE(read(with({{"type", "disabled"}}), ApiKind::kMessages)->thoughts->is_told);
  EXPECT_FALSE(
      read(with({{"type", "adaptive"}, {"display", "omitted"}}), ApiKind::kMessages)->thoughts->is_told);
  for (const json& wrong :
       {json(true), json::object(), json{{"type", "on"}}, json{{"type", "enabled"}, {"budget_tokens", -1}},
        json{{"type", "enabled"}, {"tokens", 1}}})
    EXPECT_TRUE(error(with(wrong), ApiKind::kMessages).starts_with("\"thinking\"")) << wrong;
}

}  // namespace
}  // namespace outrider
