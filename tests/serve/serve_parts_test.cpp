// Parts of a server that need no model: scheduling turns, measured speeds, log lines.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fair_queue.h"
#include "serve/api/access.h"
#include "serve/api/other_bodies.h"
#include "serve/engine/pace.h"
#include "serve/engine/steady_count.h"
#include "serve/http/error_body.h"
#include "serve/monitor/access_log.h"
#include "serve/monitor/process_numbers.h"
#include "serve/monitor/response_counts.h"
#include "serve/monitor/status.h"
#include "tests/support/temporary_directory.h"

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
  // A speedup of 0 has a reason.
  EXPECT_EQ(pace.drafting, DraftingPace::kDrafting);
  EXPECT_EQ(pace_between(before, now, 2, {}).drafting, DraftingPace::kNotMeasured);
  EXPECT_EQ(pace_between(before, now, 2, {}).predicted_speedup, 0);
  Totals plain = now;
  for (int i = 0; i < 100; ++i) plain.rounds.add_round(0, 0, 1, false);
  EXPECT_EQ(pace_between(now, plain, 2, overview).drafting, DraftingPace::kNotDrafting);
  EXPECT_EQ(pace_between(now, now, 2, overview).drafting, DraftingPace::kIdle);
  const Pace idle = pace_between(now, now, 2, overview);
  EXPECT_EQ(idle.measured_speedup, 0);
  EXPECT_EQ(idle.acceptance, 0);
}

// 0 would be read as a speed of nothing.
TEST(StatusJson, AMissingSpeedupIsNullAndHasAReason) {
  const ResponseCounts responses;
  const StatusContext context{.model = "demo", .policy = "ewma", .responses = responses};
  EngineNumbers numbers;
  numbers.pace.drafting = DraftingPace::kNotMeasured;
  const auto unknown = status_json(numbers, {}, context)["pace"];
  EXPECT_TRUE(unknown["predicted_speedup"].is_null()) << unknown;
  EXPECT_EQ(unknown["drafting"], "not measured yet");
  numbers.pace = {.predicted_speedup = 1.5, .measured_speedup = 1.25, .drafting = DraftingPace::kDrafting};
  const auto known = status_json(numbers, {}, context)["pace"];
  EXPECT_EQ(known["predicted_speedup"], 1.5);
  EXPECT_EQ(known["drafting"], "drafts");
}

TEST(SteadyCount, FollowsALastingChangeAndNoOther) {
  SteadyCount steady;
  Clock::time_point at{};
  const auto look = [&](int64_t count, int seconds) {
    int64_t last = steady.follow(count, at);
    for (int steps = 0; steps < 10 * seconds; ++steps) {
      at += std::chrono::milliseconds(100);
      last = steady.follow(count, at);
    }
    return last;
  };
  EXPECT_EQ(look(0, 1), 0);
  EXPECT_EQ(look(1, 20), 0) << "1 - exp(-20 / 15) = 0.736";
  EXPECT_EQ(look(1, 1), 1) << "1 - exp(-21 / 15) = 0.753";
  EXPECT_EQ(look(1, 60), 1);
  EXPECT_EQ(look(0, 3), 1) << "a short idle time";
  EXPECT_EQ(look(4, 120), 4);
  for (int i = 0; i < 600; ++i) EXPECT_EQ(look(i % 2 == 0 ? 3 : 4, 1), 4) << "the mean is between both";
  EXPECT_EQ(look(0, 120), 0);
}

// A client that asks again at once: 249 ms of decoding, 1 ms of nothing.
TEST(SteadyCount, WeighsCountsByTheirTime) {
  SteadyCount steady;
  Clock::time_point at{};
  int64_t last = 0;
  for (int i = 0; i < 240; ++i) {
    (void)steady.follow(1, at);
    at += std::chrono::milliseconds(249);
    (void)steady.follow(0, at);
    at += std::chrono::milliseconds(1);
    last = steady.follow(1, at);
  }
  EXPECT_EQ(last, 1);
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

HttpRecord record_of(int number) {
  return {.client = "10.0.0.1",
          .method = "GET",
          .path = "/",
          .request_id = std::to_string(number),
          .status = 200};
}

// Reads the log until the lines and the reported number of dropped lines add up to `count`.
std::pair<int64_t, int64_t> read_log(int fd, int64_t count) {
  std::string text;
  int64_t lines = 0, dropped = 0;
  size_t at = 0;
  std::array<char, 1 << 16> buffer;
  while (lines + dropped < count) {
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, 5000) <= 0) break;
    const ssize_t bytes = read(fd, buffer.data(), buffer.size());
    if (bytes <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(bytes));
    for (size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
      const json entry = json::parse(text.substr(at, end - at));
      entry.contains("dropped") ? dropped += entry["dropped"].get<int64_t>() : ++lines;
    }
  }
  return {lines, dropped};
}

