// Parsing of request bodies, and the shapes of replies, without a server.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "serve/api/fields.h"
#include "serve/api/format.h"
#include "serve/http/error_body.h"
#include "serve_api_fixture.h"
#include "tests/support/mutations.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::ServeApi;

TEST_F(ServeApi, WhatIsLeftOutIsTheServersDefault) {
  const ApiRequest api = read({{"prompt", "x"}}).value();
  EXPECT_EQ(api.model, "demo");
  ASSERT_EQ(api.requests.size(), 1u);
  const Request& request = api.requests[0];
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.rule, Rule::kInvariant);
  EXPECT_EQ(request.sampling.seed, Seed{77});
  EXPECT_EQ(request.sampling.logprobs, -1);
  EXPECT_FALSE(api.stream);
  EXPECT_EQ(api.prompt_tokens, static_cast<int64_t>(request.prompt.size()));
  EXPECT_EQ(read({{"prompt", "x"}, {"model", "other"}})->model, "demo")
      << "the first name, whichever was asked for";
}

TEST_F(ServeApi, EveryParameterArrives) {
  const ApiRequest api = read({{"prompt", "x"},
                               {"max_tokens", 9},
                               {"temperature", 0.25},
                               {"top_k", 7},
                               {"top_p", 0.5},
                               {"min_p", 0.125},
                               {"repetition_penalty", 1.5},
                               {"presence_penalty", 0.75},
                               {"frequency_penalty", -0.5},
                               {"logit_bias", {{"42", -1.5}}},
                               {"stop", "end"},
                               {"seed", 18446744073709551615u},
                               {"logprobs", 4},
                               {"ignore_eos", true},
                               {"rule", "block"},
                               {"stream", true},
                               {"stream_options", {{"include_usage", true}}}})
                             .value();
  const Request& request = api.requests[0];
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.stop, std::vector<std::string>{"end"});
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.sampling, (SamplingParams{.rule = Rule::kBlock,
                                              .temperature = 0.25,
                                              .top_k = 7,
                                              .top_p = 0.5,
                                              .min_p = 0.125,
                                              .repetition_penalty = 1.5,
                                              .presence_penalty = 0.75,
                                              .frequency_penalty = -0.5,
                                              .logit_bias = {{TokenId(42), -1.5f}},
                                              .seed = Seed{UINT64_MAX},
                                              .logprobs = 4}));
  EXPECT_TRUE(api.stream && api.include_usage);
}

TEST_F(ServeApi, ChoicesDrawWithSeedsOfTheirOwn) {
  const ApiRequest api = read({{"prompt", {"a", "b"}}, {"n", 3}, {"seed", 5}}).value();
  ASSERT_EQ(api.requests.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(api.requests[i].prompt, api.requests[i / 3 * 3].prompt);
    EXPECT_EQ(api.requests[i].sampling.seed, api.requests[i % 3].sampling.seed)
        << "the same for every prompt";
  }
  EXPECT_EQ(api.requests[0].sampling.seed, Seed{5});
  EXPECT_NE(api.requests[1].sampling.seed, api.requests[0].sampling.seed);
  EXPECT_NE(api.requests[2].sampling.seed, api.requests[1].sampling.seed);
  EXPECT_NE(api.requests[0].prompt, api.requests[3].prompt);
  EXPECT_EQ(read({{"prompt", json::array_t(128, "a")}})->requests.size(), 128u);
  EXPECT_NE(error({{"prompt", json::array_t(9, "a")}, {"n", 16}}).find("at most 128"), std::string::npos);
}

// Drafts cannot be had from a server without a drafter; that it decodes plainly may be asked of any.
TEST_F(ServeApi, ADraftLengthNeedsADrafter) {
  const RequestBuilder builder(request_model(settings_.models, settings_.speculation, prepared_, chat_));
  const auto told = [&](const json& more, bool drafts) {
    json body{{"prompt", "a"}};
    body.update(more);
    return read_api_request(
               ApiKind::kCompletion, body,
               {.params = params_, .models = models_, .synthetic_acceptance = {}, .drafts = drafts}, builder)
        .status()
        .message();
  };
  for (const json& asked : {json{{"num_speculative_tokens", 3}}, json{{"gamma_policy", "fixed:gamma=3"}}}) {
    EXPECT_EQ(told(asked, true), "") << asked;
    EXPECT_NE(told(asked, false).find("no drafter"), std::string::npos) << asked << told(asked, false);
  }
  EXPECT_EQ(told({{"num_speculative_tokens", 0}}, false), "");
}

