// The program as several processes: roles by rank. Skipped where there is no mpirun or no MPI in this build.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "hostile_peer.h"
#include "mpirun.h"
#include "tests/support/background_process.h"

namespace outrider::testing {
namespace {

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(Mpirun, WritesTheTextOfOneProcess) {
  for (const Arguments& sampling : {Arguments{}, Arguments{"--temperature", "0.8", "--seed", "7"}}) {
    Arguments alone{"--prompt", "Once upon a time", "--max-tokens", "24", "--quiet"};
    alone.insert(alone.end(), sampling.begin(), sampling.end());
    const std::string expected = generate(alone).out;
    Arguments arguments{"--draft-model", demo_draft(), "--layout", "coordinator=1,draft=1,target=2"};
    arguments.insert(arguments.end(), sampling.begin(), sampling.end());
    const Outcome split = run(4, arguments);
    ASSERT_TRUE(split.succeeded()) << split.describe();
    EXPECT_EQ(split.out, expected);
    EXPECT_EQ(split.err, "");
  }
}

// Two target groups of one rank, and of two: each has the whole model, and both have requests.
TEST_F(Mpirun, TargetGroupsGiveTheTextsOfOneProcess) {
  const TemporaryDirectory dir;
  std::string requests;
  for (int i = 0; i < 6; ++i)
    requests += "{\"prompt\": \"Once upon a time\", \"seed\": " + std::to_string(i) + "}\n";
  const Arguments what{"--prompts",      dir.write("in.jsonl", requests),
                       "--max-tokens",   "40",
                       "--temperature",  "0.8",
                       "--max-num-seqs", "2"};
  const std::string expected = generate(what + Arguments{"--quiet"}).out;
  for (const auto& [ranks, more] : {std::pair{4, Arguments{"--layout", "coordinator=1,draft=1,target=2x1",
                                                           "--draft-model", demo_draft()}},
                                    std::pair{5, Arguments{"--layout", "coordinator=1,target=2x2"}},
                                    std::pair{3, Arguments{"--data-parallel-size", "2"}}}) {
    const Outcome split = run(ranks, more + Arguments{"--report", dir / "report.json"}, what);
    ASSERT_TRUE(split.succeeded()) << split.describe();
    EXPECT_EQ(split.out, expected);
    const auto report = nlohmann::json::parse(read_file(dir / "report.json"));
    EXPECT_EQ(report["target"]["data_parallel_size"], 2);
    ASSERT_EQ(report["metrics"]["groups"].size(), 2u);
    for (const auto& group : report["metrics"]["groups"])
      EXPECT_GT(group["requests"], 0) << report["metrics"];
  }
}

// Prompts are read in one process and decoded in another; blocks of each rank go to its counterpart.
TEST_F(Mpirun, GroupsThatOnlyPrefillGiveTheTextsOfOneProcess) {
  const TemporaryDirectory dir;
  std::string requests, prompt;
  for (int i = 0; i < 6; ++i) {
    prompt += "Once upon a time there was a little dog who liked to play in the park all day long. ";
    requests += nlohmann::json{{"prompt", prompt}, {"seed", i}}.dump() + "\n";
  }
  const Arguments what{"--prompts",      dir.write("in.jsonl", requests),
                       "--max-tokens",   "30",
                       "--temperature",  "0.8",
                       "--max-num-seqs", "2"};
  const std::string expected = generate(what + Arguments{"--quiet"}).out;
  for (const auto& [ranks, more] :
       {std::pair{3, Arguments{"--layout", "coordinator=1,target=prefill:1x1,decode:1x1"}},
        std::pair{6, Arguments{"--layout", "coordinator=1,draft=1,target=prefill:1x2,decode:1x2",
                               "--draft-model", demo_draft()}}}) {
    const Outcome split =
        run(ranks, more + Arguments{"--min-prefill-tokens", "16", "--report", dir / "report.json"}, what);
    ASSERT_TRUE(split.succeeded()) << split.describe();
    EXPECT_EQ(split.out, expected);
    const auto report = nlohmann::json::parse(read_file(dir / "report.json"));
    EXPECT_EQ(report["target"]["prefill_groups"], 1);
    EXPECT_EQ(report["target"]["data_parallel_size"], 1);
    const auto& counts = report["metrics"]["prefill_groups"];
    EXPECT_GT(counts["prompts"], 0) << report["metrics"];
    EXPECT_GT(counts["bytes"], 0) << report["metrics"];
    EXPECT_EQ(counts["fallbacks"], 0) << report["metrics"];
  }
}

TEST_F(Mpirun, RefusesAFlagThatContradictsTheLayout) {
  expect_refused(run(3, {"--layout", "coordinator=1,target=2", "--data-parallel-size", "2"}),
                 {"--data-parallel-size 2", "target=2xRANKS"});
  expect_refused(run(3, {"--layout", "coordinator=1,target=2", "--tensor-parallel-size", "4"}),
                 {"--tensor-parallel-size 4", "2 target ranks", "drop"});
}

// Forty tokens at temperature 1 from the demo pair, in drafts of three under a p/q rule.
Arguments sampled_drafts(const char* rule, const char* q_format) {
  Arguments all{
      "--prompt", "Once upon a time", "--max-tokens", "40", "--temperature", "1", "--seed", "3", "-g", "3"};
  all.insert(all.end(), {"--rule", rule, "--q-format", q_format, "--draft-model", demo_draft(),
                         "--ignore-eos", "--quiet"});
  return all;
}

// Each target rank gets its part of q from the draft worker; the coordinator sees none of it.
TEST_F(Mpirun, DenseQGoesToTheTargetInSlices) {
  const TemporaryDirectory dir;
  const Arguments sampling = sampled_drafts("token", "dense");
  const std::string expected = generate(sampling).out;
  for (const char* layout : {"coordinator=1,draft=1,target=1", "coordinator=1,draft=1,target=2"}) {
    const int ranks = layout == std::string("coordinator=1,draft=1,target=1") ? 3 : 4;
    const Outcome split = run(ranks, {"--layout", layout, "--report", dir / "report.json"}, sampling);
    ASSERT_TRUE(split.succeeded()) << split.describe();
    EXPECT_EQ(split.out, expected);
    const auto report = nlohmann::json::parse(read_file(dir / "report.json"));
    const auto& kinds = report["metrics"]["wire"]["kinds"];
    const int drafted = report["metrics"]["rounds"]["drafted_tokens"];
    EXPECT_GT(kinds["q_slice"]["sent_bytes"], drafted * 2 * 4096);  // of a vocabulary of 4096
    EXPECT_LT(kinds["draft"]["received_bytes"], drafted * 400);
    EXPECT_LT(kinds["step_plan"]["sent_bytes"], drafted * 400);
  }
}

// Every target process has its part of the draft's head, and the draft worker all of it.
TEST_F(Mpirun, HiddenStatesGiveTheTextOfOneProcess) {
  const TemporaryDirectory dir;
  const Arguments sampling = sampled_drafts("block", "hidden");
  const std::string expected = generate(sampling).out;
  const Outcome split =
      run(4, {"--layout", "coordinator=1,draft=1,target=2", "--report", dir / "report.json"}, sampling);
  ASSERT_TRUE(split.succeeded()) << split.describe();
  EXPECT_EQ(split.out, expected);
  const auto report = nlohmann::json::parse(read_file(dir / "report.json"));
  EXPECT_EQ(report["draft"]["q_format"], "hidden:4");
  const int drafts = report["metrics"]["drafts"]["received"],
            drafted = report["metrics"]["rounds"]["drafted_tokens"];
  EXPECT_GT(drafted, 0);
  // 96 codes of 4 bits, scale and maximum.
  EXPECT_LT(report["metrics"]["wire"]["kinds"]["draft"]["received_bytes"],
            drafts * 200 + drafted * (48 + 6 + 4));
}

TEST_F(Mpirun, ThreeRanksHaveADefaultLayout) {
  const Outcome split = run(3, {"--draft-model", demo_draft()});
  ASSERT_TRUE(split.succeeded()) << split.describe();
  EXPECT_EQ(split.out, generate({"--prompt", "Once upon a time", "--max-tokens", "24", "--quiet"}).out);
}

TEST_F(Mpirun, ASlowLinkToTheDrafterChangesNoByte) {
  const Outcome split = run(
      3, {"--draft-model", demo_draft(), "--pipeline", "fanout", "--emulate-link", "delay=1ms,rate=1gbit"});
  ASSERT_TRUE(split.succeeded()) << split.describe();
  EXPECT_EQ(split.out, generate({"--prompt", "Once upon a time", "--max-tokens", "24", "--quiet"}).out);
}

TEST_F(Mpirun, TreesGoThroughDraftProcesses) {
  const Outcome split = run(4, {"--draft-model", demo_draft(), "--layout", "coordinator=1,draft=1,target=2",
                                "--speculative-tree", "best-first:8"});
  ASSERT_TRUE(split.succeeded()) << split.describe();
  EXPECT_EQ(split.out, generate({"--prompt", "Once upon a time", "--max-tokens", "24", "--quiet"}).out);
}

// Children of a node are drawn, and q goes to every target process in slices, or in compact rows.
TEST_F(Mpirun, TreesUnderPqRulesGiveTheTextOfOneProcess) {
  for (const auto& [rule, q] : {std::pair{"specinfer", "dense"}, {"traversal", "auto"}, {"swor", "hidden"}}) {
    const Arguments sampling{"--prompt",
                             "Once upon a time",
                             "--max-tokens",
                             "40",
                             "--temperature",
                             "1",
                             "--seed",
                             "3",
                             "--rule",
                             rule,
                             "--speculative-tree",
                             "3,2,1",
                             "--q-format",
                             q,
                             "--ignore-eos",
                             "--quiet",
                             "--draft-model",
                             demo_draft()};
    const Outcome one = generate(sampling);
    ASSERT_TRUE(one.succeeded()) << one.describe();
    const Outcome split = run(4, {"--layout", "coordinator=1,draft=1,target=2"}, sampling);
    ASSERT_TRUE(split.succeeded()) << split.describe();
    EXPECT_EQ(split.out, one.out) << rule;
  }
}

TEST_F(Mpirun, AFileOfRequestsGoesToOneOutput) {
  const TemporaryDirectory dir;
  std::string requests;
  for (const char* prompt : {"One", "Two", "Three"})
    requests += std::string("{\"prompt\": \"") + prompt + "\", \"temperature\": 1}\n";
  const std::string file = dir.write("in.jsonl", requests);
  const Arguments prompts{"--prompts", file, "--max-tokens", "10", "--output", dir / "out.jsonl"};
  const Outcome split = run(3, {"--drafter", "ngram"}, prompts);
  ASSERT_TRUE(split.succeeded()) << split.describe();
  EXPECT_EQ(split.out, "");
  EXPECT_EQ(dir.entries(), (Arguments{"in.jsonl", "out.jsonl"}));
  EXPECT_EQ(read_file(dir / "out.jsonl"), generate({"--prompts", file, "--max-tokens", "10", "--quiet"}).out);
}

TEST_F(Mpirun, TwoDraftRanksShareTheSequences) {
  const TemporaryDirectory dir;
  std::string requests;
  for (const char* prompt : {"One", "Two", "Three", "Four"})
    requests += std::string("{\"prompt\": \"") + prompt + "\", \"temperature\": 1}\n";
  const std::string file = dir.write("in.jsonl", requests);
  const Arguments prompts{"--prompts", file, "--max-tokens", "40"};
  const Outcome split = run(4,
                            {"--draft-model", demo_draft(), "--layout", "coordinator=1,draft=2,target=1",
                             "-g", "3", "--report", dir / "report.json"},
                            prompts);
  ASSERT_TRUE(split.succeeded()) << split.describe();
  EXPECT_EQ(split.out, generate({"--prompts", file, "--max-tokens", "40", "--quiet"}).out);
  EXPECT_EQ(split.err, "");
  const auto metrics = nlohmann::json::parse(read_file(dir / "report.json"))["metrics"];
  EXPECT_EQ(metrics["cluster"]["workers_joined"], 2);
  EXPECT_GT(metrics["rounds"]["accepted_tokens"], 0);
}

// Draft workers are killed repeatedly; their ranks and the job live on. A stranger that connects to --listen,
// with a listed key or without a key, never becomes the target and replaces no other peer.
TEST_F(Mpirun, StrangersOutsideStayOutside) {
  const TemporaryDirectory dir;
  for (const char* name : {"job", "worker"})
    ASSERT_TRUE(outrider_program({"keygen", "--output", dir / (std::string(name) + ".key")}).succeeded());
  const Arguments what{"generate",
                       "--model",
                       demo_target(),
                       "--prompt",
                       "Once upon a time",
                       "--max-tokens",
                       "400",
                       "--ignore-eos",
                       "--quiet",
                       "--threads",
                       "1",
                       "--seed",
                       "1",
                       "--temperature",
                       "0.8"};
  const Outcome plain = outrider_program(what);
  ASSERT_TRUE(plain.succeeded()) << plain.describe();
  for (const bool with_keys : {false, true}) {
    Arguments arguments{"env",
                        "OMPI_ALLOW_RUN_AS_ROOT=1",
                        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                        "mpirun",
                        "--oversubscribe",
                        "-n",
                        "3",
                        outrider_path()};
    arguments.insert(arguments.end(), what.begin(), what.end());
    arguments.insert(arguments.end(),
                     {"--draft-model", demo_draft(), "--layout", "coordinator=1,draft=1,target=1",
                      "--emulate-link", "delay=5ms,links=target", "--listen", "tcp://127.0.0.1:*"});
    std::optional<CurveKeys> listed;
    if (with_keys) {
      arguments.insert(arguments.end(),
                       {"--curve-secret-key", dir / "job.key", "--allowed-keys", dir / "worker.key.pub"});
      listed = CurveKeys{.own = read_curve_keys(dir / "worker.key").value(),
                         .server = read_curve_keys(dir / "job.key")->public_key,
                         .allowed = {}};
    }
    BackgroundProcess job(dir, with_keys ? "locked" : "open", arguments);
    ASSERT_TRUE(job.says("draft-worker --connect ")) << job.err();
    const std::string said = job.err();
    const size_t at = said.find("--connect ") + 10;
    const std::string endpoint = said.substr(at, said.find(' ', at) - at);
    EXPECT_NE(answer_to_target(endpoint, listed).find("target group"), std::string::npos);
    if (!with_keys) beat_as_many(endpoint, 5000, 200);
    EXPECT_EQ(job.wait(), 0) << job.err();
    EXPECT_EQ(job.out(), plain.out);
  }
}

TEST_F(Mpirun, AKilledDraftWorkerGetsASuccessor) {
  const TemporaryDirectory dir;
  std::string requests;
  for (int i = 0; i < 32; ++i)
    requests += "{\"prompt\": \"Once upon a time\", \"seed\": " + std::to_string(i) + "}\n";
  const Arguments what{"generate",
                       "--model",
                       demo_target(),
                       "--prompts",
                       dir.write("in.jsonl", requests),
                       "--max-tokens",
                       "200",
                       "--temperature",
                       "0.8",
                       "--ignore-eos",
                       "--quiet",
                       "--threads",
                       "1"};
  const Outcome plain = outrider_program(what);
  ASSERT_TRUE(plain.succeeded()) << plain.describe();
  Arguments arguments{"env",
                      "OMPI_ALLOW_RUN_AS_ROOT=1",
                      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                      "mpirun",
                      "--oversubscribe",
                      "-n",
                      "4",
                      outrider_path()};
  arguments.insert(arguments.end(), what.begin(), what.end());
  arguments.insert(arguments.end(), {"--draft-model", demo_draft(), "--layout",
                                     "coordinator=1,draft=2,target=1", "--report", dir / "report.json"});
  BackgroundProcess job(dir, "job", arguments);
  int killed = 0;
  while (!job.ended() && killed < 4) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto workers = job.descendants("draft-worker");
    if (workers.size() == 2 && kill(workers[static_cast<size_t>(killed % 2)], SIGKILL) == 0) ++killed;
  }
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), plain.out);
  EXPECT_GE(killed, 1);
  EXPECT_NE(job.err().find("was ended by signal 9; another starts"), std::string::npos) << job.err();
  EXPECT_TRUE(job.descendants("draft-worker").empty());
}

