// `outrider serve` and its clients: texts are those of `generate`, in the shapes that clients of OpenAI's
// read.
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "served_program.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

std::vector<json> mixed_requests(int count) {
  const char* prompts[] = {"Once upon a time", "The little dog", "A girl", "Tom said"};
  std::vector<json> requests;
  for (int i = 0; i < count; ++i) {
    json request{{"prompt", prompts[i % 4]}, {"seed", 100 + i}, {"max_tokens", 20 + 3 * i}};
    request["temperature"] = i % 3 == 0 ? 0.0 : 0.8;
    if (i % 2 == 1) request["top_p"] = 0.9;
    if (i % 4 == 2) request["stop"] = {"She", "."};
    if (i % 4 == 3) request["repetition_penalty"] = 1.2;
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<json> generated(const std::vector<json>& requests, const std::vector<std::string>& more = {}) {
  const TemporaryDirectory directory;
  std::string lines;
  for (const json& request : requests) lines += request.dump() + "\n";
  std::vector<std::string> arguments{"--prompts", directory.write("in.jsonl", lines), "--quiet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = generate(arguments);
  EXPECT_TRUE(outcome.succeeded()) << outcome.describe();
  std::vector<json> results;
  std::istringstream in(outcome.out);
  for (std::string line; std::getline(in, line);) results.push_back(json::parse(line));
  return results;
}

// One with a draft model for all tests: what it has done before must not matter.
class Serve : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<ServedProgram>(
        std::vector<std::string>{"--draft-model", demo_draft(), "--num-speculative-tokens", "4", "--quiet"});
  }
  static void TearDownTestSuite() { server_.reset(); }

  static Events stream(json body, const std::string& path = "/v1/completions") {
    body["stream"] = true;
    HttpClient client = server_->client();
    client.send(post_text(path, body.dump()));
    EXPECT_EQ(client.head().headers["content-type"], "text/event-stream; charset=utf-8");
    return read_events(client);
  }

  static std::unique_ptr<ServedProgram> server_;
};
std::unique_ptr<ServedProgram> Serve::server_;

TEST_F(Serve, EightClientsAtOnceGetTheTextsOfGenerate) {
  const auto requests = mixed_requests(16);
  const auto expected = generated(requests);
  ASSERT_EQ(expected.size(), requests.size());
  std::vector<std::future<void>> clients;
  for (size_t c = 0; c < 8; ++c)
    clients.push_back(std::async(std::launch::async, [&, c] {
      for (size_t i = c; i < requests.size(); i += 8) {
        const json whole = server_->complete(requests[i]);
        const json& choice = whole["choices"][0];
        EXPECT_EQ(choice["text"], expected[i]["text"]) << i;
        EXPECT_EQ(choice["finish_reason"], expected[i]["finish_reason"]) << i;
        EXPECT_EQ(whole["usage"]["completion_tokens"], expected[i]["usage"]["completion_tokens"]);
        EXPECT_EQ(whole["usage"]["prompt_tokens"], expected[i]["usage"]["prompt_tokens"]);
        const Events events = stream(requests[i]);
        EXPECT_TRUE(events.is_done);
        EXPECT_EQ(text_of(events), expected[i]["text"]) << i;
      }
    }));
  for (auto& client : clients) client.get();
}

void expect_texts_of_generate(ServedProgram& server, const std::vector<json>& requests,
                              const std::vector<json>& expected) {
  ASSERT_EQ(expected.size(), requests.size());
  std::vector<std::future<void>> clients;
  for (size_t c = 0; c < 4; ++c)
    clients.push_back(std::async(std::launch::async, [&, c] {
      for (size_t i = c; i < requests.size(); i += 4) {
        const json choice = server.complete(requests[i])["choices"][0];
        EXPECT_EQ(choice["text"], expected[i]["text"]) << requests[i];
        EXPECT_EQ(choice["finish_reason"], expected[i]["finish_reason"]) << requests[i];
      }
    }));
  for (auto& client : clients) client.get();
}

TEST(ServeTrees, ClientsGetTheTextsOfPlainDecoding) {
  const auto requests = mixed_requests(8);
  const auto expected = generated(requests);
  for (const char* tree : {"best-first:8", "4,2,1", "auto"}) {
    ServedProgram server({"--draft-model", demo_draft(), "--speculative-tree", tree, "--quiet"});
    expect_texts_of_generate(server, requests, expected);
    const json speculation = server.complete(requests[0])["metrics"]["speculative_decoding"];
    EXPECT_GE(speculation["num_draft_tokens"], speculation["num_accepted_draft_tokens"]);
  }
}

// A request names its rule; those that take no trees draft chains on the same server.
TEST(ServeTrees, RequestsUnderPqRulesGetTheTextsOfGenerate) {
  const std::vector<std::string> trees{"--draft-model", demo_draft(), "--speculative-tree", "3,2,1"};
  auto requests = mixed_requests(12);
  const char* rules[] = {"specinfer", "kseq", "swor", "traversal", "token", "invariant"};
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i]["rule"] = rules[i % 6];
    requests[i]["temperature"] = 0.9;
  }
  ServedProgram server(trees);
  expect_texts_of_generate(server, requests, generated(requests, trees));
}

