// Draft workers as processes of their own, which join a running job, leave, die, hang, lag and lie. Whatever
// they do, every request ends with the text of plain decoding, and the report says what happened.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <map>
#include <sstream>
#include <thread>

#include "hostile_peer.h"
#include "pool.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {
namespace {

using namespace std::chrono_literals;

TEST_F(Pool, WorkersOfOneProcessShareTheSequences) {
  constexpr int kFewTokens = 60;
  Arguments arguments = job({"--draft-model", demo_draft(), "-g", "3", "--num-draft-workers", "3", "--report",
                             dir_ / "report.json"},
                            kFewTokens);
  arguments.erase(arguments.begin());
  const Outcome run = outrider_program(arguments);
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(run.out, plain(kFewTokens));
  EXPECT_EQ(metrics()["cluster"]["workers_joined"], 3);
  EXPECT_GT(metrics()["rounds"]["accepted_tokens"], 125);
}

TEST_F(Pool, JoinLeaveKillStopAndComeBack) {
  start_long_job({"--wait-for-draft-workers", "3", "-g", "3"});
  BackgroundProcess polite = worker("polite"), killed = worker("killed"), stopped = worker("stopped");
  ASSERT_TRUE(polite.says("drafts for") && killed.says("drafts for") && stopped.says("drafts for"));
  BackgroundProcess ngram = worker("ngram", {"--drafter", "ngram"});
  EXPECT_TRUE(ngram.says("drafts for")) << ngram.err();
  std::this_thread::sleep_for(200ms);
  stopped.signal(SIGSTOP);
  killed.signal(SIGKILL);
  std::this_thread::sleep_for(100ms);
  BackgroundProcess successor = worker("successor");
  EXPECT_TRUE(successor.says("drafts for")) << successor.err();
  polite.signal(SIGTERM);
  EXPECT_EQ(polite.wait(), 0) << polite.err();
  ASSERT_FALSE(job_->ended()) << "the job was too short for its faults";
  std::this_thread::sleep_for(1s);
  stopped.signal(SIGCONT);
  expect_plain_text(plain(kLongJobTokens));
  EXPECT_EQ(successor.wait(), 0) << successor.err();
  EXPECT_EQ(stopped.wait(), 0) << stopped.err();
  EXPECT_EQ(ngram.wait(), 0) << ngram.err();
  const auto report = metrics();
  EXPECT_EQ(report["cluster"]["workers_left"], 1);
  EXPECT_GE(report["cluster"]["workers_lost"], 1);
  EXPECT_GE(report["cluster"]["workers_joined"], 5);
  EXPECT_EQ(report["drafters"].size(), 2);  // two kinds
  for (const auto& drafter : report["drafters"]) EXPECT_GT(drafter["rounds"], 0) << drafter;
  print_drafters(report);
}

// Workers that join do not know a job's trees when they make room for them.
TEST_F(Pool, RemoteWorkersDraftTrees) {
  start_job({"--wait-for-draft-workers", "2", "--speculative-tree", "best-first:12"}, 60);
  BackgroundProcess first = worker("first"), second = worker("second");
  expect_plain_text(plain(60));
  const auto trees = metrics()["trees"];
  EXPECT_GT(trees["rounds"], 100);
  EXPECT_GT(trees["nodes_per_round"], 6);
  EXPECT_EQ(metrics()["drafts"]["dropped"]["tree"], 0);
}

TEST_F(Pool, RemoteWorkersDrawTreesUnderPqRules) {
  Arguments flags{"--rule", "traversal", "--speculative-tree", "3,2,1", "--draft-model", demo_draft()};
  Arguments arguments = job(flags, 60);
  flags.resize(4);
  flags.insert(flags.end(), {"--wait-for-draft-workers", "2"});
  start_job(flags, 60);
  BackgroundProcess first = worker("first"), second = worker("second");
  arguments.erase(arguments.begin());
  const Outcome one = outrider_program(arguments);
  ASSERT_TRUE(one.succeeded()) << one.describe();
  expect_plain_text(one.out);
  EXPECT_GT(metrics()["trees"]["rounds"], 100);
}

TEST_F(Pool, AllDieAndDecodingGoesOnUntilOneComes) {
  start_long_job({"--wait-for-draft-workers", "2", "-g", "3"});
  BackgroundProcess first = worker("first"), second = worker("second");
  ASSERT_TRUE(first.says("drafts for") && second.says("drafts for"));
  std::this_thread::sleep_for(200ms);
  first.signal(SIGKILL);
  second.signal(SIGKILL);
  std::this_thread::sleep_for(200ms);
  BackgroundProcess third = worker("third");  // comes to a target that decodes without a pause
  EXPECT_TRUE(third.says("drafts for")) << third.err();
  expect_plain_text(plain(kLongJobTokens));
  EXPECT_EQ(third.wait(), 0) << third.err();
  expect_speed_of_plain();
  EXPECT_EQ(metrics()["cluster"]["workers_lost"], 2);
  EXPECT_EQ(metrics()["cluster"]["workers_joined"], 3);
  print_drafters(metrics());
}

// Each line of standard error is JSON, and an event has its level, date, host and reason.
TEST_F(Pool, EventsNameTheMemberItsHostAndTheReason) {
  prompts_ = dir_.write("few.jsonl", prompts(8));
  start_long_job({"--wait-for-draft-workers", "2", "-g", "3", "--log-format", "json", "--log-level", "info"},
                 60);
  BackgroundProcess polite = worker("polite", {"--drafter", "ngram"}), killed = worker("killed");
  ASSERT_TRUE(polite.says("drafts for") && killed.says("drafts for")) << killed.err();
  ASSERT_TRUE(job_->says("now there are 2 draft workers")) << job_->err();
  polite.signal(SIGTERM);
  EXPECT_EQ(polite.wait(), 0) << polite.err();
  killed.signal(SIGKILL);
  EXPECT_TRUE(job_->says("\"degraded\"")) << job_->err();
  EXPECT_EQ(job_->wait(), 0) << job_->err();
  std::map<std::string, std::vector<nlohmann::json>> events;
  std::istringstream lines(job_->err());
  for (std::string line; std::getline(lines, line);) {
    const auto parsed = nlohmann::json::parse(line, nullptr, false);
    ASSERT_TRUE(parsed.is_object()) << line;
    EXPECT_TRUE(parsed["time"].get<std::string>().ends_with("Z")) << line;
    if (parsed.contains("event")) events[parsed["event"]].push_back(parsed);
  }
  EXPECT_EQ(events["degraded"][0]["left"], 0);
  EXPECT_NE(polite.err().find("leave: draft worker"), std::string::npos) << polite.err();
  EXPECT_NE(polite.err().find(fmt::format("signal {}", SIGTERM)), std::string::npos) << polite.err();
  ASSERT_EQ(events["leave"].size(), 1u) << job_->err();
  ASSERT_EQ(events["loss"].size(), 1u) << job_->err();
  ASSERT_EQ(events["degraded"].size(), 1u) << job_->err();
  EXPECT_EQ(events["join"].size(), 3u) << "the target and two workers";
  EXPECT_EQ(events["loss"][0]["level"], "warning");
  EXPECT_EQ(events["leave"][0]["level"], "info");
  for (const char* event : {"leave", "loss"}) {
    EXPECT_EQ(events[event][0]["host"], "127.0.0.1");
    EXPECT_EQ(events[event][0]["member"], "draft worker");
    EXPECT_TRUE(events[event][0]["peer"].is_number()) << events[event][0];
    EXPECT_FALSE(events[event][0]["reason"].get<std::string>().empty());
  }
}

// Workers exit when their job was interrupted on purpose, instead of waiting for it to return. A worker under
// nohup survives the end of its terminal (SIGHUP).
TEST_F(Pool, AnInterruptedJobSaysGoodbye) {
  prompts_ = dir_.write("many.jsonl", prompts(5000));  // minutes
  for (const int signal : {SIGINT, SIGTERM}) {
    start_job({"--wait-for-draft-workers", "2", "-g", "3"});
    BackgroundProcess model = worker("model");
    Arguments arguments = worker_arguments({"--drafter", "ngram"});
    arguments.insert(arguments.begin(), "nohup");
    BackgroundProcess ngram(dir_, "ngram", arguments);
    ASSERT_TRUE(model.says("drafts for") && ngram.says("drafts for")) << model.err() << ngram.err();
    ngram.signal(SIGHUP);
    job_->signal(signal);
    EXPECT_EQ(job_->wait(), 128 + signal) << job_->err();
    for (BackgroundProcess* worker : {&model, &ngram}) {
      EXPECT_EQ(worker->wait(), 0) << worker->err();
      EXPECT_NE(worker->err().find("the job has ended"), std::string::npos) << worker->err();
    }
  }
}

// Runs for a millisecond of every fifty, so that a round which waited for it would take as long as many
// passes: the speed tells.
TEST_F(Pool, AWorkerFiftyTimesTooSlowIsNotWaitedFor) {
  start_long_job({"--wait-for-draft-workers", "1"});
  BackgroundProcess slow = worker("slow");
  ASSERT_TRUE(slow.says("drafts for")) << slow.err();
  int stops = 0;
  for (; !job_->ended(); ++stops) {
    slow.signal(SIGSTOP);
    std::this_thread::sleep_for(49ms);
    slow.signal(SIGCONT);
    std::this_thread::sleep_for(1ms);
  }
  expect_plain_text(plain(kLongJobTokens));
  EXPECT_GT(stops, 20);
  expect_speed_of_plain();
  print_drafters(metrics());
}

// All its drafts are well-formed, and none is any good.
TEST_F(Pool, AWorkerThatIsAlwaysWrongIsHardlyAsked) {
  constexpr int kFewTokens = 60;
  start_long_job({"--wait-for-draft-workers", "1"}, kFewTokens);
  const LiarCounts liar = draft_wrong_tokens(endpoint_);
  expect_plain_text(plain(kFewTokens));
  const auto report = metrics();
  EXPECT_GT(liar.sent, 0);
  EXPECT_GT(report["drafts"]["used"], 0);
  EXPECT_LT(report["rounds"]["acceptance_rate"], 0.05);
  EXPECT_LT(report["rounds"]["drafted_tokens"], report["rounds"]["rounds"].get<int>() / 4);
  expect_speed_of_plain();
  print_drafters(report);
  std::printf("  %s\n", report["rounds"].dump().c_str());
}

TEST_F(Pool, StrangersAndLiarsAreDropped) {
  start_long_job({"--wait-for-draft-workers", "1", "-g", "3"});
  BackgroundProcess honest = worker("honest");
  ASSERT_TRUE(honest.says("drafts for")) << honest.err();
  const auto memory = static_cast<int64_t>(job_->peak_memory());
  EXPECT_GT(memory, 0);
  send_random_bytes(endpoint_, 1 << 16);
  send_random_frames(endpoint_, 200);
  EXPECT_NE(answer_to_version(endpoint_, 1).find("protocol version 1 is not"), std::string::npos);
  EXPECT_NE(answer_to_second_with_one_identity(endpoint_).find("identity"), std::string::npos);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(connection_ends_after(endpoint_, size_t{64} << 20));
  const int64_t more = static_cast<int64_t>(job_->peak_memory()) - memory;
  EXPECT_LT(more, kPatience * (int64_t{48} << 20)) << "less than one of the messages";
  const LiarCounts liar = draft_nonsense(endpoint_, 2);
  EXPECT_GT(liar.sent, 0);
  ASSERT_FALSE(job_->ended()) << "the job was too short for its faults";
  expect_plain_text(plain(kLongJobTokens));
  EXPECT_EQ(honest.wait(), 0) << honest.err();
  const auto report = metrics();
  EXPECT_GE(report["wire"]["malformed_frames"], 200);
  EXPECT_GE(report["wire"]["refused_peers"], 1);
  EXPECT_GE(report["cluster"]["hellos_refused"], 1);
  EXPECT_GE(report["drafts"]["dropped"]["bad_ids"], 1);  // its sequences then go elsewhere
  print_drafters(report);
  std::printf("  %.1f MB more memory\n", static_cast<double>(more) * 1e-6);
  std::printf("  dropped %s\n", report["drafts"]["dropped"].dump().c_str());
}

// The address is printed before models are loaded, so a stranger can be the first to connect.
TEST_F(Pool, AStrangerIsNeverTheTarget) {
  start_job({"--wait-for-draft-workers", "1"}, kLongJobTokens);
  EXPECT_NE(answer_to_target(endpoint_).find("target group"), std::string::npos);
  BackgroundProcess honest = worker("honest");
  ASSERT_TRUE(honest.says("drafts for")) << honest.err();
  EXPECT_NE(answer_to_target(endpoint_).find("target group"), std::string::npos);
  expect_plain_text(plain(kLongJobTokens));
  EXPECT_EQ(honest.wait(), 0) << honest.err();
  EXPECT_EQ(metrics()["cluster"]["hellos_refused"], 2);
}

TEST_F(Pool, StrangersByTheThousandPushOutNobody) {
  start_long_job({"--wait-for-draft-workers", "1", "-g", "3"});
  BackgroundProcess honest = worker("honest");
  ASSERT_TRUE(honest.says("drafts for")) << honest.err();
  beat_as_many(endpoint_, 5000, 200);
  ASSERT_FALSE(job_->ended()) << "the job was too short for its faults";
  expect_plain_text(plain(kLongJobTokens));
  EXPECT_EQ(honest.wait(), 0) << honest.err();
  const auto report = metrics();
  EXPECT_EQ(report["cluster"]["workers_joined"], 1);
  EXPECT_EQ(report["cluster"]["workers_lost"], 0);
  EXPECT_GE(report["wire"]["refused_peers"], 1000);  // what was still unread at the end does not count
  // The job may read as fast as messages arrive, so zero disconnections are allowed.
  std::printf("  %d connections hung up\n", report["wire"]["hung_up"].get<int>());
}

// Limits the memory for what a local sender transmits between two checks of its connection, and for 600
// Hellos with 64 endpoints each.
TEST_F(Pool, WhoHasNotJoinedTakesLittleMemory) {
  constexpr size_t kEndless = size_t{8} << 30, kBound = size_t{160} << 20;
  start_job({"--wait-for-draft-workers", "1"}, 60);
  const size_t before = job_->peak_memory();
  for (const size_t part_bytes : {size_t{1} << 20, size_t{100}, size_t{0}})
    EXPECT_LT(send_endless_message(endpoint_, part_bytes, kEndless), kEndless) << part_bytes;
  say_large_hellos(endpoint_, 600);
  const size_t grown = job_->peak_memory() - before;
  std::printf("  peak memory grew by %zu MB\n", grown >> 20);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what was freed
  EXPECT_LT(grown, kBound);
#endif
  BackgroundProcess honest = worker("honest");
  expect_plain_text(plain(60));
  EXPECT_EQ(honest.wait(), 0) << honest.err();
  EXPECT_EQ(metrics()["wire"]["hung_up"], 3);
}

TEST_F(Pool, RefusalsSayWhatDiffers) {
  start_job({"--wait-for-draft-workers", "1"}, 200);
  const auto draft = dir_.copy(demo_draft(), "foreign");
  write_file(draft / "tokenizer.json",
             read_file(outrider::source_dir() / "tests/goldens/tokenizers/gpt2/tokenizer.json"));
  BackgroundProcess foreign = worker("foreign_worker", {"--draft-model", draft});
  EXPECT_EQ(foreign.wait(), 2);
  for (const std::string& said : {foreign.err(), job_->err()})
    EXPECT_NE(said.find("vocabulary of draft model 'foreign'"), std::string::npos) << said;
  EXPECT_NE(job_->err().find("refusal: a worker at 127.0.0.1 is refused: "), std::string::npos)
      << job_->err();
  BackgroundProcess lonely = [&] {
    Arguments arguments{outrider_path(), "draft-worker", "--connect",   "tcp://127.0.0.1:9",
                        "--drafter",     "ngram",        "--retry-for", "0"};
    return BackgroundProcess(dir_, "lonely", arguments);
  }();
  EXPECT_EQ(lonely.wait(), 3) << lonely.err();
  BackgroundProcess idle = worker("idle", {});
  EXPECT_EQ(idle.wait(), 2);
  EXPECT_NE(idle.err().find("--draft-model"), std::string::npos) << idle.err();
  BackgroundProcess right = worker("right");
  EXPECT_EQ(job_->wait(), 0) << job_->err();
  EXPECT_EQ(right.wait(), 0) << right.err();
}

TEST_F(Pool, OnlyListedKeysGetIn) {
  for (const char* name : {"job", "worker", "stranger"})
    ASSERT_TRUE(outrider_program({"keygen", "--output", dir_ / (std::string(name) + ".key")}).succeeded());
  start_job({"--wait-for-draft-workers", "1", "--curve-secret-key", dir_ / "job.key", "--allowed-keys",
             dir_ / "worker.key.pub"},
            100);
  const auto with_key = [&](const std::string& name) {
    return Arguments{"--drafter",          "ngram",
                     "--curve-secret-key", dir_ / (name + ".key"),
                     "--server-key",       dir_ / "job.key.pub"};
  };
  BackgroundProcess stranger = worker("stranger", with_key("stranger"));
  BackgroundProcess plain_worker = worker("plain", {"--drafter", "ngram", "--retry-for", "0"});
  EXPECT_EQ(stranger.wait(), 2);
  EXPECT_NE(stranger.err().find("does not take our keys"), std::string::npos) << stranger.err();
  EXPECT_NE(plain_worker.wait(), 0);
  CurveKeys listed{.own = {}, .server = read_curve_keys(dir_ / "job.key")->public_key, .allowed = {}};
  listed.own = read_curve_keys(dir_ / "worker.key").value();
  EXPECT_NE(answer_to_target(endpoint_, listed).find("target group"), std::string::npos);
  BackgroundProcess known = worker("known", with_key("worker"));
  EXPECT_EQ(job_->wait(), 0) << job_->err();
  EXPECT_EQ(known.wait(), 0) << known.err();
  EXPECT_EQ(metrics()["cluster"]["workers_joined"], 1);
  EXPECT_GE(metrics()["wire"]["refused_keys"], 1);
}

TEST_F(Pool, OtherAddressesNeedKeys) {
  Arguments arguments = job({"--listen", "tcp://0.0.0.0:*"});
  arguments.erase(arguments.begin());
  const Outcome run = outrider_program(arguments);
  EXPECT_EQ(run.code, 2) << run.describe();
  for (const char* part : {"--listen", "keygen", "127.0.0.1"})
    EXPECT_NE(run.err.find(part), std::string::npos) << run.describe();
}

}  // namespace
}  // namespace outrider::testing
