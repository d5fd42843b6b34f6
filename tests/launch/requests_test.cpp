// --prompts: a file of requests in, results in the same order out.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/program.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

// Different lengths, so that results become ready in another order than asked for.
std::string mixed_requests() {
  return R"({"id": "long", "prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": true})"
         "\n\n"
         R"({"id": "short", "prompt": "The dog", "max_tokens": 2, "seed": 3, "temperature": 0.9})"
         "\n"
         R"({"id": 12, "prompt": "A girl", "max_tokens": 20, "logprobs": 2, "top_k": 50, "temperature": 0.7})"
         "\n"
         R"({"prompt": "Tom said", "max_tokens": 30, "temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1})"
         "\n"
         R"({"prompt": "Once upon a time", "max_tokens": 30, "temperature": 1.0})"
         "\n"
         R"({"prompt": "Once upon a time", "max_tokens": 30, "temperature": 1.0})"
         "\n";
}

class Requests : public ::testing::Test {
 protected:
  std::vector<json> run(const std::string& file, std::vector<std::string> more) {
    more.insert(more.begin(), {"--prompts", file, "--quiet"});
    const Outcome outcome = generate(more);
    EXPECT_TRUE(outcome.succeeded()) << outcome.describe();
    EXPECT_EQ(outcome.err, "");
    return lines_of(outcome.out);
  }
  TemporaryDirectory dir_;
};

TEST_F(Requests, KeepTheirOrderAndTheirOwnParameters) {
  const auto lines = run(dir_.write("in.jsonl", mixed_requests()), {"--draft-model", demo_draft()});
  ASSERT_EQ(lines.size(), 6u);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["index"], i);
  EXPECT_EQ(lines[0]["id"], "long");
  EXPECT_EQ(lines[0]["usage"]["completion_tokens"], 60);
  EXPECT_EQ(lines[1]["id"], "short");
  EXPECT_LE(lines[1]["usage"]["completion_tokens"], 2);
  EXPECT_EQ(lines[2]["id"], 12) << "a number stays one";
  ASSERT_TRUE(lines[2].contains("logprobs"));
  EXPECT_EQ(lines[2]["logprobs"].size(), lines[2]["token_ids"].size());
  EXPECT_EQ(lines[2]["logprobs"][0]["top"].size(), 2u);
  EXPECT_FALSE(lines[3].contains("id"));
  EXPECT_FALSE(lines[3].contains("logprobs"));
  EXPECT_NE(lines[4]["token_ids"], lines[5]["token_ids"]) << "lines must not share their random draws";
}

TEST_F(Requests, TextsDoNotDependOnTheBatchOrTheDrafter) {
  const std::string file = dir_.write("in.jsonl", mixed_requests());
  const auto alone = run(file, {"--max-num-seqs", "1"});
  const std::vector<std::string> draft{"--draft-model", demo_draft()};
  EXPECT_EQ(run(file, {"--max-num-seqs", "8"}), alone);
  EXPECT_EQ(run(file, {"--max-num-seqs", "8", "--draft-model", demo_draft()}), alone);
  EXPECT_EQ(run(file, {"--max-num-seqs", "2", "--draft-model", demo_draft(), "--tensor-parallel-size", "2"}),
            alone);
  EXPECT_EQ(run(file, {"--max-num-seqs", "3", "--drafter", "ngram"}), alone);
}