TEST_F(Mpirun, RefusesALayoutOfThreeTargetRanks) {
  expect_refused(run(5, {"--draft-model", demo_draft(), "--layout", "coordinator=1,draft=1,target=3"}),
                 {"target=3", "1, 2, 4 or 8"});
}

TEST_F(Mpirun, RefusesALayoutOfAnotherSize) {
  expect_refused(run(3, {"--draft-model", demo_draft(), "--layout", "coordinator=1,draft=1,target=2"}),
                 {"--layout", "4 ranks", "3"});
}

TEST_F(Mpirun, RefusesADraftModelWithoutADraftRank) {
  expect_refused(run(3, {"--draft-model", demo_draft(), "--layout", "coordinator=1,draft=0,target=2"}),
                 {"--layout", "draft=1"});
}

TEST_F(Mpirun, RefusesADoorThatCannotBeOpened) {
  expect_refused(run(3, {"--draft-model", demo_draft(), "--listen", "tcp://0.0.0.0:*"}),
                 {"--listen: endpoint tcp://0.0.0.0", "keygen"});
}

TEST_F(Mpirun, RefusesADraftRankWithoutADrafter) { expect_refused(run(3, {}), {"draft", "--draft-model"}); }

TEST_F(Mpirun, CommandsOfOneProcessAreRefused) {
  const Outcome bench = run_program({"mpirun", "-n", "2", "--oversubscribe", "--allow-run-as-root",
                                     outrider_path(), "bench", "--repetitions", "1"});
  expect_refused(bench, {"bench is one process", "without mpirun"});
}

