// `outrider study`: the meaning of its file, resuming after a kill, and the contents of its reports.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lab/study/study_file.h"
#include "tests/support/program.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

std::string base_table() {
  return fmt::format(
      "[base]\nmodel = '{}'\ndraft-model = '{}'\nprompt = 'Once upon a time'\nmax-tokens = 12\n",
      demo_target().string(), demo_draft().string());
}

class Study : public ::testing::Test {
 protected:
  std::string file(const std::string& text) const { return dir_.write("s.toml", text); }
  // The error for a study file with this text, without its prefix "DIR/s.toml:".
  std::string refusal(const std::string& text) const {
    const std::string path = file(text);
    const auto study = read_study_file(path);
    EXPECT_FALSE(study.ok());
    const std::string message = study.status().message();
    EXPECT_TRUE(message.starts_with(path + ":")) << message;
    return message.substr(std::min(message.size(), path.size() + 1));
  }
  Outcome run(const std::string& study, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"study", study, "--output", dir_ / "out"});
    return outrider_program(std::move(more), {.directory = dir_.path()});
  }
  size_t finished() const {
    size_t count = 0;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ / "out/runs", none))
      count += entry.path().extension() == ".json";
    return count;
  }
  TemporaryDirectory dir_;
};

TEST_F(Study, BadFilesAreRefusedByLineAndKey) {
  EXPECT_TRUE(refusal("repeats = 1\nname = \n").starts_with("2: "));
  EXPECT_EQ(refusal("\nrepeat = 2\n").substr(0, 21), "2: repeat: no such ke");
  EXPECT_NE(refusal("repeat = 2\n").find("did you mean repeats?"), std::string::npos);
  EXPECT_TRUE(refusal("repeats = 0\n").starts_with("1: repeats: must be a whole number from 1 to 1000"));
  EXPECT_TRUE(refusal("name = 'a/b'\n").starts_with("1: name: "));
  EXPECT_NE(refusal("[base]\ntemprature = 1\n")
                .find("2: temprature: `outrider generate` has no such option; "
                      "did you mean temperature?"),
            std::string::npos);
  EXPECT_TRUE(refusal("[base]\nreport = 'x'\n").starts_with("2: report: a study sets this itself"));
  EXPECT_TRUE(refusal("[base]\nmax-tokens = 'many'\n").starts_with("2: max-tokens: "));
  EXPECT_TRUE(refusal("[base]\nseed = [1, 2]\n").starts_with("2: seed: takes one value here"));
  EXPECT_TRUE(refusal("[sweep]\nseed = 1\n").starts_with("2: seed: must be a list"));
  EXPECT_TRUE(refusal("[sweep]\nseed = [1,\n [2]]\n").starts_with("3: seed: must be a text, number"));
  EXPECT_TRUE(refusal("sweep = 3\n").starts_with("1: sweep: must be a table"));
  EXPECT_TRUE(refusal(base_table() + "[sweep]\nrecord-rounds = ['x']\n").find("a study sets this itself") !=
              std::string::npos);
  const std::string x_axis = refusal("x-axis = 'seeds'\n" + base_table() + "[sweep]\nseed = [1]\n");
  EXPECT_TRUE(x_axis.starts_with("1: x-axis: must be a swept key: seed")) << x_axis;
}

TEST_F(Study, APolicyThatDoesNotExistIsRefusedWithTheNearest) {
  const std::string message = refusal(base_table() + "[sweep]\ngamma-policy = [\n 'ewma',\n 'heuristc']\n");
  EXPECT_TRUE(message.starts_with("9: gamma-policy: ")) << message;
  EXPECT_NE(message.find("heuristic"), std::string::npos) << message;
}

TEST_F(Study, OptionsThatDoNotFitEachOtherAreRefusedByCell) {
  const std::string message = refusal(base_table() + "rule = 'greedy'\n[sweep]\ntemperature = [0, 1]\n");
  EXPECT_NE(message.find("temperature 1: --rule greedy means temperature 0"), std::string::npos) << message;
}