TEST_F(ServeApi, ASeedOfMinusOneIsRandom) {
  const json body{{"prompt", "a"}, {"seed", -1}};
  EXPECT_EQ(read(body, ApiKind::kCompletion).value().requests[0].sampling.seed,
            read({{"prompt", "a"}}, ApiKind::kCompletion).value().requests[0].sampling.seed);
  EXPECT_TRUE(error({{"prompt", "a"}, {"seed", -2}}, ApiKind::kCompletion).starts_with("\"seed\""));
}

// Every body with each of its values in turn replaced by one of another type.
std::vector<json> with_other_types(const json& body) {
  const json flat = body.flatten();
  std::set<std::string> places;
  for (const auto& [path, leaf] : flat.items())
    for (auto at = json::json_pointer(path); !at.empty(); at = at.parent_pointer())
      places.insert(at.to_string());
  std::vector<json> bodies;
  for (const std::string& place : places)
    for (const json& other : {json(nullptr), json(5), json(-0.5), json("x"), json(true), json::array(),
                              json::object(), json{{{"type", 5}}}, json{{"type", {1}}}}) {
      bodies.push_back(body);
      bodies.back()[json::json_pointer(place)] = other;
    }
  return bodies;
}

// A reader that throws would take the server along.
TEST_F(ServeApi, AValueOfAnotherTypeIsRefusedOrTaken) {
  const json text{{"type", "text"}, {"text", "a"}};
  const json call =
      json::parse(R"({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}})");
  const json tool =
      json::parse(R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})");
  const json chat{
      {"model", "demo"},
      {"messages",
       {{{"role", "user"}, {"content", {text}}},
        {{"role", "assistant"}, {"tool_calls", {call}}},
        {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "a"}}}},
      {"tools", {tool}},
      {"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}},
      {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", {{"type", "object"}}}}}}},
      {"stop", {"a"}},
      {"stream", true},
      {"stream_options", {{"include_usage", true}}},
      {"logit_bias", {{"1", 1}}},
      {"chat_template_kwargs", {{"a", 1}}}};
  const json completion{{"prompt", {{1, 2}, {3}}},
                        {"logprobs", 1},
                        {"structured_outputs", {{"choice", {"a"}}}},
                        {"stop_token_ids", {1}}};
  const json used{{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", {{"a", 1}}}};
  const json result{{"type", "tool_result"}, {"tool_use_id", "t"}, {"content", {text}}};
  const json messages{
      {"max_tokens", 3},
      {"system", {text}},
      {"messages",
       {{{"role", "user"}, {"content", {text}}},
        {{"role", "assistant"}, {"content", {used}}},
        {{"role", "user"}, {"content", {result}}}}},
      {"tools", {{{"name", "f"}, {"input_schema", {{"type", "object"}}}}}},
      {"tool_choice", {{"type", "any"}}},
      {"thinking", {{"type", "disabled"}}},
      {"output_config", {{"format", {{"type", "json_schema"}, {"schema", {{"type", "object"}}}}}}}};
  const json output{{"type", "output_text"}, {"text", "a"}};
  const json responses{
      {"input",
       {{{"type", "message"}, {"role", "assistant"}, {"content", {output}}},
        {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{}"}},
        {{"type", "function_call_output"},
         {"call_id", "c"},
         {"output", {{{"type", "input_text"}, {"text", "a"}}}}}}},
      {"instructions", "a"},
      {"text", {{"format", {{"type", "json_schema"}, {"schema", {{"type", "object"}}}}}}},
      {"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", {{"type", "object"}}}}}}};
  const RequestBuilder builder(request_model(settings_.models, settings_.speculation, prepared_, chat_));
  for (const auto& [kind, body] :
       {std::pair{ApiKind::kChat, chat}, std::pair{ApiKind::kCompletion, completion},
        std::pair{ApiKind::kMessages, messages}, std::pair{ApiKind::kResponses, responses}})
    for (const json& other : with_other_types(body)) {
      EXPECT_NO_THROW((void)read(other, kind)) << other;
      json formless = other;  // forms and tools are read first
      for (const char* key :
           {"tools", "tool_choice", "response_format", "structured_outputs", "text", "output_config"})
        formless.erase(key);
      EXPECT_NO_THROW((void)read(formless, kind)) << formless;
      if (kind != ApiKind::kMessages) continue;
      formless.erase("max_tokens");
      EXPECT_NO_THROW((void)read_count_tokens(formless, formless.dump(), builder)) << formless;
      EXPECT_NO_THROW((void)read_tokenize(formless, formless.dump(), builder)) << formless;
    }
}

