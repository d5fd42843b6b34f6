// The sources of settings (flags, environment, config file), and the commands that only print.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/support/program.h"
#include "tests/support/source_dir.h"
#include "tests/support/temporary_directory.h"

namespace outrider::testing {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

void expect_error(const Outcome& run, const Arguments& says) {
  EXPECT_EQ(run.code, 2) << run.describe();
  EXPECT_EQ(run.out, "") << run.describe();
  for (const std::string& part : says)
    EXPECT_NE(run.err.find(part), std::string::npos) << part << "\n" << run.describe();
}

class Settings : public ::testing::Test {
 protected:
  // The value of max_num_seqs that a run chose, from its report.
  int max_num_seqs(const Arguments& more, const std::map<std::string, std::string>& env = {}) {
    Arguments arguments{"--prompt", "x", "--report", dir_ / "report.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome run = generate(arguments, {.env = env});
    EXPECT_TRUE(run.succeeded()) << run.describe();
    return run.succeeded() ? json::parse(read_file(dir_ / "report.json"))["max_num_seqs"].get<int>() : -1;
  }
  TemporaryDirectory dir_;
};

TEST_F(Settings, CommandLineThenEnvironmentThenFile) {
  const std::string config = dir_.write("c.toml", "max-num-seqs = 3\nmax-tokens = 2\n");
  const std::map<std::string, std::string> env{{"OUTRIDER_MAX_NUM_SEQS", "4"}};
  EXPECT_EQ(max_num_seqs({"--max-tokens", "2"}), 8);
  EXPECT_EQ(max_num_seqs({"--config", config}), 3);
  EXPECT_EQ(max_num_seqs({"--config", config}, env), 4);
  EXPECT_EQ(max_num_seqs({"--config", config, "--max-num-seqs", "5"}, env), 5);
  EXPECT_EQ(max_num_seqs({"--max-num-seqs", "5", "--max-tokens", "2"}, env), 5);
  EXPECT_EQ(max_num_seqs({"--max-num-seqs", "5", "--max-num-seqs", "6", "--max-tokens", "2"}), 6)
      << "the last one counts";
}

TEST_F(Settings, AFileMayHoldEverything) {
  const std::string config =
      dir_.write("run.toml", "# a run\nmodel = \"" + demo_target().string() + "\"\ndraft_model = \"" +
                                 demo_draft().string() +
                                 "\"\nprompt = \"Once upon a time\"\nquiet = true\nmax-tokens = 12\n"
                                 "temperature = 0.8\nseed = 9\nstop = [\"qqq\", \"zzz\"]\n");
  const Outcome run = outrider_program({"generate", "--config", config});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out, generate({"--prompt", "Once upon a time", "--max-tokens", "12", "--temperature", "0.8",
                               "--seed", "9", "-q"})
                         .out);
}

// Those without which a command cannot run, too.
TEST_F(Settings, AFileMayHoldWhatACommandNeeds) {
  const std::string text = dir_.write("text.txt", "A few words that are read, and some more of them.");
  const std::string target = (source_dir() / "launch/demo_pair/target").string();
  const auto with = [&](const std::string& content) {
    return outrider_program({"perplexity", "--config", dir_.write("c.toml", content).string()});
  };
  const Outcome run = with(fmt::format("model = \"{}\"\nfile = \"{}\"\nctx-size = 8\n", target, text));
  EXPECT_TRUE(run.succeeded()) << run.describe();
  const Outcome refused = with(fmt::format("model = \"{}\"\n", target));
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("--file is required"), std::string::npos) << refused.describe();
}

TEST_F(Settings, TheModelMayComeFromTheEnvironment) {
  const Outcome run =
      outrider_program({"generate", "--prompt", "x", "--max-tokens", "2", "-q"},
                       {.env = {{"OUTRIDER_MODEL", demo_target()}, {"OUTRIDER_DRAFT_MODEL", demo_draft()}}});
  EXPECT_TRUE(run.succeeded()) << run.describe();
}

