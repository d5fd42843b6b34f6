// Ends that nobody planned: signals, readers that leave, full disks, closed streams.
#include <gtest/gtest.h>

#include <set>

#include "program.h"

namespace outrider::testing {
namespace {

using Arguments = std::vector<std::string>;

// A run of many seconds: it is interrupted long before its end.
std::string many_requests() {
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += "{\"prompt\": \"Once upon a time\", \"max_tokens\": 400, \"ignore_eos\": true}\n";
  return text;
}

class Interrupt : public ::testing::TestWithParam<int> {
 protected:
  TemporaryDirectory dir_;
};

// A file that the run itself creates shows that it began. The name of the temporary one is found by listing.
TEST_P(Interrupt, EndsAtOnceAndLeavesNoOutput) {
  const std::string requests = dir_.write("in.jsonl", many_requests());
  const std::filesystem::path output = dir_ / "out";
  std::filesystem::create_directory(output);
  // The shell becomes the program, so that its process id, part of the temporary name, is known.
  const std::string command = "echo $$ > '" + (dir_ / "pid").string() + "'; exec \"$@\"";
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
                      requests,
                      "--output",
                      output / "out.jsonl",
                      "--quiet"};
  RunSettings settings{.signal = GetParam(), .signal_when = output / "ready"};
  // Results flow once the temporary file has bytes in it.
  arguments[2] =
      "echo $$ > pid; (while [ ! -s out/out.jsonl.$$.partial ]; do sleep 0.01; done; : > out/ready) & exec "
      "\"$@\"";
  settings.directory = dir_.path();
  const Outcome run = run_program(arguments, settings);
  EXPECT_FALSE(run.hung);
  EXPECT_TRUE(run.signal == GetParam() || run.code > 0) << run.describe();
  EXPECT_LT(run.after_signal.count(), 20'000) << run.describe();  // the run would take minutes
  EXPECT_EQ(run.out, "");
  std::filesystem::remove(output / "ready");
  EXPECT_TRUE(std::filesystem::is_empty(output)) << "a partial output was left";
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
  EXPECT_TRUE(generate({"--prompt", "x", "--max-tokens", "4", "--output", dir / "link"}).succeeded());
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

// A limit on the size of files is the full disk that a test can have.
TEST(Streams, AModelThatCannotBeWrittenIsNotLeftHalf) {
  const TemporaryDirectory dir;
  const Outcome run = run_program({"sh", "-c", "ulimit -f 64; trap '' XFSZ; exec \"$@\"", "sh",
                                   outrider_path(), "quantize", "--model", demo_target(), "--output", "int8"},
                                  {.directory = dir.path()});
  EXPECT_EQ(run.code, 3) << run.describe();
  EXPECT_NE(run.err.find("outrider: --output int8: "), std::string::npos) << run.describe();
  EXPECT_EQ(dir.entries(), Arguments{});
}

}  // namespace
}  // namespace outrider::testing