TEST_F(ServeApi, WholeNumbersStayThoseThatTheyAre) {
  chat_ =
      parse_chat_template("{{ n }} {{ n == 5 }} {{ n > 5 }} {{ [n] | tojson }} {{ n is integer }}", "", "");
  json body{{"messages", {{{"role", "user"}, {"content", "a"}}}},
            {"chat_template_kwargs", {{"n", UINT64_MAX}}}};
  const auto api = read(body, ApiKind::kChat);
  ASSERT_TRUE(api.ok()) << api.status().message();
  EXPECT_EQ(prepared_.tokenizer->decode(api->requests[0].prompt),
            "18446744073709551615 False True [18446744073709551615] True");
  const Status wide = read_body(R"({"tools": [{"maximum": 18446744073709551616}]})").status();
  EXPECT_EQ(wide.message(), "\"tools\": 18446744073709551616 is a whole number of more than 64 bits");
}

// Every body gets an answer, whatever its bytes: a valid request for the engine, or an error.
class Fuzz : public ServeApi {};

TEST_F(Fuzz, JsonBodies) {
  const std::vector<std::string> good{
      R"({"model":"demo","prompt":["Once","day"],"max_tokens":4,"temperature":0.5,"top_p":0.9,"n":2,"stop":["a","b"],"logit_bias":{"5":-1},"seed":7,"logprobs":2,"echo":true,"stream":false})",
      R"({"prompt":[1,2,3],"stream":true,"stream_options":{"include_usage":true},"gamma_policy":"fixed:gamma=3","rule":"auto","bad_words":["day"],"allowed_token_ids":[5,6],"stop_token_ids":[1],"timeout":3,"cache_salt":"x"})",
      R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"c","content":"r"}],"max_completion_tokens":5,"logprobs":true,"top_logprobs":2,"chat_template_kwargs":{"a":1},"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"auto"})",
      R"({"prompt":"x","response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object","properties":{"a":{"type":"integer"}}}}},"structured_outputs":{"choice":["a","b"]}})",
      R"({"max_tokens":5,"system":[{"type":"text","text":"a"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"r"}]}],"stop_sequences":["x"],"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"},"thinking":{"type":"disabled"}})",
      R"({"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}],"instructions":"a","max_output_tokens":5,"text":{"format":{"type":"text"}}})"};
  std::vector<std::string> words = testing::json_words();
  for (const char* word :
       {"\"n\":", "\"prompt\":", "\"messages\":", "\"guided_json\":", "\"max_tokens\":2147483648",
        "\"seed\":-1", "\"logprobs\":", "\"tools\":", "\"json\":\"{}\"", "99999999999"})
    words.emplace_back(word);
  testing::Mutations mutations(11, good, words);
  const RequestBuilder builder(request_model(settings_.models, settings_.speculation, prepared_, chat_));
  testing::fuzz(1500, [&] {
    const std::string text = mutations.next();
    const auto body = read_body(text);
    std::string message = body.status().message();
    if (body.ok()) {
      const ApiDefaults defaults{
          .params = params_, .models = models_, .synthetic_acceptance = {}, .seed = 77, .text = text};
      for (const ApiKind kind :
           {ApiKind::kCompletion, ApiKind::kChat, ApiKind::kMessages, ApiKind::kResponses}) {
        const auto read = read_api_request(kind, *body, defaults, builder);
        if (!read.ok()) message = read.status().message();
      }
      (void)read_tokenize(*body, text, builder);
      (void)read_count_tokens(*body, text, builder);
      (void)read_detokenize(*body, builder);
    }
    const std::string error = error_body({.status = 400, .message = message, .param = param_of(message)});
    EXPECT_TRUE(json::accept(error)) << text;
    EXPECT_LT(error.size(), 15'000u) << text;
  });
}

