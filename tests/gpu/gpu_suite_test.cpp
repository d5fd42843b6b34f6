// The script of the GPU suite (launch/gpu_suite_run) without a GPU. Stand-in programs replace those of a node
// with two GPUs: models run on the CPU, timings are those of the emulation, and rows that NCCL would carry
// count as sent. The script itself does the same as on a node.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/program.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {
namespace {

namespace fs = std::filesystem;

// The program itself, but for devices, and 16 tokens a text that `generate` writes: the script compares texts
// and reads reports, whatever their length. FAULTS: "text": drafts of trees write another text; "link": no
// row passes from device to device.
constexpr const char* kOutrider = R"(#!/usr/bin/env bash
if [ "$1" = doctor ]; then
  "$PROGRAM" doctor | grep -v '^CUDA'
  for gpu in 0 1; do
    echo "CUDA                   cuda:$gpu NVIDIA H100 80GB HBM3 (sm_90, 132 multiprocessors), 79.2 of 85.0 GB free"
  done
  exit
fi
arguments=() report=""
while [ $# -gt 0 ]; do
  case "$1" in
    --device=cuda) shift; continue ;;
    --device) shift 2; continue ;;
    --max-tokens) [ "${arguments[0]}" = generate ] && arguments+=("$1" 16) && shift 2 && continue ;;
    --report) report=$2 ;;
    best-first:8) [[ $FAULTS == *text* ]] && echo "Another text." && exit ;;
  esac
  arguments+=("$1")
  shift
done
if [ "${arguments[0]}" = synth ]; then
  for i in "${!arguments[@]}"; do [ "${arguments[$i]}" = --output ] && model=${arguments[$((i + 1))]}; done
  mkdir -p "$model" && cp -r "$OUTRIDER_SOURCE_DIR"/launch/demo_pair/{target,draft,eagle3} "$model/"
  exit
fi
"$PROGRAM" "${arguments[@]}" || exit
[ -n "$report" ] && [ "${OMPI_COMM_WORLD_RANK:-}" = 0 ] && [[ $FAULTS != *link* ]] || exit 0
sed -i -e 's/"device_to_device_bytes": 0/"device_to_device_bytes": 4096/' \
  -e 's/"state_rows": {/&\n"device_to_device_bytes": 4096,/' "$report"
)";

constexpr const char* kMpirun = R"(#!/bin/sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec mpirun --oversubscribe --bind-to none "$@"
)";

// A program of two tests. FAULTS "tests": the second one fails, and takes the first one along.
constexpr const char* kTests = R"(#!/usr/bin/env bash
case "$*" in
  *--gtest_list_tests*) printf 'Suite.\n  First\n  Second\n'; exit ;;
  *--gtest_filter=Suite.First) echo '[  PASSED  ] 1 test.'; exit ;;
esac
[[ $FAULTS == *tests* ]] || { echo '[  PASSED  ] 2 tests.'; exit; }
echo 'some_test.cpp:1: Failure'
echo '[  FAILED  ] Suite.Second'
exit 1
)";

// The checker's options, then what it starts.
constexpr const char* kChecker = R"(#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
exec "$@"
)";

class GpuSuite : public ::testing::Test {
 protected:
  void SetUp() override {
    if (run_program({"mpirun", "--version"}).code != 0 ||
        outrider_program({"doctor"}).out.find("MPI                    yes") == std::string::npos)
      GTEST_SKIP() << "\n*** SKIPPED: no mpirun in PATH, or a build without MPI. ***\n";
    const fs::path source = source_dir();
    for (const char* folder : {"bin", "path"}) fs::create_directories(bundle_ / folder);
    script("bin/outrider", kOutrider);
    script("bin/mpirun", kMpirun);
    for (const char* name : {"cuda_test", "cuda_lossless_test", "device_group_test", "device_verifier_test"})
      script(std::string("bin/") + name, kTests);
    script("bin/wgmma_bits", "#!/bin/sh\n");
    script("bin/gpu_bench", "#!/bin/sh\nexec \"" OUTRIDER_GPU_BENCH "\" --tiny \"$@\"\n");
    script("path/compute-sanitizer", kChecker);
    script("path/nvidia-smi", "#!/bin/sh\nexit 1\n");
    script("path/python3", "#!/bin/sh\nexit 1\n");  // peers are not tested here
    fs::create_directory_symlink(source, bundle_ / "source");
    fs::copy_file(source / "launch/gpu_suite_run", bundle_ / "run");
    bundle_.write("version", "stand-in\n");
  }
  void script(const std::string& name, const std::string& text) {
    fs::permissions(bundle_.write(name, text), fs::perms::owner_all);
  }

  Outcome run(std::vector<std::string> arguments, const std::string& faults) {
    arguments.insert(arguments.begin(), bundle_ / "run");
    arguments.push_back(bundle_ / "results");
    const char* path = std::getenv("PATH");
    Outcome outcome =
        run_program(arguments, {.env = {{"PROGRAM", outrider_path()},
                                        {"FAULTS", faults},
                                        {"OUTRIDER_SUITE_PACK", bundle_ / "pack.tgz"},
                                        {"PATH", (bundle_ / "path").string() + ":" + (path ? path : "")}},
                                .limit = std::chrono::seconds(540)});
    const fs::path file = bundle_ / "results" / "results.json";
    if (fs::exists(file)) results_ = nlohmann::json::parse(read_file(file));
    return outcome;
  }
  // The names of the steps that `which` accepts, in the order of the file.
  std::vector<std::string> steps(const std::function<bool(const nlohmann::json&)>& which) const {
    std::vector<std::string> names;
    for (const auto& step : results_["steps"])
      if (which(step)) names.push_back(step["name"]);
    return names;
  }
  std::vector<std::string> failed() const {
    return steps([](const auto& step) { return step.contains("exit_code") && step["exit_code"] != 0; });
  }

