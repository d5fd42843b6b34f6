// Unplanned ends of a run: signals, readers that disconnect, full disks, closed streams.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/support/background_process.h"
#include "tests/support/program.h"

namespace outrider::testing {
namespace {

using Arguments = std::vector<std::string>;

// A run of many seconds: it is interrupted long before its end.
std::string many_requests(int max_tokens = 400) {
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += "{\"prompt\": \"Once upon a time\", \"ignore_eos\": true, \"max_tokens\": " +
            std::to_string(max_tokens) + "}\n";
  return text;
}

class Interrupt : public ::testing::TestWithParam<int> {
 protected:
  // A run with --output that gets the signal when its temporary file is there ("-e"), or has bytes in it
  // ("-s").
  Outcome interrupted(const char* when, const std::string& requests, const Arguments& more = {}) {
    std::filesystem::create_directory(output_);
    // The shell becomes the program, so that its process id, part of the temporary name, is known.
    const std::string command = std::string("echo $$ > pid; (while [ ! ") + when +
                                " out/out.jsonl.$$.partial ]; do sleep 0.01; done; : > ready) & exec \"$@\"";
    Arguments arguments{"sh",
                        "-c",
                        command,
                        "sh",
                        outrider_path(),
                        "generate",
                        "--model",
                        demo_target(),
                        "--draft-model",
                        demo_draft(),
                        "--prompts",
                        dir_.write("in.jsonl", requests),
                        "--output",
                        "out/out.jsonl",
                        "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome run = run_program(
        arguments, {.directory = dir_.path(), .signal = GetParam(), .signal_when = dir_ / "ready"});
    EXPECT_FALSE(run.hung);
    EXPECT_EQ(run.signal, GetParam()) << run.describe();
    EXPECT_LT(run.after_signal.count(), 20'000) << run.describe();  // the run would take minutes
    EXPECT_EQ(run.out, "");
    return run;
  }
  TemporaryDirectory dir_;
  const std::filesystem::path output_ = dir_ / "out";
};

TEST_P(Interrupt, EndsAtOnceAndLeavesNothingWhereNothingIsFinished) {
  const Outcome run = interrupted("-e", "{\"prompt\": \"x\", \"max_tokens\": 400, \"ignore_eos\": true}\n",
                                  {"--emulate-link", "delay=1s", "-g", "1"});
  EXPECT_EQ(run.err, "");
  EXPECT_TRUE(std::filesystem::is_empty(output_)) << "a partial output was left";
}

// In a file whose name says that it is not whole.
TEST_P(Interrupt, KeepsWhatIsFinished) {
  const Outcome run = interrupted("-s", many_requests());
  std::string pid = read_file(dir_ / "pid");
  pid.pop_back();
  const std::string partial = "out/out.jsonl." + pid + ".partial", kept = read_file(dir_ / partial);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(output_), {}), 1);
  size_t results = 0;
  std::istringstream lines(kept);
  for (std::string line; std::getline(lines, line); ++results)
    EXPECT_EQ(nlohmann::json::parse(line)["finish_reason"], "length");
  EXPECT_GT(results, 0u);
  EXPECT_LT(results, 3000u);
  EXPECT_TRUE(kept.ends_with("}\n"));
  EXPECT_NE(run.err.find(std::to_string(results) + " of 3000 requests were finished; their results are in "),
            std::string::npos)
      << run.describe();
  EXPECT_NE(run.err.find(partial), std::string::npos) << run.describe();