TEST(AccessLog, APipeThatNobodyReadsHoldsUpNothing) {
  const TemporaryDirectory directory;
  const std::string fifo = directory / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const auto begin = std::chrono::steady_clock::now();
  auto log = AccessLog::open(fifo).value();
  constexpr int kMany = 20'000;
  for (int i = 0; i < kMany; ++i) log->write(record_of(i));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_GT(log->dropped(), 0);
  // A late reader gets the queued lines. The next line reports the number of dropped lines.
  const int fd = open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(fd, 0);
  const auto first = read_log(fd, kMany - log->dropped());
  log->write(record_of(kMany));
  const auto [lines, dropped] = read_log(fd, kMany + 1 - first.first - first.second);
  EXPECT_EQ(first.first + lines, kMany + 1 - log->dropped());
  EXPECT_EQ(first.second + dropped, log->dropped());
  close(fd);
  for (int i = 0; i < kMany; ++i) log->write(record_of(i));
  const auto end = std::chrono::steady_clock::now();
  log.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - end, std::chrono::seconds(5));
}

TEST(AccessLog, AFullDiskIsTold) {
  ::testing::internal::CaptureStderr();
  auto log = AccessLog::open("/dev/full").value();
  for (int i = 0; i < 3; ++i) log->write(record_of(i));
  log.reset();
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("--access-log /dev/full: cannot be written: No space left on device"),
            std::string::npos)
      << told;
  EXPECT_NE(told.find("3 lines were dropped"), std::string::npos) << told;
}

