// Streams of reasoning, answers and calls in the shapes of Responses and Anthropic, however the text is cut.
#include "serve/api/reply_shape.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve_api_fixture.h"

namespace outrider {
namespace {

using nlohmann::json;

class EventList final : public HttpReply {
 public:
  void send(int, std::string_view, std::string, const HttpHeaders&) override {}
  void begin_events() override {}
  void event(std::string data, std::string_view name) override {
    events.push_back(json::parse(data));
    EXPECT_EQ(events.back()["type"], name);
  }
  void comment(std::string) override {}
  void end_events() override {}
  void later(std::function<void()> task) override { task(); }
  void after(std::chrono::milliseconds, std::function<void()>) override {}
  void on_gone(std::function<void()>) override {}

  std::vector<json> events;
};

class ReplyShapes : public testing::ServeApi {
 protected:
  ApiAnswerState state_of(ApiKind kind, bool has_tools) const {
    ApiAnswerState state{.request = {}, .id = "1", .choices = {}, .tokenizer = *prepared_.tokenizer};
    state.request.kind = kind;
    state.request.model = "demo";
    state.request.repeated = std::make_shared<const json>(json::object());
    state.request.thoughts = ThoughtReading{.is_open = false, .is_told = true};
    if (has_tools) state.request.tools = ToolReading{.format = ToolFormat::kHermes, .names = {"f"}};
    state.choices.resize(1);
    return state;
  }
  // The events of a text in pieces, and the whole answer at the end.
  std::pair<std::vector<json>, json> streamed(ApiKind kind, const std::string& text, bool has_tools,
                                              const std::vector<size_t>& cuts) const {
    ApiAnswerState state = state_of(kind, has_tools);
    state.request.stream = true;
    state.choices[0].thoughts.emplace(*state.request.thoughts);
    if (has_tools) state.choices[0].parser.emplace(*state.request.tools);
    const auto shape = make_reply_shape(state);
    EventList reply;
    shape->begin(reply);
    size_t from = 0;
    for (const size_t cut : cuts) {
      shape->part(0, {.request = {}, .ids = {}, .logprobs = {}, .text = text.substr(from, cut - from)},
                  reply);
      from = cut;
    }
    shape->part(0, {.request = {}, .ids = {}, .logprobs = {}, .text = text.substr(from)}, reply);
    shape->end_choice(0, reply);
    shape->end(reply);
    return {reply.events, kind == ApiKind::kResponses ? shape->whole() : json()};
  }
  json whole(ApiKind kind, const std::string& text, bool has_tools) const {
    ApiAnswerState state = state_of(kind, has_tools);
    state.choices[0].text = text;
    return make_reply_shape(state)->whole();
  }
};

// Items as a client collects them, in order. An event is expected only while an item of its kind is open.
json collected_response(const std::vector<json>& events) {
  json items = json::array();
  int64_t next = 0;
  json open;
  std::string text;
  for (const json& event : events) {
    EXPECT_EQ(event["sequence_number"], next++);
    const std::string type = event["type"];
    if (type == "response.output_item.added") {
      EXPECT_TRUE(open.is_null()) << event;
      EXPECT_EQ(event["output_index"], items.size());
      EXPECT_EQ(event["item"]["status"], "in_progress");
      open = event["item"];
      text.clear();
    } else if (type == "response.content_part.added" || type == "response.content_part.done") {
      EXPECT_EQ(event["item_id"], open["id"]);
      EXPECT_EQ(event["part"]["type"], open["type"] == "reasoning" ? "reasoning_text" : "output_text");
      EXPECT_EQ(event["part"]["text"], text);
    } else if (type.ends_with(".delta")) {
      EXPECT_EQ(event["item_id"], open["id"]);
      EXPECT_EQ(type.starts_with("response.reasoning_text"), open["type"] == "reasoning") << event;
      text += event["delta"];
    } else if (type == "response.reasoning_text.done" || type == "response.output_text.done") {
      EXPECT_EQ(event["text"], text);
    } else if (type == "response.output_item.done") {
      EXPECT_EQ(event["item"]["id"], open["id"]);
      EXPECT_EQ(event["item"]["type"], open["type"]);
      if (open["type"] != "function_call") {
        EXPECT_EQ(event["item"]["content"][0]["text"], text);
      }
      items.push_back(event["item"]);
      open = nullptr;
    }
  }
  EXPECT_TRUE(open.is_null());
  return items;
}

json collected_message(const std::vector<json>& events) {
  json blocks = json::array();
  bool is_open = false;
  for (const json& event : events) {
    const std::string type = event["type"];
    if (type == "content_block_start") {
      EXPECT_FALSE(std::exchange(is_open, true));
      EXPECT_EQ(event["index"], blocks.size());
      blocks.push_back(event["content_block"]);
      if (blocks.back()["type"] == "tool_use") blocks.back()["input"] = "";
    } else if (type == "content_block_delta") {
      const json& delta = event["delta"];
      const std::string kind = delta["type"];
      EXPECT_TRUE(is_open);
      const char* const from = kind == "input_json_delta" ? "partial_json"
                               : kind == "thinking_delta" ? "thinking"
                               : kind == "text_delta"     ? "text"
                                                          : "signature";
      json& to = blocks.back()[kind == "input_json_delta" ? "input" : from];
      to = to.get<std::string>() + delta[from].get<std::string>();
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(std::exchange(is_open, false));
    }
  }
  EXPECT_FALSE(is_open);
  for (json& block : blocks)
    if (block["type"] == "tool_use") block["input"] = json::parse(block["input"].get<std::string>());
  return blocks;
}

const char* const kTexts[] = {
    "<think>\nA b.\n</think>\n\nYes.",
    "<think>a</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
    "<think>a</think>b\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
    "<think>cut",
    "Yes.",
    "",
    "<think>\n\n</think>Yes"};

TEST_F(ReplyShapes, StreamsOfResponsesHaveTheItemsOfTheWholeAnswer) {
  for (const std::string text : kTexts)
    for (const bool has_tools : {false, true}) {
      const json expected = whole(ApiKind::kResponses, text, has_tools)["output"];
      std::vector<size_t> all;
      for (size_t i = 1; i < text.size(); ++i) {
        all.push_back(i);
        const auto [events, last] = streamed(ApiKind::kResponses, text, has_tools, {i});
        EXPECT_EQ(collected_response(events), expected) << text << " cut at " << i;
        EXPECT_EQ(last["output"], expected);
      }
      EXPECT_EQ(collected_response(streamed(ApiKind::kResponses, text, has_tools, all).first), expected);
    }
  const json output = whole(ApiKind::kResponses, kTexts[2], true)["output"];
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0], (json{{"type", "reasoning"},
                             {"id", "rs_1"},
                             {"status", "completed"},
                             {"summary", json::array()},
                             {"content", {{{"type", "reasoning_text"}, {"text", "a"}}}},
                             {"encrypted_content", nullptr}}));
  EXPECT_EQ(output[1]["content"][0]["text"], "b\n");
  EXPECT_EQ(output[2]["type"], "function_call");
}

