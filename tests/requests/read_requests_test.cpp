// Requests of flags and of lines: what a line says replaces what the flags say, and nothing else is changed.
#include <gtest/gtest.h>

#include "base/hash.h"
#include "requests/finished_results.h"
#include "requests/requests.h"
#include "tests/coordinator/toy_tokenizer.h"
#include "tests/support/temporary_directory.h"
#include "transformer/chat_template/chat_template.h"

namespace outrider {
namespace {

class ReadRequests : public ::testing::Test {
 protected:
  RequestModel model(bool synthetic = false) const {
    return {.tokenizer = tokenizer_,
            .chat = chat_,
            .directory = "DIR",
            .max_context = 100,
            .vocab_size = 40,
            .synthetic_acceptance = synthetic};
  }
  // The request of a file with one line.
  Result<Request> line(const std::string& text, const RequestParams& flags) const {
    ASSIGN_OR_RETURN(const auto requests, read_requests(flags, directory_.write("in", text + "\n"), model()));
    return requests.front().request;
  }

  ToyTokenizer tokenizer_;
  Result<std::unique_ptr<ChatTemplate>> chat_ = not_found("there is no template");
  TemporaryDirectory directory_;
};

TEST_F(ReadRequests, FlagsAreTheRequestOfAPrompt) {
  const RequestParams flags{
      .prompt = "abc", .max_tokens = 3, .temperature = 0.5, .logit_bias = {{TokenId(4), 1.0f}}, .seed = 9};
  const auto requests = read_requests(flags, "", model());
  ASSERT_TRUE(requests.ok()) << requests.status().message();
  const Request& request = requests->front().request;
  EXPECT_EQ(request.prompt, (std::vector<TokenId>{TokenId(10), TokenId(11), TokenId(12)}));
  EXPECT_EQ(request.max_tokens, 3);
  EXPECT_EQ(request.sampling.rule, Rule::kInvariant) << "auto, above temperature 0";
  EXPECT_EQ(request.sampling.seed.value, 9u);
  EXPECT_EQ(request.sampling.logit_bias, flags.logit_bias);
}

TEST_F(ReadRequests, ALineReplacesWhatItSays) {
  const RequestParams flags{
      .max_tokens = 3, .temperature = 0.5, .logit_bias = {{TokenId(4), 1.0f}}, .stop = {"x"}, .seed = 9};
  const auto plain = line(R"({"prompt": "a"})", flags);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->max_tokens, 3);
  EXPECT_EQ(plain->stop, flags.stop);
  EXPECT_EQ(plain->sampling.seed.value, hash_combine(9, 1)) << "mixed with the line's number";
  const auto own =
      line(R"({"prompt": "a", "max_tokens": 5, "stop": [], "seed": 2, "logit_bias": {"6": -1}, "top_k": 7})",
           flags);
  ASSERT_TRUE(own.ok()) << own.status().message();
  EXPECT_EQ(own->max_tokens, 5);
  EXPECT_TRUE(own->stop.empty());
  EXPECT_EQ(own->sampling.seed.value, 2u);
  EXPECT_EQ(own->sampling.top_k, 7);
  EXPECT_EQ(own->sampling.temperature, 0.5f);
  EXPECT_EQ(own->sampling.logit_bias, (LogitBias{{TokenId(4), 1.0f}, {TokenId(6), -1.0f}})) << "both";
}

TEST_F(ReadRequests, PublishedWorkloadsAreReadAsTheyAre) {
  const std::string file = directory_.write(
      "in",
      "{\"question_id\": 81, \"category\": \"writing\", \"turns\": [\"ab\", \"cd\"]}\n"
      "{\"task_id\": \"HumanEval/3\", \"prompt\": \"c\", \"canonical_solution\": \"d\", \"test\": \"\"}\n"
      "{\"question\": \"d\", \"answer\": \"e\"}\n");
  std::vector<std::string> notes;
  const auto requests = read_requests({.max_tokens = 3}, file, model(), &notes);
  ASSERT_TRUE(requests.ok()) << requests.status().message();
  ASSERT_EQ(requests->size(), 4u);
  EXPECT_EQ(requests->at(0).category, "writing");
  EXPECT_EQ(requests->at(0).id, "81");
  EXPECT_EQ(requests->at(0).request.prompt, (std::vector<TokenId>{TokenId(10), TokenId(11)}));
  EXPECT_TRUE(requests->at(1).follows);
  EXPECT_EQ(requests->at(1).category, "writing");
  EXPECT_EQ(requests->at(2).id, "\"HumanEval/3\"");
  EXPECT_EQ(requests->at(3).category, "gsm8k");
  ASSERT_EQ(notes.size(), 1u) << "what is asked later is told";
  EXPECT_NE(notes[0].find("1 later turns"), std::string::npos) << notes[0];

  // Asked after the answer, whose end is the template's only once.
  PromptRequest turn = requests->at(1);
  const std::vector<TokenId> end{TokenId(3), TokenId(4)}, answer{TokenId(8), TokenId(3)};
  turn.turn = end;
  const auto asked = request_of_turn(turn, requests->at(0).request, answer, 7);
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(asked->prompt,
            (std::vector<TokenId>{TokenId(10), TokenId(11), TokenId(8), TokenId(3), TokenId(4)}));
  EXPECT_EQ(asked->max_tokens, 3);
  EXPECT_FALSE(request_of_turn(turn, requests->at(0).request, answer, 5).ok()) << "the context is full";
  EXPECT_FALSE(read_requests({}, directory_.write("gz", "\x1f\x8b\x08"), model()).ok());
}

TEST_F(ReadRequests, ATraceGivesLengthsAndWhatDoesNotFitIsTold) {
  const std::string file =
      directory_.write("in.csv",
                       "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.68,7,4\r\n"
                       "2023-11-16 18:15:50.99,90,30\r\n");
  std::vector<std::string> notes;
  const auto requests = read_requests({.seed = 5}, file, model(), &notes);
  ASSERT_TRUE(requests.ok()) << requests.status().message();
  ASSERT_EQ(requests->size(), 1u);
  const Request& request = requests->front().request;
  EXPECT_EQ(request.prompt.size(), 7u);
  EXPECT_EQ(request.max_tokens, 4);
  for (const TokenId id : request.prompt) EXPECT_TRUE(id.value() >= 0 && id.value() < 40);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("1 of 2 requests are longer"), std::string::npos) << notes[0];
  EXPECT_EQ(read_requests({.seed = 5}, file, model())->front().request.prompt, request.prompt);
}

