// Requests from flags and from lines: the fields of a line replace those of the flags, and all others stay.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "base/hash.h"
#include "requests/asked_form.h"
#include "requests/finished_results.h"
#include "requests/requests.h"
#include "tests/coordinator/toy_tokenizer.h"
#include "tests/support/temporary_directory.h"
#include "text/chat_template/chat_template.h"

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
            .synthetic_acceptance = synthetic,
            .grammars = grammars_.get()};
  }
  // The request of a file with one line.
  Result<Request> line(const std::string& text, const RequestParams& flags) const {
    ASSIGN_OR_RETURN(const auto requests, read_requests(flags, directory_.write("in", text + "\n"), model()));
    return requests.front().request;
  }

  ToyTokenizer tokenizer_;
  std::unique_ptr<GrammarCompiler> grammars_ =
      make_grammar_compiler(tokenizer_, {.ends = {TokenId(1)}, .vocab_size = 40}).value();
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

TEST_F(ReadRequests, WholeNumbersMayHaveAPoint) {
  const auto with = line(R"({"prompt": "a", "max_tokens": 5.0, "seed": 2e3, "top_k": 7.0})", {});
  ASSERT_TRUE(with.ok()) << with.status().message();
  EXPECT_EQ(with->max_tokens, 5);
  EXPECT_EQ(with->sampling.seed.value, 2000u);
  EXPECT_EQ(with->sampling.top_k, 7);
  const auto refused = [&](const std::string& more, std::string_view part) {
    const std::string message = line("{\"prompt\": \"a\", " + more + "}", {}).status().message();
    EXPECT_NE(message.find(part), std::string::npos) << more << ": " << message;
  };
  refused(R"("max_tokens": 5.5)", "\"max_tokens\" must be a whole number, not 5.5");
  refused(R"("max_tokens": 1e300)", "\"max_tokens\" must be a whole number, not 1e+300");
  refused(R"("max_tokens": 5e9)", "\"max_tokens\" is 5000000000.0, which is too large");
  refused(R"("max_tokens": -5000000000)", "\"max_tokens\" is -5000000000, which is too small");
  refused(R"("seed": -1.0)", "\"seed\" is -1.0, which is too small");
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

TEST_F(ReadRequests, RowsOfBenchmarksWithoutTurnsAreToldSo) {
  for (const char* row :
       {R"({"question_id": 1})", R"({"question_id": 1, "turns": []})", R"({"question_id": 1, "turns": [1]})",
        R"({"question_id": 1, "messages": [{"role": "assistant", "content": "a"}]})"}) {
    const auto read = read_requests({}, directory_.write("row", std::string(row) + "\n"), model());
    ASSERT_FALSE(read.ok()) << row;
    EXPECT_NE(read.status().message().find("\"turns\""), std::string::npos) << read.status().message();
  }
}

TEST_F(ReadRequests, ARowHasTurnsOrAPromptOrMessages) {
  const std::pair<const char*, const char*> others[] = {
      {"prompt", R"("cd")"}, {"messages", R"([{"role": "user", "content": "cd"}])"}};
  for (const auto& [key, value] : others) {
    const auto row = fmt::format(R"({{"question_id": 1, "turns": ["ab"], "{}": {}}})", key, value);
    const auto read = read_requests({}, directory_.write("both", row), model());
    ASSERT_FALSE(read.ok()) << key;
    EXPECT_NE(read.status().message().find(fmt::format(":1: \"turns\" and \"{}\" are both there", key)),
              std::string::npos)
        << read.status().message();
  }
}

TEST_F(ReadRequests, RowsOfBenchmarksHaveIdsOfTheirOwn) {
  const auto refusal = [&](const std::string& rows) {
    return read_requests({}, directory_.write("rows", rows), model()).status().message();
  };
  const std::string good = R"({"question_id": "a", "category": "code", "turns": ["ab"]})";
  const auto row = [](const char* id, const char* category) {
    return fmt::format(R"({{"question_id": {}, "category": {}, "turns": ["ab"]}})", id, category);
  };
  EXPECT_EQ(refusal(good + "\n" + row("\"b\"", "null")), "");
  EXPECT_NE(refusal(good + "\n" + good).find(":2: \"question_id\" \"a\" stands in line 1, too"),
            std::string::npos)
      << refusal(good + "\n" + good);
  for (const char* id : {"null", "1.5", "[1]", "true"})
    EXPECT_NE(refusal(good + "\n" + row(id, "\"code\""))
                  .find(":2: \"question_id\" must be a text or a whole number"),
              std::string::npos)
        << refusal(good + "\n" + row(id, "\"code\""));
  for (const char* category : {"5", "[\"code\"]", "{}"})
    EXPECT_NE(refusal(row("7", category)).find(":1: \"category\" must be a text"), std::string::npos)
        << refusal(row("7", category));
}

TEST_F(ReadRequests, ALineMayNameItsCategory) {
  const std::string file = directory_.write("own",
                                            "{\"category\": \"code\", \"prompt\": \"ab\"}\n"
                                            "{\"prompt\": \"c\"}\n");
  const auto requests = read_requests({}, file, model());
  ASSERT_TRUE(requests.ok()) << requests.status().message();
  EXPECT_EQ(requests->at(0).category, "code");
  EXPECT_EQ(requests->at(1).category, "");
  const auto wrong = line(R"({"prompt": "a", "category": 5})", {});
  EXPECT_NE(wrong.status().message().find("\"category\" must be a text"), std::string::npos);
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

TEST_F(ReadRequests, ALineMayAskForAForm) {
  RequestParams flags;
  EXPECT_EQ(line(R"({"prompt": "a"})", flags)->grammar, nullptr);
  const auto own = line(R"({"prompt": "a", "structured_outputs": {"choice": ["b", "c"]}})", flags);
  ASSERT_TRUE(own.ok()) << own.status().message();
  ASSERT_NE(own->grammar, nullptr);
  EXPECT_NE(line(R"({"prompt": "a", "guided_choice": ["b", "c"]})", flags)->grammar, nullptr);

  flags.grammar = form_of({.choices = {"b"}}).value();
  const auto inherited = line(R"({"prompt": "a", "response_format": null})", flags);
  ASSERT_TRUE(inherited.ok()) << inherited.status().message();
  ASSERT_NE(inherited->grammar, nullptr);
  EXPECT_NE(line(R"({"prompt": "a", "guided_choice": ["b", "c"]})", flags)->grammar, inherited->grammar);
  EXPECT_EQ(line(R"({"prompt": "a", "response_format": {"type": "text"}})", flags)->grammar, nullptr)
      << "of no form";
}

TEST_F(ReadRequests, AFormThatCannotBeIsCalledAsItWasWritten) {
  const auto of_line = [&](const std::string& more) {
    return line("{\"prompt\": \"a\", " + more + "}", {}).status().message();
  };
  for (const auto& [more, part] : std::vector<std::pair<std::string, std::string>>{
           {R"("structured_outputs": {"choice": []})", "\"structured_outputs\": "},
           {R"("structured_outputs": {"choice": ["a"]}, "ignore_eos": true)", "\"ignore_eos\" forbids"},
           {R"("structured_outputs": {"choice": ["a"], "regex": "a"})", "two forms at once"},
           {R"("structured_outputs": {"chioce": ["a"]})", "\"chioce\" is not supported"},
           {R"("guided_choice": ["a"], "response_format": {"type": "json_object"})",
            "\"response_format\" and \"guided_choice\" both say"},
           {R"("response_format": {"type": "xml"})", "\"json_schema\""}})
    EXPECT_NE(of_line(more).find(part), std::string::npos) << more << ": " << of_line(more);
  // A schema that is a text within the line has a bound of its depth, too.
  std::string deep;
  for (int i = 0; i < 50'000; ++i) deep += R"({\"a\":)";
  deep += "1" + std::string(50'000, '}');
  EXPECT_NE(of_line("\"guided_json\": \"" + deep + "\"").find("nested more than 32 levels deep"),
            std::string::npos);
  const std::string wide = of_line(R"("seed": 18446744073709551616)");
  EXPECT_TRUE(wide.ends_with(":1: \"seed\": 18446744073709551616 is a whole number of more than 64 bits"))
      << wide;

  RequestParams params{.prompt = "a", .ignore_eos = true, .grammar = form_of({.choices = {"b"}}).value()};
  const std::string flag = read_requests(params, "", model()).status().message();
  EXPECT_EQ(flag.find("--structured-outputs-choice: "), 0u) << flag;
  EXPECT_NE(flag.find("--ignore-eos forbids"), std::string::npos) << flag;
}

TEST_F(ReadRequests, FlagsOfForms) {
  EXPECT_FALSE(form_of({}).value().has_value());
  EXPECT_FALSE(form_of({.response_format = "text"}).value().has_value());
  const auto object = form_of({.response_format = "json_object"}).value();
  ASSERT_TRUE(object.has_value());
  EXPECT_EQ(object->spec.kind, GrammarSpec::Kind::kJson);
  EXPECT_EQ(form_of({.response_format = R"({"type": "json_object"})"}).value()->spec, object->spec);

  const std::string schema = R"({"type": "object", "properties": {"b": {}, "a": {}}})";
  const auto of_text = form_of({.json = schema}).value();
  EXPECT_LT(of_text->spec.text.find("\"b\""), of_text->spec.text.find("\"a\"")) << "as it was written";
  EXPECT_EQ(form_of({.json = "@" + directory_.write("schema", schema).string()}).value()->spec,
            of_text->spec);
  EXPECT_EQ(
      form_of({.response_format = R"({"type": "json_schema", "json_schema": {"schema": )" + schema + "}}"})
          .value()
          ->spec,
      of_text->spec);
  EXPECT_EQ(form_of({.regex = "@a"}).value()->spec.text, "@a") << "an expression is no file";
  EXPECT_EQ(form_of({.grammar = "@" + directory_.write("g", "start: \"a\"").string()}).value()->spec.text,
            "start: \"a\"");

  for (const auto& [flags, part] : std::vector<std::pair<FormFlags, std::string>>{
           {{.response_format = "yaml"}, "--response-format: its \"type\""},
           {{.response_format = "{\"type\": "}, "--response-format: "},
           {{.json = "{"}, "--structured-outputs-json"},
           {{.json = "3"}, "--structured-outputs-json must be an object"},
           {{.json = "@/no/such/file"}, "/no/such/file"},
           {{.regex = "a", .choices = {"b"}},
            "--structured-outputs-regex and --structured-outputs-choice both say"}}) {
    const std::string message = form_of(flags).status().message();
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
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
    return fingerprint(read_requests(params, "", model()).value().front());
  };
  const uint64_t plain = of(base);
  EXPECT_EQ(of(base), plain);
  EXPECT_NE(RequestFingerprints(2)(read_requests(base, "", model()).value().front()), plain);
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
  std::set<uint64_t> of_forms{plain};
  for (const FormFlags& flags :
       {FormFlags{.choices = {"a"}}, FormFlags{.choices = {"b"}}, FormFlags{.choices = {"a", "b"}}}) {
    RequestParams formed = base;
    formed.grammar = form_of(flags).value();
    EXPECT_TRUE(of_forms.insert(of(formed)).second);
  }
}

}  // namespace
}  // namespace outrider