  const TemporaryDirectory bundle_;
  nlohmann::json results_;
};

using Names = std::vector<std::string>;
const Names kCorrectness{"demo_plain",
                         "demo_speculative",
                         "demo_two_ranks",
                         "same_text",
                         "same_text_two_ranks",
                         "same_text_trees",
                         "same_text_int8_draft",
                         "same_text_head",
                         "same_text_head_worker",
                         "same_text_head_tree",
                         "same_text_head_two_ranks",
                         "same_text_layerskip_1",
                         "same_text_layerskip_2",
                         "ops",
                         "goldens",
                         "model",
                         "verification",
                         "speculation_equals_plain",
                         "heads",
                         "collectives",
                         "same_text_mpirun",
                         "nccl_between_gpus",
                         "threads_on_all_gpus",
                         "mpirun_on_all_gpus",
                         "rows_of_q_by_nccl",
                         "rows_of_states_by_nccl",
                         "memory_check",
                         "race_check",
                         "memory_check_wide",
                         "race_check_wide"};

TEST_F(GpuSuite, EveryStepRunsAndItsResultsAreRead) {
  const Outcome outcome = run({}, "");
  EXPECT_EQ(outcome.code, 0) << outcome.describe();
  ASSERT_TRUE(results_.is_object()) << outcome.describe();
  EXPECT_EQ(failed(), Names{}) << outcome.describe();
  Names expected = kCorrectness;
  for (const char* name : {"wgmma_bits", "timings", "synth_8b", "pair", "pair_int8_draft", "pair_eagle3",
                           "pair_layerskip", "peers"})
    expected.emplace_back(name);
  Names names = steps([](const auto&) { return true; });
  std::replace(names.begin(), names.end(), std::string("synth_1.1b"), std::string("synth_8b"));
  EXPECT_EQ(names, expected);
  EXPECT_EQ(steps([](const auto& step) { return step.contains("not_run"); }), Names{"peers"});

  const Outcome packed = run_program({"tar", "-tzf", bundle_ / "pack.tgz"});
  for (const char* file : {"./results.json", "./timings.json", "./ops.log"})
    EXPECT_NE(packed.out.find(file), std::string::npos) << packed.describe();

  // What stands beside each time.
  const nlohmann::json& timings = results_["timings"];
  for (const char* part : {"products", "kernels", "steps", "drafts", "trees", "peer_sums"}) {
    ASSERT_TRUE(timings.contains(part)) << part;
    for (const auto& line : timings[part]) {
      EXPECT_GT(line["expected_us"].get<double>(), 0) << line;
      EXPECT_TRUE(line["verdict"].is_string()) << line;
    }
  }
  EXPECT_EQ(timings["peer_sums"].size(), 2u);
  for (const auto& line : timings["peer_sums"]) EXPECT_GT(line["us"].get<double>(), 0) << line;
  std::set<std::string> kinds;
  for (const auto& line : timings["drafts"]) {
    EXPECT_GT(line["ms_per_token"].get<double>(), 0) << line;
    EXPECT_FALSE(line["expected_kernels_us"].empty()) << line;
    kinds.insert(line["kind"]);
  }
  EXPECT_TRUE(kinds.contains("greedy") && kinds.contains("dense q") && kinds.contains("top-k and top-p"));
  EXPECT_FALSE(timings.contains("failed")) << timings["failed"];

  // The report has the fields that docs/cuda.md reads from the pair's runs.
  EXPECT_TRUE(results_["pair"].is_object() && results_["pair_int8_draft"].is_object());
  for (const char* pair : {"pair_eagle3", "pair_layerskip"}) {
    const nlohmann::json& drafts = results_[pair]["metrics"]["drafts"];
    for (const char* field : {"ingest_ms", "draft_ms", "received"})
      EXPECT_TRUE(drafts.contains(field)) << field << " of " << pair;
  }
}

// A step that must fail does, alone, and says why.
TEST_F(GpuSuite, AStepWhoseResultIsWrongFails) {
  const Outcome outcome = run({"--only", "correctness"}, "text,link,tests");
  EXPECT_EQ(outcome.code, 1) << outcome.describe();
  ASSERT_TRUE(results_.is_object()) << outcome.describe();
  EXPECT_EQ(steps([](const auto&) { return true; }), kCorrectness);
  const Names expected{
      "same_text_trees",   "same_text_head_tree",      "ops",          "goldens",     "model",
      "verification",      "speculation_equals_plain", "heads",        "collectives", "nccl_between_gpus",
      "rows_of_q_by_nccl", "rows_of_states_by_nccl",   "memory_check", "race_check",  "memory_check_wide",
      "race_check_wide"};
  EXPECT_EQ(failed(), expected) << outcome.describe();
  for (const auto& step : results_["steps"])
    if (step["name"] == "ops") {
      EXPECT_EQ(step["failed_tests"], nlohmann::json({"Suite.Second"}));
      EXPECT_EQ(step["alone"], "failed Suite.Second; passed Suite.First");
    }
  const auto log = [&](const char* name) {
    return read_file(bundle_ / "results" / (std::string(name) + ".log"));
  };
  EXPECT_NE(log("same_text_trees").find("here: Another text."), std::string::npos);
  for (const char* name : {"rows_of_q_by_nccl", "rows_of_states_by_nccl"})
    EXPECT_NE(log(name).find("no row passed from device to device"), std::string::npos) << log(name);
}

}  // namespace
}  // namespace outrider::testing
