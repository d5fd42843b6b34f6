// Compatibility with clients of other servers: the additional fields, endpoints and headers that they expect.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "served_program.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

class ServeClients : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<ServedProgram>(std::vector<std::string>{"--draft-model",
                                                                       demo_draft(),
                                                                       "--num-speculative-tokens",
                                                                       "4",
                                                                       "--quiet",
                                                                       "--served-model-name",
                                                                       "demo",
                                                                       "--served-model-name",
                                                                       "org/other",
                                                                       "--chat-template",
                                                                       template_,
                                                                       "--allowed-origins",
                                                                       "https://page.example",
                                                                       "--keep-alive-interval",
                                                                       "0.05",
                                                                       "--access-log",
                                                                       log_,
                                                                       "--max-num-seqs",
                                                                       "2",
                                                                       "--model",
                                                                       demo_target()});
  }
  static void TearDownTestSuite() { server_.reset(); }

  static HttpAnswer send(const std::string& text) {
    HttpClient client = server_->client();
    client.send(text);
    return client.answer();
  }
  static json error(const json& body, int status = 400, const std::string& path = "/v1/completions") {
    const HttpAnswer answer = server_->post(path, body);
    EXPECT_EQ(answer.status, status) << answer.body;
    return json::parse(answer.body)["error"];
  }

  static inline TemporaryDirectory directory_;
  static inline std::string template_ = directory_.write(
      "chat.jinja",
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %} time{% endif %}"
      "{% if thinks %}<think>{% endif %}{# </think> #}");
  static inline std::string log_ = directory_ / "access.jsonl";
  static inline std::unique_ptr<ServedProgram> server_;
};

// The demo model never ends its thoughts, so all of its text is one.
TEST_F(ServeClients, ThoughtsAreApart) {
  const json chat{{"messages", {{{"role", "user"}, {"content", "Once upon a"}}}},
                  {"max_tokens", 12},
                  {"temperature", 0},
                  {"chat_template_kwargs", {{"thinks", true}}}};
  const auto message = [&](const json& more) -> json {
    return server_->ask("/v1/chat/completions", with(chat, more))["choices"][0]["message"];
  };
  std::string text = message({{"separate_reasoning", false}})["content"];
  EXPECT_FALSE(message({{"separate_reasoning", false}}).contains("reasoning_content"));
  text.erase(0, text.find_first_not_of(" \n"));
  text.erase(text.find_last_not_of(" \n") + 1);
  ASSERT_FALSE(text.empty());
  EXPECT_EQ(message(json::object())["reasoning_content"], text);
  EXPECT_EQ(message(json::object())["content"], "");
  EXPECT_FALSE(message({{"include_reasoning", false}}).contains("reasoning_content"));
  HttpClient client = server_->client();
  client.send(post_text("/v1/chat/completions", with(chat, {{"stream", true}}).dump()));
  EXPECT_EQ(client.head().status, 200);
  const Events events = read_events(client);
  EXPECT_TRUE(events.is_done);
  std::string thoughts, content;
  for (const json& chunk : events.chunks) {
    const json& delta = chunk["choices"][0]["delta"];
    thoughts += delta.value("reasoning_content", "");
    content += delta.value("content", "");
  }
  EXPECT_EQ(thoughts, text);
  EXPECT_EQ(content, "");
  const json usage = server_->ask("/v1/chat/completions", chat)["usage"];
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 12);
  // The other shapes.
  const json response = server_->ask("/v1/responses", {{"input", "Once upon a"},
                                                       {"max_output_tokens", 12},
                                                       {"temperature", 0},
                                                       {"chat_template_kwargs", {{"thinks", true}}}});
  ASSERT_EQ(response["output"].size(), 1u);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], text);
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"], 12);
  const json answered = server_->ask("/v1/messages", chat);
  EXPECT_EQ(answered["usage"]["output_tokens_details"]["thinking_tokens"], 12);
  const json told = answered["content"];
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0]["thinking"], text);
  const json silent = server_->ask("/v1/messages", with(chat, {{"thinking", {{"type", "disabled"}}}}));
  EXPECT_EQ(silent["content"], (json{{{"type", "text"}, {"text", ""}}})) << "the template has no switch";
}