// Choices need no library.
TEST_F(Requests, FormsLimitTextsWhoeverDrafts) {
  const std::string file =
      dir_.write("in.jsonl", R"({"prompt": "Is it so?"})"
                             "\n"
                             R"({"prompt": "Is it so?", "guided_choice": ["a cake", "a ball and a cake"]})"
                             "\n"
                             R"({"prompt": "Is it so?", "response_format": {"type": "text"}})"
                             "\n");
  const std::vector<std::string> asked{"--structured-outputs-choice",
                                       "yes",
                                       "--guided-choice",
                                       "no, never",
                                       "--temperature",
                                       "1",
                                       "--max-tokens",
                                       "20"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), asked.begin(), asked.end());
    return run(file, more);
  };
  const auto plain = with({});
  ASSERT_EQ(plain.size(), 3u);
  EXPECT_TRUE(plain[0]["text"] == "yes" || plain[0]["text"] == "no, never") << plain[0];
  EXPECT_EQ(plain[0]["finish_reason"], "stop");
  EXPECT_TRUE(plain[1]["text"] == "a cake" || plain[1]["text"] == "a ball and a cake") << plain[1];
  EXPECT_EQ(plain[2]["usage"]["completion_tokens"], 20) << "of no form";
  EXPECT_EQ(with({"--draft-model", demo_draft(), "--num-speculative-tokens", "4"}), plain);
  EXPECT_EQ(with({"--drafter", "suffix", "--tensor-parallel-size", "2"}), plain);
  EXPECT_EQ(with({"--draft-model", demo_draft(), "--data-parallel-size", "2"}), plain);

  // A finished result is reused only if its request has the same form.
  const std::string results = dir_ / "out.jsonl";
  const Outcome first =
      generate({"--prompts", file, "--guided-choice", "yes", "--max-tokens", "20", "--output", results});
  ASSERT_TRUE(first.succeeded()) << first.describe();
  const Outcome again = generate({"--prompts", file, "--guided-choice", "no", "--max-tokens", "20",
                                  "--resume", results, "--output", dir_ / "again.jsonl"});
  ASSERT_TRUE(again.succeeded()) << again.describe();
  EXPECT_NE(again.err.find("2 of 3 requests are finished"), std::string::npos) << again.err;
}

TEST_F(Requests, FormsOfTheLibrary) {
  const char* const libraries = std::getenv("OUTRIDER_TEST_GRAMMAR_LIBRARY");
  std::vector<std::string> arguments{"--prompt",
                                     "The answer: ",
                                     "--quiet",
                                     "--max-tokens",
                                     "60",
                                     "--temperature",
                                     "1",
                                     "--response-format",
                                     R"({"type": "json_schema", "json_schema": {"schema": {"type": "object",
                                         "properties": {"what": {"enum": ["ball", "cake"]}, "new": {"type": "boolean"}},
                                         "required": ["what", "new"], "additionalProperties": false}}})"};
  if (!libraries) {
    const Outcome refused = generate(arguments);
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find("--grammar-library"), std::string::npos) << refused.err;
    GTEST_SKIP() << "OUTRIDER_TEST_GRAMMAR_LIBRARY is not set: llguidance/_lib.abi3.so or libllguidance.so";
  }
  arguments.insert(arguments.end(), {"--grammar-library", libraries});
  const Outcome plain = generate(arguments);
  ASSERT_TRUE(plain.succeeded()) << plain.describe();
  EXPECT_TRUE(json::parse(plain.out)["new"].is_boolean()) << plain.out;
  arguments.insert(arguments.end(), {"--draft-model", demo_draft(), "--num-speculative-tokens", "5"});
  EXPECT_EQ(generate(arguments).out, plain.out);
}

TEST_F(Requests, ALineWithItsSeedIsThePromptWithThatSeed) {
  const auto lines = run(dir_.write("in.jsonl", R"({"prompt": "One day", "seed": 5})"
                                                "\n"
                                                R"({"prompt": "One day", "seed": 18446744073709551615})"
                                                "\n"),
                         {"--temperature", "0.9", "--max-tokens", "20"});
  ASSERT_EQ(lines.size(), 2u);
  for (const auto& [line, seed] : {std::pair{0, "5"}, std::pair{1, "18446744073709551615"}}) {
    const Outcome alone =
        generate({"--prompt", "One day", "--seed", seed, "--temperature", "0.9", "--max-tokens", "20", "-q"});
    EXPECT_EQ(alone.out, lines[static_cast<size_t>(line)]["text"].get<std::string>() + "\n");
  }
}