// Ctrl-C: mpirun passes it on, and kills who is not gone in a second.
TEST_F(Mpirun, AnInterruptKeepsWhatIsFinished) {
  const TemporaryDirectory dir;
  std::string requests;
  for (int i = 0; i < 3000; ++i)
    requests += R"({"prompt": "Once upon a time", "max_tokens": 30})"
                "\n";
  const std::string output = dir / "out.jsonl", prompts = dir.write("in.jsonl", requests);
  BackgroundProcess job(dir, "job",
                        {"env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "mpirun",
                         "--oversubscribe", "-n", "2", outrider_path(), "generate", "--model", demo_target(),
                         "--prompts", prompts, "--output", output});
  std::string partial;
  const auto deadline = std::chrono::steady_clock::now() + kPatience * std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline && (partial.empty() || read_file(partial).empty())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
      if (entry.path().extension() == ".partial") partial = entry.path();
  }
  ASSERT_FALSE(partial.empty()) << job.err();
  job.signal(SIGINT);
  EXPECT_GT(job.wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(output));
  const std::string kept = read_file(partial);
  EXPECT_EQ(nlohmann::json::parse(kept.substr(0, kept.find('\n')))["finish_reason"], "length");

  const Outcome again = generate({"--prompt", "x", "--max-tokens", "4", "--output", output});
  EXPECT_TRUE(again.succeeded()) << again.describe();
  EXPECT_NE(again.err.find(partial + " keeps what another run has finished"), std::string::npos)
      << again.describe();
  EXPECT_EQ(read_file(partial), kept);
}