TEST_F(Study, ThoseThatComeWithItFindTheirModelsAndPrompts) {
  const auto folder = source_dir() / "lab" / "study";
  int studies = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".toml") continue;
    const auto study = read_study_file(entry.path());
    ASSERT_TRUE(study.ok()) << study.status().message();
    ++studies;
    for (const std::string& argument : study->cells.front().arguments)
      for (const char* flag : {"--model=", "--draft-model=", "--prompts="})
        if (argument.starts_with(flag)) {
          const std::string path = argument.substr(std::string(flag).size());
          if (path.starts_with("../../pair/")) continue;  // `outrider synth` makes it, as the study says
          EXPECT_TRUE(std::filesystem::exists(folder / path)) << entry.path() << ": " << argument;
        }
  }
  EXPECT_GE(studies, 4);
}

TEST_F(Study, NoFileIsAnError) {
  const auto study = read_study_file(dir_ / "absent.toml");
  ASSERT_FALSE(study.ok());
  EXPECT_NE(study.status().message().find("absent.toml: cannot be read"), std::string::npos);
  EXPECT_FALSE(read_study_file(dir_.path()).ok());
}

TEST_F(Study, CellsAreEveryCombinationInTheOrderOfTheFile) {
  const auto study = read_study_file(
      file("repeats = 2\n" + base_table() +
           "temperature = 0.7\n[[sweep]]\ntemperature = [0, 0.5]\ngamma_policy = ['fixed:gamma=2', 'ewma']\n"
           "[[sweep]]\nnum-speculative-tokens = [3]\n"));
  ASSERT_TRUE(study.ok()) << study.status().message();
  const StudyFile& s = study.value();
  EXPECT_EQ(s.axes, (std::vector<std::string>{"temperature", "gamma-policy", "num-speculative-tokens"}));
  std::vector<std::string> labels;
  for (const Cell& cell : s.cells) labels.push_back(cell.label());
  EXPECT_EQ(labels, (std::vector<std::string>{
                        "gamma-policy fixed:gamma=2, temperature 0", "gamma-policy ewma, temperature 0",
                        "gamma-policy fixed:gamma=2, temperature 0.5", "gamma-policy ewma, temperature 0.5",
                        "num-speculative-tokens 3"}));
  EXPECT_EQ(s.cells[0].fixed_gamma(), 2);
  EXPECT_EQ(s.cells[1].fixed_gamma(), std::nullopt);
  EXPECT_EQ(s.cells[4].fixed_gamma(), 3);
  EXPECT_EQ(s.cells[0].group(), s.cells[1].group());
  EXPECT_NE(s.cells[0].group(), s.cells[2].group());
  const auto& last = s.cells[4].arguments;
  EXPECT_NE(std::find(last.begin(), last.end(), "--temperature=0.7"), last.end());
  EXPECT_NE(s.cells[0].id, s.cells[2].id);
}

TEST_F(Study, DryRunListsAndTouchesNothing) {
  const Outcome listed =
      run(file("repeats = 3\n" + base_table() + "[sweep]\nseed = [1, 2]\n"), {"--dry-run"});
  ASSERT_EQ(listed.code, 0) << listed.describe();
  EXPECT_NE(listed.out.find("2 cells x 3 repeats = 6 runs"), std::string::npos) << listed.out;
  EXPECT_NE(listed.out.find("for the 6 runs that are missing, by one run of the first and the last cell."),
            std::string::npos)
      << listed.out;
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out"));
}

TEST_F(Study, DryRunReportsWhyATrialFails) {
  const Outcome listed =
      run(file(base_table() + fmt::format("[sweep]\nmodel = ['{}']\n", (dir_ / "no_model").string())),
          {"--dry-run"});
  EXPECT_EQ(listed.code, 1) << listed.describe();
  EXPECT_NE(listed.err.find("no_model: no such directory"), std::string::npos) << listed.describe();
}