TEST_F(ServeApi, FieldsAreKnownOrRefusedByName) {
  const auto refusal = [](ApiKind kind, const json& body) { return check_fields(kind, body).message(); };
  EXPECT_EQ(refusal(ApiKind::kChat, {{"functions", json::array()}, {"user", "me"}, {"anything", nullptr}}),
            "");
  EXPECT_EQ(refusal(ApiKind::kChat, {{"functions", {1}}}),
            "\"functions\" is not supported; leave it out, or send []");
  EXPECT_EQ(refusal(ApiKind::kChat, {{"audio", {1}}}), "\"audio\" is not supported; leave it out");
  EXPECT_NE(refusal(ApiKind::kChat, {{"prompt", "x"}}), "") << "not of chats";
  EXPECT_NE(refusal(ApiKind::kCompletion, {{"top_logprobs", 1}}), "") << "not of completions";
  EXPECT_EQ(refusal(ApiKind::kCompletion, {{"max_token", 1}}),
            "there is no key \"max_token\"; did you mean \"max_tokens\"?");
  // Forms and tools are read elsewhere, and others by names of their own.
  const auto meant = [&](ApiKind kind, const char* wrong, const char* right) {
    EXPECT_EQ(refusal(kind, {{wrong, 1}}),
              fmt::format("there is no key \"{}\"; did you mean \"{}\"?", wrong, right));
  };
  meant(ApiKind::kChat, "respone_format", "response_format");
  meant(ApiKind::kChat, "tool_chioce", "tool_choice");
  meant(ApiKind::kCompletion, "guided_jsn", "guided_json");
  meant(ApiKind::kMessages, "stop_sequence", "stop_sequences");
  meant(ApiKind::kResponses, "max_output_token", "max_output_tokens");
}

// Other servers take them, and they ask for nothing that this one does not do.
TEST_F(ServeApi, ValuesThatAskForNothingAreTaken) {
  const auto chat = [&](const json& more) {
    json body{{"messages", {{{"role", "user"}, {"content", "x"}}}}};
    body.update(more);
    return error(body, ApiKind::kChat);
  };
  for (const json& more :
       {json{{"echo", false}}, json{{"include_reasoning", true}}, json{{"include_reasoning", false}},
        json{{"separate_reasoning", true}}, json{{"chat_template_content_format", "auto"}},
        json{{"guided_decoding_backend", "auto"}}, json{{"typical_p", 1.0}}, json{{"mirostat", 0}},
        json{{"dry_multiplier", 0.0}}, json{{"xtc_probability", 0}}, json{{"add_special_tokens", false}},
        json{{"skip_special_tokens", true}}, json{{"include_stop_str_in_output", false}},
        json{{"return_tokens_as_token_ids", false}}, json{{"stream_options", nullptr}},
        json{{"vllm_xargs", nullptr}}})
    EXPECT_EQ(chat(more), "") << more;
  for (const json& more : {json{{"echo", true}}, json{{"mirostat", 2}}, json{{"typical_p", 0.5}}})
    EXPECT_NE(chat(more), "") << more;
}

TEST_F(ServeApi, TokensMayBeAllowedOrForbidden) {
  const auto request = [&](const json& more) {
    json body{{"prompt", "x"}};
    body.update(more);
    return read(json::parse(body.dump())).value().requests[0];  // whole numbers without a sign, as they come
  };
  EXPECT_EQ(request({{"bad_words", json::array()}}).grammar, nullptr);
  ASSERT_NE(request({{"allowed_token_ids", {5, 6}}}).grammar, nullptr);
  ASSERT_NE(request({{"bad_words", {"day"}}}).grammar, nullptr);
  for (const json& wrong : {json{{"allowed_token_ids", json::array()}}, json{{"allowed_token_ids", {-1}}},
                            json{{"allowed_token_ids", {99999999}}}, json{{"allowed_token_ids", "5"}},
                            json{{"bad_words", "day"}}, json{{"bad_words", {1}}}}) {
    json body{{"prompt", "x"}};
    body.update(wrong);
    EXPECT_NE(error(body).find(wrong.begin().key()), std::string::npos) << wrong << ": " << error(body);
  }
}