TEST_F(Mpirun, TheReportSpeaksOfTheTarget) {
  const TemporaryDirectory dir;
  ASSERT_TRUE(run(2, {"--threads", "0", "--report", dir / "r.json"}).succeeded());
  const auto report = nlohmann::json::parse(read_file(dir / "r.json"));
  EXPECT_GE(report["threads"], 1);
  EXPECT_EQ(report["device"], "cpu");
}

TEST_F(Mpirun, AVariableThatNobodyReadsIsToldOnce) {
  const Outcome told = run(2, {}, {"--prompt", "x", "--max-tokens", "2"}, {{"OUTRIDER_THREAD", "1"}});
  EXPECT_TRUE(told.succeeded()) << told.describe();
  EXPECT_EQ(
      told.err,
      "outrider: warning: OUTRIDER_THREAD is set, but nothing reads it; did you mean OUTRIDER_THREADS?\n");
}

TEST_F(Mpirun, TheDoctorSpeaksOnce) {
  const Outcome told =
      run_program({"mpirun", "--oversubscribe", "-n", "2", outrider_path(), "doctor"},
                  {.env = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}});
  EXPECT_TRUE(told.succeeded()) << told.describe();
  const size_t at = told.out.find("instruction sets");
  EXPECT_NE(at, std::string::npos) << told.describe();
  EXPECT_EQ(told.out.find("instruction sets", at + 1), std::string::npos) << told.describe();
}