// As AIPerf checks them: as many entries as rounds with a draft, and their sums.
TEST(ServeMetrics, DetailedRepliesHaveTheDraftsOfEveryRound) {
  ServedProgram server(
      {"--draft-model", demo_draft(), "-g", "3", "--per-request-spec-decode-metrics", "detailed"});
  const json reply =
      server.complete({{"prompt", "Once upon a time"}, {"max_tokens", 30}, {"temperature", 0}});
  const json speculation = reply["metrics"]["speculative_decoding"];
  const auto drafted = speculation["per_step_drafted"].get<std::vector<int64_t>>();
  const auto accepted = speculation["per_step_accepted"].get<std::vector<int64_t>>();
  ASSERT_GT(drafted.size(), 0u);
  EXPECT_EQ(speculation["num_spec_steps"], drafted.size());
  EXPECT_EQ(accepted.size(), drafted.size());
  EXPECT_EQ(speculation["num_draft_tokens"], std::accumulate(drafted.begin(), drafted.end(), int64_t{0}));
  EXPECT_EQ(speculation["num_accepted_draft_tokens"],
            std::accumulate(accepted.begin(), accepted.end(), int64_t{0}));
}

TEST_F(Serve, WholeRepliesHaveOpenAisShape) {
  const json reply =
      server_->complete({{"model", "demo"}, {"prompt", "Once upon a time"}, {"max_tokens", 30}});
  EXPECT_TRUE(reply["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["model"], "demo");
  EXPECT_GT(reply["created"], 1700000000);
  const json& usage = reply["usage"];
  EXPECT_EQ(usage["total_tokens"].get<int>(),
            usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
  EXPECT_TRUE(reply["choices"][0]["logprobs"].is_null());
  const json& speculation = reply["metrics"]["speculative_decoding"];
  EXPECT_GT(speculation["num_spec_steps"], 0);
  EXPECT_GE(speculation["num_draft_tokens"], speculation["num_accepted_draft_tokens"]);
  EXPECT_EQ(server_->complete({{"prompt", "A"}})["usage"]["completion_tokens"], 16) << "the API's default";
}

TEST_F(Serve, ChunksTellUsageOnlyWhenAsked) {
  const json body{{"prompt", "Once upon a time"}, {"max_tokens", 20}, {"temperature", 0}};
  const Events plain = stream(body);
  ASSERT_TRUE(plain.is_done);
  for (const json& chunk : plain.chunks) {
    EXPECT_EQ(chunk["choices"].size(), 1u);
    EXPECT_FALSE(chunk.contains("usage"));
    EXPECT_EQ(chunk["id"], plain.chunks[0]["id"]);
  }
  EXPECT_EQ(plain.chunks.back()["choices"][0]["finish_reason"], "length");

  json asked = body;
  asked["stream_options"] = {{"include_usage", true}};
  const Events with = stream(asked);
  ASSERT_TRUE(with.is_done);
  EXPECT_EQ(text_of(with), text_of(plain));
  for (size_t i = 0; i + 1 < with.chunks.size(); ++i) EXPECT_TRUE(with.chunks[i].at("usage").is_null());
  EXPECT_TRUE(with.chunks.back()["choices"].empty());
  EXPECT_EQ(with.chunks.back()["usage"]["completion_tokens"], 20);
  EXPECT_TRUE(with.chunks.back()["metrics"]["speculative_decoding"].is_object());

  asked["stream_options"]["continuous_usage_stats"] = true;
  EXPECT_EQ(stream(asked).chunks.front()["usage"]["prompt_tokens"], 5);
}

TEST_F(Serve, SeveralChoicesOfSeveralPrompts) {
  const json one{{"prompt", "Once upon a time"}, {"max_tokens", 20}, {"seed", 5}, {"temperature", 0.9}};
  json body = one;
  body["prompt"] = {"Once upon a time", "The dog"};
  body["n"] = 3;
  const json reply = server_->complete(body);
  ASSERT_EQ(reply["choices"].size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(reply["choices"][i]["index"], i);
  EXPECT_EQ(reply["choices"][0]["text"], server_->complete(one)["choices"][0]["text"])
      << "the first draws with the request's own seed";
  EXPECT_NE(reply["choices"][0]["text"], reply["choices"][1]["text"]);
  EXPECT_NE(reply["choices"][1]["text"], reply["choices"][2]["text"]);
  EXPECT_TRUE(reply["metrics"].is_null());
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 5 + 3) << "each prompt counts once";

  const Events events = stream(body);
  EXPECT_TRUE(events.is_done);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(text_of(events, i), reply["choices"][i]["text"]) << i;
}

TEST_F(Serve, RequestsWithoutASeedDiffer) {
  const json body{{"prompt", "Once upon a time"}, {"max_tokens", 40}, {"temperature", 1}};
  EXPECT_NE(server_->complete(body)["choices"][0]["text"], server_->complete(body)["choices"][0]["text"]);
}

TEST_F(Serve, PromptsAreTextsOrIdsAndMayBeRepeated) {
  const json ids = server_->ask("/tokenize", {{"prompt", "Once upon a time"}})["tokens"];
  EXPECT_EQ(server_->ask("/detokenize", {{"tokens", ids}})["prompt"], "Once upon a time");
  for (const auto& [skip, text] : {std::pair(true, "Once upon a time"), {false, "<s>Once upon a time"}})
    EXPECT_EQ(server_->ask("/detokenize", {{"tokens", ids}, {"skip_special_tokens", skip}})["prompt"], text);
  json body{{"prompt", "Once upon a time"}, {"max_tokens", 10}, {"temperature", 0}};
  const std::string text = server_->complete(body)["choices"][0]["text"];
  for (const json& prompt : {ids, json::array({ids}), json::array({"Once upon a time"})}) {
    body["prompt"] = prompt;
    EXPECT_EQ(server_->complete(body)["choices"][0]["text"], text) << prompt;
  }
  body["echo"] = true;
  EXPECT_EQ(server_->complete(body)["choices"][0]["text"], "Once upon a time" + text);
  EXPECT_EQ(text_of(stream(body)), "Once upon a time" + text);

  const json plain = server_->ask("/tokenize", {{"prompt", "Once"}, {"add_special_tokens", false}});
  EXPECT_EQ(plain["count"], server_->ask("/tokenize", {{"prompt", "Once"}})["count"].get<int>() - 1);
  EXPECT_EQ(plain["max_model_len"], 512);
}

TEST_F(Serve, LogprobsOfWholeAndStreamedTextsAgree) {
  json body{
      {"prompt", "Once upon a time"}, {"max_tokens", 12}, {"temperature", 0.7}, {"seed", 3}, {"logprobs", 3}};
  const json choice = server_->complete(body)["choices"][0];
  const json& whole = choice["logprobs"];
  ASSERT_EQ(whole["tokens"].size(), 12u);
  std::string text;
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(whole["text_offset"][i], text.size());
    text += whole["tokens"][i];
    const json& top = whole["top_logprobs"][i];
    EXPECT_EQ(top.at(whole["tokens"][i].get<std::string>()), whole["token_logprobs"][i]);
    EXPECT_TRUE(top.size() == 3 || top.size() == 4) << "the chosen one, also where it is none of the best";
  }
  EXPECT_EQ(text, choice["text"]);
  json joined{{"tokens", json::array()},
              {"token_logprobs", json::array()},
              {"top_logprobs", json::array()},
              {"text_offset", json::array()}};
  for (const json& chunk : stream(body).chunks)
    for (auto& [key, list] : joined.items())
      if (const json& part = chunk["choices"][0]["logprobs"]; part.is_object())
        list.insert(list.end(), part[key].begin(), part[key].end());
  EXPECT_EQ(joined, whole);
}

TEST_F(Serve, EndpointsAndMethods) {
  HttpClient client = server_->client();
  EXPECT_EQ(client.get("/health?verbose=1").status, 200);
  EXPECT_EQ(client.get("/ping").status, 200);
  EXPECT_EQ(json::parse(client.get("/version").body)["version"].get<std::string>().find('.'), 1u);
  const json model = json::parse(client.get("/v1/models").body)["data"][0];
  EXPECT_EQ(model["id"], "demo");
  EXPECT_EQ(model["root"], demo_target().string());
  EXPECT_EQ(model["max_model_len"], 512);
  const HttpAnswer metrics = client.get("/metrics");
  EXPECT_TRUE(metrics.headers.at("content-type").starts_with("text/plain; version=0.0.4"));
  EXPECT_NE(metrics.body.find("model_name=\"demo\""), std::string::npos);

  EXPECT_EQ(client.get("/v2/models").status, 404);
  const HttpAnswer wrong = client.get("/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(client.post("/health", "{}").status, 405);
  client.send("OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil\r\n\r\n");
  const HttpAnswer options = client.answer();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.count("access-control-allow-origin"), 0u) << "no web page may ask";
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: "
      "14\r\n\r\n" +
      std::string(R"({"prompt":"x"})"));
  const HttpAnswer form = client.answer();
  EXPECT_EQ(form.status, 415);
  EXPECT_NE(form.body.find("application/json"), std::string::npos);
  const auto told_of = [&](const std::string& header, const std::string& body, int status) {
    client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
                header + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    const HttpAnswer answer = client.answer();
    EXPECT_EQ(answer.status, status) << header << answer.body;
    return answer.body;
  };
  EXPECT_NE(told_of("Content-Encoding: gzip\r\n", "\x1f\x8b", 415).find("Content-Encoding gzip"),
            std::string::npos);
  told_of("Content-Encoding: identity\r\n", R"({"prompt":"x","max_tokens":1})", 200);
  EXPECT_NE(told_of("", "", 400).find("the body is empty"), std::string::npos);
}

// Each group has its places and its numbers; texts are those of one group, and a conversation stays where it
// was read.
TEST(ServeGroups, TwoTargetGroupsServeTheSameTexts) {
  ServedProgram one({"--drafter", "ngram", "--quiet"});
  ServedProgram two({"--drafter", "ngram", "--quiet", "--data-parallel-size", "2", "--max-num-seqs", "1"});
  const auto body = [](int seed) {
    return json{{"prompt", "Once upon a time"}, {"max_tokens", 40}, {"seed", seed}, {"n", 4}};
  };
  for (const int seed : {1, 2})
    EXPECT_EQ(two.complete(body(seed))["choices"], one.complete(body(seed))["choices"]);
  const std::string metrics = two.client().get("/metrics").body;
  for (const std::string group : {"0", "1"})
    EXPECT_NE(metrics.find("outrider_target_group_here{model_name=\"demo\",group=\"" + group +
                           "\",host=\"\",role=\"decode\"} 1"),
              std::string::npos);
  const json status = json::parse(two.client().get("/status").body);
  EXPECT_EQ(status["requests"]["places"], 2);
  ASSERT_EQ(status["target_groups"].size(), 2u);
  for (const json& group : status["target_groups"]) EXPECT_GT(group["generated"], 0) << status;
  const json alone = json::parse(one.client().get("/status").body)["target_groups"];
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_EQ(alone[0]["here"], true);
  EXPECT_GT(alone[0]["generated"], 0) << alone;
}

TEST_F(Serve, AModelWithoutAChatTemplateSaysSo) {
  const HttpAnswer answer =
      server_->post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "hi"}}}}});
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("no chat template"), std::string::npos);
}

