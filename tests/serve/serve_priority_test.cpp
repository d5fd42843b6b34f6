// --scheduling-policy priority over HTTP: the order of service when KV slots or the KV cache are short. The
// access log gives the order in which answers end.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "served_program.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

struct AskedOne {
  std::string id;
  int priority = 0;
  int max_tokens = 20;
};

class ServePriority : public ::testing::Test {
 protected:
  void serve(std::vector<std::string> more) {
    more.insert(more.end(), {"--access-log", log_, "--drafter", "ngram", "--quiet"});
    server_ = std::make_unique<ServedProgram>(more);
  }
  // Returns once the server holds it.
  void ask(const AskedOne& one) {
    const json body{{"prompt", "Once upon a time"},
                    {"max_tokens", one.max_tokens},
                    {"priority", one.priority},
                    {"ignore_eos", true},
                    {"seed", 1},
                    {"temperature", 1}};
    clients_.push_back(server_->client());
    clients_.back().send(post_text("/v1/completions", body.dump(), "X-Request-Id: " + one.id + "\r\n"));
    ++held_;
    for (int i = 0; i < 3000 && in_server() < held_ - ended(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Ids of the answers, in their order.
  std::vector<std::string> order() {
    for (HttpClient& client : clients_) EXPECT_EQ(client.answer().status, 200);
    std::vector<std::string> ids;
    for (int i = 0; i < 3000 && ids.size() < clients_.size(); ++i) {
      ids = logged();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return ids;
  }
  json status() { return json::parse(server_->client().get("/status").body); }
  std::string metrics() { return server_->client().get("/metrics").body; }

 private:
  std::vector<std::string> logged() const {
    std::vector<std::string> ids;
    std::ifstream in(log_);
    for (std::string line; std::getline(in, line);)
      if (const json entry = json::parse(line); entry["path"] == "/v1/completions")
        ids.push_back(entry["request_id"]);
    return ids;
  }
  int ended() const { return static_cast<int>(logged().size()); }
  int in_server() {
    const json requests = status()["requests"];
    return requests["running"].get<int>() + requests["waiting"].get<int>();
  }

  TemporaryDirectory directory_;
  const std::string log_ = directory_ / "access.log";
  std::unique_ptr<ServedProgram> server_;
  std::vector<HttpClient> clients_;
  int held_ = 0;
};

using Ids = std::vector<std::string>;

// One place. The first holds it while the others come.
constexpr int kLong = 480;
const std::vector<AskedOne> kLine{
    {"first", 0, kLong}, {"five", 5}, {"three", 3}, {"minus", -1}, {"later", 3}};

TEST_F(ServePriority, TheLowestNumberGetsTheNextPlace) {
  serve({"--max-num-seqs", "1", "--scheduling-policy", "priority"});
  for (const AskedOne& one : kLine) ask(one);
  EXPECT_EQ(order(), (Ids{"first", "minus", "three", "later", "five"}));
}

TEST_F(ServePriority, IsIgnoredByDefault) {
  serve({"--max-num-seqs", "1"});
  for (const AskedOne& one : kLine) ask(one);
  EXPECT_EQ(order(), (Ids{"first", "five", "three", "minus", "later"}));
}

// Two texts run together, and the KV cache has no room for both. With priorities the less urgent sequence is
// preempted; by default the youngest sequence is preempted.
class ServePriorityInAFullCache : public ServePriority {
 protected:
  Ids order_with(const char* policy) {
    serve({"--max-num-seqs", "2", "--max-model-len", "512", "--kv-cache-tokens", "640", "--scheduling-policy",
           policy});
    ask({"relaxed", 7, 420});
    ask({"urgent", 0, 420});
    Ids ids = order();
    EXPECT_NE(metrics().find("outrider_num_preemptions_total"), std::string::npos);
    EXPECT_EQ(metrics().find("outrider_num_preemptions_total{model_name=\"demo\"} 0\n"), std::string::npos);
    return ids;
  }
};

TEST_F(ServePriorityInAFullCache, TheHighestNumberGivesItsPlaceUp) {
  EXPECT_EQ(order_with("priority"), (Ids{"urgent", "relaxed"}));
}

TEST_F(ServePriorityInAFullCache, ByDefaultWhoCameLastDoes) {
  EXPECT_EQ(order_with("fcfs"), (Ids{"relaxed", "urgent"}));
}

}  // namespace
}  // namespace outrider::testing