// Then the first text behind the command is the prompt, as with OUTRIDER_MODEL.
TEST_F(Settings, TheModelMayComeFromAFileAndTheTextFromTheCommandLine) {
  const std::string config =
      dir_.write("m.toml", "max-tokens = 2\n[generate]\nmodel = \"" + demo_target().string() + "\"\n");
  const Outcome run = outrider_program({"generate", "--config", config, "-q", "Once upon a time"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(run.out, generate({"--prompt", "Once upon a time", "--max-tokens", "2", "-q"}).out);
  const std::string other = dir_.write("o.toml", "model = \"/missing\"\n");
  const Outcome named = outrider_program(
      {"generate", demo_target(), "Once upon a time", "--max-tokens", "2", "--config", other, "-q"});
  EXPECT_EQ(named.out, run.out) << named.describe();
}

// Every option with a long name reads the variable of that name.
TEST_F(Settings, AnyOptionMayComeFromTheEnvironment) {
  const Arguments flags{"--prompt", "x", "--max-tokens", "8", "--temperature", "0.9", "--seed", "5", "-q"};
  const Outcome by_flags = generate(flags);
  ASSERT_TRUE(by_flags.succeeded()) << by_flags.describe();
  const Outcome by_variables = generate({}, {.env = {{"OUTRIDER_PROMPT", "x"},
                                                     {"OUTRIDER_MAX_TOKENS", "8"},
                                                     {"OUTRIDER_TEMPERATURE", "0.9"},
                                                     {"OUTRIDER_SEED", "5"},
                                                     {"OUTRIDER_QUIET", "true"}}});
  EXPECT_EQ(by_variables.out, by_flags.out) << by_variables.describe();
  EXPECT_EQ(by_variables.err, "");
}

// Also of settings with a grammar of their own.
TEST_F(Settings, AnErrorNamesTheSourceOfTheValue) {
  for (const char* name : {"q-format", "device", "weight-format", "draft-weight-format", "activation-format",
                           "kv-dtype", "speculative-tree", "emulate-link", "max-tokens"}) {
    std::string variable = "OUTRIDER_";
    for (const char* c = name; *c; ++c) variable += *c == '-' ? '_' : static_cast<char>(std::toupper(*c));
    const std::string flag = std::string("--") + name;
    const Outcome by_variable = generate({"--prompt", "x"}, {.env = {{variable, "nonsense"}}});
    expect_error(by_variable, {"(from " + variable + ")", flag, "nonsense"});
    const std::string file = dir_.write("c.toml", std::string("# \n") + name + " = \"nonsense\"\n");
    expect_error(generate({"--prompt", "x", "--config", file}), {"--config " + file + ":2: " + name});
    const Outcome by_flag = generate({"--prompt", "x", flag, "nonsense"});
    expect_error(by_flag, {flag, "nonsense"});
    EXPECT_EQ(by_flag.err.find(flag + ": " + flag), std::string::npos) << by_flag.err;
    EXPECT_EQ(by_flag.err.find("(from"), std::string::npos) << by_flag.err;
  }
  expect_error(generate({"--prompt", "x", "--emulate-link", ""}),
               {"--emulate-link", "is empty", "delay=1ms"});
  expect_error(generate({"--prompt", "x", "--speculative-tree", "@"}), {"--speculative-tree @: name a file"});
  expect_error(generate({"--prompt", "x", "--min-prefill-tokens", "32"}),
               {"--min-prefill-tokens 32", "--prefill-groups"});
}

// `| head` ends a command's output early. Then there is no error, and the code is 0.
TEST_F(Settings, AReaderThatLeavesIsNoError) {
  for (const char* command : {"generate --gamma-policy list", "completion bash", "generate --help=all"}) {
    const Outcome run =
        run_program({"bash", "-c", std::string("\"$0\" ") + command + "; echo code $? >&2", outrider_path()},
                    {.out = Stdout::kReaderLeaves});
    EXPECT_EQ(run.err, "code 0\n") << command << run.describe();
  }
}

TEST_F(Settings, ABadFileIsToldWithItsNameAndKey) {
  const Arguments prompt{"--prompt", "x", "--config"};
  const auto run = [&](const std::string& file) { return generate({"--prompt", "x", "--config", file}); };
  expect_error(run(dir_ / "none.toml"), {"--config", "none.toml", "cannot be read"});
  expect_error(run(dir_.path()), {"--config", "cannot be read"});
  const auto refused = [&](const std::string& content, const std::string& says) {
    expect_error(run(dir_.write("c.toml", content)), {"--config " + (dir_ / "c.toml").string() + ":" + says});
  };
  refused("max-tokns = 3\n",
          "1: max-tokns: `outrider generate` has no such option; did you mean max-tokens?");
  refused("# many\nmax-tokens = \"many\"\n", "2: max-tokens: must be a whole number");
  refused("max-tokens = \"3\"\n", "1: max-tokens: must be a whole number");
  refused("max-tokens = 3.5\n", "1: max-tokens: must be a whole number");
  refused("max-tokens = 3000000000\n", "1: max-tokens: ");
  refused("top-p = \"low\"\n", "1: top-p: must be a number");
  refused("drafter = \"oracle\"\n", "1: drafter: oracle must be");
  refused("draft-model = 7\n", "1: draft-model: must be a text in quotes");
  refused("quiet = 1\n", "1: quiet: must be true or false");
  refused("stop = [\"a\",\n 7]\n", "2: stop: must be a text in quotes, or a list of them");
  refused("rule = [\"greedy\"]\n", "1: rule: must be a text in quotes");
  refused("tensor_parallel_size = 2\n\ntp = 1\n", "3: tp: is there twice");
  refused("[bench]\nmax-tokens = 3\n", "1: bench: `outrider generate` has no such option");
  refused("config = \"other.toml\"\n", "1: config: is a flag of the command line only");
  refused("\nmax-tokens = 3 4\n", "2: ");
  refused("\n\ndraft-model = /models/draft\n", "3: ");
  refused("[generate\n", "1: ");
  refused("max-tokens = 3\nmax-tokens = 4\n", "2: ");
  expect_error(run(dir_.write("d.toml", "top-p = 7\n")), {"--top-p 7", "at most 1"});
}

TEST_F(Settings, AFileMayNameItsCommand) {
  EXPECT_EQ(
      max_num_seqs({"--config", dir_.write("c.toml", "[generate]\nmax-num-seqs = 3\nmax-tokens = 2\n")}), 3);
}

TEST_F(Settings, AVariableThatNobodyReadsIsTold) {
  const auto told = [](const std::map<std::string, std::string>& env) {
    const Outcome run = generate({"--prompt", "x", "--max-tokens", "2", "--quiet"}, {.env = env});
    EXPECT_TRUE(run.succeeded()) << run.describe();
    return run.err;
  };
  EXPECT_EQ(told({{"OUTRIDER_MAX_NUM_SEQ", "4"}}),
            "outrider: warning: OUTRIDER_MAX_NUM_SEQ is set, but nothing reads it; did you mean "
            "OUTRIDER_MAX_NUM_SEQS?\n");
  EXPECT_EQ(told({{"OUTRIDER_QUANTUM", "4"}}),
            "outrider: warning: OUTRIDER_QUANTUM is set, but nothing reads it; --help=all lists the "
            "variables\n");
  EXPECT_EQ(told({{"OUTRIDER_RETRY_FOR", "4"},
                  {"OUTRIDER_LOG", "warn"},
                  {"OUTRIDER_SOURCE_DIR", "/"},
                  {"OUTRIDER_PROGRAM", "x"}}),
            "")
      << "other commands, the log, our scripts and the Python package read these";
}

TEST_F(Settings, ABadVariableIsToldWithItsFlag) {
  expect_error(generate({"--prompt", "x"}, {.env = {{"OUTRIDER_THREADS", "many"}}}),
               {"--threads", "--threads many: must be a whole number (from OUTRIDER_THREADS)"});
  expect_error(generate({"--prompt", "x", "--threads", "few"}, {.env = {{"OUTRIDER_THREADS", "many"}}}),
               {"--threads few: must be a whole number\n"});
  expect_error(generate({"--prompt", "x"}, {.env = {{"OUTRIDER_DRAFTER", "oracle"}}}),
               {"--drafter", "oracle"});
}

TEST(Help, TeachesEveryFlagAndGivesExamples) {
  const Outcome main = outrider_program({"--help"});
  EXPECT_EQ(main.code, 0);
  for (const char* part : {"generate", "doctor", "mpirun -n 4", "--draft-model", "Exit codes: 0", "jsonl"})
    EXPECT_NE(main.out.find(part), std::string::npos) << part;
  EXPECT_EQ(main.err, "");

  const Outcome help = outrider_program({"generate", "--help=all"});
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.err, "");
  for (const char* part : {"Models:", "Requests:", "Speculation:", "Reports:", "--num-speculative-tokens",
                           "--gamma-policy", "--rule", "greedy", "invariant", "--layout", "OUTRIDER_MODEL",
                           "--config", "--trace", "--compare-plain", "repetition_penalty", "finish_reason"})
    EXPECT_NE(help.out.find(part), std::string::npos) << part;
}

TEST(Help, SaysNothingWhenTheReaderLeaves) {
  TemporaryDirectory dir;
  for (const char* arguments : {"--help", "generate --help=all", "help serve", "--version"}) {
    // The reader opens the pipe and leaves before the program starts, so that each write fails.
    const Outcome run = run_program(
        {"sh", "-c",
         fmt::format(
             "mkfifo \"$1\" && {{ (exec 3<\"$1\") & exec >\"$1\"; wait; rm \"$1\"; exec \"$0\" {}; }}",
             arguments),
         outrider_path(), dir / "pipe"});
    EXPECT_EQ(run.code, 0) << arguments << run.describe();
    EXPECT_EQ(run.err, "") << arguments;
  }
}

TEST(Help, OfACommandIsOneScreenUntilAllIsAskedFor) {
  for (const char* command : {"generate", "serve", "batch", "chat"}) {
    const Outcome brief = outrider_program({command, "--help"}),
                  all = outrider_program({command, "--help=all"});
    ASSERT_EQ(brief.code, 0) << brief.describe();
    EXPECT_LE(std::count(brief.out.begin(), brief.out.end(), '\n'), 70) << brief.out;
    EXPECT_NE(brief.out.find("--help=all"), std::string::npos);
    for (const char* flag : {"--model", "--draft-model", "--temperature", "--num-speculative-tokens"})
      EXPECT_NE(brief.out.find(flag), std::string::npos) << flag;
    for (const char* flag : {"--emulate-link", "--fanout-budget"}) {
      EXPECT_EQ(brief.out.find(flag), std::string::npos) << flag;
      EXPECT_NE(all.out.find(flag), std::string::npos) << flag;
    }
    EXPECT_EQ(outrider_program({"help", command}).out, brief.out);
    EXPECT_EQ(outrider_program({"help", command, "all"}).out, all.out);
    EXPECT_EQ(outrider_program({command, "--help-all"}).out, all.out);
  }
  EXPECT_EQ(outrider_program({"help"}).out, outrider_program({"--help"}).out);
  expect_error(outrider_program({"help", "generat"}), {"generat", "did you mean generate?"});
  EXPECT_EQ(outrider_program({"help", "simulate", "run"}).out,
            outrider_program({"simulate", "run", "--help"}).out);
}

TEST(Help, EveryCommandShowsExamplesOfItsOwn) {
  for (const char* command : {"generate", "chat", "batch", "doctor", "draft-worker", "bench", "synth",
                              "simulate", "study", "quantize", "keygen"}) {
    const Outcome help = outrider_program({command, "--help"});
    EXPECT_EQ(help.code, 0) << command;
    const size_t examples = help.out.find("Example");
    ASSERT_NE(examples, std::string::npos) << command;
    EXPECT_NE(help.out.find(std::string("  outrider ") + command, examples), std::string::npos) << help.out;
  }
}

TEST(Help, AFlagInFrontOfTheCommandIsExplained) {
  expect_error(outrider_program({"--quiet", "generate"}), {"behind the command", "outrider generate"});
  expect_error(outrider_program({"simulate"}), {"simulate", "plan", "grid", "--help"});
}

TEST(Help, VersionTellsTheCommitAndWhatIsBuiltIn) {
  const Outcome run = outrider_program({"--version"});
  EXPECT_EQ(run.code, 0);
  EXPECT_TRUE(run.out.starts_with("outrider ")) << run.out;
  for (const char* line : {"\ncommit  ", "\nCPU     ", "\nCUDA    ", "\nNCCL    ", "\nMPI     "})
    EXPECT_NE(run.out.find(line), std::string::npos) << line;
  EXPECT_EQ(run.err, "");
}

TEST(Help, GammaPoliciesAreListedWithTheirKeys) {
  const Outcome run = outrider_program({"generate", "--gamma-policy", "list"});
  EXPECT_EQ(run.code, 0) << run.describe();
  for (const char* part : {"fixed", "gamma=5", "heuristic", "replay"})
    EXPECT_NE(run.out.find(part), std::string::npos) << part;
}

TEST(Keygen, MakesASecretAndWhatMayBeReadByAll) {
  const TemporaryDirectory dir;
  const auto keygen = [&] {
    return run_program(
        {"sh", "-c", "umask 022; exec \"$@\"", "sh", outrider_path(), "keygen", "--output", dir / "a.key"});
  };
  // Emulates a full disk: files may not grow beyond `bytes` bytes. The signal of this limit is ignored.
  for (const int bytes : {0, 20, 60}) {
    const Outcome full = run_program({"sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh", "prlimit",
                                      "--fsize=" + std::to_string(bytes), outrider_path(), "keygen",
                                      "--output", dir / "a.key"});
    EXPECT_EQ(full.code, 3) << full.describe();
    EXPECT_NE(full.err.find("a.key: cannot be written: "), std::string::npos) << full.describe();
    EXPECT_EQ(dir.entries(), std::vector<std::string>{}) << "no half pair";
  }
  ASSERT_TRUE(keygen().succeeded());
  const auto mode = [&](const char* name) {
    return static_cast<int>(std::filesystem::status(dir / name).permissions());
  };
  EXPECT_EQ(mode("a.key"), 0600);
  EXPECT_EQ(mode("a.key.pub"), 0644);
  expect_error(keygen(),
               {"a.key: cannot be created: File exists", "choose another name, or remove the file"});

  std::filesystem::remove(dir / "a.key");
  expect_error(keygen(), {"a.key.pub: cannot be created: File exists"});
  EXPECT_EQ(dir.entries(), Arguments{"a.key.pub"}) << "half a pair";
}

TEST(Doctor, DescribesTheMachine) {
  const Outcome run = outrider_program({"doctor"});
  EXPECT_EQ(run.code, 0) << run.describe();
  for (const char* part : {"outrider ", "cores", "instruction sets", "scalar", "ZeroMQ", "MPI"})
    EXPECT_NE(run.out.find(part), std::string::npos) << part;
}

TEST(Doctor, PlacesALayout) {
  for (const Arguments& arguments :
       {Arguments{"doctor", "--ranks", "4"},
        Arguments{"doctor", "--ranks", "4", "--layout", "coordinator=1,draft=1,target=2"}}) {
    const Outcome run = outrider_program(arguments);
    EXPECT_EQ(run.code, 0) << run.describe();
    for (const char* part : {"coordinator", "draft/0", "target/0", "leader", "target/1"})
      EXPECT_NE(run.out.find(part), std::string::npos) << part << run.describe();
  }
}

TEST(Doctor, ShowsEachRanksShareOfAModel) {
  const Outcome run = outrider_program(
      {"doctor", "--ranks", "3", "--layout", "coordinator=1,draft=0,target=2", "--model", demo_target()});
  EXPECT_EQ(run.code, 0) << run.describe();
  for (const char* part : {"target rank 0", "target rank 1", "vocabulary [2048, 4096)", "MB"})
    EXPECT_NE(run.out.find(part), std::string::npos) << part << run.describe();
  EXPECT_NE(outrider_program({"doctor", "--model", demo_target()}).out.find("vocabulary [0, 4096)"),
            std::string::npos);
}

// The demo target: 8.4 million weights in bf16, whose sizes its config.json tells.
TEST(Doctor, TellsWhatAModelTakesBeforeItIsLoaded) {
  const Outcome run = outrider_program({"doctor", "--model", demo_target()});
  EXPECT_EQ(run.code, 0) << run.describe();
  for (const char* part : {"LlamaForCausalLM", "8.421 million parameters, stored as BF16",
                           "--weight-format int4", "a token in bf16", "tokenizer", "chat template"})
    EXPECT_NE(run.out.find(part), std::string::npos) << part << run.describe();
  const bool has_cuda = outrider_program({"doctor"}).out.find("not in this build") == std::string::npos;
  EXPECT_EQ(run.out.find("on a CUDA device       --weight-format auto  16.8 MB") != std::string::npos,
            has_cuda)
      << run.describe();
  const TemporaryDirectory directory;
  std::filesystem::copy(demo_target(), directory / "model", std::filesystem::copy_options::recursive);
  std::filesystem::remove(directory / "model/tokenizer.json");
  expect_error(outrider_program({"doctor", "--model", directory / "model"}), {"--model", "tokenizer"});
}

TEST(Doctor, RefusesWhatCannotBeLaidOut) {
  expect_error(outrider_program({"doctor", "--layout", "target=2"}), {"--layout", "--ranks"});
  expect_error(outrider_program({"doctor", "--ranks", "-3"}), {"--ranks -3"});
  expect_error(outrider_program({"doctor", "--ranks", "1"}), {"1 rank", "-n 2"});
  expect_error(outrider_program({"doctor", "--ranks", "x"}), {"--ranks", "x"});
  expect_error(outrider_program({"doctor", "--ranks", "5", "--layout", "coordinator=1,draft=1,target=3"}),
               {"target=3", "1, 2, 4 or 8"});
  expect_error(outrider_program({"doctor", "--ranks", "3", "--layout", "coordinator=1,draft=1,target=2"}),
               {"--layout", "4 ranks", "3"});
  expect_error(outrider_program({"doctor", "--ranks", "4", "--layout", "cordinator=1,draft=1,target=2"}),
               {"cordinator"});
  expect_error(outrider_program({"doctor", "--model", "/nowhere"}), {"--model", "/nowhere"});
}

}  // namespace
}  // namespace outrider::testing