// A rank with another copy of the model is named; ranks that agree are listed with their roles, and no text
// is written.
TEST_F(Mpirun, APreflightListsTheRanksAndLoadsNothing) {
  const Arguments job{"--draft-model", demo_draft(), "--layout", "coordinator=1,draft=1,target=2",
                      "--preflight"};
  const Outcome fine = run(4, job);
  ASSERT_TRUE(fine.succeeded()) << fine.describe();
  for (const char* part : {"coordinator", "draft 0", "target, rank 0", "target, rank 1", "All 4 ranks"})
    EXPECT_NE(fine.out.find(part), std::string::npos) << part << fine.describe();
  EXPECT_EQ(fine.out.find("Lily"), std::string::npos) << fine.out;
  size_t linked = 0;
  for (size_t at = fine.out.find(" ok\n"); at != std::string::npos; at = fine.out.find(" ok\n", at + 1))
    ++linked;
  EXPECT_EQ(linked, 2u) << "the draft worker and the target's leader: " << fine.out;
  expect_refused(run(4, job + Arguments{"--tensor-parallel-size", "4"}), {"--tensor-parallel-size", "drop"});
  for (const auto& [flag, value, reason] : {std::array{"--output", "/nope/out.jsonl", "/nope"},
                                            std::array{"--grammar-library", "/nope", "/nope"}})
    expect_refused(run(4, job + Arguments{flag, value}), {flag, reason});
  const Outcome missing = generate({"--prompts", "/nope", "--preflight"});
  EXPECT_EQ(missing.code, 2) << missing.describe();
  const Outcome one = generate({"--prompt", "Once", "--preflight"});
  EXPECT_EQ(one.code, 0) << one.describe();
  EXPECT_NE(one.out.find("all roles"), std::string::npos) << one.out;
}