// The printed command runs where the user is, and needs no PATH.
TEST_F(Study, DryRunPrintsCommandsThatRun) {
  const Outcome listed = run(file(base_table() + "[sweep]\nseed = [1]\n"), {"--dry-run"});
  ASSERT_EQ(listed.code, 0) << listed.describe();
  std::istringstream lines(listed.out);
  std::string line;
  while (std::getline(lines, line) && line.find(" generate ") == std::string::npos) continue;
  const Outcome ran = run_program({"env", "-i", "/bin/sh", "-c", line});
  EXPECT_EQ(ran.code, 0) << line << "\n" << ran.describe();
  EXPECT_FALSE(ran.out.empty());
}

TEST_F(Study, AFailedRunIsMarkedAndTheOthersGoOn) {
  const std::string study =
      file(base_table() + fmt::format("compare-plain = true\n[sweep]\nmodel = ['{}', '{}']\n",
                                      (dir_ / "no_model").string(), demo_target().string()));
  const Outcome ran = run(study);
  EXPECT_EQ(ran.code, 1) << ran.describe();
  EXPECT_NE(ran.err.find("FAILED: exit code 2"), std::string::npos) << ran.describe();
  const json result = json::parse(read_file(dir_ / "out/study.json"));
  EXPECT_EQ(result["cells"][0]["runs"][0]["status"], "failed");
  EXPECT_EQ(result["cells"][1]["runs"][0]["status"], "ok");
  EXPECT_EQ(result["cells"][1]["runs"][0]["identical_output"], "yes");
  EXPECT_GT(result["cells"][1]["runs"][0]["tokens_per_second"], 0);
  const std::string csv = read_file(dir_ / "out/runs.csv");
  EXPECT_TRUE(csv.starts_with("cell,repeat,status,model,seconds,tokens_per_second")) << csv;
  EXPECT_NE(read_file(dir_ / "out/report.html").find("Failed runs"), std::string::npos);

  std::filesystem::create_directory_symlink(demo_target(), dir_ / "no_model");
  EXPECT_EQ(run(study).code, 1) << "a failed run was repeated without being asked";
  const Outcome again = run(study, {"--retry-failed"});
  EXPECT_EQ(again.code, 0) << again.describe();
  EXPECT_NE(again.err.find("1 of 2 runs are there already"), std::string::npos) << again.describe();
}

TEST_F(Study, EveryRoundIsInOneFile) {
  const std::string study = file(base_table() + "[sweep]\nnum-speculative-tokens = [0, 2]\n");
  const Outcome ran = run(study);
  ASSERT_EQ(ran.code, 0) << ran.describe();
  const std::string rounds = read_file(dir_ / "out/rounds.csv");
  EXPECT_TRUE(rounds.starts_with("cell,repeat,label,request,round,position,asked,drafted")) << rounds;
  EXPECT_NE(rounds.find(",num-speculative-tokens 0,"), std::string::npos) << rounds;
  EXPECT_NE(rounds.find(",num-speculative-tokens 2,"), std::string::npos) << rounds;
  const Outcome plotted = outrider_program(
      {"study", "plot", (dir_ / "out/rounds.csv").string(), "--output", (dir_ / "figures").string()});
  ASSERT_EQ(plotted.code, 0) << plotted.describe();
  for (const char* figure : {"acceptance-by-position.svg", "tokens-by-length.svg"})
    EXPECT_NE(read_file(dir_ / "figures" / figure).find("num-speculative-tokens 2"), std::string::npos) << figure;
  const Outcome wrong = outrider_program({"study", "plot", (dir_ / "out/runs.csv").string()});
  EXPECT_EQ(wrong.code, 2) << wrong.describe();
  EXPECT_NE(wrong.err.find("has no column"), std::string::npos) << wrong.err;
}