// A harness that scores texts sends them whole, and asks for no more than their log-probabilities.
TEST_F(ServeClients, ScoresAPromptAsItWasGenerated) {
  const json made =
      server_->complete(with(kGreedy, {{"logprobs", 3}, {"return_token_ids", true}}))["choices"][0];
  json ids = made["prompt_token_ids"];
  const size_t prompt = ids.size();
  ids.insert(ids.end(), made["token_ids"].begin(), made["token_ids"].end());
  const json scored = server_->complete(
      {{"prompt", ids}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 3}, {"temperature", 0}});
  const json& choice = scored["choices"][0];
  const json& logprobs = choice["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), ids.size());
  EXPECT_EQ(choice["text"], "Once upon a time" + made["text"].get<std::string>());
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
  for (size_t i = 1; i < prompt; ++i) EXPECT_LT(logprobs["token_logprobs"][i], 0) << i;
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(logprobs["tokens"][prompt + i], made["logprobs"]["tokens"][i]);
    EXPECT_EQ(logprobs["token_logprobs"][prompt + i], made["logprobs"]["token_logprobs"][i])
        << "to the last bit";
    EXPECT_EQ(logprobs["top_logprobs"][prompt + i], made["logprobs"]["top_logprobs"][i]);
  }
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(logprobs["text_offset"][i], text.size()) << i;
    if (i > 0) text += logprobs["tokens"][i];
    if (i == 1) text.erase(0, text.starts_with(' ') ? 1 : 0);
  }
}

TEST_F(ServeClients, EchoTellsBothAndStreamsTheSame) {
  const json body = with(kGreedy, {{"echo", true}, {"logprobs", 1}, {"max_tokens", 3}});
  const json whole = server_->complete(body)["choices"][0];
  EXPECT_EQ(whole["logprobs"]["tokens"].size(), 5u + 3u);
  HttpClient client = server_->client();
  client.send(post_text("/v1/completions", with(body, {{"stream", true}}).dump()));
  EXPECT_EQ(client.head().status, 200);
  const Events events = read_events(client);
  EXPECT_TRUE(events.is_done);
  EXPECT_EQ(text_of(events), whole["text"]);
  json tokens = json::array();
  for (const json& chunk : events.chunks)
    if (const json& part = chunk["choices"][0]["logprobs"]; part.is_object())
      tokens.insert(tokens.end(), part["token_logprobs"].begin(), part["token_logprobs"].end());
  EXPECT_EQ(tokens, whole["logprobs"]["token_logprobs"]);
}

// More rows than one pass scores.
TEST_F(ServeClients, PromptLogprobsInVllmsShape) {
  std::string prompt;
  for (int i = 0; i < 40; ++i) prompt += "Once upon a time ";
  const json choice = server_->complete({{"prompt", prompt},
                                         {"max_tokens", 1},
                                         {"prompt_logprobs", 2},
                                         {"return_token_ids", true}})["choices"][0];
  const json &told = choice["prompt_logprobs"], &ids = choice["prompt_token_ids"];
  ASSERT_GT(ids.size(), 128u);
  ASSERT_EQ(told.size(), ids.size());
  EXPECT_TRUE(told[0].is_null());
  for (size_t i = 1; i < told.size(); ++i) {
    const json& entry = told[i].at(std::to_string(ids[i].get<int>()));
    EXPECT_LE(entry["logprob"], 0);
    EXPECT_TRUE(told[i].size() == 2 || told[i].size() == 3);
    EXPECT_EQ(entry["rank"].is_null(), told[i].size() == 3) << "of none of the best";
  }
  EXPECT_EQ(error(with(kGreedy, {{"prompt_logprobs", 1}, {"stream", true}}))["param"], "prompt_logprobs");
}

TEST_F(ServeClients, DraftLengthAndPolicyAreEachRequestsOwn) {
  const json plain = server_->complete(with(kGreedy, {{"num_speculative_tokens", 0}}));
  EXPECT_EQ(plain["metrics"]["speculative_decoding"]["num_draft_tokens"], 0);
  const json two = server_->complete(with(kGreedy, {{"num_speculative_tokens", 2}}));
  EXPECT_EQ(two["metrics"]["speculative_decoding"]["num_spec_tokens"], 2);
  const json policy = server_->complete(with(kGreedy, {{"gamma_policy", "fixed:gamma=3"}}));
  EXPECT_EQ(policy["metrics"]["speculative_decoding"]["num_spec_tokens"], 3);
  const json usual = server_->complete(kGreedy);
  EXPECT_EQ(usual["metrics"]["speculative_decoding"]["num_spec_tokens"], 4);
  for (const json& reply : {two, policy, usual})
    EXPECT_EQ(reply["choices"][0]["text"], plain["choices"][0]["text"]);
  EXPECT_EQ(error(with(kGreedy, {{"num_speculative_tokens", 17}}))["param"], "num_speculative_tokens")
      << "--max-num-speculative-tokens";
  EXPECT_EQ(error(with(kGreedy, {{"gamma_policy", "fixed:gamma=17"}}))["param"], "gamma_policy");
  EXPECT_EQ(error(with(kGreedy, {{"gamma_policy", "fxed"}}))["param"], "gamma_policy");
}