// The prompt of a second turn is the first one, the model's answer to it, and the turn; whatever else is
// asked meanwhile, and whether anybody drafts.
TEST_F(Requests, LaterTurnsAnswerToTheModelsOwnAnswers) {
  const std::string file = dir_.write("in.jsonl",
                                      "{\"question_id\": 1, \"category\": \"writing\", \"turns\": [\"Once "
                                      "upon a time\", \"The dog\", \"Tom said\"]}\n"
                                      "{\"prompt\": \"A girl\"}\n");
  const std::vector<std::string> settings{"--max-tokens", "20", "--ignore-eos", "--temperature", "0.8"};
  const auto lines = run(file, settings);
  ASSERT_EQ(lines.size(), 4u);
  const auto tokens = [&](size_t index, const char* of) { return lines[index]["usage"][of].get<int>(); };
  const auto text_tokens = [&](const std::string& text) {
    const auto line = run(dir_.write("one.jsonl", json{{"prompt", text}}.dump() + "\n"),
                          {"--max-tokens", "1", "--ignore-eos"});
    return line.at(0)["usage"]["prompt_tokens"].get<int>();
  };
  EXPECT_FALSE(lines[3].contains("id")) << "the other request";
  for (const size_t turn : {1u, 2u}) {
    EXPECT_EQ(lines[turn]["id"], 1);
    EXPECT_EQ(tokens(turn, "completion_tokens"), 20);
    const int added = tokens(turn, "prompt_tokens") - tokens(turn - 1, "prompt_tokens") - 20;
    EXPECT_GT(added, 1) << turn;
    EXPECT_LE(added, text_tokens(turn == 1 ? "\n\nThe dog" : "\n\nTom said")) << turn;
  }
  auto drafted = settings;
  drafted.insert(drafted.end(), {"--draft-model", demo_draft(), "--max-num-seqs", "1", "--compare-plain"});
  const auto same = run(file, drafted);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(same.at(i)["token_ids"], lines[i]["token_ids"]) << i;

  // A conversation that is not finished is asked again from its beginning.
  std::string left;
  for (const size_t i : {0u, 1u, 3u}) left += lines[i].dump() + "\n";
  auto resumed = settings;
  resumed.insert(resumed.end(), {"--resume", dir_.write("left.jsonl", left)});
  EXPECT_EQ(run(file, resumed), lines);
}