TEST_F(ServeApi, SpecialTokensAreAddedAndShownAsAsked) {
  const auto ids = [&](const json& body, ApiKind kind = ApiKind::kCompletion) {
    return read(body, kind).value().requests[0].prompt;
  };
  const auto bos = prepared_.tokenizer->bos();
  ASSERT_TRUE(bos);
  EXPECT_EQ(ids({{"prompt", "day"}}).front(), *bos);
  EXPECT_NE(ids({{"prompt", "day"}, {"add_special_tokens", false}}).front(), *bos);
  const json chat{{"messages", {{{"role", "user"}, {"content", "day"}}}}};
  json with_bos = chat;
  with_bos["add_special_tokens"] = true;
  auto expected = ids(chat, ApiKind::kChat);
  expected.insert(expected.begin(), *bos);
  EXPECT_EQ(ids(with_bos, ApiKind::kChat), expected);
  EXPECT_TRUE(read({{"prompt", "x"}})->requests[0].shown.empty());
  const auto shown = read({{"prompt", "x"}, {"skip_special_tokens", false}})->requests[0].shown;
  EXPECT_NE(std::find(shown.begin(), shown.end(), *bos), shown.end());
}

TEST_F(ServeApi, LengthsBeyondTheContextAreRefused) {
  const auto most = static_cast<int>(prepared_.max_model_len) -
                    static_cast<int>(read({{"prompt", "x"}})->requests[0].prompt.size());
  EXPECT_EQ(error({{"prompt", "x"}, {"max_tokens", most}}), "");
  const Status status = read({{"prompt", "x"}, {"max_tokens", most + 1}}).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << "context_length_exceeded";
  EXPECT_TRUE(status.message().starts_with("\"max_tokens\"")) << status.message();
  EXPECT_EQ(read({{"prompt", "x"}, {"max_completion_tokens", 3}})->requests[0].max_tokens, 3);
  EXPECT_EQ(error({{"prompt", "x"}, {"max_completion_tokens", 3}, {"max_tokens", 3}}), "");
  EXPECT_TRUE(error({{"input", "x"}, {"max_output_tokens", 1 << 20}}, ApiKind::kResponses)
                  .starts_with("\"max_output_tokens\""));
}

TEST_F(ServeApi, CountsOfLogprobsAndUsageAreAsAsked) {
  EXPECT_EQ(read({{"prompt", "x"}, {"logprobs", -1}})->logprobs, 100);
  EXPECT_EQ(read({{"prompt", "x"}, {"prompt_logprobs", -1}})->prompt_logprobs, 100);
  EXPECT_NE(error({{"prompt", "x"}, {"logprobs", -2}}), "");
  const auto streamed = [&](const json& options) {
    return read({{"prompt", "x"}, {"stream", true}, {"stream_options", options}}).value();
  };
  EXPECT_TRUE(streamed({{"continuous_usage_stats", true}}).continuous_usage);
  const ApiRequest none = streamed({{"include_usage", false}, {"continuous_usage_stats", true}});
  EXPECT_FALSE(none.continuous_usage || none.include_usage);
}

// A whole answer is gathered before it is sent.
TEST_F(ServeApi, LogprobsOfAWholeAnswerAreBounded) {
  const std::vector<std::string> prompts(128, "x");
  const json much{{"prompt", prompts}, {"max_tokens", 480}, {"logprobs", 100}};
  EXPECT_NE(error(much).find("--max-answer-logprobs"), std::string::npos) << error(much);
  json streamed = much, fewer = much, plain = much;
  streamed["stream"] = true;
  fewer["logprobs"] = 10;
  plain.erase("logprobs");
  for (const json& body : {streamed, fewer, plain}) EXPECT_EQ(error(body), "");
  // Without a length of its own a text ends where the bound is.
  json chat{{"messages", {{{"role", "user"}, {"content", "x"}}}},
            {"n", 16},
            {"logprobs", true},
            {"top_logprobs", 100}};
  const RequestBuilder builder(request_model(settings_.models, settings_.speculation, prepared_, chat_));
  const auto cut = read_api_request(ApiKind::kChat, chat,
                                    {.params = params_,
                                     .models = models_,
                                     .synthetic_acceptance = {},
                                     .seed = 7,
                                     .limits = {.logprobs = 16 * 101 * 20}},
                                    builder);
  ASSERT_TRUE(cut.ok()) << cut.status().message();
  for (const Request& request : cut->requests) EXPECT_EQ(request.max_tokens, 20);
}