// With drafts and without, streamed and whole.
TEST_F(ServeClients, TokensAreAllowedAndForbidden) {
  const json free = server_->complete(with(kGreedy, {{"return_token_ids", true}}))["choices"][0];
  const json ids = free["token_ids"];
  const json few{ids[0], ids[1]};
  const auto made = [&](const json& more) {
    const json plain = server_->complete(
        with(with(kGreedy, {{"return_token_ids", true}, {"num_speculative_tokens", 0}}), more));
    const json drafted = server_->complete(with(with(kGreedy, {{"return_token_ids", true}}), more));
    EXPECT_EQ(plain["choices"][0]["token_ids"], drafted["choices"][0]["token_ids"]) << more;
    return drafted["choices"][0];
  };
  for (const json& id : made({{"allowed_token_ids", few}})["token_ids"])
    EXPECT_TRUE(id == few[0] || id == few[1]) << id;
  ASSERT_NE(free["text"].get<std::string>().find("was"), std::string::npos) << free["text"];
  // Other tokens may spell it; the one that stands for it is not drawn.
  const json word = server_->ask("/tokenize", {{"prompt", " was"}, {"add_special_tokens", false}})["tokens"];
  ASSERT_EQ(word.size(), 1u);
  ASSERT_NE(std::find(ids.begin(), ids.end(), word[0]), ids.end());
  const json without = made({{"bad_words", {"was"}}})["token_ids"];
  EXPECT_EQ(std::find(without.begin(), without.end(), word[0]), without.end());
  EXPECT_EQ(made({{"bad_words", {"xylophone"}}})["token_ids"], ids);
  EXPECT_EQ(error(with(kGreedy, {{"bad_words", 1}}))["param"], "bad_words");
}

TEST_F(ServeClients, StopTextsStayWhereTheyAreAskedFor) {
  const json cut = server_->complete(with(kGreedy, {{"stop", {" a "}}}))["choices"][0];
  ASSERT_EQ(cut["finish_reason"], "stop");
  const json asks = with(kGreedy, {{"stop", {" a "}}, {"include_stop_str_in_output", true}});
  EXPECT_EQ(server_->complete(asks)["choices"][0]["text"], cut["text"].get<std::string>() + " a ");
  HttpClient client = server_->client();
  client.send(post_text("/v1/completions", with(asks, {{"stream", true}}).dump()));
  EXPECT_EQ(client.head().status, 200);
  EXPECT_EQ(text_of(read_events(client)), cut["text"].get<std::string>() + " a ");
}

TEST_F(ServeClients, IdsOfPromptsStandAtOnePlace) {
  const json chat{{"messages", {{{"role", "user"}, {"content", "Once upon a"}}}},
                  {"max_tokens", 2},
                  {"temperature", 0},
                  {"return_token_ids", true},
                  {"logprobs", true},
                  {"return_tokens_as_token_ids", true}};
  const json whole = server_->ask("/v1/chat/completions", chat);
  EXPECT_EQ(whole["choices"][0]["logprobs"]["content"][0]["token"],
            "token_id:" + std::to_string(whole["choices"][0]["token_ids"][0].get<int>()));
  HttpClient client = server_->client();
  client.send(post_text("/v1/chat/completions", with(chat, {{"stream", true}}).dump()));
  EXPECT_EQ(client.head().status, 200);
  const Events events = read_events(client);
  ASSERT_FALSE(events.chunks.empty());
  EXPECT_EQ(events.chunks[0]["prompt_token_ids"], whole["prompt_token_ids"]);
  EXPECT_FALSE(events.chunks[0]["choices"][0].contains("prompt_token_ids"));
  const json completed = server_->complete(with(kGreedy, {{"return_token_ids", true}}));
  EXPECT_TRUE(completed["choices"][0].contains("prompt_token_ids"));
}

TEST_F(ServeClients, TheTokenizerTellsAboutItself) {
  const json info = json::parse(server_->client().get("/tokenizer_info").body);
  EXPECT_GT(info["vocab_size"], 0);
  EXPECT_TRUE(info["chat_template"].is_string()) << "the one that is used";
}