TEST_F(Requests, StopOfALineReplacesTheFlag) {
  const std::string text =
      run(dir_.write("a.jsonl", R"({"prompt": "Once upon a time"})"), {"--max-tokens", "40"})[0]["text"];
  const std::string stop = text.substr(text.size() / 2, 4);
  const json request{{"prompt", "Once upon a time"}, {"stop", {stop}}};
  const auto line =
      run(dir_.write("b.jsonl", request.dump()), {"--max-tokens", "40", "--stop", text.substr(0, 2)})[0];
  EXPECT_EQ(line["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(line["finish_reason"], "stop");
}

TEST_F(Requests, OutputFileHoldsTheSameLines) {
  const std::string file = dir_.write("in.jsonl", mixed_requests());
  const auto expected = run(file, {});
  const Outcome outcome = generate({"--prompts", file, "--output", dir_ / "out.jsonl", "--quiet"});
  ASSERT_TRUE(outcome.succeeded()) << outcome.describe();
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(lines_of(read_file(dir_ / "out.jsonl")), expected);
  EXPECT_EQ(dir_.entries(), (std::vector<std::string>{"in.jsonl", "out.jsonl"}))
      << "no temporary file is left";
}

std::string first_lines(const std::string& text, int count) {
  size_t end = 0;
  for (int i = 0; i < count; ++i) end = text.find('\n', end) + 1;
  return text.substr(0, end);
}

TEST_F(Requests, ResumedOutputIsThatOfOneRun) {
  const std::string file = dir_.write("in.jsonl", mixed_requests()), whole = dir_ / "whole.jsonl";
  const std::vector<std::string> draft{"--draft-model", demo_draft()};
  ASSERT_TRUE(generate({"--prompts", file, "--output", whole, "--quiet"}).succeeded());
  const std::string expected = read_file(whole);
  // The output file of a run that was killed while it wrote its fourth result.
  const std::string left = dir_.write("left.jsonl", first_lines(expected, 3) + "{\"finish_reason\": \"st");
  const Outcome resumed = generate({"--prompts", file, "--draft-model", demo_draft(), "--resume", left,
                                    "--output", dir_ / "resumed.jsonl", "--report", dir_ / "report.json"});
  ASSERT_TRUE(resumed.succeeded()) << resumed.describe();
  EXPECT_NE(resumed.err.find("3 of 6 requests are finished in " + left), std::string::npos)
      << resumed.describe();
  EXPECT_EQ(read_file(dir_ / "resumed.jsonl"), expected);
  const json metrics = json::parse(read_file(dir_ / "report.json"))["metrics"];
  EXPECT_EQ(metrics["requests"]["submitted"], 3);

  // The same file is the one that a run goes on with.
  const Outcome in_place = generate({"--prompts", file, "--resume", left, "--output", left, "--quiet"});
  ASSERT_TRUE(in_place.succeeded()) << in_place.describe();
  EXPECT_EQ(read_file(left), expected);

  const Outcome again = generate({"--prompts", file, "--resume", whole, "--quiet"});
  ASSERT_TRUE(again.succeeded()) << again.describe();
  EXPECT_EQ(again.out, expected) << "nothing is left to do";
}

// A resumed .partial of the same --output is removed once the output is whole. One with other results stays.
TEST_F(Requests, AResumedPartialIsRemovedAndNotWarnedOf) {
  const std::string file = dir_.write("in.jsonl", mixed_requests()), output = dir_ / "out.jsonl";
  ASSERT_TRUE(generate({"--prompts", file, "--output", output, "--quiet"}).succeeded());
  const std::string expected = read_file(output), left = output + ".123.partial";
  for (const bool has_others : {false, true}) {
    std::filesystem::remove(output);
    write_file(left, first_lines(expected, 3));
    const std::string asked =
        has_others ? dir_.write("less.jsonl", first_lines(mixed_requests(), 2)) : dir_.path() / "in.jsonl";
    const Outcome resumed = generate({"--prompts", asked, "--resume", left, "--output", output});
    ASSERT_TRUE(resumed.succeeded()) << resumed.describe();
    EXPECT_EQ(resumed.err.find("keeps what another run"), std::string::npos) << resumed.describe();
    EXPECT_EQ(std::filesystem::exists(left), has_others);
  }
}

TEST_F(Requests, ResumingTakesOnlyWhatIsTheSameRequest) {
  const json asked{{"prompt", "One day"}, {"max_tokens", 6}, {"seed", 5}, {"temperature", 0.9}};
  const std::string left = dir_ / "left.jsonl", file = dir_ / "other.jsonl";
  ASSERT_TRUE(generate({"--prompts", dir_.write("in.jsonl", asked.dump() + "\n"), "--output", left, "-q"})
                  .succeeded());
  for (const json& change : std::vector<json>{{{"seed", 6}},
                                              {{"temperature", 0.8}},
                                              {{"max_tokens", 7}},
                                              {{"stop", "."}},
                                              {{"ignore_eos", true}},
                                              {{"logprobs", 1}},
                                              {{"logit_bias", {{"5", 1}}}},
                                              {{"top_k", 7}},
                                              {{"rule", "naive"}},
                                              {{"prompt", "One night"}}}) {
    json request = asked;
    request.update(change);
    dir_.write("other.jsonl", request.dump() + "\n");
    const Outcome run = generate({"--prompts", file, "--resume", left});
    EXPECT_NE(run.err.find("0 of 1 requests are finished"), std::string::npos) << change << run.describe();
  }
  const Outcome quantised =
      generate({"--prompts", dir_ / "in.jsonl", "--resume", left, "--weight-format", "int8"});
  EXPECT_NE(quantised.err.find("0 of 1 requests are finished"), std::string::npos) << quantised.describe();

  // Elsewhere in the file, and under a name of its own.
  json named = asked;
  named["id"] = "mine";
  dir_.write("other.jsonl", json{{"prompt", "Tom"}, {"max_tokens", 2}}.dump() + "\n" + named.dump() + "\n");
  const auto lines = run(file, {"--resume", left});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1]["index"], 1);
  EXPECT_EQ(lines[1]["id"], "mine");
  EXPECT_EQ(lines[1]["text"], lines_of(read_file(left))[0]["text"]);
}

