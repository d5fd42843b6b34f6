// Servers whose target groups are programs of their own: the replies and metrics while groups die, are
// absent, return, have no key, or join a standby.
#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "served_program.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

const json kAsked{{"prompt", "Once upon a time"},
                  {"max_tokens", 40},
                  {"temperature", 0.8},
                  {"seed", 5},
                  {"ignore_eos", true}};

bool until(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience * std::chrono::seconds(30);
  while (!holds() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return holds();
}

class ServeJoiningGroups : public ::testing::Test {
 protected:
  void serve(std::vector<std::string> more = {}) {
    more.insert(more.begin(),
                {"--listen-targets", "tcp://127.0.0.1:*", "--drafter", "ngram", "--threads", "1"});
    server_ = std::make_unique<ServedProgram>(more, ServedProgram::Wait::kNot);
    ASSERT_TRUE(server_->process().says("target-group --connect ")) << server_->process().err();
    const std::string said = server_->process().err();
    const size_t at = said.find("--connect ") + 10;
    endpoint_ = said.substr(at, said.find_first_of(" \n", at) - at);
  }
  BackgroundProcess group(const std::string& name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> all{outrider_path(), "target-group", "--connect", endpoint_,     "--model",
                                 demo_target(),   "--threads",    "1",         "--retry-for", "10"};
    all.insert(all.end(), more.begin(), more.end());
    return {directory_, name, all};
  }
  int status(const std::string& path) { return server_->client().get(path).status; }
  json health() { return json::parse(server_->client().get("/health").body); }
  std::string text() { return server_->complete(kAsked)["choices"][0]["text"]; }
  std::future<HttpAnswer> ask_beside() {
    return std::async(std::launch::async, [this] { return server_->post("/v1/completions", kAsked); });
  }

  TemporaryDirectory directory_;
  std::unique_ptr<ServedProgram> server_;
  std::string endpoint_;
};

// The server takes requests while they have to wait, so it is healthy; but who has other servers to ask
// should.
TEST_F(ServeJoiningGroups, RequestsWaitForAGroupAndWatchersKnow) {
  serve();
  EXPECT_EQ(status("/health"), 503);
  const std::string why = server_->client().get("/health").body;
  EXPECT_NE(why.find("waits for a target group"), std::string::npos) << why;
  EXPECT_EQ(status("/ready"), 503);
  EXPECT_EQ(status("/live"), 200) << "to start it again would help nobody";
  auto first = group("first");
  ASSERT_TRUE(until([&] { return status("/ready") == 200; })) << first.err();
  EXPECT_EQ(health()["target_groups"], 1);
  EXPECT_EQ(health()["degraded"], false);
  const std::string expected = text();

  first.signal(SIGKILL);
  ASSERT_TRUE(server_->process().says("wait up to 60 s for another one")) << server_->process().err();
  EXPECT_TRUE(server_->process().says(" info coordinator: failover: 0 running requests"))
      << "nothing is to be done for it: " << server_->process().err();
  auto waits = ask_beside();
  EXPECT_TRUE(until([&] { return health().value("target_groups", -1) == 0; })) << health();
  EXPECT_EQ(health()["degraded"], true);
  EXPECT_EQ(status("/ready"), 503);
  EXPECT_EQ(status("/live"), 200);
  const json shown = json::parse(server_->client().get("/status").body);
  EXPECT_EQ(shown["state"], "waiting for a target");
  EXPECT_NE(shown["reason"], "");
  ASSERT_EQ(shown["target_groups"].size(), 1u) << shown;
  EXPECT_EQ(shown["target_groups"][0]["here"], false);
  auto second = group("second");
  const HttpAnswer answer = waits.get();
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(json::parse(answer.body)["choices"][0]["text"], expected);
  EXPECT_TRUE(until([&] { return status("/ready") == 200; }));
}

// Waiting is limited: after --target-timeout, waiting requests fail and new requests are refused. A group
// that joins later restores service.
TEST_F(ServeJoiningGroups, WhenRequestsWereGivenUpTheNextGroupServesAgain) {
  serve({"--target-timeout", "1"});
  auto first = group("first");
  ASSERT_TRUE(until([&] { return status("/ready") == 200; })) << first.err();
  const std::string expected = text();
  json long_one = kAsked;
  long_one["max_tokens"] = 480;
  long_one["stream"] = true;
  HttpClient client = server_->client();
  client.send(post_text("/v1/completions", long_one.dump()));
  ASSERT_EQ(client.head().status, 200);
  ASSERT_TRUE(client.event().has_value());
  first.signal(SIGKILL);
  std::string last;
  while (const auto event = client.event()) last = *event;
  EXPECT_NE(last.find("--target-timeout"), std::string::npos) << last;

  ASSERT_TRUE(until([&] { return status("/health") == 503; }));
  EXPECT_EQ(status("/ready"), 503);
  EXPECT_EQ(status("/live"), 200);
  const HttpAnswer refused = server_->post("/v1/completions", kAsked);
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("--target-timeout"), std::string::npos) << refused.body;
  EXPECT_EQ(json::parse(server_->client().get("/status").body)["state"], "no target");

  auto second = group("second");
  ASSERT_TRUE(until([&] { return status("/ready") == 200; })) << second.err();
  EXPECT_EQ(text(), expected);
}

