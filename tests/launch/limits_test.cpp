// System limits during a run: the run ends with exit code 3 and names the limit, however far it came. It
// never hangs and no signal ends it.
#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace outrider::testing {
namespace {

using Arguments = std::vector<std::string>;
constexpr std::chrono::seconds kSoon{20};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // their own threads and address space meet the limits first
#else
constexpr bool kSanitized = false;
#endif

void expect_limit_told(const Outcome& run, const std::string& what) {
  EXPECT_FALSE(run.hung) << run.describe();
  EXPECT_EQ(run.code, 3) << run.describe();
  EXPECT_EQ(run.out, "") << run.describe();
  EXPECT_NE(run.err.find(what), std::string::npos) << run.describe();
}

Outcome with_threads(int most, const Arguments& arguments) {
  return outrider_program(arguments, {.env = {{"LD_PRELOAD", OUTRIDER_REFUSE_THREADS},
                                              {"OUTRIDER_TEST_MOST_THREADS", std::to_string(most)}},
                                      .limit = kSoon});
}

// Tries every limit on the number of threads, from zero up to the number that the command needs.
void expect_every_lack_told(const Arguments& arguments, int at_least) {
  if (kSanitized) GTEST_SKIP() << "SKIPPED: a sanitizer makes threads of its own";
  for (int most = 0; most < 64; ++most) {
    const Outcome run = with_threads(most, arguments);
    if (run.succeeded()) {
      EXPECT_GE(most, at_least);
      return;
    }
    expect_limit_told(run, "no further thread can be started");
    if (::testing::Test::HasFailure()) return;
  }
  FAIL() << "it needs more than 63 threads";
}

Arguments generate_with(Arguments more) {
  more.insert(more.begin(), {"generate", "--model", demo_target(), "--draft-model", demo_draft(), "--prompt",
                             "Once", "--max-tokens", "4", "--quiet"});
  return more;
}

TEST(Limits, NoThreadForARoleOrItsPool) { expect_every_lack_told(generate_with({"--threads", "3"}), 2); }

TEST(Limits, NoThreadForARankOfATargetGroup) {
  expect_every_lack_told(generate_with({"--threads", "4", "--tensor-parallel-size", "4"}), 5);
}

TEST(Limits, NoThreadForThoseOfZeroMq) {
  const TemporaryDirectory dir;
  for (const char* name : {"job.key", "worker.key"})
    ASSERT_TRUE(outrider_program({"keygen", "--output", dir / name}).succeeded());
  expect_every_lack_told(
      generate_with({"--listen", "tcp://127.0.0.1:*", "--curve-secret-key", dir / "job.key", "--allowed-keys",
                     dir / "worker.key.pub", "--wait-for-draft-workers", "0"}),
      4);
}

TEST(Limits, NoThreadForASimulation) {
  if (kSanitized) GTEST_SKIP() << "SKIPPED: a sanitizer makes threads of its own";
  for (const int most : {0, 1})
    expect_limit_told(with_threads(most, {"simulate", "grid", "--threads", "3"}),
                      "no further thread can be started");
}

// libzmq, and what waits beside it, would abort the program.
TEST(Limits, FewDescriptorsForZeroMq) {
  bool some_refused = false, some_run = false;
  for (int most = 6; most < 40; most += 2) {
    Arguments arguments = generate_with({"--listen", "tcp://127.0.0.1:*", "--wait-for-draft-workers", "0"});
    const std::string limit = std::to_string(most);
    arguments.insert(arguments.begin(), {"prlimit", "--nofile=" + limit + ":" + limit, outrider_path()});
    const Outcome run = run_program(arguments, {.limit = kSoon});
    some_run |= run.succeeded();
    if (run.succeeded()) continue;
    some_refused = true;
    expect_limit_told(run, "ulimit -n");
  }
  EXPECT_TRUE(some_refused && some_run);
}

TEST(Limits, TheSoftLimitOfDescriptorsIsRaised) {
  Arguments arguments = generate_with({"--listen", "tcp://127.0.0.1:*", "--wait-for-draft-workers", "0"});
  arguments.insert(arguments.begin(), {"prlimit", "--nofile=8:1024", outrider_path()});
  const Outcome run = run_program(arguments, {.limit = kSoon});
  EXPECT_TRUE(run.succeeded()) << run.describe();
}

TEST(Limits, LittleAddressSpaceEndsARun) {
  if (kSanitized) GTEST_SKIP() << "SKIPPED: a sanitizer maps terabytes";
  bool some_refused = false;
  // With few threads it is the files and buffers of the models that meet the limit.
  std::vector<std::pair<int, const char*>> runs;
  for (const int megabytes : {300, 500, 700, 900}) runs.emplace_back(megabytes, "200");
  for (int megabytes = 40; megabytes < 300; megabytes += 4) runs.emplace_back(megabytes, "1");
  for (const auto& [megabytes, threads] : runs) {
    Arguments arguments = generate_with({"--threads", threads});
    arguments.insert(arguments.begin(),
                     {"prlimit", "--as=" + std::to_string(megabytes << 20), outrider_path()});
    const Outcome run = run_program(arguments, {.limit = kSoon});
    if (run.succeeded()) continue;
    some_refused = true;
    expect_limit_told(run, "ulimit -v");
  }
  EXPECT_TRUE(some_refused);
}

}  // namespace
}  // namespace outrider::testing
