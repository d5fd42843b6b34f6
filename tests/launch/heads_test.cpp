// Heads from outside: the demo pair's target with the heads that were trained for it, in one process, under
// mpirun and behind HTTP. Texts are those of plain decoding.
#include <nlohmann/json.hpp>

#include "mpirun.h"
#include "tests/model/tensors_to_change.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

std::filesystem::path demo_head(const char* kind) { return source_dir() / "launch/demo_pair" / kind; }

Arguments with_head(const Arguments& more = {}) {
  Arguments all{"--drafter", "eagle3", "--draft-model", demo_head("eagle3")};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

const Arguments kPrompt{"--prompt", "Once upon a time", "--max-tokens", "60", "--ignore-eos"};

Outcome story(Arguments more) {
  more.insert(more.end(), kPrompt.begin(), kPrompt.end());
  return generate(more);
}

TEST(Heads, WriteTheTextOfPlainDecoding) {
  const TemporaryDirectory dir;
  for (const Arguments& sampling : {Arguments{}, Arguments{"--temperature", "1", "--seed", "5"},
                                    Arguments{"--temperature", "1", "--top-p", "0.9"}}) {
    Arguments plain = sampling, fixed = with_head({"-g", "4", "--report", dir / "report.json"}),
              policy = with_head();
    for (Arguments* arguments : {&plain, &fixed, &policy}) {
      arguments->push_back("--quiet");
      if (arguments != &plain) arguments->insert(arguments->end(), sampling.begin(), sampling.end());
    }
    const std::string expected = story(plain).out;
    const Outcome run = story(fixed);
    ASSERT_TRUE(run.succeeded()) << run.describe();
    EXPECT_EQ(run.out, expected);
    EXPECT_EQ(story(policy).out, expected);
    const json report = json::parse(read_file(dir / "report.json"));
    EXPECT_GT(report["metrics"]["rounds"]["accepted_tokens"], 15) << "of 60";
    EXPECT_FALSE(report["metrics"]["wire"]["kinds"].contains("propose"));
  }
}

// The other heads that are here. What each brings at least, of 40 tokens, is far below what it does.
TEST(Heads, OfEveryKindWriteIt) {
  const TemporaryDirectory dir;
  const Arguments begun{"--prompt", "Once upon a time", "--max-tokens", "40", "--ignore-eos", "--quiet"};
  const Arguments greedy{"--temperature", "0"}, sampled{"--temperature", "1", "--seed", "5"};
  for (const Arguments& sampling : {greedy, sampled}) {
    Arguments plain = begun;
    plain.insert(plain.end(), sampling.begin(), sampling.end());
    const std::string expected = generate(plain).out;
    for (const auto& [drafter, head, least] :
         {std::tuple("medusa", "medusa", 3), {"mtp", "mtp", 6}, {"dflash", "dspark", 6}}) {
      Arguments all = plain;
      all.insert(all.end(), {"--drafter", drafter, "--draft-model", demo_head(head), "-g", "3", "--report",
                             dir / "report.json"});
      const Outcome run = generate(all);
      ASSERT_TRUE(run.succeeded()) << run.describe();
      EXPECT_EQ(run.out, expected) << head;
      const json report = json::parse(read_file(dir / "report.json"));
      EXPECT_GE(report["metrics"]["rounds"]["accepted_tokens"], least) << head;
    }
  }
}

// A module in the target's own files: its last layer once more, and a projection that lets states through.
TEST(Heads, AModuleInTheTargetsFilesWritesIt) {
  const TemporaryDirectory dir;
  const auto target = dir.copy(demo_head("target"), "target");
  TensorsToChange file(target / "model.safetensors");
  const auto whole = file.tensors;
  const std::string last = "model.layers.9.";
  for (const auto& [name, tensor] : whole)
    if (name.starts_with(last)) file.tensors["mtp.layers.0." + name.substr(last.size())] = tensor;
  for (const char* norm : {"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"})
    file.tensors["mtp." + std::string(norm) + ".weight"] = whole.at("model.norm.weight");
  const int64_t hidden = whole.at("model.norm.weight").shape[0];
  std::string projection(static_cast<size_t>(hidden * 2 * hidden * 2), '\0');
  for (int64_t i = 0; i < hidden; ++i)  // [0, 1], in bf16
    projection[static_cast<size_t>((i * 2 * hidden + hidden + i) *
                                   2)] = '\x80',
                                   projection[static_cast<size_t>((i * 2 * hidden + hidden + i) * 2 + 1)] =
                                       '\x3f';
  file.tensors["mtp.fc.weight"] = {"BF16", {hidden, 2 * hidden}, projection};
  file.write(target / "model.safetensors");
  json config = json::parse(read_file(target / "config.json"));
  config["num_nextn_predict_layers"] = 1;
  std::ofstream(target / "config.json") << config.dump();

  const Arguments plain{"generate",     "--model", target.string(), "--prompt", "Once upon a time",
                        "--max-tokens", "40",      "--ignore-eos",  "--quiet"};
  const Outcome expected = outrider_program(plain);
  EXPECT_NE(expected.err.find("mtp.* is a module of multi-token prediction"), std::string::npos)
      << expected.describe();
  for (const char* place : {"target", "worker"}) {
    Arguments drafting = plain;
    drafting.insert(drafting.end(), {"--drafter", "mtp", "--draft-model", target.string(), "-g", "3",
                                     "--head-place", place, "--report", dir / "report.json"});
    const Outcome run = outrider_program(drafting);
    ASSERT_TRUE(run.succeeded()) << run.describe();
    EXPECT_EQ(run.out, expected.out);
    EXPECT_EQ(run.err, "");
    const json report = json::parse(read_file(dir / "report.json"));
    EXPECT_GT(report["metrics"]["rounds"]["rollbacks"], 0);
  }
}

// At a draft worker of the same process, the same text, from rows of the target's hidden states.
TEST(Heads, WriteItFromAcrossTheWire) {
  const TemporaryDirectory dir;
  for (const Arguments& more : {Arguments{}, Arguments{"--tensor-parallel-size", "2"},
                                Arguments{"--num-draft-workers", "2", "--temperature", "1", "--seed", "5"},
                                Arguments{"--emulate-link", "delay=1ms,rate=100mbit,loss=0.05"}}) {
    Arguments plain{"--quiet"};
    if (more.size() > 2) plain.insert(plain.end(), {"--temperature", "1", "--seed", "5"});
    Arguments far =
        with_head({"--head-place", "worker", "-g", "4", "--report", dir / "report.json", "--quiet"});
    far.insert(far.end(), more.begin(), more.end());
    const Outcome run = story(far);
    ASSERT_TRUE(run.succeeded()) << run.describe();
    EXPECT_EQ(run.out, story(plain).out);
    const json report = json::parse(read_file(dir / "report.json"));
    EXPECT_GT(report["metrics"]["rounds"]["accepted_tokens"], 15) << "of 60";
    const json& rows = report["metrics"]["wire"]["kinds"]["state_rows"];
    EXPECT_GT(rows["sent_messages"], 5);
  }
}

// In both places, whichever is used when: a worker that is to be tried is sent rows first.
TEST(Heads, WriteItFromWhereTheyAreFaster) {
  const TemporaryDirectory dir;
  const Arguments sampling{
      "--prompt", "Once upon a time", "--max-tokens", "300", "--ignore-eos", "--temperature", "0.7", "--seed",
      "5",        "--quiet"};
  const auto expected = generate(sampling).out;
  for (const Arguments& more :
       {Arguments{}, Arguments{"-g", "3", "--tensor-parallel-size", "2", "--num-draft-workers", "2"},
        Arguments{"-g", "3", "--speculative-tree", "best-first:6"},
        Arguments{"-g", "3", "--emulate-link", "delay=1ms,rate=100mbit,loss=0.05"}}) {
    Arguments all = with_head({"--head-place", "auto", "--report", dir / "report.json"});
    all.insert(all.end(), more.begin(), more.end());
    all.insert(all.end(), sampling.begin(), sampling.end());
    const Outcome run = generate(all);
    ASSERT_TRUE(run.succeeded()) << run.describe();
    EXPECT_EQ(run.out, expected);
    const json metrics = json::parse(read_file(dir / "report.json"))["metrics"];
    const int64_t at_target = metrics["drafts"]["head_rounds_at_target"],
                  at_worker = metrics["drafts"]["head_rounds_at_worker"];
    EXPECT_GT(at_target, 20);
    EXPECT_EQ(at_target + at_worker + 1, metrics["rounds"]["rounds"]) << "all but that of the prompt";
    EXPECT_EQ(metrics["cluster"]["workers_joined"], more.size() > 5 ? 2 : 1);
    if (!more.empty() && at_worker > 0) {  // a busy machine may not try the worker
      EXPECT_GT(metrics.value(json::json_pointer("/wire/kinds/state_rows/sent_messages"), 0), 0);
    }
  }
}

TEST(Heads, CompareThemselvesWithPlainDecoding) {
  const Outcome run = story(with_head({"--compare-plain", "-g", "3"}));
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_NE(run.err.find("output identical"), std::string::npos) << run.err;
}

TEST(Heads, PqRulesGiveOneTextForOneSeed) {
  for (const char* rule : {"token", "block"}) {
    const Arguments more =
        with_head({"--rule", rule, "--temperature", "1", "--seed", "3", "-g", "3", "--quiet"});
    const Outcome once = story(more), again = story(more);
    ASSERT_TRUE(once.succeeded()) << once.describe();
    EXPECT_EQ(once.out, again.out);
    Arguments split = more;
    split.insert(split.end(), {"--tensor-parallel-size", "2"});
    EXPECT_EQ(story(split).out, once.out);
  }
}

TEST(Heads, WhatTheyDoNotGoWithIsRefusedByFlag) {
  const auto expect_refused = [](const Arguments& arguments, const Arguments& words) {
    const Outcome run = story(arguments);
    EXPECT_EQ(run.code, 2) << run.describe();
    for (const std::string& word : words)
      EXPECT_NE(run.err.find(word), std::string::npos) << word << run.describe();
  };
  expect_refused({"--drafter", "eagle3"}, {"--drafter eagle3", "--draft-model"});
  expect_refused(
      with_head({"--speculative-tree", "best-first:8", "--rule", "specinfer", "--temperature", "1"}),
      {"--speculative-tree", "best-first:8", "specinfer"});
  expect_refused(with_head({"--pipeline", "ahead"}), {"--pipeline", "--drafter eagle3"});
  expect_refused(with_head({"--listen", "tcp://127.0.0.1:*"}), {"--listen", "--drafter eagle3"});
  expect_refused(with_head({"--num-draft-workers", "2"}), {"--num-draft-workers", "--head-place"});
  expect_refused(with_head({"--head-place", "worker", "--pipeline", "ahead"}), {"--pipeline"});
  expect_refused({"--draft-model", demo_draft(), "--head-place", "worker"}, {"--head-place", "eagle3"});
  expect_refused({"--draft-model", demo_draft(), "--head-place", "auto"}, {"--head-place auto", "eagle3"});
  expect_refused({"--drafter", "layerskip"}, {"--drafter layerskip", "--exit-layer"});
  expect_refused({"--drafter", "layerskip", "--exit-layer", "10"}, {"--exit-layer 10", "1 to 9"});
  expect_refused({"--exit-layer", "3"}, {"--exit-layer 3", "--drafter layerskip"});
  expect_refused({"--drafter", "layerskip", "--exit-layer", "3", "--speculative-tree", "2,2"},
                 {"--speculative-tree", "--drafter layerskip"});
  expect_refused({"--drafter", "layerskip", "--exit-layer", "3", "--draft-model", demo_draft()},
                 {"--draft-model", "--drafter layerskip"});
  expect_refused({"--drafter", "mtp", "--draft-model", demo_head("eagle3")},
                 {"config.json", "--drafter eagle3 in place of mtp"});
  expect_refused({"--drafter", "eagle3", "--draft-model", demo_draft()}, {"num_hidden_layers", "one layer"});
  expect_refused({"--draft-model", demo_head("eagle3")}, {"config.json", "--drafter eagle3"});
  expect_refused({"--draft-model", demo_head("medusa")}, {"config.json", "--drafter medusa"});
  expect_refused({"--draft-model", demo_head("mtp")}, {"config.json", "--drafter mtp"});
}

class HeadsUnderMpirun : public Mpirun {};

TEST_F(HeadsUnderMpirun, WriteTheTextOfOneProcess) {
  const Arguments prompt{"--prompt", "Once upon a time", "--max-tokens", "30", "--temperature", "0.8"};
  Arguments alone = prompt;
  alone.push_back("--quiet");
  const std::string expected = generate(alone).out;
  for (const int targets : {1, 2}) {
    const TemporaryDirectory dir;
    const Outcome split = run(1 + targets,
                              with_head({"-g", "3", "--report", dir / "report.json", "--layout",
                                         "coordinator=1,draft=0,target=" + std::to_string(targets)}),
                              prompt);
    ASSERT_TRUE(split.succeeded()) << split.describe();
    EXPECT_EQ(split.out, expected);
    EXPECT_GT(json::parse(read_file(dir / "report.json"))["metrics"]["rounds"]["accepted_tokens"], 5);
  }
}

// The draft ranks' children hold the head.
TEST_F(HeadsUnderMpirun, DraftFromRanksOfTheirOwn) {
  const Arguments prompt{"--prompt", "Once upon a time", "--max-tokens", "30", "--temperature", "0.8"};
  Arguments alone = prompt;
  alone.push_back("--quiet");
  const std::string expected = generate(alone).out;
  const TemporaryDirectory dir;
  const Outcome split = run(4,
                            with_head({"-g", "3", "--head-place", "worker", "--report", dir / "report.json",
                                       "--layout", "coordinator=1,draft=1,target=2"}),
                            prompt);
  ASSERT_TRUE(split.succeeded()) << split.describe();
  EXPECT_EQ(split.out, expected);
  EXPECT_GT(json::parse(read_file(dir / "report.json"))["metrics"]["rounds"]["accepted_tokens"], 5);
}

// Without a draft rank the target drafts.
TEST_F(HeadsUnderMpirun, DraftInBothPlaces) {
  const Arguments prompt{"--prompt",     "Once upon a time", "--max-tokens", "200",
                         "--ignore-eos", "--temperature",    "0.8"};
  Arguments alone = prompt;
  alone.push_back("--quiet");
  const std::string expected = generate(alone).out;
  for (const int drafts : {0, 1}) {
    const TemporaryDirectory dir;
    const Outcome split =
        run(2 + drafts,
            with_head({"-g", "3", "--head-place", "auto", "--report", dir / "report.json", "--layout",
                       "coordinator=1,draft=" + std::to_string(drafts) + ",target=1"}),
            prompt);
    ASSERT_TRUE(split.succeeded()) << split.describe();
    EXPECT_EQ(split.out, expected);
    const json metrics = json::parse(read_file(dir / "report.json"))["metrics"];
    EXPECT_GT(metrics["drafts"]["head_rounds_at_target"], 20);
    EXPECT_EQ(metrics["cluster"]["workers_joined"], drafts);
    EXPECT_EQ(metrics["wire"]["kinds"].contains("state_rows"), drafts == 1);
  }
}

TEST_F(HeadsUnderMpirun, ADraftRankIsRefused) {
  expect_refused(run(3, with_head()), {"--drafter eagle3", "draft=0"});
}

}  // namespace
}  // namespace outrider::testing