// A restart of the server: a group and a draft worker outlive its polite end, and join the next one.
TEST_F(ServeJoiningGroups, ThoseThatStayJoinTheNextServer) {
  serve({"--listen", "tcp://127.0.0.1:*"});
  ASSERT_TRUE(server_->process().says("draft-worker --connect ")) << server_->process().err();
  const std::string said = server_->process().err();
  const size_t at = said.find("draft-worker --connect ") + 23;
  const std::string door = said.substr(at, said.find_first_of(" \n", at) - at);
  auto stays = group("stays", {"--stay"});
  BackgroundProcess worker(directory_, "worker",
                           {outrider_path(), "draft-worker", "--connect", door, "--drafter", "ngram",
                            "--threads", "1", "--retry-for", "10", "--stay"});
  ASSERT_TRUE(worker.says("drafts for")) << worker.err();
  ASSERT_TRUE(until([&] { return status("/ready") == 200; })) << stays.err();
  const std::string expected = text();
  server_->process().signal(SIGTERM);
  EXPECT_EQ(server_->process().wait(), 0) << server_->process().err();
  EXPECT_TRUE(stays.says("waiting for the next one for 10 s (--stay, --retry-for)")) << stays.err();

  server_ = std::make_unique<ServedProgram>(std::vector<std::string>{
      "--listen-targets", endpoint_, "--listen", door, "--threads", "1", "--wait-for-draft-workers", "1"});
  EXPECT_EQ(text(), expected);
  const json now = json::parse(server_->client().get("/status").body);
  EXPECT_EQ(now.at("workers").size(), 1u) << now;
  for (BackgroundProcess* const member : {&stays, &worker}) {
    member->signal(SIGTERM);
    EXPECT_EQ(member->wait(), 0) << member->err();
    EXPECT_NE(member->err().find("signal 15"), std::string::npos) << member->err();
  }
}

// The first server is killed while it runs a background request. A standby on other ports takes over: the
// group joins it, and the request ends with the text of an undisturbed run.
TEST_F(ServeJoiningGroups, AStandbyTakesOver) {
  const std::string journal = directory_ / "journal";
  const std::string chats =
      directory_.write("chats", "{% for m in messages %}{{ m['content'] }}{% endfor %}");
  serve({"--journal", journal, "--chat-template", chats, "--emulate-link", "delay=5ms,links=target"});
  const std::string other = "tcp://127.0.0.1:" + std::to_string(free_port());
  auto stays = group("stays", {"--stay", "--connect", other});
  ASSERT_TRUE(until([&] { return status("/ready") == 200; })) << stays.err();
  json asked{{"input", "Once upon a time"}, {"max_output_tokens", 150}, {"seed", 5}, {"ignore_eos", true}};
  const json expected = server_->ask("/v1/responses", asked)["output"][0]["content"];
  ServedProgram next({"--listen-targets", other, "--drafter", "ngram", "--threads", "1", "--journal", journal,
                      "--chat-template", chats, "--standby"},
                     ServedProgram::Wait::kNot);
  ASSERT_TRUE(next.process().says("standby: waits for the end of the server")) << next.process().err();
  EXPECT_EQ(status("/ready"), 200) << "the first one goes on";
  asked["background"] = true;
  const std::string path = "/v1/responses/" + server_->ask("/v1/responses", asked)["id"].get<std::string>();
  const auto state = [&] { return json::parse(server_->client().get(path).body)["status"]; };
  ASSERT_TRUE(until([&] { return state() == "in_progress"; }));
  server_->process().signal(SIGKILL);
  ASSERT_TRUE(next.process().says("takeover: ")) << next.process().err();
  ASSERT_TRUE(next.process().says("serving ")) << next.process().err();
  EXPECT_TRUE(next.process().says("1 unfinished requests run again")) << next.process().err();
  json ended;
  EXPECT_TRUE(until([&] {
    ended = json::parse(next.client().get(path).body);
    return ended.value("status", "") == "incomplete";
  })) << ended;
  EXPECT_EQ(ended["output"][0]["content"], expected);
  EXPECT_TRUE(stays.says(other)) << stays.err();
  stays.signal(SIGTERM);
  EXPECT_EQ(stays.wait(), 0) << stays.err();
}

// Only a group with a listed key is accepted. Refused groups do not affect service.
TEST_F(ServeJoiningGroups, KeysAtTheDoor) {
  const auto key = [&](const std::string& name) {
    const std::string file = directory_ / name;
    EXPECT_TRUE(outrider_program({"keygen", "--output", file}).succeeded());
    return file;
  };
  const std::string job = key("job"), listed = key("listed"), strange = key("strange");
  serve({"--curve-secret-key", job, "--allowed-target-keys", listed + ".pub"});
  auto without = group("without", {"--retry-for", "1"});
  auto stranger =
      group("stranger", {"--retry-for", "1", "--curve-secret-key", strange, "--server-key", job + ".pub"});
  EXPECT_GT(without.wait(), 0) << without.err();
  EXPECT_GT(stranger.wait(), 0) << stranger.err();
  EXPECT_EQ(status("/ready"), 503);

  auto known = group("known", {"--curve-secret-key", listed, "--server-key", job + ".pub"});
  ASSERT_TRUE(until([&] { return status("/ready") == 200; })) << known.err();
  const std::string expected = text();
  auto again = group("again", {"--retry-for", "1"});
  EXPECT_EQ(text(), expected);
  EXPECT_GT(again.wait(), 0) << again.err();
  EXPECT_EQ(text(), expected);
  EXPECT_EQ(health()["target_groups"], 1);
}

}  // namespace
}  // namespace outrider::testing
