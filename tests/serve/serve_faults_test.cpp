// `outrider serve` under hostile, impatient and too many clients, and when it is asked to stop.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>
#include <tuple>

#include "served_program.h"
#include "tests/support/cut_vocabulary.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

const json kShort{{"prompt", "Once upon a time"}, {"max_tokens", 5}, {"temperature", 0}};

// A request for `n` texts of 400 tokens. They run one after the other where there is one KV slot.
json endless(int n) {
  return {
      {"prompt", "Once upon a time"}, {"max_tokens", 400}, {"n", n}, {"ignore_eos", true}, {"stream", true}};
}

json error_of(const HttpAnswer& answer) {
  const json body = json::parse(answer.body, nullptr, false);
  EXPECT_TRUE(body.is_object() && body.contains("error")) << answer.status << " " << answer.body;
  return body.is_object() ? body["error"] : json();
}

// Whether it comes true, for what only the program's own clock brings about.
bool until(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience * std::chrono::seconds(30);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

// Where draft workers may join a server with --listen.
std::string address_told_by(ServedProgram& server) {
  const std::string said = server.process().err();
  const size_t begin = said.find("tcp://127.0.0.1:");
  return said.substr(begin, said.find_first_not_of("0123456789", begin + 16) - begin);
}

// Tokens so far.
int64_t drafted_by(ServedProgram& server) {
  const std::string text = server.client().get("/metrics").body;
  const size_t at = text.find("\noutrider_spec_decode_num_draft_tokens_total{");
  return at == std::string::npos ? -1 : std::stoll(text.substr(text.find("} ", at) + 2));
}

// A sample of /metrics, by name and labels as they stand there; -1: there is none.
int64_t sample(ServedProgram& server, const std::string& name) {
  std::string text = "\n";
  text += server.client().get("/metrics").body;
  const size_t at = text.find("\noutrider_" + name + " ");
  return at == std::string::npos ? -1 : std::stoll(text.substr(text.find(' ', at)));
}
std::string ended(const std::string& reason) {
  return "request_success_total{model_name=\"demo\",finished_reason=\"" + reason + "\"}";
}
const std::string kRunning = "num_requests_running{model_name=\"demo\"}",
                  kWaiting = "num_requests_waiting{model_name=\"demo\"}",
                  kGenerated = "generation_tokens_total{model_name=\"demo\"}";
constexpr int64_t kLittleMemory = kPatience * (int64_t{64} << 20);

struct Hostile {
  const char* name;
  std::string body;
  std::string param;  // that the error names; empty: none, *: any
  int status = 400;
};

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

std::vector<Hostile> hostile_bodies() {
  const std::string rest = R"(, "prompt": "x", "max_tokens": 2})";
  return {
      {"n", R"({"n": 1000000000)" + rest, "n"},
      {"n_overflow", R"({"n": 99999999999999999999)" + rest, "n"},
      {"n_fraction", R"({"n": 1.5)" + rest, "n"},
      {"max_tokens", R"({"max_tokens": -1, "prompt": "x"})", "max_tokens"},
      {"max_tokens_zero", R"({"max_tokens": 0, "prompt": "x"})", "max_tokens"},
      {"max_tokens_large", R"({"max_tokens": 4294967296, "prompt": "x"})", "max_tokens"},
      {"seed", R"({"seed": -2)" + rest, "seed"},
      {"temperature", R"({"temperature": "hot")" + rest, "temperature"},
      {"temperature_huge", R"({"temperature": 1e39)" + rest, "temperature"},
      {"infinite", R"({"temperature": 1e999)" + rest, ""},
      {"nan", R"({"temperature": NaN)" + rest, ""},
      {"top_p", R"({"top_p": 0)" + rest, "top_p"},
      {"top_k", R"({"top_k": -2)" + rest, "top_k"},
      {"logprobs", R"({"logprobs": 101)" + rest, "logprobs"},
      {"best_of", R"({"best_of": 3)" + rest, "best_of"},
      {"rule", R"({"rule": "best")" + rest, "rule"},
      {"bias_id", R"({"logit_bias": {"4096": 1})" + rest, "logit_bias"},
      {"bias_key", R"({"logit_bias": {"a": 1})" + rest, "logit_bias"},
      {"stop_empty", R"({"stop": "")" + rest, "stop"},
      {"stop_many", R"({"stop": ["a")" + repeated(R"(, "a")", 20) + "]" + rest, "stop"},
      {"stop_list", R"({"stop": ["a")" + repeated(R"(, "aaaaaaaaaaaaaaaa")", 500'000) + "]" + rest, "", 413},
      {"stop_long", R"({"stop": ")" + std::string(100'000, 'a') + "\"" + rest, "stop"},
      {"stream_options", R"({"stream_options": {"include_usage": true})" + rest, "stream_options"},
      {"suffix", R"({"suffix": "y")" + rest, "suffix"},
      {"tools", R"({"tools": [{}])" + rest, "tools"},
      {"tools_object", R"({"tools": {})" + rest, "tools"},
      {"tools_text", R"({"tools": "")" + rest, "tools"},
      {"policy_list", R"({"gamma_policy": "list")" + rest, "gamma_policy"},
      {"format", R"({"response_format": {"type": "json_object"})" + rest, "response_format",
       501},  // no library
      {"min_tokens", R"({"min_tokens": 5)" + rest, "min_tokens"},
      {"min_tokens_huge", R"({"max_tokens": 2147483647, "min_tokens": 2147483647, "prompt": "x"})",
       "min_tokens"},
      {"unknown", R"({"temprature": 1)" + rest, "temprature"},
      {"chat_field", R"({"messages": [])" + rest, "messages"},
      {"model", R"({"model": "gpt-4")" + rest, "model", 404},
      {"no_prompt", R"({"max_tokens": 2})", "prompt"},
      {"prompt_type", R"({"prompt": {"a": 1}})", "prompt"},
      {"prompt_none", R"({"prompt": []})", "prompt"},
      {"prompt_no_ids", R"({"prompt": [[]]})", "prompt"},
      {"prompt_mixed", R"({"prompt": [1, "a"]})", "prompt"},
      {"prompt_id", R"({"prompt": [4096]})", "prompt"},
      {"prompt_negative", R"({"prompt": [-1]})", "prompt"},
      {"prompt_many", R"({"prompt": ["a")" + repeated(R"(, "a")", 128) + "]}", "prompt"},
      {"prompt_long", R"({"prompt": ")" + repeated("dog ", 1000) + "\"}", "prompt"},
      {"deep", repeated(R"({"a":)", 100'000), ""},
      {"deep_list", R"({"prompt": )" + std::string(100'000, '['), ""},
      {"duplicate", R"({"n": 1, "n": 2)" + rest, ""},
      {"utf8", "{\"prompt\": \"\xff\xfe\"}", ""},
      {"surrogate", R"({"prompt": "\ud800"})", ""},
      {"cut", R"({"prompt": "x)", ""},
      {"trailing", R"({"prompt": "x"} x)", ""},
      {"empty", "", ""},
      {"list", "[1]", ""},
      {"text", "\"x\"", ""},
      {"long_key", "{\"" + std::string(500'000, 'k') + "\": 1}", "*"}};
}

// Hundreds of bad requests are refused while a stream runs. The stream is not affected.
TEST(ServeFaults, HostileBodiesAreRefusedByNameAndDisturbNobody) {
  ServedProgram server({"--draft-model", demo_draft(), "--quiet"});
  const json whole{{"prompt", "Once upon a time"}, {"max_tokens", 200}, {"seed", 1}, {"ignore_eos", true}};
  const json expected = server.complete(whole)["choices"][0]["text"];
  json streamed = whole;
  streamed["stream"] = true;
  HttpClient other = server.client();
  other.send(post_text("/v1/completions", streamed.dump()));
  for (const Hostile& hostile : hostile_bodies()) {
    SCOPED_TRACE(hostile.name);
    const HttpAnswer answer = server.client().post("/v1/completions", hostile.body);
    EXPECT_EQ(answer.status, hostile.status) << answer.body;
    const json error = error_of(answer);
    EXPECT_LT(error["message"].get<std::string>().size(), 1000u);
    EXPECT_GT(error["message"].get<std::string>().size(), 10u);
    if (hostile.param == "*") continue;
    EXPECT_EQ(error["param"], hostile.param.empty() ? json() : json(hostile.param)) << error;
  }
  ASSERT_EQ(other.head().status, 200);
  EXPECT_EQ(text_of(read_events(other)), expected);
  EXPECT_EQ(server.complete(kShort)["usage"]["completion_tokens"], 5);
  EXPECT_EQ(error_of(server.post("/v1/completions", {{"prompt", std::string(3000, 'x')}}))["code"],
            "context_length_exceeded");
}

TEST(ServeFaults, TokenEndpointsAreAsStrict) {
  ServedProgram server({"--quiet"});
  for (const auto& [path, body, param] :
       {std::tuple{"/tokenize", R"({"prompt": 1})", "prompt"},
        {"/tokenize", R"({"model": "demo"})", "prompt"},
        {"/tokenize", R"({"prompt": "x", "messages": [{"role": "user", "content": "x"}]})", "prompt"},
        {"/tokenize", R"({"prompt": "x", "add_special_token": false})", "add_special_token"},
        {"/tokenize", R"({"prompt": "x", "model": "gpt-4"})", "model"},
        {"/detokenize", R"({"tokens": [4096]})", "tokens"},
        {"/detokenize", R"({"tokens": ["a"]})", "tokens"},
        {"/detokenize", R"({})", "tokens"}}) {
    const HttpAnswer answer = server.client().post(path, body);
    EXPECT_EQ(answer.status, std::string(param) == "model" ? 404 : 400) << body;
    EXPECT_EQ(error_of(answer)["param"], param) << answer.body;
  }
}

// A reply marks synthetic acceptance as `generate` does: with chosen acceptance rates the text is not the
// model's.
TEST(ServeFaults, SyntheticTextsSaySo) {
  ServedProgram server({"--draft-model", demo_draft(), "--synthetic-acceptance", "rates:0.8", "--quiet"});
  EXPECT_EQ(server.complete(kShort)["synthetic_acceptance"], "rates:0.8");
}

// Nulls and what changes nothing are accepted, whoever sends them.
TEST(ServeFaults, FieldsThatChangeNothingAreAccepted) {
  ServedProgram server({"--quiet"});
  json body = kShort;
  const json expected = server.complete(body)["choices"];
  body.update({{"user", "somebody"},
               {"metadata", {{"a", "b"}}},
               {"store", false},
               {"suffix", nullptr},
               {"unheard_of", nullptr},
               {"best_of", 1},
               {"n", nullptr},
               {"tools", json::array()},
               {"response_format", {{"type", "text"}}},
               {"min_tokens", 0},
               {"skip_special_tokens", true},
               {"length_penalty", 1.0},
               {"stop", nullptr},
               {"logit_bias", nullptr},
               {"stream_options", nullptr}});
  EXPECT_EQ(server.complete(body)["choices"], expected);
}

TEST(ServeFaults, WhoLeavesFreesThePlace) {
  ServedProgram server({"--max-num-seqs", "1", "--quiet"});
  for (const bool rudely : {false, true}) {
    HttpClient client = server.client();
    client.send(post_text("/v1/completions", endless(16).dump()));
    ASSERT_EQ(client.head().status, 200);
    ASSERT_TRUE(client.event().has_value());
    rudely ? client.reset() : client.leave();
    EXPECT_EQ(server.complete(kShort)["usage"]["completion_tokens"], 5) << "behind sixteen texts";
  }
  const std::string metrics = server.client().get("/metrics").body;
  EXPECT_NE(metrics.find("finished_reason=\"length\"} 2\n"), std::string::npos) << metrics;
}

TEST(ServeFaults, AThousandClientsThatLeaveTakeNothingWithThem) {
  ServedProgram server({"--draft-model", demo_draft(), "--max-queued-requests", "2000", "--quiet"});
  const json whole{{"prompt", "Once upon a time"}, {"max_tokens", 400}, {"seed", 1}, {"ignore_eos", true}};
  const json expected = server.complete(whole)["choices"][0]["text"];
  json streamed = whole;
  streamed["stream"] = true;
  HttpClient patient = server.client();
  patient.send(post_text("/v1/completions", streamed.dump()));
  const auto memory = static_cast<int64_t>(server.process().peak_memory());
  // Most leave before anybody has read what they ask for; every tenth when its answer has begun.
  for (int i = 0; i < 1000; ++i) {
    HttpClient client = server.client();
    client.send(post_text("/v1/completions", endless(1).dump()));
    if (i % 10 == 0) {
      ASSERT_EQ(client.head().status, 200);
    }
  }
  ASSERT_EQ(patient.head().status, 200);
  EXPECT_EQ(text_of(read_events(patient)), expected);
  EXPECT_EQ(server.complete(kShort)["usage"]["completion_tokens"], 5);
  EXPECT_TRUE(until([&] { return sample(server, kRunning) + sample(server, kWaiting) == 0; }));
  // Requests that were cut off before their end leave nothing to abort. A few requests ran before the server
  // noticed that their client had left.
  const int64_t aborted = sample(server, ended("abort")), generated = sample(server, kGenerated);
  const int64_t more = static_cast<int64_t>(server.process().peak_memory()) - memory;
  std::printf("  %lld of 1000 aborted, %lld tokens, %.1f MB more\n", static_cast<long long>(aborted),
              static_cast<long long>(generated), static_cast<double>(more) * 1e-6);
  EXPECT_GE(aborted, 100);
  EXPECT_LE(aborted, 1000);
  EXPECT_LT(generated, 1000 * 400 / 4);
  EXPECT_LT(more, kLittleMemory);
}

TEST(ServeFaults, AFullQueueSaysWhenToComeBack) {
  ServedProgram server({"--max-num-seqs", "1", "--max-queued-requests", "1", "--quiet"});
  {
    HttpClient two = server.client();
    two.send(post_text("/v1/completions", endless(2).dump()));
    ASSERT_EQ(two.head().status, 200);
    const HttpAnswer answer = server.post("/v1/completions", kShort);
    EXPECT_EQ(answer.status, 429);
    EXPECT_EQ(answer.headers.at("retry-after"), "1");
    EXPECT_EQ(error_of(answer)["type"], "rate_limit_error");
  }
  EXPECT_TRUE(until([&] { return server.post("/v1/completions", kShort).status == 200; }));
}

// Sixteen texts need more than one place and one in the queue, today and tomorrow.
TEST(ServeFaults, WhatAnIdleServerCouldNeverTakeIsABadRequest) {
  ServedProgram server(
      {"--max-num-seqs", "1", "--max-queued-requests", "3", "--max-queued-tokens", "30", "--quiet"});
  const HttpAnswer many = server.post("/v1/completions", endless(16));
  EXPECT_EQ(many.status, 400);
  EXPECT_FALSE(many.headers.contains("retry-after"));
  EXPECT_EQ(error_of(many)["type"], "invalid_request_error");
  EXPECT_NE(error_of(many)["message"].get<std::string>().find("--max-queued-requests 3"), std::string::npos);
  json long_twice = endless(2);
  long_twice["prompt"] = repeated("dog ", 20);
  const HttpAnswer tokens = server.post("/v1/completions", long_twice);
  EXPECT_EQ(tokens.status, 400);
  EXPECT_NE(error_of(tokens)["message"].get<std::string>().find("--max-queued-tokens"), std::string::npos);
  EXPECT_EQ(server.complete(kShort)["usage"]["completion_tokens"], 5);
}

// Ten times what it has places for, all at once.
TEST(ServeFaults, WhatIsTakenUnderOverloadIsFinishedAndTheRestNotBegun) {
  constexpr int kClients = 60, kTokens = 60;
  ServedProgram server({"--max-num-seqs", "2", "--max-queued-requests", "4", "--quiet"});
  const json body{{"prompt", "Once upon a time"}, {"max_tokens", kTokens}, {"seed", 1}, {"ignore_eos", true}};
  const json expected = server.complete(body)["choices"][0]["text"];
  const auto memory = static_cast<int64_t>(server.process().peak_memory());
  std::vector<HttpClient> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(server.client());
    clients.back().send(post_text("/v1/completions", body.dump()));
  }
  int taken = 0, refused = 0;
  for (HttpClient& client : clients) {
    const HttpAnswer answer = client.answer();
    if (answer.status == 200) {
      ++taken;
      EXPECT_EQ(json::parse(answer.body)["choices"][0]["text"], expected);
    } else {
      ++refused;
      EXPECT_EQ(answer.status, 429) << answer.body;
      EXPECT_EQ(answer.headers.at("retry-after"), "1");
    }
  }
  EXPECT_GE(taken, 6);
  EXPECT_GE(refused, 6);
  EXPECT_TRUE(until([&] { return sample(server, ended("length")) == 1 + taken; }));
  EXPECT_EQ(sample(server, kGenerated), (1 + taken) * kTokens);
  EXPECT_LT(static_cast<int64_t>(server.process().peak_memory()) - memory, kLittleMemory);
  std::printf("  %d taken, %d refused\n", taken, refused);
}

TEST(ServeFaults, OnlyTheKeyOpens) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("key", "correct-horse\n");
  chmod(file.c_str(), 0600);
  ServedProgram server({"--api-key-file", file, "--quiet"});
  const auto with = [&](const std::string& authorization) {
    const std::string header = authorization.empty() ? "" : "Authorization: " + authorization + "\r\n";
    return server.client().post("/v1/completions", kShort.dump(), header);
  };
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer wrong", "Bearer correct-hors",
                            "Bearer correct-horse2", "Basic correct-horse", "correct-horse"}) {
    const HttpAnswer answer = with(wrong);
    EXPECT_EQ(answer.status, 401) << wrong;
    EXPECT_EQ(answer.headers.at("www-authenticate"), "Bearer");
    EXPECT_EQ(error_of(answer)["code"], "invalid_api_key");
  }
  EXPECT_EQ(with("Bearer correct-horse").status, 200);
  EXPECT_EQ(with("bearer correct-horse").status, 200);
  HttpClient client = server.client();
  client.send("GET /health HTTP/1.1\r\nHost: service.example\r\n\r\n");
  EXPECT_EQ(client.answer().status, 200);
  for (const char* closed : {"/v1/models", "/metrics", "/version", "/tokenize", "/nowhere"})
    EXPECT_EQ(client.get(closed).status, 401) << closed;
  for (const char* open : {"/health", "/ping"}) EXPECT_EQ(client.get(open).status, 200) << open;
}

// Its name was made to point to this machine (DNS rebinding); a key keeps it out too, so then any name will
// do.
TEST(ServeFaults, AWebPageCannotAskUnderAnotherName) {
  ServedProgram server({"--quiet"});
  const auto ask = [&](const std::string& host) {
    HttpClient client = server.client();
    client.send("GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return client.answer();
  };
  for (const char* own : {"localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "my.localhost"})
    EXPECT_EQ(ask(own).status, 200) << own;
  for (const char* other : {"evil.example", "evil.example:8000", "localhost.evil.example"}) {
    const HttpAnswer answer = ask(other);
    EXPECT_EQ(answer.status, 403) << other;
    EXPECT_EQ(error_of(answer)["type"], "permission_error");
  }
}

TEST(ServeFaults, HealthFollowsTheEngine) {
  ServedProgram server({"--listen", "tcp://127.0.0.1:*", "--wait-for-draft-workers", "1"},
                       ServedProgram::Wait::kNot);
  ASSERT_TRUE(server.process().says("tcp://127.0.0.1:")) << server.process().err();
  const HttpAnswer loading = server.client().get("/health");
  EXPECT_EQ(loading.status, 503);
  EXPECT_EQ(error_of(loading)["message"], "Loading model");
  EXPECT_EQ(server.post("/v1/completions", kShort).status, 503);
  EXPECT_EQ(server.client().get("/v1/models").status, 200);

  const TemporaryDirectory directory;
  BackgroundProcess worker(
      directory, "worker",
      {outrider_path(), "draft-worker", "--connect", address_told_by(server), "--drafter", "ngram"});
  ASSERT_TRUE(server.process().says("outrider: serving")) << server.process().err();
  const json ready = json::parse(server.client().get("/health").body);
  EXPECT_EQ(ready["draft_workers"], 1);
  EXPECT_EQ(ready["degraded"], false);
  EXPECT_EQ(server.complete(kShort)["usage"]["completion_tokens"], 5);

  worker.signal(SIGKILL);
  worker.wait();
  EXPECT_TRUE(until([&] { return json::parse(server.client().get("/health").body)["degraded"] == true; }));
  EXPECT_EQ(server.complete(kShort)["usage"]["completion_tokens"], 5) << "at plain speed";
}

// A worker that hangs stays connected, and is given no sequence.
TEST(ServeFaults, AWorkerThatIsLeftAloneDraftsForNobody) {
  ServedProgram server(
      {"--listen", "tcp://127.0.0.1:*", "--wait-for-draft-workers", "1", "--num-speculative-tokens", "4"},
      ServedProgram::Wait::kNot);
  ASSERT_TRUE(server.process().says("tcp://127.0.0.1:")) << server.process().err();
  const TemporaryDirectory directory;
  BackgroundProcess worker(
      directory, "worker",
      {outrider_path(), "draft-worker", "--connect", address_told_by(server), "--draft-model", demo_draft()});
  ASSERT_TRUE(server.process().says("outrider: serving")) << server.process().err();
  const auto health = [&] { return json::parse(server.client().get("/health").body); };
  const auto state = [&] { return json::parse(server.client().get("/status").body)["workers"][0]["state"]; };
  json longer = kShort;
  longer["max_tokens"] = 50;
  server.complete(longer);
  EXPECT_EQ(health()["degraded"], false);
  worker.signal(SIGSTOP);
  ASSERT_TRUE(until([&] {
    server.complete(longer);
    return health()["degraded"] == true;
  }));
  EXPECT_EQ(health()["draft_workers"], 1);
  EXPECT_EQ(state(), "left alone");
  worker.signal(SIGCONT);
  EXPECT_TRUE(until([&] {
    server.complete(longer);
    return health()["degraded"] == false;
  }));
}

// A new version of the draft model, under the load of a client: a worker with new weights joins, the old one
// leaves. The text is the same, and metrics tell the versions apart.
TEST(ServeFaults, ASwapOfTheDraftModelIsNoticedByNoRequest) {
  const TemporaryDirectory directory;
  const std::filesystem::path next = directory.copy(demo_draft(), "next");
  {
    std::fstream file(next / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(next / "model.safetensors") / 2));
    file << std::string(4096, '\0');
  }
  ServedProgram server({"--listen", "tcp://127.0.0.1:*", "--wait-for-draft-workers", "1",
                        "--num-speculative-tokens", "3", "--emulate-link", "delay=1ms,links=target"},
                       ServedProgram::Wait::kNot);
  ASSERT_TRUE(server.process().says("tcp://127.0.0.1:")) << server.process().err();
  const auto worker = [&](const std::string& name, const std::filesystem::path& model) {
    return BackgroundProcess(directory, name,
                             {outrider_path(), "draft-worker", "--connect", address_told_by(server),
                              "--draft-model", model, "--threads", "1"});
  };
  BackgroundProcess old = worker("old", demo_draft());
  ASSERT_TRUE(server.process().says("outrider: serving")) << server.process().err() << old.err();
  const json body{{"prompt", "Once upon a time"},
                  {"max_tokens", 160},
                  {"temperature", 0.8},
                  {"seed", 3},
                  {"ignore_eos", true}};
  json plain = body;
  plain["num_speculative_tokens"] = 0;
  const json expected = server.complete(plain)["choices"];
  auto swapped = std::async(std::launch::async, [&] { return server.complete(body)["choices"]; });
  BackgroundProcess successor = worker("successor", next);
  ASSERT_TRUE(successor.says("drafts for")) << successor.err();
  old.signal(SIGTERM);
  EXPECT_EQ(old.wait(), 0) << old.err();
  EXPECT_EQ(swapped.get(), expected);
  EXPECT_EQ(server.complete(body)["choices"], expected);
  const std::string metrics = server.client().get("/metrics").body;
  const std::regex accepted(
      R"re(outrider_drafter_accepted_tokens_total\{[^}]*weights="([0-9a-f]{16})"\} ([0-9]+))re");
  size_t versions = 0;
  for (std::sregex_iterator at(metrics.begin(), metrics.end(), accepted), end; at != end; ++at, ++versions)
    EXPECT_GT(std::stoi((*at)[2]), 0) << (*at)[1];
  EXPECT_EQ(versions, 2u) << metrics;
  EXPECT_EQ(server.process().err().find("is lost"), std::string::npos) << server.process().err();
}

TEST(ServeFaults, ASigtermBeforeItIsReadyIsNoFailure) {
  ServedProgram server({"--listen", "tcp://127.0.0.1:*", "--wait-for-draft-workers", "1"},
                       ServedProgram::Wait::kNot);
  ASSERT_TRUE(server.process().says("tcp://127.0.0.1:")) << server.process().err();
  server.process().signal(SIGTERM);
  EXPECT_EQ(server.process().wait(), 0) << server.process().err();
}

// A worker that has joined is sent the end, and does not take it for a loss.
TEST(ServeFaults, ASigtermWhileItWaitsForPeersIsAPoliteEnd) {
  ServedProgram server({"--listen", "tcp://127.0.0.1:*", "--wait-for-draft-workers", "2"},
                       ServedProgram::Wait::kNot);
  ASSERT_TRUE(server.process().says("tcp://127.0.0.1:")) << server.process().err();
  const TemporaryDirectory directory;
  BackgroundProcess worker(
      directory, "worker",
      {outrider_path(), "draft-worker", "--connect", address_told_by(server), "--draft-model", demo_draft()});
  ASSERT_TRUE(worker.says("drafts for")) << worker.err();
  server.process().signal(SIGTERM);
  EXPECT_EQ(server.process().wait(), 0) << server.process().err();
  EXPECT_EQ(worker.wait(), 0) << worker.err();
  EXPECT_EQ(worker.err().find("lost"), std::string::npos) << worker.err();
}

// A draft whose head has fewer rows than the target's, as a thread of the server and as a process: ids that
// it lacks come in prompts, by a bias, and in what the target writes.
TEST(ServeFaults, IdsThatTheDraftLacksDisturbNobody) {
  const CutVocabulary draft(demo_draft(), 3500);
  std::vector<json> requests;
  for (const json& prompt : {json{4095}, json{4095, 11, 3500}, json{12, 4000, 14}})
    for (const double temperature : {0.0, 1.0})
      for (const bool biased : {false, true}) {
        json request{{"prompt", prompt},
                     {"seed", 7},
                     {"max_tokens", 24},
                     {"temperature", temperature},
                     {"ignore_eos", true}};
        if (biased) request["logit_bias"] = {{"4090", 12}, {"3499", 9}};
        requests.push_back(std::move(request));
      }
  const auto answers = [&](ServedProgram& server) {
    json texts = json::array();
    for (const json& request : requests) texts.push_back(server.complete(request)["choices"][0]["text"]);
    return texts;
  };
  ServedProgram plain({"--quiet"});
  const json expected = answers(plain);
  {
    ServedProgram server({"--draft-model", draft.path(), "--num-speculative-tokens", "4", "--quiet"});
    EXPECT_EQ(answers(server), expected);
    EXPECT_GT(drafted_by(server), 100);
  }
  ServedProgram server(
      {"--listen", "tcp://127.0.0.1:*", "--wait-for-draft-workers", "1", "--num-speculative-tokens", "4"},
      ServedProgram::Wait::kNot);
  ASSERT_TRUE(server.process().says("tcp://127.0.0.1:")) << server.process().err();
  const TemporaryDirectory directory;
  BackgroundProcess worker(
      directory, "worker",
      {outrider_path(), "draft-worker", "--connect", address_told_by(server), "--draft-model", draft.path()});
  ASSERT_TRUE(server.process().says("outrider: serving")) << server.process().err();
  EXPECT_EQ(answers(server), expected);
  EXPECT_GT(drafted_by(server), 100);
  EXPECT_FALSE(worker.ended()) << worker.err();
}

// A client that gets `texts` endless texts, and has the first event of them.
HttpClient client_of_endless(ServedProgram& server, int texts) {
  HttpClient client = server.client();
  client.send(post_text("/v1/completions", endless(texts).dump()));
  EXPECT_EQ(client.head().status, 200);
  EXPECT_TRUE(client.event().has_value());
  return client;
}

TEST(ServeFaults, SigtermLetsTextsEnd) {
  ServedProgram server({"--max-num-seqs", "2", "--quiet"});
  HttpClient client = client_of_endless(server, 2);
  server.process().signal(SIGTERM);
  const Events events = read_events(client);
  EXPECT_TRUE(events.is_done);
  EXPECT_EQ(server.process().wait(), 0) << server.process().err();
}

TEST(ServeFaults, ASecondSigtermDoesNotWait) {
  ServedProgram server({"--max-num-seqs", "1", "--quiet"});
  HttpClient client = client_of_endless(server, 16);
  server.process().signal(SIGTERM);
  ASSERT_TRUE(until([&] { return server.client().get("/health").status != 200; }));
  server.process().signal(SIGTERM);
  EXPECT_EQ(server.process().wait(), 128 + SIGTERM) << server.process().err();
  EXPECT_FALSE(read_events(client).is_done) << "sixteen texts were waited for";
}

TEST(ServeFaults, TextsThatDoNotEndInTimeBreakOffWithAnError) {
  ServedProgram server({"--max-num-seqs", "1", "--drain-timeout", "0", "--log-format", "json"});
  HttpClient client = client_of_endless(server, 16);
  server.process().signal(SIGTERM);
  const Events events = read_events(client);
  EXPECT_FALSE(events.is_done) << "no [DONE] behind an error";
  EXPECT_TRUE(client.ended_well());
  ASSERT_TRUE(events.chunks.back().contains("error")) << events.chunks.back();
  EXPECT_EQ(events.chunks.back()["error"]["type"], "unavailable_error");
  EXPECT_EQ(server.process().wait(), 0) << server.process().err();
  for (const char* part : {"\"level\":\"info\"", "\"event\":\"drain\"", "\"running\":1"})
    EXPECT_NE(server.process().err().find(part), std::string::npos) << server.process().err();
}

TEST(ServeFaults, WhoWaitsForAWholeReplyIsToldThatTheServerStops) {
  ServedProgram server({"--max-num-seqs", "1", "--drain-timeout", "0", "--quiet"});
  HttpClient client = server.client();
  json whole = endless(16);
  whole["stream"] = false;
  client.send(post_text("/v1/completions", whole.dump()));
  ASSERT_TRUE(until([&] {
    return server.client()
               .get("/metrics")
               .body.find("outrider_num_requests_running{model_name=\"demo\"} 1\n") != std::string::npos;
  }));
  server.process().signal(SIGTERM);
  const HttpAnswer answer = client.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(error_of(answer)["message"].get<std::string>().find("stops"), std::string::npos);
  EXPECT_EQ(server.process().wait(), 0) << server.process().err();
}

}  // namespace
}  // namespace outrider::testing