TEST_F(ServeClients, TextsEndWhereTheyAreTold) {
  const json body = with(kGreedy, {{"max_tokens", 200}, {"return_token_ids", true}});
  const json free = server_->complete(body)["choices"][0];
  ASSERT_EQ(free["finish_reason"], "stop") << "this test wants a text that ends by itself";
  const json ids = free["token_ids"];
  const int end = ids.back();

  const json longer =
      server_->complete(with(body, {{"min_tokens", ids.size() + 10}}))["choices"][0]["token_ids"];
  EXPECT_GE(longer.size(), ids.size() + 10);
  for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(longer[i], ids[i]);
  for (size_t i = 0; i < ids.size() + 9; ++i) EXPECT_NE(longer[i], end) << i;
  EXPECT_EQ(server_->complete(with(body, {{"min_tokens", ids.size() + 10},
                                          {"num_speculative_tokens", 0}}))["choices"][0]["token_ids"],
            longer)
      << "drafts change nothing";

  const json cut = server_->complete(with(body, {{"stop_token_ids", {ids[4]}}}))["choices"][0];
  EXPECT_EQ(cut["finish_reason"], "stop");
  EXPECT_EQ(cut["token_ids"].back(), ids[4]);
  EXPECT_LE(cut["token_ids"].size(), 5u);
  EXPECT_EQ(error(with(body, {{"stop_token_ids", {1 << 30}}}))["param"], "stop_token_ids");
  EXPECT_EQ(error(with(body, {{"min_tokens", 500}}))["param"], "min_tokens");
  EXPECT_EQ(server_->complete(with(kGreedy, {{"top_k", -1}}))["choices"][0]["text"],
            server_->complete(kGreedy)["choices"][0]["text"]);
}

// A stop token behaves as in vLLM: it counts as a generated token and is among the ids, but it is not in the
// text.
TEST_F(ServeClients, AStopTokenIsNoPartOfTheText) {
  const json body = with(kGreedy, {{"max_tokens", 12}, {"return_token_ids", true}});
  const json ids = server_->complete(body)["choices"][0]["token_ids"];
  const json one_less = server_->complete(with(body, {{"max_tokens", 7}}))["choices"][0]["text"];
  for (const json& drafts : {json::object(), json{{"num_speculative_tokens", 0}}}) {
    const json reply =
        server_->complete(with(with(body, {{"stop_token_ids", {ids[7]}}, {"min_tokens", 7}}), drafts));
    const json& choice = reply["choices"][0];
    ASSERT_EQ(choice["token_ids"], json(std::vector<json>(ids.begin(), ids.begin() + 8)));
    EXPECT_EQ(choice["text"], one_less);
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(reply["usage"]["completion_tokens"], 8);
    HttpClient client = server_->client();
    client.send(post_text(
        "/v1/completions",
        with(with(body, {{"stop_token_ids", {ids[7]}}, {"min_tokens", 7}, {"stream", true}}), drafts)
            .dump()));
    EXPECT_EQ(client.head().status, 200);
    std::string streamed;
    for (const json& chunk : read_events(client).chunks) streamed += chunk["choices"][0]["text"];
    EXPECT_EQ(streamed, one_less);
  }
}

TEST_F(ServeClients, StopTextsCountBehindMinTokens) {
  const json body = with(kGreedy, {{"max_tokens", 12}, {"return_token_ids", true}});
  const json free = server_->complete(body)["choices"][0];
  const json word = server_->ask("/detokenize", {{"tokens", {free["token_ids"][4]}}})["prompt"];
  ASSERT_FALSE(word.get<std::string>().empty());
  const json at_once = server_->complete(with(body, {{"stop", word}}))["choices"][0];
  ASSERT_EQ(at_once["token_ids"].size(), 5u) << "this test wants a word that nothing before it has";
  for (const json& drafts : {json::object(), json{{"num_speculative_tokens", 0}}}) {
    for (const bool ignores : {false, true}) {
      const json later = server_->complete(with(
          with(body, {{"stop", word}, {"min_tokens", 10}, {"ignore_eos", ignores}}), drafts))["choices"][0];
      EXPECT_GE(later["token_ids"].size(), 10u);
      const std::string begins = at_once["text"].get<std::string>() + word.get<std::string>();
      EXPECT_TRUE(later["text"].get<std::string>().starts_with(begins)) << later << begins;
    }
    const json before = server_->complete(with(with(body, {{"stop", word}, {"min_tokens", 4}}), drafts));
    EXPECT_EQ(before["choices"][0]["text"], at_once["text"]);
  }
}

TEST_F(ServeClients, ParametersThatBreakTheNumbersAreTheClients) {
  for (const auto& [key, value] : {std::pair<const char*, json>{"repetition_penalty", 1e-38},
                                   {"repetition_penalty", 1e38},
                                   {"presence_penalty", 1e38},
                                   {"frequency_penalty", -1e30},
                                   {"logit_bias", {{"5", 3e38}}}})
    EXPECT_EQ(error(with(kGreedy, {{key, value}}))["param"], key);
  const json edge = {{"repetition_penalty", 0.001},
                     {"presence_penalty", -1e6},
                     {"frequency_penalty", 1e6},
                     {"logit_bias", {{"5", 1e6}, {"6", -1e6}}},
                     {"temperature", 1e-5}};
  EXPECT_EQ(server_->complete(with(kGreedy, edge))["choices"].size(), 1u);
}

