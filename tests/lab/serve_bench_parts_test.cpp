// Requests that serve-bench sends, and its evaluation of the replies.
#include <gtest/gtest.h>

#include <set>

#include "lab/serve_bench/figures.h"
#include "lab/serve_bench/pareto.h"
#include "lab/serve_bench/workload.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

TEST(ServeBenchWorkload, ArrivalsHaveAMeanRateOfOne) {
  const WorkloadOptions options{.prompt_tokens = 7, .output_tokens = 9};
  const auto arrivals = arrivals_of(options, 101).value();
  ASSERT_EQ(arrivals.size(), 101u);
  EXPECT_EQ(arrivals.front().at_s, 0);
  EXPECT_NEAR(arrivals.back().at_s, 100, 1e-9);
  for (size_t i = 1; i < arrivals.size(); ++i) EXPECT_GT(arrivals[i].at_s, arrivals[i - 1].at_s);
  EXPECT_EQ(arrivals[50].prompt_tokens, 7);
  EXPECT_NE(arrivals_of({.seed = 2}, 101)->at(1).at_s, arrivals[1].at_s);
}

TEST(ServeBenchWorkload, ATraceKeepsItsShape) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("trace.csv",
                                           "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                                           "2023-11-16 23:59:59.5000000,400,40\r\n"
                                           "2023-11-17 00:00:00.5000000,10,1\r\n"
                                           "2023-11-17 00:00:03.5000000,4000,100\r\n");
  const auto arrivals =
      arrivals_of({.trace = file, .length_scale = 0.1, .max_prompt_tokens = 300, .max_output_tokens = 5}, 3)
          .value();
  EXPECT_DOUBLE_EQ(arrivals[1].at_s, 0.5);
  EXPECT_DOUBLE_EQ(arrivals[2].at_s, 2);
  EXPECT_EQ(arrivals[0].prompt_tokens, 40);
  EXPECT_EQ(arrivals[1].prompt_tokens, 1);
  EXPECT_EQ(arrivals[1].output_tokens, 1);
  EXPECT_EQ(arrivals[2].prompt_tokens, 300);
  EXPECT_EQ(arrivals[2].output_tokens, 5);
  EXPECT_NE(arrivals_of({.trace = file}, 4).status().message().find("has 3 requests"), std::string::npos);
  EXPECT_FALSE(arrivals_of({.trace = directory.write("other", "x\n")}, 1).ok());
}

TEST(ServeBenchWorkload, PromptsOfAGroupBeginAlike) {
  const WorkloadOptions options{.prefix_tokens = 5, .prefix_groups = 3};
  std::set<std::string> beginnings, whole;
  for (size_t i = 0; i < 40; ++i) {
    const std::string prompt = prompt_of(options, i, 20);
    EXPECT_EQ(std::count(prompt.begin(), prompt.end(), ' '), 19);
    size_t end = 0;
    for (int word = 0; word < 5; ++word) end = prompt.find(' ', end + 1);
    beginnings.insert(prompt.substr(0, end));
    whole.insert(prompt);
  }
  EXPECT_EQ(beginnings.size(), 3u);
  EXPECT_EQ(whole.size(), 40u);
}

TEST(ServeBenchPareto, TheFrontHasWhatNoOtherBeats) {
  // More load, slower users; at 8 requests a second the server is overloaded and gives less to each and in
  // all.
  std::vector<LoadPoint> points{{.rate = 1, .user = 20, .server = 30},
                                {.rate = 2, .user = 15, .server = 55},
                                {.rate = 4, .user = 10, .server = 80},
                                {.rate = 8, .user = 4, .server = 70},
                                {.rate = 16, .user = 0, .server = 0}};
  mark_front(points);
  std::vector<bool> on_front;
  for (const LoadPoint& point : points) on_front.push_back(point.on_front);
  EXPECT_EQ(on_front, (std::vector<bool>{true, true, true, false, false}));
  EXPECT_DOUBLE_EQ(*server_at(points, 20), 30);
  EXPECT_DOUBLE_EQ(*server_at(points, 17.5), 42.5);
  EXPECT_DOUBLE_EQ(*server_at(points, 12), 70);
  EXPECT_DOUBLE_EQ(*server_at(points, 3), 80) << "slower users are served no worse than the front's slowest";
  EXPECT_FALSE(server_at(points, 21)) << "no load leaves users that fast";
  EXPECT_FALSE(server_at({}, 1));
}

TEST(ServeBenchPareto, EqualPointsStandBesideEachOther) {
  std::vector<LoadPoint> points{{.user = 5, .server = 9}, {.user = 5, .server = 9}, {.user = 5, .server = 8}};
  mark_front(points);
  EXPECT_TRUE(points[0].on_front);
  EXPECT_TRUE(points[1].on_front);
  EXPECT_FALSE(points[2].on_front);
}

TEST(ServeBenchFigures, KeepTheDraftsOfEveryRound) {
  RequestOutcome told, silent, wrong;
  told.step_drafted = {4, 2};
  told.step_accepted = {3, 0};
  wrong.step_drafted = {4};
  const std::vector<std::vector<RequestOutcome>> turns{{told, silent, wrong}};
  const LoadFigures figures = figures_of(turns, {});
  EXPECT_EQ(figures.per_step_drafted, (std::vector<std::vector<int64_t>>{{4, 2}}));
  EXPECT_EQ(figures.per_step_accepted, (std::vector<std::vector<int64_t>>{{3, 0}}));
}

TEST(ServeBenchFigures, PoolTurnsAndCountWhatIsOfUse) {
  RequestOutcome fast{
      .sent_s = 1, .first_s = 0.1, .whole_s = 0.5, .gaps_s = {0.2, 0.2}, .prompt_tokens = 3, .tokens = 5};
  RequestOutcome slow{
      .sent_s = 2, .first_s = 2, .whole_s = 3, .gaps_s = {1}, .prompt_tokens = 3, .tokens = 2};
  RequestOutcome failed{.error = "status 429", .sent_s = 2, .whole_s = 0.1};
  EXPECT_DOUBLE_EQ(fast.per_token_s(), 0.1);
  const std::vector<std::vector<RequestOutcome>> turns{{fast, slow}, {failed}};
  const LoadFigures f = figures_of(turns, {.first_s = 1, .per_token_s = 0.2});
  EXPECT_EQ(f.requests, 3);
  EXPECT_EQ(f.failed, 1);
  EXPECT_EQ(f.errors.at("status 429"), 1);
  EXPECT_EQ(f.good, 1);
  EXPECT_EQ(f.tokens, 7);
  EXPECT_DOUBLE_EQ(f.seconds, 4 + 0.1);
  EXPECT_DOUBLE_EQ(f.first_s.p50, 0.1);
  EXPECT_DOUBLE_EQ(f.first_s.p99, 2);
  EXPECT_EQ(f.gap_s.count, 3);
  EXPECT_DOUBLE_EQ(f.goodput(), 1 / 4.1);
}

TEST(ServeBenchAddress, IsReadFromAUrl) {
  const HttpAddress address = HttpAddress::parse("http://[::1]:8000/v1/").value();
  EXPECT_EQ(address.host, "::1");
  EXPECT_EQ(address.port, "8000");
  EXPECT_EQ(address.path, "");
  EXPECT_EQ(HttpAddress::parse("http://host")->port, "80");
  EXPECT_EQ(HttpAddress::parse("http://host:1/proxied")->path, "/proxied");
  EXPECT_FALSE(HttpAddress::parse("https://host").ok());
  EXPECT_FALSE(HttpAddress::parse("http://:80").ok());
}

}  // namespace
}  // namespace outrider