TEST_F(Requests, ALineThatWasChangedIsNotTakenOver) {
  const std::string file = dir_.write("in.jsonl", mixed_requests()), whole = dir_ / "whole.jsonl";
  ASSERT_TRUE(generate({"--prompts", file, "--output", whole, "--quiet"}).succeeded());
  const std::string text = read_file(whole);
  const auto refused = [&](const std::string& changed, const std::string& what) {
    const Outcome run = generate({"--prompts", file, "--resume", dir_.write("changed.jsonl", changed)});
    EXPECT_EQ(run.code, 2) << run.describe();
    EXPECT_NE(run.err.find("changed.jsonl:" + what), std::string::npos) << run.describe();
    EXPECT_NE(run.err.find("remove that line"), std::string::npos) << run.describe();
  };
  // One letter of the second line's text.
  std::string damaged = text;
  const size_t second = text.find('\n') + 1;
  damaged[text.find("\"text\":\"", second) + 9] ^= 1;
  refused(damaged, "2: was changed");
  const size_t checksum = text.find("\"checksum\":");
  ASSERT_NE(checksum, std::string::npos);
  const std::string field = text.substr(checksum, text.find(',', checksum) + 1 - checksum);
  refused(std::string(text).erase(checksum, field.size()), "1: has no \"checksum\"");
  refused(std::string(text).replace(checksum, field.size(), "\"checksum\":5,"), "1: was changed");
}

TEST_F(Requests, WhatCannotBeResumedIsToldBeforeAnythingRuns) {
  const std::string file = dir_.write("in.jsonl", mixed_requests());
  const std::string junk = dir_.write("junk.jsonl", "{\"text\": \"x\"}\n");
  const std::string torn = dir_.write("torn.jsonl", "{\"text\": \n{}\n");
  for (const auto& [flags, what] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--prompts", file, "--resume", junk}, "junk.jsonl:1: not a result"},
           {{"--prompts", file, "--resume", torn}, "torn.jsonl:1"},
           {{"--prompts", file, "--resume", dir_ / "none"}, "cannot be read"},
           {{"--prompts", file, "--resume", dir_.path()}, "cannot be read"},
           {{"--prompt", "x", "--resume", junk}, "--resume needs --prompts"},
           {{"--prompts", file, "--resume", junk, "--record-rounds", dir_ / "r"}, "--record-rounds"}}) {
    const Outcome outcome = generate(flags);
    EXPECT_EQ(outcome.code, 2) << outcome.describe();
    EXPECT_NE(outcome.err.find(what), std::string::npos) << outcome.describe();
  }
}

TEST_F(Requests, OutputFileOfARunThatFailsStaysWhatItWas) {
  const std::string file = dir_.write("in.jsonl", "{\"prompt\": \"x\", \"top_p\": 5}\n");
  dir_.write("out.jsonl", "from yesterday\n");
  EXPECT_EQ(generate({"--prompts", file, "--output", dir_ / "out.jsonl"}).code, 2);
  EXPECT_EQ(read_file(dir_ / "out.jsonl"), "from yesterday\n");
  EXPECT_EQ(dir_.entries(), (std::vector<std::string>{"in.jsonl", "out.jsonl"}));
}

