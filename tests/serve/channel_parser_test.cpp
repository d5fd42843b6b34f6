// Channels of gpt-oss: reasoning, answers and calls, however a stream cuts the text.
#include "serve/api/channel_parser.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "serve/api/structure.h"
#include "serve_api_fixture.h"
#include "tests/coordinator/toy_tokenizer.h"
#include "text/grammar/grammar_compiler.h"

namespace outrider::channels {
namespace {

using nlohmann::json;

struct Read {
  std::string thoughts, text, calls;  // each call as NAME(ARGUMENTS)
  bool operator==(const Read&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Read& read) {
  return out << "[" << read.thoughts << "] [" << read.text << "] [" << read.calls << "]";
}

Read read(const std::string& text, const std::vector<size_t>& cuts, const ChannelReading& reading) {
  ChannelParser parser(reading);
  std::vector<ToolEvent> events;
  size_t from = 0;
  for (const size_t cut : cuts) {
    parser.append(text.substr(from, cut - from), events);
    from = cut;
  }
  parser.append(text.substr(from), events);
  parser.finish(events);
  Read out;
  int calls = 0;
  for (const ToolEvent& event : events) {
    EXPECT_FALSE(event.text.empty());
    if (event.kind == ToolEvent::Kind::kThought) out.thoughts += event.text;
    if (event.kind == ToolEvent::Kind::kText) out.text += event.text;
    if (event.kind == ToolEvent::Kind::kCall) {
      EXPECT_EQ(event.index, calls++);
      out.calls += (out.calls.empty() ? "" : ") ") + event.text + "(";
    }
    if (event.kind == ToolEvent::Kind::kArguments) {
      EXPECT_EQ(event.index, calls - 1);
      out.calls += event.text;
    }
  }
  if (!out.calls.empty()) out.calls += ")";
  EXPECT_EQ(parser.calls(), calls);
  return out;
}

const ChannelReading kReading{.opening = "<|start|>assistant", .may_call = true};
const std::string kThought = "<|channel|>analysis<|message|>A < b.<|end|>", kNext = "<|start|>assistant";
const std::string kCalled =
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|x\"}<|call|>";

TEST(ChannelParser, PartsTextsWhereverTheyAreCut) {
  const std::pair<std::string, Read> cases[] = {
      {kThought + kNext + "<|channel|>final<|message|>Yes.<|return|>", {"A < b.", "Yes.", ""}},
      {kThought + kNext + "<|channel|>final<|message|>Yes.", {"A < b.", "Yes.", ""}},
      {kThought + kNext + kCalled, {"A < b.", "", "f({\"a\": \"<|x\"})"}},
      {" to=functions.f<|channel|>commentary json<|message|>{}", {"", "", "f({})"}},
      {kThought + kNext + " to=functions.f<|channel|>commentary <|constrain|>json<|message|><|call|>",
       {"A < b.", "", "f({})"}},
      {"<|channel|>commentary<|message|>I look.<|end|>" + kNext + kCalled,
       {"", "I look.", "f({\"a\": \"<|x\"})"}},
      {kThought + kNext + "<|channel|>analysis<|message|>More.<|end|>" + kNext +
           "<|channel|>final<|message|>Yes",
       {"A < b.\n\nMore.", "Yes", ""}},
      {"<|channel|>commentary<|message|>One<|end|>" + kNext + "<|channel|>final<|message|>Two",
       {"", "One\n\nTwo", ""}},
      {"<|channel|>analysis<|message|>no end<|channel|>final<|message|>Yes", {"no end", "Yes", ""}},
      {"<|channel|>analysis<|message|>no end<|start|>assistant<|channel|>final<|message|>Yes",
       {"no end", "Yes", ""}},
      {"<|channel|>analysis to=python code<|message|>1+1<|call|>", {"1+1", "", ""}},
      {"<|channel|>analysis<|message|>cut <|en", {"cut <|en", "", ""}},
      {"<|channel|>analysis<|message|>", {"", "", ""}},
      {"<|channel|>anal", {"", "", ""}},
      {"<|message|>No channel", {"", "No channel", ""}},
      {"Plain <text>.", {"", "Plain <text>.", ""}},
      {"to", {"", "to", ""}},
      {"", {"", "", ""}},
      {"<|channel|>final<|message|>\xE2\x82\xAC", {"", "\xE2\x82\xAC", ""}}};
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(read(text, {}, kReading), expected) << text;
    std::vector<size_t> all;
    for (size_t i = 1; i < text.size(); ++i) {
      all.push_back(i);
      EXPECT_EQ(read(text, {i}, kReading), expected) << text << " cut at " << i;
    }
    EXPECT_EQ(read(text, all, kReading), expected) << text;
  }
}

TEST(ChannelParser, ReadsAsTheRequestAsks) {
  const std::string text = kThought + kNext + "<|channel|>final<|message|>Yes.";
  EXPECT_EQ(read(text, {}, {.opening = "", .may_call = false}), (Read{"A < b.", "Yes.", ""}));
  EXPECT_EQ(read(text, {}, {.tells_thoughts = false}), (Read{"", "Yes.", ""}));
  EXPECT_EQ(read(text, {}, {.parts_thoughts = false}), (Read{"", "A < b.\n\nYes.", ""}));
  EXPECT_EQ(read("on.<|end|>", {}, {.opening = "<|start|>assistant<|channel|>final<|message|>"}),
            (Read{"", "on.", ""}));
  EXPECT_EQ(read("on.<|end|>" + kNext + "<|channel|>final<|message|>Yes", {},
                 {.opening = "<|start|>assistant<|channel|>analysis<|message|>"}),
            (Read{"on.", "Yes", ""}));
  EXPECT_EQ(read(kCalled, {}, {.may_call = false}), (Read{"", "{\"a\": \"<|x\"}", ""}))
      << "no tool is offered";
  EXPECT_EQ(read("x" + std::string(1000, 'y'), {}, kReading).text.size(), 1001u);
  EXPECT_EQ(read("<|channel|>" + std::string(1000, 'y'), {}, kReading).text.size(), 1011u) << "no header";
}

TEST(ChannelCounter, CountsTokensOfThoughts) {
  ChannelCounter counter(kReading);
  for (const char* token : {"<|channel|>", "analysis", "<|message|>", "A", " b", "<|end|>", "<|start|>",
                            "assistant", "<|channel|>", "final", "<|message|>", "Yes"})
    counter.add(token);
  EXPECT_EQ(counter.count(), 3) << "with the end";
}

// In the form of gpt-oss's.
const char* const kTemplate =
    "{% for m in messages %}{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') "
    "}}"
    "{% endif %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant to="
    "functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}<|start|>{{ m.role }}<|message|>"
    "{{ m.content }}<|end|>{% endif %}{% endfor %}{% if tools %}{{ tools | length }}{% endif %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}";

using testing::ServeApi;

TEST_F(ServeApi, ChatsOfModelsWithChannelsAreParted) {
  chat_ = parse_chat_template(kTemplate, "", "");
  ASSERT_TRUE(chat_.ok());
  json chat{{"messages", {{{"role", "user"}, {"content", "hello"}}}}, {"max_tokens", 5}};
  auto plain = read(chat, ApiKind::kChat);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  ASSERT_TRUE(plain->channels);
  EXPECT_FALSE(plain->thoughts);
  EXPECT_FALSE(plain->channels->may_call);
  EXPECT_TRUE(read(chat, ApiKind::kMessages)->channels);
  EXPECT_TRUE(read({{"input", "hello"}}, ApiKind::kResponses)->channels);
  EXPECT_FALSE(read({{"prompt", "x"}})->channels);
  chat["separate_reasoning"] = false;
  EXPECT_FALSE(read(chat, ApiKind::kChat)->channels) << "the text as it is";
  chat["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const auto called = read(chat, ApiKind::kChat);
  ASSERT_TRUE(called.ok()) << called.status().message();
  ASSERT_TRUE(called->channels);
  EXPECT_TRUE(called->channels->may_call);
  EXPECT_FALSE(called->channels->parts_thoughts);
  // Thoughts of an earlier call, whose content the template refuses beside them.
  json earlier{{"role", "assistant"}, {"content", "text"}, {"reasoning_content", "hm"}};
  earlier["tool_calls"] = {
      {{"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}}};
  chat["messages"].push_back(earlier);
  const auto again = read(chat, ApiKind::kChat);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_NE(prepared_.tokenizer->decode(again->requests[0].prompt).find("<|message|>hm<|end|>"),
            std::string::npos);
}

// A token for every byte, the marks, and the end.
class MarkedBytes final : public ToyTokenizer {
 public:
  int32_t vocab_size() const override { return 257 + static_cast<int32_t>(channel_marks::kAll.size()); }
  std::string token_bytes(TokenId id) const override {
    return id.value() >= 256 ? "" : std::string(1, static_cast<char>(id.value()));
  }
  bool is_special(TokenId id) const override { return id.value() >= 256; }
  std::optional<TokenId> find(std::string_view token) const override {
    for (size_t i = 0; i < channel_marks::kAll.size(); ++i)
      if (channel_marks::kAll[i] == token) return TokenId(257 + static_cast<int32_t>(i));
    return {};
  }
  std::vector<TokenId> ids_of(std::string_view text) const {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      size_t length = 1;
      TokenId id(static_cast<unsigned char>(text.front()));
      for (const std::string_view mark : channel_marks::kAll)
        if (text.starts_with(mark)) id = *find(mark), length = mark.size();
      ids.push_back(id);
      text.remove_prefix(length);
    }
    return ids;
  }
};

TEST(Channels, AreAllowedByTheirGrammarAndNothingElseIs) {
  const char* const library = std::getenv("OUTRIDER_TEST_GRAMMAR_LIBRARY");
  if (!library) GTEST_SKIP() << "OUTRIDER_TEST_GRAMMAR_LIBRARY is not set";
  const MarkedBytes bytes;
  const int32_t size = bytes.vocab_size();
  const auto compiler =
      make_grammar_compiler(bytes, {.libraries = {library}, .ends = {TokenId(256)}, .vocab_size = size})
          .value();
  const auto allows = [&](const std::string& more, const std::string& text) {
    const std::string body =
        R"({"tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters":
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}}}], )" +
        more + "}";
    const auto structure = read_structure(ApiKind::kChat, nlohmann::ordered_json::parse(body)).value();
    const auto asked = tool_grammar(*structure.tools, structure.grammar, ToolFormat::kChannels, bytes);
    EXPECT_TRUE(asked.ok()) << asked.status().message();
    const auto grammar = compiler->compile((*asked)->spec);
    EXPECT_TRUE(grammar.ok()) << grammar.status().message() << "\n" << (*asked)->spec.text;
    if (!grammar.ok()) return false;
    const auto matcher = (*grammar)->matcher();
    for (const TokenId id : bytes.ids_of(text))
      if (!matcher->accept(id)) return false;
    std::vector<uint32_t> bits(static_cast<size_t>(size) / 32 + 1);
    return matcher->allow(bits).ok() && (bits[8] & 1);
  };
  const std::string required = R"("tool_choice": "required")", may = R"("tool_choice": "auto")",
                    form = R"("structured_outputs": {"choice": ["yes", "no"]})";
  const auto call = [](const std::string& name, const std::string& arguments) {
    return "<|channel|>commentary to=functions." + name + " <|constrain|>json<|message|>" + arguments;
  };
  const std::string good = call("f", R"({"n": 5})");
  const std::string said = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant";
  for (const std::string& before : {std::string(), kThought + kNext, kThought + kNext + said}) {
    for (const std::string& how : {required, may, form}) {
      EXPECT_TRUE(allows(how, before + good)) << how << before;
      EXPECT_FALSE(allows(how, before + call("g", R"({"n": 5})"))) << how;
      EXPECT_FALSE(allows(how, before + call("f", R"({"n": "five"})"))) << how;
      EXPECT_FALSE(allows(how, before)) << how;
    }
    EXPECT_TRUE(allows(may, before + "<|channel|>final<|message|>A text."));
    EXPECT_FALSE(allows(required, before + "<|channel|>final<|message|>A text."));
    EXPECT_FALSE(allows(form, before + "<|channel|>final<|message|>A text."));
    EXPECT_TRUE(allows(form, before + "<|channel|>final<|message|>yes"));
  }
}

}  // namespace
}  // namespace outrider::channels