TEST(ServeChat, RendersMessagesAndAnswersAsTheAssistant) {
  const TemporaryDirectory model;
  for (const auto& file : std::filesystem::directory_iterator(demo_target()))
    std::filesystem::create_symlink(file.path(), model / file.path().filename().string());
  model.write(
      "chat_template.jinja",
      "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %} time{% endif %}");
  ServedProgram server({"--model", model.path(), "--drafter", "ngram", "--quiet"});
  const auto chat = [](json content) {
    return json{{"messages", {{{"role", "user"}, {"content", std::move(content)}}}},
                {"max_completion_tokens", 12},
                {"temperature", 0}};
  };
  // The template writes no beginning-of-sequence token, so the same text is given as ids.
  const json ids =
      server.ask("/tokenize", {{"prompt", "Once upon a time"}, {"add_special_tokens", false}})["tokens"];
  const json body = chat("Once upon a");
  EXPECT_EQ(server.ask("/tokenize", {{"messages", body["messages"]}})["tokens"], ids);
  const json expected =
      server.complete({{"prompt", ids}, {"max_tokens", 12}, {"temperature", 0}})["choices"][0]["text"];
  const json reply = server.ask("/v1/chat/completions", body);
  EXPECT_EQ(reply["object"], "chat.completion");
  EXPECT_EQ(reply["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(reply["choices"][0]["message"]["content"], expected);
  const json parts = {{{"type", "text"}, {"text", "Once upon"}}, {{"type", "text"}, {"text", " a"}}};
  EXPECT_EQ(server.ask("/v1/chat/completions", chat(parts))["choices"][0]["message"]["content"], expected);
  json continued = chat("Once upon a time");
  continued["continue_final_message"] = true;
  EXPECT_EQ(server.ask("/v1/chat/completions", continued)["choices"][0]["message"]["content"], expected);
  EXPECT_EQ(server.ask("/tokenize",
                       {{"messages", continued["messages"]}, {"continue_final_message", true}})["tokens"],
            ids);

  json streamed = body;
  streamed["stream"] = true;
  streamed["logprobs"] = true;
  streamed["top_logprobs"] = 2;
  HttpClient client = server.client();
  client.send(post_text("/v1/chat/completions", streamed.dump()));
  ASSERT_EQ(client.head().status, 200);
  const Events events = read_events(client);
  EXPECT_TRUE(events.is_done);
  EXPECT_EQ(events.chunks[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(text_of(events), expected);
  const json& token = events.chunks[1]["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(token["top_logprobs"].size(), 2u);
  const auto bytes = token["bytes"].get<std::vector<uint8_t>>();
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), token["token"]);

  json endless = body;
  endless.erase("max_completion_tokens");
  endless["ignore_eos"] = true;
  EXPECT_EQ(server.ask("/v1/chat/completions", endless)["usage"]["total_tokens"], 512)
      << "what the context leaves";
}

}  // namespace
}  // namespace outrider::testing