TEST_F(ServeClients, ATimeoutFreesThePlace) {
  const json slow = {{"prompt", "Once"}, {"max_tokens", 400}, {"ignore_eos", true}, {"timeout", 0.01}};
  const json refusal = error(slow, 504);
  EXPECT_EQ(refusal["code"], "deadline_exceeded");
  HttpClient client = server_->client();
  client.send(post_text("/v1/completions", with(slow, {{"stream", true}}).dump()));
  EXPECT_EQ(client.head().status, 200);
  const Events events = read_events(client);
  EXPECT_FALSE(events.is_done);
  ASSERT_FALSE(events.chunks.empty());
  EXPECT_EQ(events.chunks.back()["error"]["code"], "deadline_exceeded");
  EXPECT_EQ(server_->complete(with(kGreedy, {{"timeout", 60}}))["choices"].size(), 1u);
}

TEST_F(ServeClients, ModelsByTheirNames) {
  HttpClient client = server_->client();
  EXPECT_EQ(json::parse(client.get("/v1/models/demo").body)["id"], "demo");
  EXPECT_EQ(json::parse(client.get("/v1/models/org/other").body)["id"], "org/other");
  EXPECT_EQ(json::parse(client.get("/v1/models/org%2Fother").body)["id"], "org/other");
  const HttpAnswer none = client.get("/v1/models/gpt-4");
  EXPECT_EQ(none.status, 404);
  EXPECT_EQ(json::parse(none.body)["error"]["code"], "model_not_found");
  EXPECT_EQ(server_->complete(with(kGreedy, {{"model", "org/other"}}))["model"], "demo") << "the first";
}

TEST_F(ServeClients, RequestIdsComeBack) {
  const auto id_of = [](const std::string& header) {
    return send("GET /health HTTP/1.1\r\nHost: localhost\r\n" + header + "\r\n").headers.at("x-request-id");
  };
  EXPECT_EQ(id_of("X-Request-Id: mine-7\r\n"), "mine-7");
  const std::string made = id_of("");
  EXPECT_TRUE(made.starts_with("req-")) << made;
  EXPECT_NE(id_of(""), made);
  EXPECT_TRUE(id_of("X-Request-Id: two words\r\n").starts_with("req-"));
  EXPECT_TRUE(id_of("X-Request-Id: " + std::string(200, 'x') + "\r\n").starts_with("req-"));
}

TEST_F(ServeClients, PagesOfAllowedOriginsMayAsk) {
  const auto preflight = [](const std::string& origin) {
    return send("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
                "\r\nAccess-Control-Request-Headers: authorization, x-other\r\n\r\n");
  };
  const HttpAnswer allowed = preflight("https://page.example");
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(allowed.headers.at("access-control-allow-origin"), "https://page.example");
  EXPECT_EQ(allowed.headers.at("access-control-allow-headers"), "authorization, x-other");
  EXPECT_EQ(preflight("https://evil.example").headers.count("access-control-allow-origin"), 0u);
  const HttpAnswer answer =
      send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: https://page.example\r\n\r\n");
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://page.example");
  EXPECT_EQ(answer.headers.at("vary"), "Origin");
}

