// Text of the demo pair: never which text, always how it relates to other runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/program.h"

namespace outrider::testing {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Arguments kPrompt{"--prompt", "Once upon a time", "--max-tokens", "40"};
const Arguments kQuiet{"--quiet"};
const Arguments kSampled{"--temperature", "0.8", "--seed", "7"};

Arguments with_draft() { return {"--draft-model", demo_draft()}; }

TEST(Generate, StreamsOnlyTheContinuationToStandardOutput) {
  // A fixed length: where drafting does not pay, as under a sanitizer, the policy would leave it.
  const Outcome run = generate(kPrompt + with_draft() + Arguments{"-g", "2"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  ASSERT_GT(run.out.size(), 1u);
  EXPECT_EQ(run.out.back(), '\n');
  EXPECT_EQ(run.out.find("Once upon a time"), std::string::npos) << "the prompt was echoed";
  for (const char* word : {"tokens/s", "acceptance", "tokens per round", "draft", "verify"})
    EXPECT_NE(run.err.find(word), std::string::npos) << word << run.describe();
  EXPECT_EQ(run.out.find("tokens/s"), std::string::npos);
}

// The flag that takes a model's own defaults; a flag of the run itself comes first.
TEST(Generate, DefaultsOfTheModelAreTakenWhereAsked) {
  const TemporaryDirectory dir;
  const auto model = dir.copy(demo_target(), "model");
  const auto run = [&](const Arguments& more) {
    return outrider_program(
        Arguments{"generate", "--quiet", "--seed", "3", "--prompt", "Once upon a time", "--model", model} +
        more);
  };
  const Arguments own{"--generation-config", "auto"};
  const json config{{"do_sample", true},         {"temperature", 0.9},   {"top_k", 9},      {"top_p", 0.8},
                    {"repetition_penalty", 1.2}, {"max_new_tokens", 30}, {"min_p", nullptr}};
  write_file(model / "generation_config.json", config.dump());
  const Arguments said{"--temperature",        "0.9", "--top-k", "9", "--top-p", "0.8",
                       "--repetition-penalty", "1.2"};
  const std::string sampled = run(own).out, greedy = run({"--max-tokens", "30"}).out;
  EXPECT_NE(sampled, greedy);
  EXPECT_EQ(sampled, run(said + Arguments{"--max-tokens", "30"}).out);
  EXPECT_EQ(run({"--max-tokens", "30", "--generation-config", "none"}).out, greedy);
  EXPECT_EQ(run(own + Arguments{"--temperature", "0", "--repetition-penalty", "1"}).out, greedy);
  EXPECT_EQ(run(own + Arguments{"--max-tokens", "7"}).out, run(said + Arguments{"--max-tokens", "7"}).out);

  write_file(model / "generation_config.json",
             R"({"do_sample": false, "temperature": 0.9, "max_new_tokens": 30})");
  EXPECT_EQ(run(own).out, greedy);
  std::filesystem::remove(model / "generation_config.json");
  EXPECT_EQ(run(own + Arguments{"--max-tokens", "30"}).out, greedy);
  for (const char* wrong :
       {R"({"temperature": -1})", R"({"top_p": 0})", R"({"top_k": "x"})", R"({"max_new_tokens": 0})"}) {
    write_file(model / "generation_config.json", wrong);
    const Outcome outcome = run(own);
    EXPECT_EQ(outcome.code, 2) << outcome.describe();
    const std::string key = json::parse(wrong).items().begin().key();
    EXPECT_NE(outcome.err.find("generation_config.json: \"" + key + "\""), std::string::npos)
        << outcome.describe();
    EXPECT_TRUE(run({"--max-tokens", "2"}).succeeded()) << "not read by default";
  }
}

TEST(Generate, QuietIsSilentOnStandardError) {
  const Outcome run = generate(kPrompt + with_draft() + kQuiet);
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out, generate(kPrompt + with_draft()).out);
}

// Lossless generation: none of these options changes a byte of the text.
class SameText : public ::testing::TestWithParam<Arguments> {};

// The plain text of these sampling flags, generated once.
const Outcome& plainly(const Arguments& sampling) {
  static std::map<Arguments, Outcome> outcomes;
  const auto found = outcomes.find(sampling);
  if (found != outcomes.end()) return found->second;
  return outcomes.emplace(sampling, generate(kPrompt + sampling + kQuiet)).first->second;
}

TEST_P(SameText, AsPlainDecoding) {
  for (const Arguments& sampling : {Arguments{}, kSampled}) {
    const Outcome& plain = plainly(sampling);
    const Outcome run = generate(kPrompt + sampling + kQuiet + GetParam());
    ASSERT_TRUE(plain.succeeded()) << plain.describe();
    ASSERT_TRUE(run.succeeded()) << run.describe();
    EXPECT_EQ(run.out, plain.out) << run.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Flags, SameText,
    ::testing::Values(Arguments{"--drafter", "ngram"}, Arguments{"--drafter", "suffix"},
                      with_draft() + Arguments{"--num-speculative-tokens", "1"},
                      with_draft() + Arguments{"--num-speculative-tokens", "5"},
                      with_draft() + Arguments{"--gamma-policy", "heuristic:start=2"},
                      with_draft() + Arguments{"--emulate-link", "delay=1ms,rate=100mbit"},
                      with_draft() + Arguments{"--pipeline", "fanout", "--draft-threads", "1",
                                               "--emulate-link", "delay=2ms,links=all"},
                      with_draft() + Arguments{"--speculative-tree", "4,2,1"},
                      with_draft() + Arguments{"--speculative-tree", "best-first:16", "--tp", "2"},
                      with_draft() + Arguments{"--speculative-tree", "auto"},
                      with_draft() + Arguments{"--speculative-tree", "sequoia:8"},
                      with_draft() + Arguments{"--speculative-tree", "[[0,0],[0],[1],[1,0],[0,1],[0,0,0]]"},
                      Arguments{"--drafter", "ngram", "--speculative-tree", "best-first:8"},
                      Arguments{"--drafter", "suffix", "--speculative-tree", "best-first:8"},
                      Arguments{"--drafter", "recycling", "--tp", "2"},
                      with_draft() + Arguments{"--drafter", "model+suffix"},
                      with_draft() + Arguments{"--drafter", "model+suffix", "--pipeline", "fanout"},
                      Arguments{"--drafter", "recycling", "--speculative-tree", "best-first:8"},
                      Arguments{"--drafter", "recycling", "--speculative-tree",
                                "[[0],[1],[0,0],[0,0,0],[1,0]]"},
                      Arguments{"--drafter", "suffix", "--speculative-tree", "3,2,1,1"},
                      Arguments{"--drafter", "lookahead", "--speculative-tree", "best-first:24"},
                      Arguments{"--drafter", "lookahead", "--speculative-tree", "best-first:40",
                                "--lookahead-ngram", "3", "--tp", "2"},
                      Arguments{"--drafter", "lookahead", "--speculative-tree", "3,2,2,1"},
                      Arguments{"--drafter", "suffix", "--speculative-tree", "sequoia:6"},
                      with_draft() + Arguments{"--tensor-parallel-size", "2"},
                      with_draft() + Arguments{"--tp", "8", "--threads", "1"},
                      with_draft() + Arguments{"--data-parallel-size", "2"},
                      Arguments{"--drafter", "ngram", "--dp", "3", "--tp", "2", "--threads", "1"},
                      with_draft() + Arguments{"--threads", "1"}, Arguments{"--threads", "1"}));

class TheTargetsRanks : public ::testing::TestWithParam<Arguments> {};

TEST_P(TheTargetsRanks, ReachADrafterThatReadsThem) {
  const TemporaryDirectory dir;
  const Outcome run = generate(kPrompt + kQuiet + GetParam() + Arguments{"--report", dir / "r.json"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  const json metrics = json::parse(read_file(dir / "r.json"))["metrics"];
  EXPECT_GT(metrics["drafts"]["ranked_rows"], metrics["rounds"]["rounds"]);
  EXPECT_GT(metrics["rounds"]["accepted_tokens"], 0);
}

INSTANTIATE_TEST_SUITE_P(Drafters, TheTargetsRanks,
                         ::testing::Values(Arguments{"--drafter", "recycling", "-g", "3"},
                                           Arguments{"--drafter", "lookahead", "--speculative-tree",
                                                     "best-first:24"}));

// A drafter that is asked for nothing is unloaded, comes back, and is unloaded again.
TEST(Generate, ADrafterOfNoUseIsUnloadedAndComesBack) {
  const TemporaryDirectory dir;
  const Arguments all =
      Arguments{"-p", "Once upon a time", "--max-tokens", "1500", "--ignore-eos", "-g", "0"};
  const Outcome plain = generate(all + kQuiet);
  const Outcome run = generate(all + with_draft() + kQuiet +
                               Arguments{"--unload-drafter", "0.005", "--report", dir / "r.json"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(run.out, plain.out);
  const json cluster = json::parse(read_file(dir / "r.json"))["metrics"]["cluster"];
  EXPECT_GT(cluster["workers_rested"], 0);
  EXPECT_GT(cluster["workers_joined"], 1);
  EXPECT_EQ(cluster["workers_lost"], 0);
}

TEST(Generate, TreesAreInTheReportTheTraceAndTheRecord) {
  const TemporaryDirectory dir;
  const Outcome run = generate(kPrompt + with_draft() + kQuiet +
                               Arguments{"--speculative-tree", "3,2,1", "--report", dir / "r.json", "--trace",
                                         dir / "t.json", "--record-rounds", dir / "rounds.jsonl"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  const json trees = json::parse(read_file(dir / "r.json"))["metrics"]["trees"];
  EXPECT_GT(trees["rounds"], 3);
  EXPECT_GT(trees["nodes_per_round"], 10);
  EXPECT_LE(trees["nodes_per_round"], 3 + 6 + 6);
  EXPECT_EQ(trees["tested_by_depth"].size(), 3u);
  EXPECT_EQ(trees["offered_by_rank"].size(), 3u);
  int in_trace = 0;
  const json trace = json::parse(read_file(dir / "t.json"));
  for (const json& event : trace["traceEvents"])
    in_trace += event.value("args", json::object()).contains("parents");
  EXPECT_GT(in_trace, 0);
  EXPECT_NE(read_file(dir / "rounds.jsonl").find("\"parents\":[-1,0,1,"), std::string::npos);
  const Outcome replay = outrider_program({"simulate", "replay", dir / "rounds.jsonl"});
  EXPECT_TRUE(replay.succeeded()) << replay.describe();
  const Outcome again =
      generate(kPrompt + with_draft() + kQuiet + Arguments{"--record-rounds", dir / "rounds.jsonl"});
  EXPECT_EQ(again.code, 2);
  EXPECT_NE(again.err.find("--record-rounds"), std::string::npos) << again.err;
  EXPECT_NE(again.err.find("--overwrite"), std::string::npos) << again.err;
}

// As vLLM writes its token trees, and longer than some texts have room for.
TEST(Generate, ATreeComesFromAFile) {
  const TemporaryDirectory dir;
  write_file(dir / "tree.txt",
             "[(0," + std::string(60'000, ' ') + "), (1,), (0, 0), (0, 0, 0),\n (0, 0, 0, 0)]\n");
  const Outcome run = generate(kPrompt + with_draft() + kQuiet +
                               Arguments{"--speculative-tree", "@" + (dir / "tree.txt").string(),
                                         "--max-tokens", "30", "--report", dir / "r.json"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(run.out, generate(kPrompt + kQuiet + Arguments{"--max-tokens", "30"}).out);
  const json trees = json::parse(read_file(dir / "r.json"))["metrics"]["trees"];
  EXPECT_GT(trees["rounds"], 3);
  EXPECT_LE(trees["nodes_per_round"], 5);
  EXPECT_EQ(trees["tested_by_depth"].size(), 4u);
}

// Every rule that takes trees, from the command line to the report; the text is that of any number of ranks.
TEST(Generate, TreesUnderPqRulesGiveTheSameTextOnAnyNumberOfRanks) {
  const TemporaryDirectory dir;
  for (const std::string rule : {"specinfer", "kseq", "swor", "traversal"})
    for (const std::string tree : {"3,2,1", "sequoia:8"}) {
      if ((rule == "kseq" || rule == "traversal") != (tree == "3,2,1"))
        continue;  // sampled_trees_test has all pairs
      const auto run = [&](const std::string& ranks) {
        return generate(kPrompt + with_draft() + kQuiet +
                        Arguments{"--temperature", "1", "--seed", "4", "--rule", rule, "--speculative-tree",
                                  tree, "--tp", ranks, "--report", dir / (rule + tree + ranks)});
      };
      const Outcome one = run("1"), four = run("4");
      ASSERT_TRUE(one.succeeded()) << one.describe();
      EXPECT_EQ(one.out, four.out) << rule << " " << tree;
      for (const char* ranks : {"1", "4"}) {
        const json report = json::parse(read_file(dir / (rule + tree + ranks)));
        EXPECT_EQ(report["rule"], rule);
        EXPECT_GT(report["metrics"]["trees"]["rounds"], 3) << rule << " " << tree;
        EXPECT_GT(report["metrics"]["trees"]["accepted_per_round"], 0.5);
        EXPECT_EQ(report["metrics"]["drafts"]["dropped"]["tree"], 0);
        EXPECT_EQ(report["metrics"]["drafts"]["dropped"]["bad_q"], 0);
      }
    }
}

TEST(Generate, SeedDecidesTheSampledText) {
  const auto text = [](const std::string& seed) {
    return generate(kPrompt + Arguments{"--temperature", "1", "--seed", seed, "--quiet"}).out;
  };
  EXPECT_EQ(text("1"), text("1"));
  EXPECT_NE(text("1"), text("2"));
}

// Reports the gain of drafting ahead and the gain that the formula predicts, for sequences with passes of
// their own.
TEST(Generate, DraftingAheadIsComparedWithItsFormula) {
  const TemporaryDirectory dir;
  const auto overlap_of = [&](const Arguments& more) {
    const Outcome run = generate(kPrompt + with_draft() + more +
                                 Arguments{"-g", "3", "--draft-threads", "1", "--report", dir / "r.json"});
    EXPECT_TRUE(run.succeeded()) << run.describe();
    const json report = json::parse(read_file(dir / "r.json"));
    EXPECT_EQ(run.err.find("predicted (verify") != std::string::npos, report.contains("overlap"));
    EXPECT_NE(run.err.find("idle: target"), std::string::npos);
    return report.value("overlap", json());
  };
  EXPECT_TRUE(overlap_of({"--pipeline", "lockstep"}).is_null());
  const json overlap = overlap_of({"--pipeline", "fanout"});
  ASSERT_FALSE(overlap.is_null());
  const double hits = overlap["hit_rate"], verify = overlap["verify_ms"], draft = overlap["draft_ms"],
               prepare = overlap["prepare_ms"];
  EXPECT_GT(hits, 0);
  EXPECT_LE(hits, 1);
  EXPECT_GT(overlap["round_ms"], verify);
  EXPECT_DOUBLE_EQ(overlap["predicted_round_ms"],
                   hits * std::max(verify, prepare) + (1 - hits) * (verify + draft));
}

TEST(Generate, MaxTokensBoundsTheText) {
  const Outcome run = generate(
      Arguments{"--prompt", "Once", "--max-tokens", "3", "--ignore-eos", "--logprobs", "0", "--quiet"} +
      with_draft());
  ASSERT_TRUE(run.succeeded()) << run.describe();
  const json line = json::parse(run.out.substr(run.out.rfind("\n{") + 1));
  EXPECT_EQ(line["usage"]["completion_tokens"], 3);
  EXPECT_EQ(line["finish_reason"], "length");
}

TEST(Generate, StopTextIsCutAndNothingAfterItIsWritten) {
  const std::string whole = generate(kPrompt + kQuiet).out;
  const std::string stop = whole.substr(whole.size() / 2, 3);
  const Outcome run = generate(kPrompt + with_draft() + Arguments{"--stop", stop, "--quiet"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(run.out, whole.substr(0, whole.find(stop)) + "\n");
}

TEST(Generate, LogprobsFollowTheTextAndAreOrdered) {
  const Outcome run = generate(
      Arguments{"--prompt", "Once", "--max-tokens", "5", "--logprobs", "3", "--quiet"} + with_draft());
  ASSERT_TRUE(run.succeeded()) << run.describe();
  const json line = json::parse(run.out.substr(run.out.rfind("\n{") + 1));
  EXPECT_EQ(run.out.substr(0, line["text"].get<std::string>().size()), line["text"]);
  ASSERT_EQ(line["logprobs"].size(), line["token_ids"].size());
  for (size_t i = 0; i < line["logprobs"].size(); ++i) {
    const json& position = line["logprobs"][i];
    EXPECT_EQ(position["id"], line["token_ids"][i]);
    ASSERT_EQ(position["top"].size(), 3u);
    EXPECT_EQ(position["top"][0]["id"], position["id"]) << "greedy takes the best";
    for (size_t k = 0; k < 3; ++k) EXPECT_LE(position["top"][k]["logprob"], 0.0);
    EXPECT_GE(position["top"][0]["logprob"], position["top"][1]["logprob"]);
    EXPECT_GE(position["top"][1]["logprob"], position["top"][2]["logprob"]);
  }
  std::string text;
  for (const json& position : line["logprobs"]) text += position["token"].get<std::string>();
  EXPECT_EQ(text, line["text"]) << "tokens are told as text";
}

TEST(Generate, LogitBiasForcesAToken) {
  const Outcome run = generate(Arguments{"--prompt", "Once", "--max-tokens", "4", "--logit-bias", "300:1000",
                                         "--logprobs", "0", "--quiet"} +
                               with_draft());
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(json::parse(run.out.substr(run.out.rfind("\n{") + 1))["token_ids"], json({300, 300, 300, 300}));
}

TEST(Generate, AnEmptyPromptIsTheBeginningOfATextAlone) {
  const Outcome run =
      generate(Arguments{"--prompt", "", "--max-tokens", "4", "--logprobs", "0", "--quiet"} + with_draft());
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(json::parse(run.out.substr(run.out.rfind("\n{") + 1))["usage"]["prompt_tokens"], 1);
}

TEST(Generate, APromptMayStartWithADash) {
  EXPECT_TRUE(generate({"--prompt", "- one", "--max-tokens", "2"}).succeeded());
  EXPECT_TRUE(generate({"--prompt=--two", "--max-tokens", "2"}).succeeded());
}

TEST(Generate, ComparePlainFindsIdenticalOutput) {
  for (const Arguments& sampling : {Arguments{}, kSampled}) {
    const Outcome run = generate(kPrompt + with_draft() + sampling + Arguments{"--compare-plain"});
    ASSERT_TRUE(run.succeeded()) << run.describe();
    EXPECT_NE(run.err.find("output identical"), std::string::npos) << run.describe();
    EXPECT_NE(run.err.find("speed-up"), std::string::npos);
    EXPECT_EQ(run.out, generate(kPrompt + sampling + kQuiet).out);
  }
}

TEST(Generate, SyntheticAcceptanceIsWhatWasAskedForAndSaysSo) {
  const TemporaryDirectory dir;
  const Arguments common = kPrompt + with_draft() + Arguments{"--max-tokens", "101", "-g", "4"};
  const Outcome all =
      generate(common + Arguments{"--synthetic-acceptance", "rates:1", "--report", dir / "r.json"});
  ASSERT_TRUE(all.succeeded()) << all.describe();
  EXPECT_EQ(all.out.rfind("[synthetic acceptance", 0), 0u) << all.describe();
  EXPECT_NE(all.err.find("SYNTHETIC ACCEPTANCE"), std::string::npos);
  json report = json::parse(read_file(dir / "r.json"));
  EXPECT_EQ(report["synthetic_acceptance"], "rates:1");
  EXPECT_EQ(report["metrics"]["rounds"]["acceptance_rate"], 1.0);
  EXPECT_EQ(report["metrics"]["rounds"]["emitted_tokens"], 101);
  const Outcome none = generate(common + Arguments{"--synthetic-acceptance", "rates:0", "--tp", "2",
                                                   "--output", dir / "o.jsonl", "--report", dir / "r.json"});
  ASSERT_TRUE(none.succeeded()) << none.describe();
  report = json::parse(read_file(dir / "r.json"));
  EXPECT_EQ(report["metrics"]["rounds"]["acceptance_rate"], 0.0);
  EXPECT_NE(read_file(dir / "o.jsonl").find("\"synthetic_acceptance\":\"rates:0\""), std::string::npos);

  // Among a tree's children the first fare as a chain does; here it is always the second that is right.
  const Outcome tree =
      generate(kPrompt + with_draft() +
               Arguments{"--max-tokens", "101", "--speculative-tree", "2,2", "--synthetic-acceptance",
                         "rates:0,guess=1", "--report", dir / "r.json"});
  ASSERT_TRUE(tree.succeeded()) << tree.describe();
  const json trees = json::parse(read_file(dir / "r.json"))["metrics"]["trees"];
  EXPECT_EQ(trees["accepted_per_round"], 2.0);
  EXPECT_EQ(trees["accepted_by_rank"][0], 0);
  EXPECT_EQ(trees["accepted_by_rank"][1], trees["offered_by_rank"][1]);

  const Outcome bad = generate(common + Arguments{"--synthetic-acceptance", "rates:1.5"});
  EXPECT_EQ(bad.code, 2);
  EXPECT_NE(bad.err.find("--synthetic-acceptance: rate 1.5 is not in 0..1"), std::string::npos)
      << bad.describe();
}

TEST(Generate, ReportHoldsTheMetrics) {
  const TemporaryDirectory dir;
  const Outcome run = generate(kPrompt + with_draft() +
                               Arguments{"-g", "5", "--compare-plain", "--compare-turns", "3", "--report",
                                         dir / "report.json"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(dir.entries(), std::vector<std::string>{"report.json"});
  const json report = json::parse(read_file(dir / "report.json"));
  EXPECT_EQ(report["target"]["vocab_size"], 4096);
  EXPECT_EQ(report["gamma_policy"], "fixed:gamma=5");
  EXPECT_TRUE(report["comparison"]["identical_output"]);
  EXPECT_EQ(report["comparison"]["turns"], 3);
  ASSERT_EQ(report["comparison"]["speedup_interval_95"].size(), 2u) << report["comparison"];
  EXPECT_NE(run.err.find(" in 3 turns, predicted "), std::string::npos) << run.err;

  const json& metrics = report["metrics"];
  const double acceptance = metrics["rounds"]["acceptance_rate"];
  EXPECT_GT(acceptance, 0);
  EXPECT_LE(acceptance, 1);
  EXPECT_GE(metrics["rounds"]["tokens_per_round"].get<double>(), 1);
  const int64_t emitted = metrics["rounds"]["emitted_tokens"], rounds = metrics["rounds"]["rounds"];
  EXPECT_EQ(emitted, 40);
  EXPECT_LE(metrics["rounds"]["accepted_tokens"].get<int64_t>(),
            metrics["rounds"]["drafted_tokens"].get<int64_t>());
  int64_t counted = 0;
  for (const json& n : metrics["rounds"]["gamma_histogram"]) counted += n.get<int64_t>();
  EXPECT_EQ(counted, rounds);
  EXPECT_EQ(metrics["ttft"]["count"], 1);
  EXPECT_EQ(metrics["itl"]["count"], emitted - 1);
  EXPECT_GT(metrics["tokens_per_second"].get<double>(), 0);
  EXPECT_EQ(metrics["requests"]["finished"]["length"], 1);

  EXPECT_EQ(run.err.find("bytes per token"), std::string::npos) << run.describe();  // one process

  // Bytes of each kind of message, and their sum, per accepted token.
  const json& wire = metrics["wire"];
  EXPECT_GT(wire["bytes_per_accepted_token"].get<double>(), 0);
  for (const char* kind : {"draft", "propose", "step_plan", "step_result"}) {
    ASSERT_TRUE(wire["kinds"].contains(kind)) << kind << wire.dump();
    EXPECT_TRUE(wire["kinds"][kind].contains("bytes_per_accepted_token"));
    EXPECT_GT(wire["kinds"][kind]["sent_bytes"].get<int64_t>() +
                  wire["kinds"][kind]["received_bytes"].get<int64_t>(),
              0);
  }
}

TEST(Generate, ReportSaysWhatRan) {
  const TemporaryDirectory dir;
  const auto report = [&](const Arguments& more) {
    const Outcome run =
        generate(with_draft() + kQuiet + Arguments{"--max-tokens", "4", "--report", dir / "r"} + more);
    EXPECT_TRUE(run.succeeded()) << run.describe();
    return json::parse(read_file(dir / "r"));
  };
  json said = report(kPrompt);
  EXPECT_GE(said["threads"], 1);
  EXPECT_EQ(said["device"], "cpu");
  EXPECT_EQ(said["rule"], "greedy");
  EXPECT_EQ(said["temperature"], 0);
  EXPECT_EQ(said["draft"]["q_format"], "none");

  said =
      report({"--prompts", dir.write("in", "{\"prompt\": \"a\", \"temperature\": 1}\n{\"prompt\": \"b\"}\n"),
              "--rule", "token", "--threads", "1"});
  EXPECT_EQ(said["threads"], 1);
  EXPECT_EQ(said["rule"], (json{"greedy", "token"}));
  EXPECT_EQ(said["temperature"], (json{0, 1}));
  EXPECT_EQ(said["draft"]["q_format"], "budget:1024");

  const Arguments hidden{"--prompt", "a", "--temperature", "1", "--rule", "token", "--q-format", "hidden"};
  EXPECT_EQ(report(hidden)["draft"]["q_format"], "hidden:4");
  EXPECT_EQ(report(hidden + Arguments{"--top-p", "0.9"})["draft"]["q_format"], "budget:1024");
}

TEST(Generate, AModelWhoseNameIsNoUtf8IsReported) {
  const TemporaryDirectory dir;
  const std::string draft = dir.copy(demo_draft(),
                                     "dr\xff"
                                     "aft");
  const Outcome run = generate(kPrompt + kQuiet +
                               Arguments{"--draft-model", draft, "--max-tokens", "4", "--report", dir / "r",
                                         "--trace", dir / "t", "--record-rounds", dir / "o"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(json::parse(read_file(dir / "r"))["draft"]["name"],
            "dr\xEF\xBF\xBD"
            "aft");
}

TEST(Generate, TraceIsAChromeTrace) {
  const TemporaryDirectory dir;
  const Outcome run = generate(kPrompt + with_draft() + Arguments{"--trace", dir / "trace.json", "--quiet"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(dir.entries(), std::vector<std::string>{"trace.json"});
  const json trace = json::parse(read_file(dir / "trace.json"));
  size_t spans = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++spans;
    EXPECT_GE(event["dur"].get<double>(), 0);
    EXPECT_GE(event["ts"].get<double>(), 0);
    EXPECT_TRUE(event["name"].is_string());
  }
  EXPECT_GT(spans, 10u);
}

TEST(Generate, ReportsByCategoryAndByRequest) {
  const TemporaryDirectory dir;
  const auto file = dir.write("question.jsonl",
                              "{\"question_id\": 1, \"category\": \"qa\", \"turns\": [\"Tom\"]}\n"
                              "{\"question_id\": 2, \"category\": \"rag\", \"turns\": [\"Lily\"]}\n");
  const Outcome run = generate({"--draft-model", demo_draft().string(), "--prompts", file, "--max-tokens",
                                "16", "--ignore-eos", "--compare-plain", "--report", dir / "r.json"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_NE(run.err.find("\n| overall | 2 | 32 | "), std::string::npos) << run.err;
  const nlohmann::json report = nlohmann::json::parse(read_file(dir / "r.json"));
  ASSERT_EQ(report["by_category"].size(), 3u);
  EXPECT_EQ(report["by_category"][1]["category"], "rag");
  EXPECT_GT(report["by_category"][1]["speedup"].get<double>(), 0);
  EXPECT_EQ(report["by_request"][1]["id"], 2);
  EXPECT_EQ(report["by_request"][1]["tokens"], 16);
  EXPECT_EQ(report["provenance"]["seeds"]["text"], 0);
}

}  // namespace
}  // namespace outrider::testing
