// `outrider completion` in the installed shells, and the layout of --help in terminals of several widths.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/support/program.h"

namespace outrider::testing {
namespace {

// The completions that bash offers for these words. The last word is the one being typed.
std::vector<std::string> offered(const std::vector<std::string>& words) {
  std::string list;
  for (const std::string& word : words) list += fmt::format("'{}' ", word);
  const std::string script = fmt::format(
      "source <('{}' completion bash) && complete -p outrider > /dev/null && COMP_WORDS=({}) COMP_CWORD={} "
      "&& "
      "_outrider && printf '%s\\n' \"${{COMPREPLY[@]}}\"",
      outrider_path(), list, words.size() - 1);
  const Outcome run = run_program({"bash", "-c", script});
  EXPECT_EQ(run.code, 0) << run.describe();
  std::vector<std::string> out;
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) out.push_back(line);
  return out;
}

using Words = std::vector<std::string>;

TEST(Completion, CommandsFlagsAndValuesAreOffered) {
  EXPECT_EQ(offered({"outrider", "gener"}), Words{"generate"});
  EXPECT_EQ(offered({"outrider", "generate", "--num-draft"}), Words{"--num-draft-workers"});
  EXPECT_EQ(offered({"outrider", "generate", "--pipeline", "f"}), Words{"fanout"});
  EXPECT_EQ(offered({"outrider", "generate", "--drafter", ""}),
            (Words{"model", "ngram", "suffix", "recycling", "lookahead", "model+suffix", "eagle3", "eagle",
                   "mtp", "medusa", "hydra", "dflash", "layerskip"}));
  EXPECT_EQ(offered({"outrider", "simulate", "pl"}), Words{"plan"});
  EXPECT_EQ(offered({"outrider", "simulate", "plan", "--target-d"}), Words{"--target-devices"});
  EXPECT_EQ(offered({"outrider", "study", "comp"}), Words{"compare"});
  EXPECT_EQ(offered({"outrider", "completion", "f"}), Words{"fish"});
  EXPECT_EQ(offered({"outrider", "generate", "--target-d"}), Words{""});  // of another command
}

// Each word is accepted where it is offered.
TEST(Completion, ChoicesThatSettingsCheckAreOfferedAndRight) {
  EXPECT_EQ(offered({"outrider", "generate", "--gamma-policy", "thresh"}), Words{"threshold"});
  EXPECT_EQ(offered({"outrider", "serve", "--rule", "tr"}), Words{"traversal"});
  EXPECT_EQ(offered({"outrider", "serve", "--port", "C"}), Words{""}) << "a number is no file";
  for (const char* flag : {"--rule", "--weight-format", "--activation-format", "--kv-dtype", "--isa"})
    for (const std::string& word : offered({"outrider", "generate", flag, ""})) {
      const std::string err =
          outrider_program({"generate", "--model", demo_target(), "-p", "x", "-n", "1", flag, word}).err;
      EXPECT_EQ(err.find(std::string(flag) + " " + word + ": choose"), std::string::npos) << err;
    }
}

TEST(Completion, AFileIsOfferedWhereAValueIsFree) {
  const TemporaryDirectory dir;
  const std::string file = dir.write("study.toml", "");
  EXPECT_EQ(offered({"outrider", "study", file.substr(0, file.size() - 3)}), Words{file});
  EXPECT_EQ(offered({"outrider", "generate", "--prompts", file.substr(0, file.size() - 3)}), Words{file});
}

TEST(Completion, OtherShellsHaveScriptsToo) {
  const Outcome zsh = outrider_program({"completion", "zsh"}),
                fish = outrider_program({"completion", "fish"});
  EXPECT_TRUE(zsh.out.starts_with("autoload -U +X bashcompinit")) << zsh.describe();
  EXPECT_NE(fish.out.find("-l num-draft-workers"), std::string::npos) << fish.describe();
  EXPECT_NE(fish.out.find("-a 'lockstep ahead fanout auto'"), std::string::npos);
  for (const auto& [shell, script] : {std::pair("zsh", zsh.out), std::pair("fish", fish.out)})
    if (run_program({"sh", "-c", fmt::format("command -v {}", shell)}).succeeded()) {
      const TemporaryDirectory dir;
      const Outcome parsed = run_program({shell, "-n", dir.write("script", script)});
      EXPECT_EQ(parsed.code, 0) << parsed.describe();
    }
  EXPECT_EQ(outrider_program({"completion", "tcsh"}).code, 2);
}

TEST(Help, IsWrappedAtTheWidthOfTheTerminal) {
  for (const Words& command : {Words{}, Words{"generate"}, Words{"serve"}, Words{"bench"}, Words{"study"},
                               Words{"simulate", "run"}, Words{"simulate", "plan"}, Words{"draft-worker"}})
    for (const size_t width : {72u, 100u}) {
      Words arguments = command;
      arguments.push_back("--help");
      const Outcome help = outrider_program(arguments, {.env = {{"COLUMNS", std::to_string(width)}}});
      ASSERT_EQ(help.code, 0) << help.describe();
      std::istringstream lines(help.out);
      for (std::string line; std::getline(lines, line);)
        EXPECT_TRUE(line.size() <= width || line.find(' ', line.find_first_not_of(' ')) == std::string::npos)
            << line;
    }
}

TEST(Help, AnErrorNamesTheCommandThatItConcerns) {
  const Outcome run = outrider_program({"simulate", "plan", "--devcies", "4"});
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("--devices"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("`outrider simulate plan --help`"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace outrider::testing