TEST_F(ReadRequests, WhatIsWrongIsCalledAsItWasWritten) {
  const auto flag = read_requests({.prompt = "a", .top_p = 2}, "", model());
  EXPECT_TRUE(flag.status().message().starts_with("--top-p 2: must be")) << flag.status().message();
  const std::string of_line = line(R"({"prompt": "a", "top_p": 2})", {}).status().message();
  EXPECT_NE(of_line.find(":1: \"top_p\" 2: must be"), std::string::npos) << of_line;
  const std::string rule = line(R"({"prompt": "a", "rule": "best"})", {}).status().message();
  EXPECT_NE(rule.find("\"rule\" best: choose"), std::string::npos) << rule;
}

TEST_F(ReadRequests, WithoutATemplateTheModelIsNamedToWhoAskedForIt) {
  const std::string asked = read_requests({.prompt = "a", .chat = true}, "", model()).status().message();
  EXPECT_NE(asked.find("--model DIR"), std::string::npos) << asked;
  const std::string messages =
      line(R"({"messages": [{"role": "user", "content": "a"}]})", {}).status().message();
  EXPECT_NE(messages.find("send a prompt instead"), std::string::npos) << messages;
}

TEST_F(ReadRequests, SyntheticTextsDoNotEndEarly) {
  const auto requests = read_requests({.prompt = "a", .stop = {"x"}}, "", model(/*synthetic=*/true));
  ASSERT_TRUE(requests.ok()) << requests.status().message();
  EXPECT_TRUE(requests->front().request.ignore_eos);
  EXPECT_TRUE(requests->front().request.stop.empty());
}

TEST_F(ReadRequests, AnIdComesBackAsItWasWritten) {
  for (const std::string id : {R"("a \"b\"")", "-5", "18446744073709551615"}) {
    const auto requests =
        read_requests({}, directory_.write("in", R"({"prompt": "a", "id": )" + id + "}\n"), model());
    ASSERT_TRUE(requests.ok()) << requests.status().message();
    EXPECT_EQ(requests->front().id, id);
  }
}

// Two requests that differ in anything must not take over each other's results.
TEST_F(ReadRequests, FingerprintsTellEveryParameterApart) {
  const RequestFingerprints fingerprint(1);
  RequestParams base{.prompt = "a"};
  const auto of = [&](const RequestParams& params) {
    return fingerprint(read_requests(params, "", model()).value().front().request);
  };
  const uint64_t plain = of(base);
  EXPECT_EQ(of(base), plain);
  EXPECT_NE(RequestFingerprints(2)(read_requests(base, "", model()).value().front().request), plain);
  std::vector<RequestParams> others(12, base);
  others[0].prompt = "b";
  others[1].max_tokens = 1;
  others[2].temperature = 1;
  others[3].top_k = 1;
  others[4].top_p = 0.5f;
  others[5].min_p = 0.5f;
  others[6].repetition_penalty = 2;
  others[7].logit_bias = {{TokenId(1), 1.0f}};
  others[8].stop = {"x"};
  others[9].ignore_eos = true;
  others[10].seed = 1;
  others[11].logprobs = 1;
  for (size_t i = 0; i < others.size(); ++i) EXPECT_NE(of(others[i]), plain) << i;
}

}  // namespace
}  // namespace outrider