TEST_F(ServeApi, NoMessageRepeatsALongValue) {
  const std::string much(1 << 20, 'x');
  for (const char* key :
       {"gamma_policy", "rule", "model", "prompt_x", "logprobs", "seed", "stop", "bad_words",
        "allowed_token_ids", "timeout", "stream_options", "structured_outputs", "guided_json"}) {
    json body{{"prompt", "x"}};
    body[key] = much;
    EXPECT_LT(error(body).size(), 1500u) << key;
  }
  const json bias{{"prompt", "x"}, {"logit_bias", {{much, much}}}};
  EXPECT_LT(error(bias).size(), 1500u);
}

// Bytes of a character that several tokens share belong to no text alone.
TEST_F(ServeApi, TokensThatAreNoCharactersShowTheirBytes) {
  const TokenId first = id("Ã"), second = id("©");  // 0xc3 0xa9, as byte-level vocabularies write them
  const TokenId once = prepared_.tokenizer->encode(" time", SpecialTokens::kOmit)->front();
  ASSERT_EQ(prepared_.tokenizer->token_bytes(first), "\xc3");
  std::vector<PositionLogprobs> positions(4);
  positions[0] = {.chosen = {once, -0.5f}, .top = {{once, -0.5f}}};
  positions[1] = {.chosen = {first, -1.0f}, .top = {{once, -0.25f}}};
  positions[2] = {.chosen = {second, -2.0f}, .top = {}};
  positions[3] = {.chosen = {id("</s>"), -3.0f}, .top = {}};
  int64_t offset = 0;
  const json completion = completion_logprobs(positions, *prepared_.tokenizer, offset);
  EXPECT_EQ(completion["tokens"], (json{" time", "bytes:\\xc3", "bytes:\\xa9", "</s>"}));
  EXPECT_EQ(completion["text_offset"], (json{0, 5, 6, 6})) << "in characters";
  EXPECT_EQ(offset, 6);
  EXPECT_EQ(completion["top_logprobs"][1], (json{{"bytes:\\xc3", -1.0f}, {" time", -0.25f}}));
  const json chat = chat_logprobs(positions, *prepared_.tokenizer)["content"];
  EXPECT_EQ(chat[1]["bytes"], json{0xc3});
  EXPECT_EQ(chat[1]["top_logprobs"][0]["token"], " time");
  EXPECT_EQ(chat[3]["bytes"], (json{'<', '/', 's', '>'}));
  EXPECT_EQ(chat_logprobs(positions, *prepared_.tokenizer, TokenNames::kIds)["content"][1]["token"],
            fmt::format("token_id:{}", first.value()));
}

TEST(ServeFormat, SpeculationCountsRoundsWithDraftsOnly) {
  RoundSums rounds;
  rounds.add_round(0, 0, 1, true);
  rounds.add_round(4, 3, 4, false);
  rounds.add_round(2, 2, 3, false);
  rounds.add_round(3, 0, 1, false);
  EXPECT_EQ(speculation_json(rounds)["speculative_decoding"],
            (json{{"num_spec_tokens", 4},
                  {"num_spec_steps", 3},
                  {"num_draft_tokens", 9},
                  {"num_accepted_draft_tokens", 5},
                  {"mean_acceptance_length", 1 + 5.0 / 3},
                  {"draft_acceptance_rate", 5.0 / 9},
                  {"acceptance_histogram", {1, 0, 1, 1, 0}}}));
  EXPECT_EQ(speculation_json({})["speculative_decoding"]["mean_acceptance_length"], 1);
}

TEST(ServeFormat, DetailedSpeculationListsRoundsWithDrafts) {
  RequestMetrics metrics;
  metrics.rounds.add_round(4, 3, 4, false);
  metrics.rounds.add_round(2, 2, 3, false);
  metrics.step_drafted = {4, 2};
  metrics.step_accepted = {3, 2};
  const json detailed = detailed_speculation_json(metrics)["speculative_decoding"];
  EXPECT_EQ(detailed["per_step_drafted"], (json{4, 2}));
  EXPECT_EQ(detailed["per_step_accepted"], (json{3, 2}));
  EXPECT_EQ(detailed["num_spec_steps"], 2);
}

TEST(ServeFormat, ErrorsAreValidJsonWhateverTheyQuote) {
  const json body = json::parse(error_body({.status = 404, .message = "no \"\xff\n", .param = "model"}));
  EXPECT_EQ(body, (json{{"type", "error"},
                        {"error",
                         {{"message", "no \"\xef\xbf\xbd\n"},
                          {"type", "not_found_error"},
                          {"param", "model"},
                          {"code", nullptr}}}}));
}

}  // namespace
}  // namespace outrider