// Both KV slots are taken. A waiting stream gets its headers at once, and comments while it waits.
TEST_F(ServeClients, AStreamThatWaitsHasHeadersAndComments) {
  const json busy = {{"prompt", "Once"}, {"max_tokens", 480}, {"ignore_eos", true}, {"stream", true}};
  std::vector<HttpClient> others;
  for (int i = 0; i < 8; ++i) {
    others.push_back(server_->client());
    others.back().send(post_text("/v1/completions", busy.dump()));
    EXPECT_EQ(others.back().head().status, 200);
  }
  HttpClient client = server_->client();
  client.send(post_text("/v1/completions", with(kGreedy, {{"stream", true}}).dump()));
  EXPECT_EQ(client.head().status, 200);
  const HttpAnswer health = server_->client().get("/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(client.comment(), "waiting");
  for (HttpClient& other : others) other.leave();
  EXPECT_TRUE(read_events(client).is_done);
}

// Whatever other tests asked for: under a salt of its own nothing is there, and then all but the last token.
TEST_F(ServeClients, UsageTellsWhatOfAPromptWasThere) {
  json body{{"prompt", "Once upon a time there was a little dog who liked to play in the garden."},
            {"max_tokens", 20},
            {"temperature", 0},
            {"cache_salt", "usage"}};
  const auto cached = [](const json& usage) {
    return usage["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  const json first = server_->complete(body), again = server_->complete(body);
  const int prompt = first["usage"]["prompt_tokens"];
  ASSERT_GT(prompt, 16);
  EXPECT_EQ(cached(first["usage"]), 0);
  EXPECT_EQ(cached(again["usage"]), prompt - 1);
  EXPECT_EQ(again["choices"], first["choices"]);

  HttpClient client = server_->client();
  const json streamed = {{"stream", true}, {"stream_options", {{"include_usage", true}}}};
  client.send(post_text("/v1/completions", with(body, streamed).dump()));
  EXPECT_EQ(client.head().status, 200);
  EXPECT_EQ(cached(read_events(client).chunks.back()["usage"]), prompt - 1);
  body["n"] = 3;
  EXPECT_EQ(cached(server_->complete(body)["usage"]), prompt - 1) << "the first choice's, once";
  body["cache_salt"] = "another";
  EXPECT_EQ(cached(server_->complete(body)["usage"]), 0);
  body["prompt_logprobs"] = 0;
  EXPECT_EQ(cached(server_->complete(body)["usage"]), 0) << "every row was asked about";
  body["cache_salt"] = "";
  EXPECT_EQ(error(body)["param"], "cache_salt");
  const std::string metrics = server_->client().get("/metrics").body;
  const size_t line = metrics.find("\noutrider_prefix_cache_hits_total{");
  ASSERT_NE(line, std::string::npos);
  EXPECT_GE(std::stod(metrics.substr(metrics.find("} ", line) + 2)), 3 * (prompt - 1));
}

TEST_F(ServeClients, AnthropicsMessages) {
  const json body{{"model", "demo"},
                  {"max_tokens", 12},
                  {"temperature", 0},
                  {"system", "Once "},
                  {"messages", {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "upon a"}}}}}}}};
  const json reply = server_->ask("/v1/messages", body);
  EXPECT_EQ(reply["type"], "message");
  EXPECT_EQ(reply["stop_reason"], "max_tokens");
  EXPECT_EQ(reply["usage"]["output_tokens"], 12);
  const json chat = server_->ask(
      "/v1/chat/completions",
      {{"messages", {{{"role", "system"}, {"content", "Once "}}, {{"role", "user"}, {"content", "upon a"}}}},
       {"max_tokens", 12},
       {"temperature", 0}});
  const std::string text = chat["choices"][0]["message"]["content"];
  EXPECT_EQ(reply["content"][0]["text"], text);
  const json usage = server_->ask("/v1/messages", body)["usage"];
  const int cached = usage["cache_read_input_tokens"];
  EXPECT_EQ(cached, chat["usage"]["prompt_tokens"].get<int>() - 1);
  EXPECT_EQ(usage["input_tokens"], 1);

  HttpClient client = server_->client();
  client.send(post_text("/v1/messages", with(body, {{"stream", true}}).dump()));
  EXPECT_EQ(client.head().status, 200);
  std::string streamed;
  std::vector<std::string> types;
  while (const auto event = client.event()) {
    const json data = json::parse(*event);
    types.push_back(data["type"]);
    if (data["type"] == "content_block_delta") streamed += data["delta"]["text"];
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(types.front(), "message_start");
  EXPECT_EQ(types.back(), "message_stop");
  EXPECT_TRUE(reply["stop_sequence"].is_null());
  const std::string stop = text.substr(text.size() / 2, 3);
  const json ending = with(body, {{"stop_sequences", {"not there", stop}}});
  const json ended = server_->ask("/v1/messages", ending);
  EXPECT_EQ(ended["content"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(ended["stop_reason"], "stop_sequence");
  EXPECT_EQ(ended["stop_sequence"], stop);
  json told;
  HttpClient second = server_->client();
  second.send(post_text("/v1/messages", with(ending, {{"stream", true}}).dump()));
  EXPECT_EQ(second.head().status, 200);
  while (const auto event = second.event())
    if (const json data = json::parse(*event); data["type"] == "message_delta") told = data["delta"];
  EXPECT_EQ(told, (json{{"stop_reason", "stop_sequence"}, {"stop_sequence", stop}}));

  const HttpAnswer refused = server_->post("/v1/messages", with(body, {{"stop_sequences", {""}}}));
  EXPECT_EQ(json::parse(refused.body)["type"], "error");
  EXPECT_EQ(json::parse(refused.body)["error"]["param"], "stop_sequences") << refused.body;
  EXPECT_EQ(error(with(body, {{"stop", "x"}}), 400, "/v1/messages")["param"], "stop");
  json without = body;
  without.erase("max_tokens");
  EXPECT_EQ(error(without, 400, "/v1/messages")["param"], "max_tokens");
  EXPECT_EQ(error(with(body, {{"tools", {1}}}), 400, "/v1/messages")["param"], "tools");
}

TEST_F(ServeClients, OpenAisResponses) {
  const json body{{"input", "Once upon a"}, {"max_output_tokens", 12}, {"temperature", 0}};
  const json reply = server_->ask("/v1/responses", body);
  EXPECT_EQ(reply["object"], "response");
  EXPECT_EQ(reply["status"], "incomplete");
  EXPECT_EQ(reply["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(reply["usage"]["output_tokens"], 12);
  const std::string text = reply["output"][0]["content"][0]["text"];
  EXPECT_FALSE(text.empty());
  const json items = {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "Once upon a"}}}}}};
  EXPECT_EQ(server_->ask("/v1/responses", with(body, {{"input", items}}))["output"][0]["content"][0]["text"],
            text);
  // Long fields are not repeated in every event, because the client would be disconnected as a slow one.
  const json long_one =
      with(body, {{"instructions", "Be short."}, {"metadata", {{"a", std::string(900'000, 'b')}}}});
  const json repeated = server_->ask("/v1/responses", long_one);
  EXPECT_EQ(repeated["instructions"], long_one["instructions"]);
  EXPECT_EQ(repeated["metadata"], json::object());
  const json usage = server_->ask("/v1/responses", body)["usage"];
  EXPECT_EQ(usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"].get<int>() - 1);

  HttpClient client = server_->client();
  client.send(post_text("/v1/responses", with(body, {{"stream", true}}).dump()));
  EXPECT_EQ(client.head().status, 200);
  std::string streamed, last;
  int64_t number = 0;
  while (const auto event = client.event()) {
    const json data = json::parse(*event);
    EXPECT_EQ(data["sequence_number"], number++);
    last = data["type"];
    if (last == "response.output_text.delta") streamed += data["delta"];
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(last, "response.incomplete");
  const auto param = [&](const json& more) { return error(with(body, more), 400, "/v1/responses")["param"]; };
  EXPECT_EQ(param({{"previous_response_id", "resp_1"}}), "previous_response_id");
  const json kept = error(with(body, {{"conversation", "conv_1"}}), 400, "/v1/responses");
  EXPECT_NE(kept["message"].get<std::string>().find("the whole conversation in \"input\""),
            std::string::npos);
  EXPECT_EQ(param({{"max_output_tokens", 0}}), "max_output_tokens");
  EXPECT_EQ(param({{"input", std::string(100'000, 'x')}}), "input");
  EXPECT_EQ(param({{"messages", json::array()}}), "messages");
  EXPECT_EQ(param({{"max_completion_tokens", 5}}), "max_completion_tokens");
  EXPECT_EQ(param({{"truncation", "auto"}}), "truncation");
  EXPECT_EQ(param({{"background", "yes"}}), "background");
}

TEST_F(ServeClients, ResponsesTellWhatWasAsked) {
  const json tools = {{{"type", "function"}, {"name", "f"}, {"parameters", {{"type", "object"}}}}};
  const json sent{{"tools", tools},
                  {"tool_choice", "none"},
                  {"parallel_tool_calls", false},
                  {"metadata", {{"a", "b"}}},
                  {"instructions", "Be brief. "},
                  {"temperature", 0},
                  {"top_p", 0.5},
                  {"max_output_tokens", 3},
                  {"truncation", "disabled"},
                  {"text", {{"format", {{"type", "text"}}}}},
                  {"user", "me"}};
  const json reply = server_->ask("/v1/responses", with(sent, {{"input", "Once"}}));
  for (const auto& [key, value] : sent.items()) EXPECT_EQ(reply[key], value) << key;
  const json silent = server_->ask("/v1/responses", {{"input", "Once"}, {"max_output_tokens", 2}});
  EXPECT_EQ(silent["tools"], json::array());
  EXPECT_EQ(silent["tool_choice"], "auto");
  EXPECT_EQ(silent["parallel_tool_calls"], true);
  EXPECT_TRUE(silent["instructions"].is_null());
}

TEST_F(ServeClients, ThePageAndItsNumbers) {
  server_->complete(kGreedy);
  HttpClient client = server_->client();
  const HttpAnswer page = client.get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_TRUE(page.headers.at("content-type").starts_with("text/html"));
  EXPECT_NE(page.body.find("fetch(\"status\""), std::string::npos);
  const json status = json::parse(client.get("/status").body);
  EXPECT_EQ(status["state"], "ready");
  EXPECT_EQ(status["model"], "demo");
  EXPECT_EQ(status["gamma_policy"], "fixed:gamma=4");
  EXPECT_GT(status["tokens"]["generated"], 0);
  EXPECT_GT(status["times"]["whole"]["count"], 0);
  ASSERT_EQ(status["workers"].size(), 1u);
  EXPECT_EQ(status["workers"][0]["state"], "drafting");
  EXPECT_GT(status["workers"][0]["acceptance"], 0);
  EXPECT_GT(status["responses"]["200"], 0);
}

TEST_F(ServeClients, EveryAnswerIsLoggedAndCounted) {
  send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: logged-1\r\nContent-Type: "
      "application/json\r\nContent-Length: 2\r\n\r\n{}");
  send("GET /nothing HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: logged-2\r\n\r\n");
  std::map<std::string, json> lines;
  for (int i = 0; i < 100 && lines.size() < 2; ++i) {
    std::ifstream in(log_);
    for (std::string line; std::getline(in, line);) {
      const json entry = json::parse(line);
      const std::string id = entry["request_id"];
      if (id.starts_with("logged-")) lines[id] = entry;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines["logged-1"]["status"], 400);
  EXPECT_EQ(lines["logged-1"]["path"], "/v1/completions");
  EXPECT_EQ(lines["logged-2"]["status"], 404);
  EXPECT_EQ(lines["logged-2"]["client"], "127.0.0.1");
  const std::string metrics = server_->client().get("/metrics").body;
  EXPECT_NE(metrics.find("outrider_http_responses_total{model_name=\"demo\",status=\"404\"}"),
            std::string::npos);
  for (const char* name : {"process_resident_memory_bytes", "outrider_kv_cache_usage_perc",
                           "outrider_request_queue_time_seconds_count", "outrider_draft_worker_usable",
                           "outrider_gamma_policy_info", "outrider_recent_speedup"})
    EXPECT_NE(metrics.find(name), std::string::npos) << name;
}

TEST(ServeKeys, OneOfSeveralAndBothHeaders) {
  ServedProgram server({"--api-key", "first,second", "--drafter", "ngram", "--quiet"});
  const auto status = [&](const std::string& header) {
    HttpClient client = server.client();
    client.send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + header + "\r\n");
    return client.answer().status;
  };
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status("Authorization: Bearer third\r\n"), 401);
  EXPECT_EQ(status("Authorization: Bearer first\r\n"), 200);
  EXPECT_EQ(status("Authorization: Bearer second\r\n"), 200);
  EXPECT_EQ(status("X-Api-Key: second\r\n"), 200);
  EXPECT_EQ(server.client().get("/").status, 200) << "the page has nothing secret in it";
  EXPECT_EQ(server.client().get("/status").status, 401);
}

// Two ways of drafting on one server, under the same load, in turns.
TEST_F(ServeClients, AreImitatedByServeBench) {
  const std::string url = "http://127.0.0.1:" + std::to_string(server_->port());
  const std::string report = directory_ / "load.json", page = directory_ / "load.html";
  const Outcome outcome = outrider_program({"serve-bench",
                                            "--server",
                                            url,
                                            "--rates",
                                            "20",
                                            "--duration",
                                            "0.5",
                                            "--turns",
                                            "2",
                                            "--prompt-tokens",
                                            "12",
                                            "--output-tokens",
                                            "6",
                                            "--prefix-tokens",
                                            "4",
                                            "--variant",
                                            R"(plain={"num_speculative_tokens": 0})",
                                            "--variant",
                                            "drafts={}",
                                            "--report",
                                            report,
                                            "--html",
                                            page});
  ASSERT_TRUE(outcome.succeeded()) << outcome.describe();
  EXPECT_NE(outcome.out.find("plain"), std::string::npos);
  const json arms = json::parse(read_file(report))["rates"][0]["arms"];
  ASSERT_EQ(arms.size(), 2u);
  for (const json& arm : arms) {
    EXPECT_EQ(arm["requests"], 20);
    EXPECT_EQ(arm["failed"], 0);
    EXPECT_EQ(arm["tokens"], 20 * 6);
    EXPECT_GT(arm["first_token_s"]["p50"], 0);
    EXPECT_GE(arm["whole_s"]["p95"], arm["first_token_s"]["p50"]);
  }
  EXPECT_EQ(arms[0]["draft_tokens"], 0);
  EXPECT_GT(arms[1]["draft_tokens"], 0);
  EXPECT_NE(read_file(page).find("Goodput"), std::string::npos);
  const Outcome nobody = outrider_program({"serve-bench", "--server", "http://127.0.0.1:1", "--quiet"});
  EXPECT_EQ(nobody.code, 3) << nobody.describe();
}

}  // namespace
}  // namespace outrider::testing