// MPI waits for ranks that run another program, as a wrong line of a job script starts them.
TEST_F(Mpirun, APreflightNamesTheRanksThatNeverBegin) {
  const Arguments program{outrider_path(), "generate", "--model",     demo_target(),         "--prompt", "x",
                          "--threads",     "1",        "--preflight", "--preflight-timeout", "1"};
  const Outcome run = run_program(
      Arguments{"mpirun", "--oversubscribe", "-n", "2"} + program + Arguments{":", "-n", "1", "sleep", "100"},
      {.env = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}});
  EXPECT_FALSE(run.hung) << run.describe();
  EXPECT_EQ(run.code, 3) << run.describe();
  const size_t told = run.err.find("--preflight: rank 2 on host ");
  ASSERT_NE(told, std::string::npos) << run.describe();
  EXPECT_NE(run.err.find("did not begin it within 1 s (--preflight-timeout)"), std::string::npos);
  EXPECT_EQ(run.err.find("--preflight: rank", told + 1), std::string::npos) << "once: " << run.describe();
}

// Ranks with different weights would write a text of neither model, and ranks with different sizes would
// overrun buffers. The error comes before any model is loaded.
TEST_F(Mpirun, RanksThatDifferAreToldWhoAndInWhat) {
  const TemporaryDirectory dir;
  const auto broken = dir.copy(demo_target(), "broken");
  {
    std::fstream file(broken / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(broken / "model.safetensors") / 2));
    file << std::string(4096, '\0');
  }
  const auto job = [](const char* layout, int alike, const Arguments& of_last, const Arguments& of_all = {}) {
    const Arguments prompt{"--prompt", "Once", "--max-tokens", "4", "--threads", "1", "--quiet", "--layout"};
    const Arguments program{outrider_path(), "generate", "--model", demo_target()};
    Arguments last = program;
    for (size_t i = 0; i + 1 < of_last.size(); i += 2)  // instead of the same flag
      if (of_last[i] == "--model")
        last.back() = of_last[i + 1];
      else
        last = last + Arguments{of_last[i], of_last[i + 1]};
    const Arguments common = prompt + Arguments{layout} + of_all;
    return run_program(Arguments{"mpirun", "--oversubscribe", "-n", std::to_string(alike)} + program +
                           common + Arguments{":", "-n", "1"} + last + common,
                       {.env = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}});
  };
  const std::string draft = demo_draft();
  expect_refused(job("coordinator=1,target=2", 2, {"--model", broken}),
                 {"the target ranks differ in the weights of --model", "rank 1 on host", "rank 2 on host"});
  expect_refused(job("coordinator=1,target=2x1", 2, {"--model", draft}),
                 {"the target ranks differ in config.json of --model", "rank 2 on host"});
  expect_refused(job("coordinator=1,target=2", 2, {"--max-model-len", "128"}),
                 {"the target ranks differ in --max-model-len", "128 at rank 2 on host"});
  expect_refused(job("coordinator=1,target=1", 1, {"--max-model-len", "128"}),
                 {"differ in --max-model-len", "512 at rank 0 on host", "128 at rank 1 on host"});
  expect_refused(job("coordinator=1,target=1", 1, {"--preflight=true", "--ignore-eos"}),
                 {"--preflight: 1 of 2 ranks", "all of them"});
  expect_refused(
      job("coordinator=1,target=1,draft=1x2", 3, {"--draft-weight-format", "int8"}, {"--draft-model", draft}),
      {"the ranks of draft worker 0 differ in --draft-weight-format", "int8 at rank 3 on host"});
}

TEST_F(Mpirun, BadInputIsToldOnce) {
  expect_refused(run(3, {"--drafter", "ngram", "--rule", "nonsense"}), {"--rule nonsense"});
  expect_refused(run(3, {"--drafter", "ngram", "--top-pp", "1"}), {"--top-pp", "did you mean --top-p?"});
}

}  // namespace
}  // namespace outrider::testing