TEST_F(ReplyShapes, StreamsOfMessagesHaveTheBlocksOfTheWholeAnswer) {
  for (const std::string text : kTexts)
    for (const bool has_tools : {false, true}) {
      const json expected = whole(ApiKind::kMessages, text, has_tools)["content"];
      std::vector<size_t> all;
      for (size_t i = 1; i < text.size(); ++i) {
        all.push_back(i);
        EXPECT_EQ(collected_message(streamed(ApiKind::kMessages, text, has_tools, {i}).first), expected)
            << text << " cut at " << i;
      }
      EXPECT_EQ(collected_message(streamed(ApiKind::kMessages, text, has_tools, all).first), expected);
    }
  const json content = whole(ApiKind::kMessages, kTexts[0], false)["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["thinking"], "A b.");
  EXPECT_NE(content[0]["signature"], "");
  EXPECT_EQ(content[1], (json{{"type", "text"}, {"text", "Yes."}}));
}

TEST(ThoughtCounter, CountsTokensUpToTheEndOfThoughts) {
  const auto counted = [](const std::vector<std::string>& tokens, bool is_open) {
    ThoughtCounter counter({.is_open = is_open});
    for (const std::string& token : tokens) counter.add(token);
    return counter.count();
  };
  EXPECT_EQ(counted({"<think>", "\n", "a", " b", "</think>", "\n\n", "Yes"}, false), 5);
  EXPECT_EQ(counted({"<", "think", ">", "a", "</", "think", ">", "Yes"}, false), 7);
  EXPECT_EQ(counted({"a", "</think>", "Yes"}, true), 2);
  EXPECT_EQ(counted({"a", "b"}, true), 2) << "cut";
  EXPECT_EQ(counted({"Yes", "<think>", "a"}, false), 0);
}

}  // namespace
}  // namespace outrider