  const Outcome again = generate({"--prompt", "x", "--max-tokens", "4", "--output", "out/out.jsonl"},
                                 {.directory = dir_.path()});
  EXPECT_TRUE(again.succeeded()) << again.describe();
  EXPECT_NE(again.err.find(partial + " keeps what another run has finished"), std::string::npos)
      << again.describe();
  EXPECT_EQ(read_file(dir_ / partial), kept);
  EXPECT_EQ(read_file(output_ / "out.jsonl").front(), '{');
}

INSTANTIATE_TEST_SUITE_P(
    Signals, Interrupt, ::testing::Values(SIGINT, SIGTERM, SIGHUP), [](const auto& test) {
      return std::string(test.param == SIGINT ? "SIGINT" : test.param == SIGTERM ? "SIGTERM" : "SIGHUP");
    });

TEST(Streams, AReaderThatLeavesEndsTheRun) {
  const TemporaryDirectory dir;
  const std::string requests = dir.write("in.jsonl", many_requests());
  const Outcome run = generate({"--prompts", requests, "--quiet"}, {.out = Stdout::kReaderLeaves});
  EXPECT_FALSE(run.hung) << "all requests were run for nobody";
  EXPECT_EQ(run.signal, 0) << run.describe();
  EXPECT_EQ(run.code, 3) << run.describe();
  EXPECT_NE(run.err.find("standard output: cannot be written: Broken pipe"), std::string::npos)
      << run.describe();
}

TEST(Streams, AReaderOfOnePromptThatLeaves) {
  const Outcome run =
      generate({"--prompt", "Once upon a time", "--max-tokens", "200", "--draft-model", demo_draft()},
               {.out = Stdout::kReaderLeaves});
  EXPECT_FALSE(run.hung);
  EXPECT_EQ(run.signal, 0) << run.describe();
  EXPECT_EQ(run.out.size(), 1u);
}

TEST(Streams, AFullDiskIsAnError) {
  const Outcome run = generate({"--prompt", "x", "--max-tokens", "4", "--quiet"}, {.out = Stdout::kFullDisk});
  EXPECT_EQ(run.code, 3) << run.describe();
  EXPECT_NE(run.err.find("standard output: cannot be written: No space left"), std::string::npos)
      << run.describe();
}

TEST(Streams, ClosedInputDoesNotMatter) {
  const Outcome run = generate({"--prompt", "x", "--max-tokens", "4", "--quiet"}, {.in = Stdin::kClosed});
  EXPECT_EQ(run.code, 0) << run.describe();
  EXPECT_EQ(run.out, generate({"--prompt", "x", "--max-tokens", "4", "--quiet"}).out);
}

TEST(Streams, ClosedOutputIsAnErrorUnlessAFileIsWritten) {
  const TemporaryDirectory dir;
  const Outcome lost = generate({"--prompt", "x", "--max-tokens", "4", "--quiet"}, {.out = Stdout::kClosed});
  EXPECT_EQ(lost.code, 3) << lost.describe();
  EXPECT_NE(lost.err.find("standard output: cannot be written"), std::string::npos) << lost.describe();
  const Outcome kept =
      generate({"--prompt", "x", "--max-tokens", "4", "--quiet", "--output", dir / "o.jsonl"},
               {.out = Stdout::kClosed});
  EXPECT_EQ(kept.code, 0) << kept.describe();
  EXPECT_EQ(read_file(dir / "o.jsonl").front(), '{')
      << "text went into a file that took the closed stream's number";
}

// A limit on the size of files is the full disk that a test can have.
TEST(Streams, AFullDiskLeavesTheResultsThatFit) {
  const TemporaryDirectory dir;
  dir.write("in.jsonl", many_requests(20));
  const Outcome run =
      run_program({"sh", "-c", "ulimit -f 16; trap '' XFSZ; exec \"$@\"", "sh", outrider_path(), "generate",
                   "--model", demo_target(), "--prompts", "in.jsonl", "--output", "out.jsonl", "--quiet"},
                  {.directory = dir.path()});
  EXPECT_EQ(run.code, 3) << run.describe();
  EXPECT_NE(run.err.find("--output out.jsonl: cannot be written: File too large"), std::string::npos)
      << run.describe();
  const Arguments entries = dir.entries();
  ASSERT_EQ(entries.size(), 2u) << run.describe();
  EXPECT_TRUE(entries[1].ends_with(".partial"));
  const std::string kept = read_file(dir / entries[1]);
  const auto lines = std::count(kept.begin(), kept.end(), '\n');
  EXPECT_NE(run.err.find(std::to_string(lines) + " of 3000 requests were finished; their results are in " +
                         entries[1]),
            std::string::npos)
      << lines << " are there" << run.describe();
  EXPECT_GT(kept.size(), 1024u);
  EXPECT_TRUE(kept.ends_with("}\n")) << "half a line";
}

TEST(Streams, AFileThatIsReplacedPassesItsModeOn) {
  const TemporaryDirectory dir;
  const auto mode = std::filesystem::perms(0660);
  std::filesystem::permissions(dir.write("o.jsonl", "from yesterday\n"), mode);
  const Outcome refused = generate({"--prompt", "x", "--max-tokens", "4", "--output", dir / "o.jsonl"});
  EXPECT_EQ(refused.code, 2) << refused.describe();
  EXPECT_NE(refused.err.find("exists already; choose another name, or add --overwrite"), std::string::npos)
      << refused.describe();
  EXPECT_EQ(read_file(dir / "o.jsonl"), "from yesterday\n");
  ASSERT_TRUE(generate({"--prompt", "x", "--max-tokens", "4", "--output", dir / "o.jsonl", "--overwrite"})
                  .succeeded());
  EXPECT_EQ(read_file(dir / "o.jsonl").front(), '{');
  EXPECT_EQ(std::filesystem::status(dir / "o.jsonl").permissions(), mode);
}

// Whatever a command says there.
TEST(Streams, AnOutputThatCannotBeWrittenIsToldByEveryCommand) {
  for (const Arguments& command :
       {Arguments{"--version"}, Arguments{"doctor"}, Arguments{"completion", "bash"},
        Arguments{"simulate", "theory"}, Arguments{"generate", "--gamma-policy", "list", "--model", "x"}}) {
    Arguments words{"sh", "-c", "exec \"$@\" > /dev/full", "sh", outrider_path()};
    words.insert(words.end(), command.begin(), command.end());
    const Outcome run = run_program(words);
    EXPECT_EQ(run.code, 3) << run.describe();
    EXPECT_NE(run.err.find("standard output: cannot be written"), std::string::npos) << run.describe();
  }
}

// A rename would put a regular file in the place of a device, a pipe or a link.
TEST(Streams, WhatIsNoRegularFileIsWrittenInPlace) {
  const TemporaryDirectory dir;
  std::filesystem::create_symlink("/dev/full", dir / "full");
  const Outcome full = generate({"--prompt", "x", "--max-tokens", "4", "--quiet", "--output", dir / "full"});
  EXPECT_EQ(full.code, 3) << full.describe();
  EXPECT_NE(full.err.find("No space left"), std::string::npos) << full.describe();
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "full"));

  dir.write("real.jsonl", "from yesterday\n");
  std::filesystem::create_symlink("real.jsonl", dir / "link");
  EXPECT_TRUE(
      generate({"--prompt", "x", "--max-tokens", "4", "--output", dir / "link", "--overwrite"}).succeeded());
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
  EXPECT_EQ(read_file(dir / "real.jsonl").front(), '{');

  // Behind what standard output already holds.
  std::filesystem::create_symlink("/proc/self/fd/1", dir / "stdout");
  const Outcome out = run_program({"sh", "-c", "echo first > got; exec \"$@\" >> got", "sh", outrider_path(),
                                   "generate", "--model", demo_target(), "--prompt", "x", "--max-tokens", "4",
                                   "--quiet", "--output", dir / "stdout", "--trace", "/dev/fd/2"},
                                  {.directory = dir.path()});
  EXPECT_EQ(out.code, 0) << out.describe();
  EXPECT_TRUE(read_file(dir / "got").starts_with("first\n{")) << read_file(dir / "got");
  EXPECT_NE(out.err.find("traceEvents"), std::string::npos) << out.describe();
  EXPECT_EQ(dir.entries(), (Arguments{"full", "got", "link", "real.jsonl", "stdout"}));
}