// No machine repeats runs of milliseconds within a thousandth, so the limit ends it.
TEST_F(Study, CellsAreRepeatedUntilIntervalsAreNarrow) {
  const std::string study = file(base_table() + "[sweep]\nnum-speculative-tokens = [0, 2]\n");
  const Outcome ran = run(study, {"--until", "0.1%", "--max-repeats", "3"});
  ASSERT_EQ(ran.code, 0) << ran.describe();
  EXPECT_EQ(finished(), 6u) << ran.describe();
  EXPECT_NE(ran.out.find("After 3 repeats"), std::string::npos) << ran.describe();
  EXPECT_NE(ran.out.find("too noisy"), std::string::npos) << ran.describe();
  const Outcome reported = run(study, {"--report-only"});
  ASSERT_EQ(reported.code, 0) << reported.describe();
  EXPECT_EQ(nlohmann::json::parse(read_file(dir_ / "out/study.json"))["repeats"], 3) << "added repeats count";
  const Outcome wrong = run(study, {"--until", "soon"});
  EXPECT_EQ(wrong.code, 2) << wrong.describe();
  const Outcome alone = run(file(base_table()), {"--until", "2%"});
  EXPECT_EQ(alone.code, 2) << alone.describe();
  EXPECT_NE(alone.err.find("compare-plain"), std::string::npos) << alone.describe();
}

TEST_F(Study, ARunPastItsTimeIsStopped) {
  const Outcome ran =
      run(file("cell-timeout-s = 1\n" + base_table() + "[sweep]\nprompts = ['many.jsonl']\n"));
  EXPECT_EQ(ran.code, 1) << ran.describe();  // no such file: relative to the study file, and told
  std::string many;
  for (int i = 0; i < 20000; ++i)
    many += "{\"prompt\": \"Once\", \"max_tokens\": 400, \"ignore_eos\": true}\n";
  dir_.write("many.jsonl", many);
  std::string text = "cell-timeout-s = 1\n" + base_table() + "[sweep]\nprompts = ['many.jsonl']\n";
  text.erase(text.find("prompt = 'Once upon a time'\n"), 28);
  const Outcome slow = run(file(text));
  EXPECT_EQ(slow.code, 1) << slow.describe();
  EXPECT_NE(slow.err.find("stopped after 1 s (cell-timeout-s)"), std::string::npos) << slow.describe();
}

TEST_F(Study, GoesOnAfterAKillWithoutRepeatingOrLosingARun) {
  const std::string study = file("repeats = 2\n" + base_table() + "[sweep]\nseed = [1, 2, 3, 4, 5]\n");
  // The shell becomes the study, and another waits for two finished runs to say when to kill.
  const std::string command =
      "(until [ $(ls out/runs 2>/dev/null | grep -c 'json$') -ge 2 ]; do sleep 0.005; done; : > now) & "
      "exec \"$@\"";
  const Outcome killed =
      run_program({"sh", "-c", command, "sh", outrider_path(), "study", study, "--output", dir_ / "out"},
                  {.directory = dir_.path(), .signal = SIGKILL, .signal_when = dir_ / "now"});
  ASSERT_EQ(killed.signal, SIGKILL) << killed.describe();
  const size_t before = finished();
  ASSERT_GE(before, 2u);
  ASSERT_LT(before, 10u) << "the study was over before it was killed";
  std::map<std::string, std::filesystem::file_time_type> times;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "out/runs"))
    times[entry.path()] = entry.last_write_time();

  const Outcome resumed = run(study);
  ASSERT_EQ(resumed.code, 0) << resumed.describe();
  EXPECT_NE(resumed.err.find(fmt::format("{} of 10 runs are there already", before)), std::string::npos)
      << resumed.describe();
  EXPECT_NE(resumed.err.find(fmt::format("[{0}/{0}]", 10 - before)), std::string::npos) << resumed.describe();
  EXPECT_EQ(finished(), 10u);
  for (const auto& [path, time] : times)
    EXPECT_TRUE(!path.ends_with(".json") || std::filesystem::last_write_time(path) == time) << path;
  const json result = json::parse(read_file(dir_ / "out/study.json"));
  for (const json& cell : result["cells"]) EXPECT_EQ(cell["runs"].size(), 2u);
}