TEST(TrustedProxies, AreBelievedAsFarAsTheyWroteTheHeader) {
  const TrustedProxies none = TrustedProxies::parse({}).value();
  EXPECT_EQ(none.client("10.0.0.1", "1.2.3.4"), "10.0.0.1");
  const TrustedProxies some = TrustedProxies::parse({"10.0.0.0/8", "192.168.1.7", "fd00::/8"}).value();
  EXPECT_EQ(some.client("10.0.0.1", "1.2.3.4"), "1.2.3.4");
  EXPECT_EQ(some.client("10.0.0.1", " 9.9.9.9 , 1.2.3.4:567 ,10.3.3.3"), "1.2.3.4") << "through two proxies";
  EXPECT_EQ(some.client("fd00::1", "[2001:db8::5]:443"), "2001:db8::5");
  EXPECT_EQ(some.client("::ffff:10.0.0.1", "1.2.3.4"), "1.2.3.4");
  EXPECT_EQ(some.client("11.0.0.1", "1.2.3.4"), "11.0.0.1") << "not a proxy";
  EXPECT_EQ(some.client("192.168.1.8", "1.2.3.4"), "192.168.1.8");
  EXPECT_EQ(some.client("10.0.0.1", "1.2.3.4, unknown"), "10.0.0.1");
  EXPECT_EQ(some.client("10.0.0.1", "1.2.3.4, unknown, 10.0.0.2"), "10.0.0.2");
  EXPECT_EQ(some.client("10.0.0.1", std::string(5000, ',')), "10.0.0.1");
  for (const char* wrong : {"proxy.example", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/x", "", "/8", "::/129"})
    EXPECT_NE(TrustedProxies::parse({wrong}).status().message().find("--trusted-proxies"), std::string::npos)
        << wrong;
}

// Turns that a client could have any number of would be no turns.
TEST(ApiAccess, TurnsGoByAddressAndTheKeyThatFitted) {
  const auto turn = [](const ApiAccess& access, HttpRequest request) { return access.turn_of(request); };
  const HttpRequest one{.authorization = "Bearer first", .client = "10.0.0.1"};
  HttpRequest other = one;
  other.api_key = "anything";
  const ApiAccess keys({"first", "second"}, false), open({}, false);
  EXPECT_EQ(turn(keys, one), turn(keys, other)) << "a header that no key is read from";
  other.authorization = "bearer first";
  EXPECT_EQ(turn(keys, one), turn(keys, other));
  other.authorization = "Bearer second";
  EXPECT_NE(turn(keys, one), turn(keys, other));
  EXPECT_EQ(turn(open, one), turn(open, other)) << "without keys anything may be sent";
  other.client = "10.0.0.2";
  EXPECT_NE(turn(open, one), turn(open, other));
  const auto of = [&](const char* address) { return turn(open, {.client = address}); };
  EXPECT_EQ(of("2001:db8::1"), of("2001:db8::2")) << "one client may have all of them";
  EXPECT_NE(of("2001:db8::1"), of("2001:db8:0:1::1"));
}

TEST(ErrorBody, RepeatsNoMegabytes) {
  const std::string much = "\"" + std::string(1 << 20, 'x') + "\"";
  const ApiError error{.status = 400, .message = much, .param = much};
  EXPECT_LT(error_body(error).size(), 3000u);
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
                        .value()
                        .body;
  EXPECT_EQ(chat,
            (json{{"max_tokens", 5},
                  {"messages",
                   {{{"role", "system"}, {"content", "be brief"}}, {{"role", "user"}, {"content", "hi"}}}},
                  {"stop", {"x"}},
                  {"chat_template_kwargs",
                   {{"enable_thinking", false}, {"thinking", false}, {"thinking_mode", "disabled"}}},
                  {"include_reasoning", false}}));
  EXPECT_FALSE(chat_of_messages({{"messages", json::array()}}).ok());
  const json response =
      chat_of_responses({{"input", "hi"}, {"instructions", "be brief"}, {"max_output_tokens", 5}})
          .value()
          .body;
  EXPECT_EQ(response["messages"], chat["messages"]);
  EXPECT_EQ(response["max_completion_tokens"], 5);
  for (const json& wrong : {json(5), json::array(), json{{{"type", "function_call"}}}, json{"a"}})
    EXPECT_FALSE(chat_of_responses({{"input", wrong}}).ok()) << wrong;
}

// Thoughts of earlier answers reach the template as those of chats.
TEST(OtherBodies, HandOverEarlierThoughts) {
  const json use{{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", json::object()}};
  const json thought{{"type", "thinking"}, {"thinking", "hm"}, {"signature", "s"}};
  const json hidden{{"type", "redacted_thinking"}, {"data", "x"}}, text{{"type", "text"}, {"text", "b"}};
  const auto messages = [](const json& blocks) {
    return chat_of_messages({{"max_tokens", 5}, {"messages", {{{"role", "assistant"}, {"content", blocks}}}}})
        ->body["messages"];
  };
  EXPECT_EQ(messages({thought, hidden, text}),
            (json{{{"role", "assistant"}, {"content", {text}}, {"reasoning_content", "hm"}}}));
  EXPECT_EQ(messages({thought, use})[0]["reasoning_content"], "hm");
  EXPECT_EQ(messages(json::array({thought}))[0]["content"], json::array());
  EXPECT_EQ(chat_of_messages({{"max_tokens", 5},
                              {"messages", {{{"role", "assistant"}, {"content", {{{"type", "thinking"}}}}}}}})
                .status()
                .message(),
            "\"messages\"[0]: a block of thinking needs \"thinking\", a text");

  const json reasoning{{"type", "reasoning"},
                       {"id", "rs_1"},
                       {"summary", json::array()},
                       {"content", {{{"type", "reasoning_text"}, {"text", "hm"}}}}};
  const json call{{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{}"}};
  const json said{{"role", "assistant"}, {"content", "b"}}, asked{{"role", "user"}, {"content", "a"}};
  const auto input = [](const json& items) {
    return chat_of_responses({{"input", items}})->body["messages"];
  };
  EXPECT_EQ(input({asked, reasoning, said, call}).size(), 3u);
  EXPECT_EQ(input({asked, reasoning, said})[1]["reasoning_content"], "hm");
  EXPECT_EQ(input({asked, reasoning, call})[1]["reasoning_content"], "hm");
  EXPECT_EQ(input({asked, call, reasoning, call}).size(), 3u) << "a turn of its own";
  EXPECT_EQ(input({reasoning, asked}).size(), 1u);
  EXPECT_FALSE(input({reasoning, asked})[0].contains("reasoning_content"));
  EXPECT_EQ(input({asked, reasoning, reasoning, said})[1]["reasoning_content"], "hmhm");
  json stateless{{"input", {asked}}, {"include", {"reasoning.encrypted_content"}}};
  EXPECT_TRUE(chat_of_responses(stateless).ok()) << "as clients that keep no responses here send it";
  stateless["include"].push_back("file_search_call.results");
  EXPECT_FALSE(chat_of_responses(stateless).ok());
  json summed = reasoning;
  summed["summary"] = {{{"type", "summary_text"}, {"text", "short"}}};
  summed["content"] = nullptr;
  EXPECT_EQ(input({summed, said})[0]["reasoning_content"], "short");
  summed["summary"] = {1};
  EXPECT_FALSE(chat_of_responses({{"input", {summed, said}}}).ok());
}

}  // namespace
}  // namespace outrider