// A text that is shown as it comes, of which nothing is kept.
TEST(Streams, AnInterruptedTextEndsWithAWordAboutIt) {
  const TemporaryDirectory dir;
  BackgroundProcess run(
      dir, "one",
      {outrider_path(), "generate", "--model", demo_target(), "--prompt", "Once upon a time", "--max-tokens",
       "500", "--ignore-eos", "--emulate-link", "delay=20ms,links=all"});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30 * kPatience);
  while (run.out().empty() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  run.signal(SIGINT);
  EXPECT_EQ(run.wait(), 128 + SIGINT) << run.err();
  EXPECT_NE(run.err().find("outrider: interrupted after "), std::string::npos) << run.err();
}

TEST(Streams, AModelThatIsWrittenIsTold) {
  const TemporaryDirectory dir;
  const Outcome run = outrider_program({"quantize", "--model", demo_target(), "--output", (dir / "int8").string()});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_NE(run.err.find("outrider: wrote " + (dir / "int8").string() + ": int8 weights of "), std::string::npos)
      << run.describe();
}

TEST(Streams, AModelThatCannotBeWrittenIsNotLeftHalf) {
  const TemporaryDirectory dir;
  const Outcome run = run_program({"sh", "-c", "ulimit -f 1024; exec \"$@\"", "sh", outrider_path(), "quantize",
                                   "--model", demo_target(), "--output", "int8"},
                                  {.directory = dir.path()});
  EXPECT_EQ(run.code, 3) << run.describe();
  EXPECT_NE(run.err.find("outrider: --output int8: "), std::string::npos) << run.describe();
  EXPECT_NE(run.err.find("File too large"), std::string::npos) << run.describe();
  EXPECT_EQ(dir.entries(), Arguments{});
}

}  // namespace
}  // namespace outrider::testing