// Every tag closed in its turn, every attribute quoted: the page as XML, but for style and script.
std::string first_fault(std::string page) {
  for (const std::string element : {"style", "script"}) {
    const size_t begin = page.find('>', page.find("<" + element)), end = page.find("</" + element);
    if (begin == std::string::npos || end < begin) return "no " + element;
    page.erase(begin + 1, end - begin - 1);
  }
  std::vector<std::string> open;
  size_t at = page.find("<html");
  while ((at = page.find('<', at)) != std::string::npos) {
    const size_t end = page.find('>', at);
    if (end == std::string::npos) return "a tag without an end";
    const std::string tag = page.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos || std::count(tag.begin(), tag.end(), '"') % 2) return tag;
    const std::string name = tag.substr(tag[0] == '/', tag.find_first_of(" /", 1) - (tag[0] == '/'));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != name) return "misplaced </" + name;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end;
  }
  return open.empty() ? "" : "unclosed " + open.back();
}

TEST_F(Study, TheReportIsOneWellFormedPageThatAsksNobody) {
  const Outcome ran =
      run(file("name = 'a <b> & \"c\"'\n" + base_table() +
               "ignore-eos = true\ncompare-plain = true\nsynthetic-acceptance = 'rates:0.8'\n"
               "[sweep]\ngamma-policy = ['fixed:gamma=2', 'fixed:gamma=4', 'ewma']\nseed = [1]\n"));
  ASSERT_EQ(ran.code, 0) << ran.describe();
  const std::string page = read_file(dir_ / "out/report.html");
  EXPECT_EQ(first_fault(page), "");
  for (const char* outside : {"src=", "href=\"http", "url(", "@import", "fetch(", "<link", "<iframe"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  for (const char* wanted : {"a &lt;b&gt; &amp; &quot;c&quot;",
                             "SYNTHETIC ACCEPTANCE",
                             "Speed-up against draft",
                             "theory: lockstep",
                             "Acceptance by position",
                             "Chosen lengths over time",
                             "Tokens per second",
                             "per accepted token",
                             "ewma, at its mean length",
                             "Regret against",
                             "draft length chosen",
                             "Time between tokens",
                             "tokens per burst",
                             "Draft and verify",
                             "idle ",
                             "All cells",
                             " is fastest, ",
                             " times the tokens/s of the best fixed length",
                             "Every cell ran once",
                             "Contents"})
    EXPECT_NE(page.find(wanted), std::string::npos) << wanted;
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_GE(std::count(page.begin(), page.end(), '\n'), 50);
}

TEST_F(Study, ASweptAxisIsDrawnWithALinePerChoice) {
  const Outcome ran = run(file("x-axis = 'max_num_seqs'\n" + base_table() +
                               "[sweep]\nmax-num-seqs = [1, 2]\ngamma-policy = ['fixed:gamma=2', 'ewma']\n"));
  ASSERT_EQ(ran.code, 0) << ran.describe();
  const std::string page = read_file(dir_ / "out/report.html");
  EXPECT_EQ(first_fault(page), "");
  EXPECT_NE(page.find("Over the swept axis"), std::string::npos);
  EXPECT_NE(page.find(">ewma</li>"), std::string::npos);
  EXPECT_NE(page.find(">max-num-seqs 2</text>"), std::string::npos);  // a panel of what it is compared in
}

TEST_F(Study, TwoStudiesDoNotShareADirectory) {
  const std::string study = file(base_table() + "[sweep]\nseed = [1, 2, 3, 4, 5, 6, 7, 8]\n");
  const std::string command =
      "\"$@\" --quiet & first=$!; until [ -e out/running/stderr ]; do sleep 0.005; done; \"$@\"; "
      "code=$?; wait $first; exit $code";
  const Outcome second =
      run_program({"sh", "-c", command, "sh", outrider_path(), "study", study, "--output", "out"},
                  {.directory = dir_.path()});
  EXPECT_EQ(second.code, 2) << second.describe();
  EXPECT_NE(second.err.find("another study works there"), std::string::npos) << second.describe();
}

}  // namespace
}  // namespace outrider::testing