TEST_F(Requests, ATextThatTheContextEndsIsTold) {
  const std::string file = dir_.write("in.jsonl", R"({"prompt": "Once", "ignore_eos": true})"
                                                  "\n"
                                                  R"({"prompt": "Once", "max_tokens": 3})"
                                                  "\n");
  const Outcome run = generate(
      {"--prompts", file, "--max-tokens", "100", "--max-model-len", "20", "--report", dir_ / "r.json"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_NE(run.err.find("outrider: 1 of 2 texts ended where the context of 20 tokens does"),
            std::string::npos)
      << run.describe();
  EXPECT_EQ(json::parse(read_file(dir_ / "r.json"))["cut_by_context"], json{0});
}

TEST_F(Requests, FlagsThatChangeNothingAreTold) {
  const Outcome none = generate({"--prompt", "x", "--max-tokens", "2", "-g", "3", "--pipeline", "ahead",
                                 "--speculative-tree", "best-first:8", "--quiet"});
  ASSERT_TRUE(none.succeeded()) << none.describe();
  for (const char* flag :
       {"--num-speculative-tokens 3", "--pipeline ahead", "--speculative-tree best-first:8"})
    EXPECT_NE(
        none.err.find(std::string("outrider: warning: ") + flag + " changes nothing: there is no drafter"),
        std::string::npos)
        << none.describe();
  EXPECT_EQ(generate({"--prompt", "x", "--max-tokens", "2", "-g", "0", "--quiet"}).err, "");
  EXPECT_EQ(generate({"--prompt", "x", "--max-tokens", "2", "-g", "3", "--drafter", "ngram", "--quiet"}).err,
            "");
}

TEST_F(Requests, MoreThanTheQueueHolds) {
  std::string many;
  for (int i = 0; i < 100; ++i)
    many += R"({"prompt": "A", "max_tokens": 2, "temperature": 1})"
            "\n";
  const auto lines = run(dir_.write("in.jsonl", many), {"--drafter", "ngram", "--max-num-seqs", "4"});
  ASSERT_EQ(lines.size(), 100u);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["index"], i);
}

TEST_F(Requests, WindowsLineEndsAndAMissingLastNewlineAreFine) {
  EXPECT_EQ(
      run(dir_.write("in.jsonl", "{\"prompt\": \"A\"}\r\n\r\n{\"prompt\": \"B\"}"), {"--max-tokens", "2"})
          .size(),
      2u);
}

TEST_F(Requests, PromptsCanComeFromAPipe) {
  const std::string file = dir_.write("in.jsonl", "{\"prompt\": \"A\", \"max_tokens\": 2}\n");
  const Outcome outcome = run_program({"sh", "-c",
                                       "cat '" + file + "' | '" + outrider_path() + "' generate --model '" +
                                           demo_target().string() + "' --prompts /dev/stdin --quiet"});
  ASSERT_TRUE(outcome.succeeded()) << outcome.describe();
  EXPECT_EQ(lines_of(outcome.out).size(), 1u);
}

TEST_F(Requests, ADashIsStandardInputAndOutput) {
  const std::string file = dir_.write("in.jsonl", "{\"prompt\": \"A\", \"max_tokens\": 2}\n");
  const auto from_standard_input = [&](const std::string& path) {
    return run_program({"sh", "-c", "exec \"$@\" < '" + path + "'", "sh", outrider_path(), "generate",
                        "--model", demo_target(), "--prompts", "-", "--quiet"},
                       {.directory = dir_.path()});
  };
  EXPECT_EQ(lines_of(from_standard_input(file).out), run(file, {}));
  const Outcome bad = from_standard_input(dir_.write("bad.jsonl", "\n{}\n"));
  EXPECT_EQ(bad.code, 2);
  EXPECT_NE(bad.err.find("standard input:2: "), std::string::npos) << bad.describe();

  const Outcome one = generate({"--prompt", "A", "--max-tokens", "2", "--output", "-", "--quiet"},
                               {.directory = dir_.path()});
  EXPECT_EQ(lines_of(one.out).at(0)["token_ids"], run(file, {}).at(0)["token_ids"]);
  EXPECT_EQ(dir_.entries(), (std::vector<std::string>{"bad.jsonl", "in.jsonl"})) << "no file is called -";
}

}  // namespace
}  // namespace outrider::testing
