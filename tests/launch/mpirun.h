// The program under mpirun. Tests are skipped, aloud, where there is no mpirun or no MPI in this build.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace outrider::testing {

using Arguments = std::vector<std::string>;

class Mpirun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    usable_ = run_program({"mpirun", "--version"}).code == 0 &&
              outrider_program({"doctor"}).out.find("MPI                    yes") != std::string::npos;
  }
  void SetUp() override {
    if (!usable_) {
      std::fprintf(stderr,
                   "\n*** SKIPPED: no mpirun in PATH, or a build without MPI. Install openmpi-bin and "
                   "libopenmpi-dev. ***\n");
      GTEST_SKIP();
    }
  }

  static Outcome run(int ranks, const Arguments& more,
                     const Arguments& prompt = {"--prompt", "Once upon a time", "--max-tokens", "24"},
                     std::map<std::string, std::string> env = {}) {
    Arguments arguments{"mpirun",   "--oversubscribe", "-n",          std::to_string(ranks), outrider_path(),
                        "generate", "--model",         demo_target(), "--threads",           "1",
                        "--quiet"};
    arguments.insert(arguments.end(), prompt.begin(), prompt.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    // Containers and CI run as root, which Open MPI allows only when told twice.
    env.insert({{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
    return run_program(arguments, {.env = env});
  }

  // The message comes once: not from every rank.
  static void expect_refused(const Outcome& run, const Arguments& says) {
    EXPECT_FALSE(run.hung) << run.describe();
    EXPECT_EQ(run.code, 2) << run.describe();
    EXPECT_EQ(run.out, "") << run.describe();
    for (const std::string& part : says)
      EXPECT_NE(run.err.find(part), std::string::npos) << part << "\n" << run.describe();
    size_t messages = 0;
    for (size_t at = run.err.find("outrider: "); at != std::string::npos;
         at = run.err.find("outrider: ", at + 1))
      ++messages;
    EXPECT_EQ(messages, 1u) << run.describe();
  }

  inline static bool usable_ = false;
};

}  // namespace outrider::testing
