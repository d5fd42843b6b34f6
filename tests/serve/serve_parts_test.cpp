// Parts of a server that need no model: whose turn it is, how fast things go, what logs say.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "serve/access_log.h"
#include "serve/api/other_bodies.h"
#include "serve/fair_queue.h"
#include "serve/pace.h"
#include "serve/process_numbers.h"
#include "serve/response_counts.h"

namespace outrider {
namespace {

using nlohmann::json;

TEST(FairQueue, ClientsTakeTurnsAndTheirItemsKeepTheirOrder) {
  FairQueue<std::unique_ptr<int>> queue;
  for (const int item : {1, 2, 3, 4}) queue.add("many", std::make_unique<int>(item));
  queue.add("one", std::make_unique<int>(10));
  queue.add("two", std::make_unique<int>(20));
  std::vector<int> order{*queue.take(), *queue.take()};
  queue.add("one", std::make_unique<int>(11));
  while (!queue.empty()) order.push_back(*queue.take());
  EXPECT_EQ(order, (std::vector<int>{1, 10, 20, 2, 11, 3, 4}));
  EXPECT_EQ(queue.size(), 0u);
}

TEST(FairQueue, FindsWhatWaits) {
  FairQueue<int> queue;
  queue.add("a", 5);
  queue.add("b", 6);
  int* const found = queue.find([](int item) { return item == 6; });
  ASSERT_TRUE(found);
  *found = 7;
  EXPECT_EQ(queue.find([](int item) { return item == 6; }), nullptr);
  EXPECT_EQ(queue.take(), 5);
  EXPECT_EQ(queue.take(), 7);
}

TEST(Pace, HasOneDefinitionPerName) {
  Totals before, now;
  before.rounds.add_round(4, 4, 5, false);
  before.target_passes = 1;
  now.rounds = before.rounds;
  now.rounds.add_round(4, 1, 2, false);  // two sequences in one pass
  now.rounds.add_round(4, 4, 5, false);
  now.target_passes = 2;
  now.prompt_tokens = 30;
  now.decoding = {.rounds = 2, .emitted = 7, .phases = {.verify = std::chrono::milliseconds(40)}};
  const Overview overview{.plain_round_seconds = 0.01, .round_seconds = 0.02, .mean_gamma = 4};
  const Pace pace = pace_between(before, now, 2, overview);
  EXPECT_DOUBLE_EQ(pace.tokens_per_second, 3.5);
  EXPECT_DOUBLE_EQ(pace.prompt_tokens_per_second, 15);
  EXPECT_DOUBLE_EQ(pace.acceptance, 5.0 / 6) << "accepted over tested, as in every report";
  EXPECT_DOUBLE_EQ(pace.tokens_per_round, 3.5);
  EXPECT_DOUBLE_EQ(pace.tokens_per_target_pass, 7);
  EXPECT_DOUBLE_EQ(pace.measured_speedup, 3.5 * 0.01 / 0.02);
  const double a = 5.0 / 6;
  EXPECT_NEAR(pace.predicted_speedup, (1 + a + a * a + a * a * a + a * a * a * a) * 0.01 / 0.02, 1e-12);
  // Two more rounds in a pass that reads prompts as well: slow, and not for what is drafted.
  Totals busy = now;
  busy.rounds.add_round(4, 4, 5, false);
  busy.rounds.add_round(4, 4, 5, false);
  busy.phases.verify += std::chrono::seconds(1);
  EXPECT_DOUBLE_EQ(pace_between(before, busy, 2, overview).measured_speedup, 3.5 * 0.01 / 0.02);
  EXPECT_EQ(pace_between(now, busy, 2, overview).measured_speedup, 0) << "nothing is known";
  const Pace idle = pace_between(now, now, 2, overview);
  EXPECT_EQ(idle.measured_speedup, 0);
  EXPECT_EQ(idle.acceptance, 0);
}

TEST(Pace, ForgetsWhatIsTenSecondsOld) {
  PaceKeeper keeper;
  Totals totals;
  Clock::time_point at{};
  (void)keeper.look(at, totals, {});
  totals.rounds.add_round(0, 0, 1, false);
  at += std::chrono::seconds(1);
  EXPECT_DOUBLE_EQ(keeper.look(at, totals, {}).tokens_per_second, 1);
  for (int i = 0; i < 20; ++i) {
    at += std::chrono::seconds(1);
    (void)keeper.look(at, totals, {});
  }
  EXPECT_EQ(keeper.look(at, totals, {}).tokens_per_second, 0);
}

TEST(AccessLog, ALineIsJson) {
  const HttpRecord record{.client = "10.0.0.1",
                          .method = "POST",
                          .path = "/v1/\xff" + std::string(300, 'x'),
                          .request_id = "req-1",
                          .status = 499,
                          .bytes = 12,
                          .is_whole = false,
                          .time = std::chrono::microseconds(1500)};
  const std::string line = access_line(record, 1700000000.25);
  EXPECT_TRUE(line.ends_with("}\n"));
  const json entry = json::parse(line);
  EXPECT_EQ(entry["time"], "2023-11-14T22:13:20.250Z");
  EXPECT_EQ(entry["status"], 499);
  EXPECT_EQ(entry["ms"], 1.5);
  EXPECT_LT(entry["path"].get<std::string>().size(), 210u);
  EXPECT_FALSE(AccessLog::open("/nowhere/at/all").ok());
  EXPECT_FALSE(AccessLog::open("").value());
}

TEST(ProcessNumbers, AreThisProcesss) {
  const ProcessNumbers p = process_numbers();
  EXPECT_GT(p.resident_bytes, 1 << 20);
  EXPECT_GE(p.virtual_bytes, p.resident_bytes);
  EXPECT_GT(p.open_descriptors, 2);
  EXPECT_GE(p.most_descriptors, p.open_descriptors);
  EXPECT_GE(p.threads, 1);
  EXPECT_GT(p.started_at, 1.6e9);
}

TEST(ResponseCounts, ByStatus) {
  ResponseCounts counts;
  for (const int status : {200, 429, 200, 9999, -1}) counts.add(status);
  EXPECT_EQ(counts.all(), (std::vector<std::pair<int, int64_t>>{{200, 2}, {429, 1}}));
}

TEST(OtherBodies, AskForTheSameChat) {
  const json chat = chat_of_messages({{"max_tokens", 5},
                                      {"system", "be brief"},
                                      {"messages", {{{"role", "user"}, {"content", "hi"}}}},
                                      {"stop_sequences", {"x"}},
                                      {"thinking", {{"type", "disabled"}}}})
                        .value();
  EXPECT_EQ(chat,
            (json{{"max_tokens", 5},
                  {"messages",
                   {{{"role", "system"}, {"content", "be brief"}}, {{"role", "user"}, {"content", "hi"}}}},
                  {"stop", {"x"}}}));
  EXPECT_FALSE(chat_of_messages({{"messages", json::array()}}).ok());
  const json response =
      chat_of_responses({{"input", "hi"}, {"instructions", "be brief"}, {"max_output_tokens", 5}}).value();
  EXPECT_EQ(response["messages"], chat["messages"]);
  EXPECT_EQ(response["max_completion_tokens"], 5);
  for (const json& wrong : {json(5), json::array(), json{{{"type", "function_call"}}}, json{"a"}})
    EXPECT_FALSE(chat_of_responses({{"input", wrong}}).ok()) << wrong;
}

}  // namespace
}  // namespace outrider
