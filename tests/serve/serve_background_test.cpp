// Background responses of `outrider serve`, and the journal from which a server that is started again runs
// those that were not finished.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "served_program.h"

namespace outrider::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool comes_true(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience * std::chrono::seconds(30);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

class ServeBackground : public ::testing::Test {
 protected:
  // Passes of a slow one take 10 ms each.
  std::unique_ptr<ServedProgram> serve(std::vector<std::string> more = {}, bool slow = false) {
    std::vector<std::string> flags{"--chat-template", template_, "--drafter", "ngram", "--max-num-seqs", "2"};
    if (slow) flags.insert(flags.end(), {"--emulate-link", "delay=5ms,links=target"});
    flags.insert(flags.end(), more.begin(), more.end());
    return std::make_unique<ServedProgram>(flags);
  }
  static HttpAnswer get(ServedProgram& server, const json& id) {
    return server.client().get("/v1/responses/" + id.get<std::string>());
  }
  static json shown(ServedProgram& server, const json& id) { return json::parse(get(server, id).body); }
  static std::string status(ServedProgram& server, const json& id) { return shown(server, id)["status"]; }
  static bool ends_as(ServedProgram& server, const json& id, const std::string& state) {
    return comes_true([&] {
             const std::string now = status(server, id);
             return now != "queued" && now != "in_progress";
           }) &&
           status(server, id) == state;
  }
  static HttpAnswer remove(ServedProgram& server, const json& id) {
    HttpClient client = server.client();
    client.send("DELETE /v1/responses/" + id.get<std::string>() + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return client.answer();
  }
  static HttpAnswer cancel(ServedProgram& server, const json& id) {
    return server.post("/v1/responses/" + id.get<std::string>() + "/cancel", json::object());
  }
  static json text_of_response(const json& response) { return response["output"][0]["content"][0]["text"]; }
  static json body(int tokens = 150) {
    return {{"input", "Once upon a time"},
            {"max_output_tokens", tokens},
            {"temperature", 0.8},
            {"ignore_eos", true},
            {"background", true}};
  }
  static std::string metric(ServedProgram& server, const std::string& name) {
    const std::string text = server.client().get("/metrics").body;
    const size_t at = text.find("\noutrider_" + name + "{");
    const size_t value = text.find("} ", at) + 2;
    return at == std::string::npos ? "" : text.substr(value, text.find('\n', value) - value);
  }
  fs::path file_of(const json& id) const { return journal_ / (id.get<std::string>().substr(5) + ".json"); }

  const TemporaryDirectory directory_;
  const std::string template_ =
      directory_.write("template", "{% for m in messages %}{{ m['content'] }}{% endfor %}");
  const fs::path journal_ = directory_ / "journal";
  const std::vector<std::string> with_journal_{"--journal", journal_};
};

// The text has the bytes of an undisturbed run, also of a request without a seed, whose seed is in the
// journal.
TEST_F(ServeBackground, ARestartedServerEndsWhatAnEndedOneBegan) {
  for (const int signal : {SIGKILL, SIGTERM}) {
    SCOPED_TRACE(signal);
    fs::remove_all(journal_);
    auto first = serve(with_journal_, true);
    const json finished = first->ask("/v1/responses", body(2))["id"];
    ASSERT_TRUE(ends_as(*first, finished, "incomplete"));
    const json kept = shown(*first, finished);
    const json accepted = first->ask("/v1/responses", body());
    EXPECT_EQ(accepted["object"], "response");
    EXPECT_EQ(accepted["background"], true);
    const json id = accepted["id"];
    ASSERT_TRUE(comes_true([&] { return status(*first, id) == "in_progress"; }));
    first->process().signal(signal);
    EXPECT_EQ(first->process().wait(), signal == SIGKILL ? 128 + SIGKILL : 0) << first->process().err();
    const json file = json::parse(read_file(file_of(id)));
    ASSERT_EQ(file["response"], "");

    std::vector<std::string> other_defaults = with_journal_;
    other_defaults.insert(other_defaults.end(), {"--temperature", "0.3", "--top-k", "7"});
    auto second = serve(other_defaults);
    EXPECT_TRUE(second->process().says("1 unfinished requests run again; 1 finished responses are kept"))
        << second->process().err();
    EXPECT_EQ(shown(*second, finished), kept);
    ASSERT_TRUE(ends_as(*second, id, "incomplete")) << shown(*second, id);
    const json ended = shown(*second, id);
    EXPECT_EQ(ended["id"], id);
    EXPECT_EQ(ended["created_at"], accepted["created_at"]);
    EXPECT_EQ(ended["usage"]["output_tokens"], 150);
    json plain = body();
    plain.erase("background");
    plain.update({{"seed", file["resolved"]["seed"]}, {"top_k", 0}});
    EXPECT_EQ(text_of_response(ended), text_of_response(second->ask("/v1/responses", plain)));
    EXPECT_EQ(metric(*second, "background_requests_resumed_total"), "1");
    EXPECT_EQ(metric(*second, "background_responses_kept"), "2");
    EXPECT_EQ(metric(*second, "background_responses_open"), "0");
  }
}

TEST_F(ServeBackground, WhatCannotRunAgainFailsWithItsReason) {
  auto first = serve(with_journal_, true);
  const json id = first->ask("/v1/responses", body())["id"];
  first->process().signal(SIGKILL);
  first->process().wait();
  const std::string whole = read_file(file_of(id));
  const std::string cut = std::string(32, 'a'), changed = std::string(32, 'b');
  std::ofstream(journal_ / (cut + ".json")) << whole.substr(0, whole.size() / 2);
  std::string other = whole;
  other.replace(other.find("\"resolved\""), 10, "\"resolvee\"");
  std::ofstream(journal_ / (changed + ".json")) << other;
  std::ofstream(journal_ / (std::string(32, 'c') + ".json.partial")) << whole;
  const std::string pipe = std::string(32, 'd');
  ASSERT_EQ(mkfifo((journal_ / (pipe + ".json")).c_str(), 0600), 0) << "to open it would wait for ever";

  auto foreign = serve({"--journal", journal_, "--weight-format", "int8"});
  ASSERT_TRUE(ends_as(*foreign, id, "failed"));
  EXPECT_NE(shown(*foreign, id)["error"]["message"].get<std::string>().find("other weights"),
            std::string::npos);
  for (const std::string& damaged : {cut, changed}) {
    const json response = shown(*foreign, "resp_" + damaged);
    EXPECT_EQ(response["status"], "failed");
    EXPECT_NE(response["error"]["message"].get<std::string>().find(damaged + ".json: is damaged"),
              std::string::npos)
        << response;
    // The fields of every response are there.
    EXPECT_GT(response["created_at"], 1'600'000'000) << response;
    EXPECT_TRUE(response["model"].is_string()) << response;
    EXPECT_EQ(response["background"], true) << response;
  }
  EXPECT_EQ(shown(*foreign, "resp_" + pipe)["status"], "failed");
  EXPECT_TRUE(foreign->process().says("1 unfinished requests are of a model with other weights"))
      << foreign->process().err();
  EXPECT_EQ(get(*foreign, "resp_" + std::string(32, 'c')).status, 404) << "a write that was interrupted";
  EXPECT_EQ(remove(*foreign, "resp_" + cut).status, 200);
  EXPECT_FALSE(fs::exists(journal_ / (cut + ".json")));
  foreign->process().signal(SIGTERM);
  EXPECT_EQ(foreign->process().wait(), 0);

  auto own = serve(with_journal_);
  EXPECT_TRUE(ends_as(*own, id, "incomplete")) << "the file outlives a server of another model";
}

TEST_F(ServeBackground, AJournalIsOfOneServerAndMustBeWritable) {
  auto first = serve(with_journal_);
  struct stat info {};
  ASSERT_EQ(stat(journal_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0700u) << "it holds prompts";
  ServedProgram second({"--journal", journal_}, ServedProgram::Wait::kNot);
  EXPECT_NE(second.process().wait(), 0);
  EXPECT_NE(second.process().err().find("another server uses it"), std::string::npos)
      << second.process().err();
  // Earlier servers lock the directory alone.
  const fs::path of_older = directory_ / "older";
  fs::create_directory(of_older);
  const int lock = ::open(of_older.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  ServedProgram beside({"--journal", of_older}, ServedProgram::Wait::kNot);
  EXPECT_NE(beside.process().wait(), 0);
  EXPECT_NE(beside.process().err().find("another server uses it"), std::string::npos)
      << beside.process().err();
  close(lock);
  const fs::path file = directory_.write("file", "x");
  for (const std::string& wrong : {std::string("/proc/journal"), file.string()}) {
    ServedProgram refused({"--journal", wrong}, ServedProgram::Wait::kNot);
    EXPECT_EQ(refused.process().wait(), 2);
    EXPECT_NE(refused.process().err().find("--journal " + wrong), std::string::npos)
        << refused.process().err();
  }
}

TEST_F(ServeBackground, ARemovedJournalShowsBeforeTheNextRequest) {
  auto server = serve(with_journal_);
  const auto health = [&] { return json::parse(server->client().get("/health").body); };
  const auto fault = [&] { return json::parse(server->client().get("/status").body)["journal_fault"]; };
  EXPECT_EQ(health()["degraded"], false) << health();
  EXPECT_EQ(health()["degraded_by"], json::array());
  EXPECT_TRUE(fault().is_null()) << fault();
  fs::rename(journal_, directory_ / "moved");
  fs::create_directory(journal_);  // another one, which this server has not locked
  ASSERT_TRUE(comes_true([&] { return health()["degraded"] == true; })) << health();
  EXPECT_NE(health()["degraded_by"][0].get<std::string>().find("was removed or replaced"), std::string::npos)
      << health();
  EXPECT_EQ(fault(), health()["degraded_by"][0]);
  EXPECT_NE(server->process().err().find("error background: journal: --journal"), std::string::npos)
      << server->process().err();
  EXPECT_EQ(server->post("/v1/responses", body(2)).status, 500);
  EXPECT_TRUE(fs::is_empty(journal_));
  fs::remove(journal_);
  fs::rename(directory_ / "moved", journal_);
  EXPECT_TRUE(comes_true([&] { return health()["degraded"] == false; })) << health();
  EXPECT_TRUE(ends_as(*server, server->ask("/v1/responses", body(2))["id"], "incomplete"));
}

TEST_F(ServeBackground, AResponseIsCancelledDeletedAndDropped) {
  auto server = serve({"--max-stored-responses", "2", "--quiet"}, true);
  const json running = server->ask("/v1/responses", body(500))["id"];
  ASSERT_TRUE(comes_true([&] { return status(*server, running) == "in_progress"; }));
  EXPECT_EQ(json::parse(cancel(*server, running).body)["status"], "cancelled");
  EXPECT_EQ(json::parse(cancel(*server, running).body)["status"], "cancelled")
      << "the second time changes nothing";
  EXPECT_TRUE(comes_true([&] { return metric(*server, "num_requests_running") == "0"; }));
  const HttpAnswer gone = remove(*server, running);
  EXPECT_EQ(gone.status, 200);
  EXPECT_EQ(json::parse(gone.body)["deleted"], true);
  for (const HttpAnswer& answer : {get(*server, running), cancel(*server, running), remove(*server, running),
                                   server->client().get("/v1/responses/x")})
    EXPECT_EQ(answer.status, 404) << answer.body;
  std::vector<json> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(server->ask("/v1/responses", body(2))["id"]);
    ASSERT_TRUE(ends_as(*server, ids.back(), "incomplete"));
  }
  EXPECT_EQ(get(*server, ids[0]).status, 404) << "--max-stored-responses";
  EXPECT_EQ(get(*server, ids[1]).status, 200);
  const json deleted = server->ask("/v1/responses", body(500))["id"];
  EXPECT_EQ(remove(*server, deleted).status, 200);
  EXPECT_TRUE(comes_true([&] { return metric(*server, "num_requests_running") == "0"; }));

  json wrong = body();
  wrong["stream"] = true;
  EXPECT_EQ(server->post("/v1/responses", wrong).status, 400);
  wrong = body();
  wrong["temperature"] = -1;
  EXPECT_EQ(server->post("/v1/responses", wrong).status, 400) << "at once, not in its response";
  wrong = body();
  wrong["background"] = "yes";
  const HttpAnswer refused = server->post("/v1/responses", wrong);
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("must be true or false"), std::string::npos) << refused.body;
  wrong = body();
  wrong["store"] = false;
  EXPECT_EQ(server->post("/v1/responses", wrong).status, 400) << "it would be stored";
  EXPECT_EQ(server->client().get("/v1/responses/" + ids[1].get<std::string>() + "?stream=true").status, 400);
  HttpClient curl = server->client();
  curl.send("POST /v1/responses/" + ids[1].get<std::string>() +
            "/cancel HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(curl.answer().status, 200) << "no body needs no type";
  EXPECT_EQ(server->client().post("/v1/responses", std::string(2 << 20, 'x')).status, 413);
}

TEST_F(ServeBackground, ResponsesLeaveByAge) {
  auto server = serve({"--journal", journal_, "--stored-response-age", "1", "--quiet"});
  const json id = server->ask("/v1/responses", body(2))["id"];
  ASSERT_TRUE(ends_as(*server, id, "incomplete"));
  EXPECT_TRUE(fs::exists(file_of(id)));
  EXPECT_TRUE(comes_true([&] { return get(*server, id).status == 404; }));
  EXPECT_FALSE(fs::exists(file_of(id)));
}

// A full queue refuses a request, which is not in the journal then.
TEST_F(ServeBackground, ARefusedRequestIsNotKept) {
  auto server =
      serve({"--journal", journal_, "--max-num-seqs", "1", "--max-queued-requests", "1", "--quiet"}, true);
  for (int i = 0; i < 2; ++i) server->ask("/v1/responses", body(500));
  const HttpAnswer refused = server->post("/v1/responses", body());
  EXPECT_EQ(refused.status, 429);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  size_t files = 0;
  for (const auto& file : fs::directory_iterator(journal_)) files += file.path().extension() == ".json";
  EXPECT_EQ(files, 2u);
}

}  // namespace
}  // namespace outrider::testing
