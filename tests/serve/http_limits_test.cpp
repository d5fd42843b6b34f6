// The HTTP server against clients that are slow, large, or many.
#include <sys/resource.h>

#include <atomic>
#include <ctime>
#include <thread>

#include "http_test_server.h"

namespace outrider::testing {
namespace {

using std::chrono::milliseconds;

TEST_F(HttpServerTest, BodiesOverTheLimitAreRefusedBeforeTheyAreRead) {
  expect_error(say("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 8193\r\n\r\n"), 413, "8192 bytes");
  expect_error(say("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n"), 400,
               "");
  EXPECT_EQ(client().post("/echo", std::string(8192, 'x')).status, 200) << "the limit itself is allowed";
}

// Refusals of the connection itself are answers, too.
TEST_F(HttpServerTest, RefusalsTellTheRequestId) {
  const auto id = [&](const std::string& text) { return say(text).headers.at("x-request-id"); };
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\n";
  EXPECT_EQ(id(head + "Content-Length: 8193\r\n\r\n"), "mine") << "413";
  EXPECT_EQ(id(head + "Transfer-Encoding: gzip\r\n\r\n"), "mine") << "400";
  EXPECT_EQ(id("POST /echo HTTP/1.1\r\nX-Request-Id: mine\r\n\r\n"), "mine") << "no Host";
  EXPECT_EQ(id(head + "X: " + std::string(10'000, 'x')), "mine") << "431";
  EXPECT_TRUE(id("nonsense\r\n\r\n").starts_with("req-"));
  // The id of an answer is not that of the next one on its connection.
  HttpClient both = client();
  both.send(head + "Content-Length: 1\r\n\r\nx");
  EXPECT_EQ(both.answer().headers.at("x-request-id"), "mine");
  both.send("nonsense\r\n\r\n");
  EXPECT_TRUE(both.answer().headers.at("x-request-id").starts_with("req-"));
}

TEST_F(HttpServerTest, ChunkedBodiesOverTheLimitAreRefused) {
  std::string body = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 9; ++i) body += "400\r\n" + std::string(1024, 'x') + "\r\n";
  expect_error(say(body), 413, "8192 bytes");
  expect_error(
      say("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\n"), 413,
      "8192 bytes");
}

TEST_F(HttpServerTest, EndlessLinesAreRefused) {
  const std::string endless(200'000, 'x');
  HttpClient header = client();
  header.send("GET / HTTP/1.1\r\nHost: x\r\nX: " + endless);
  expect_error(header.answer(), 431, "2048 bytes");
  // And go on, for 200 MB in all: the server reads no more, or throws it away, and closes.
  for (int i = 0; i < 1000 && header.send(endless); ++i) continue;
  EXPECT_TRUE(header.is_closed());
  expect_error(say("GET /" + endless), 431, "2048 bytes");
  expect_error(say("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" + endless), 400,
               "endless");
}

TEST_F(HttpServerTest, SlowDripsMeetADeadline) {
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n";
  for (const auto& [at_once, drip] :
       {std::pair{std::string("GET / HT"), "TP/1.1 and so on"}, {head, "body"}}) {
    HttpClient c = client();
    const auto begin = std::chrono::steady_clock::now();
    c.send(at_once);
    std::atomic<bool> answered = false;
    std::thread dripping([&, drip = drip] {
      for (size_t i = 0; !answered && c.send(std::string_view(drip).substr(i % 4, 1)); ++i)
        std::this_thread::sleep_for(milliseconds(10));
    });
    expect_error(c.answer(), 408, "too long");
    answered = true;
    dripping.join();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3 * kPatience));
  }
}

// A client that connects a thousand times at once may not come to its first word for seconds.
TEST_F(HttpServerTest, HeadersMayBeginAsLateAsANextRequest) {
  HttpLimits limits = kSmall;
  limits.idle_time = std::chrono::seconds(60);
  start(limits);
  HttpClient late = client();
  std::this_thread::sleep_for(2 * kSmall.header_time);
  EXPECT_EQ(late.get("/echo").status, 200);
}

TEST_F(HttpServerTest, SilenceIsClosedWithoutWords) {
  HttpClient silent = client();
  EXPECT_EQ(silent.answer().status, 0);
  HttpClient asked_once = client();
  EXPECT_EQ(asked_once.get("/echo").status, 200);
  EXPECT_EQ(asked_once.answer().status, 0);
}

TEST_F(HttpServerTest, WhoDoesNotReadEventsIsCutOff) {
  HttpClient c = client();
  c.send(post_text("/stream", "{}"));
  const auto reply = next().second;
  Departure departure(*reply);
  reply->begin_events();
  int64_t sent = 0;  // the kernel takes some megabytes
  for (; sent < (int64_t{1} << 30) && !departure.is_told_already(); sent += 32 << 10) {
    std::promise<void> written;
    reply->later([&] { written.set_value(); });
    reply->event(std::string(32 << 10, 'x'));
    written.get_future().wait_for(milliseconds(10));  // one that is gone runs no tasks
  }
  EXPECT_TRUE(departure.is_told());
  EXPECT_LT(sent, int64_t{1} << 30);
}

TEST_F(HttpServerTest, WhoDoesNotReadALongAnswerIsCutOff) {
  HttpClient c = client();
  c.send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(c.head().status, 200);
  std::this_thread::sleep_for(3 * kSmall.write_time);
  EXPECT_TRUE(c.is_closed());
  EXPECT_EQ(client().get("/big").body.size(), size_t{64} << 20) << "who reads gets all of it";
}

TEST_F(HttpServerTest, ThreeHundredConnections) {
  HttpLimits limits = kSmall;
  limits.header_time = milliseconds(60'000);
  start(limits);
  HttpClient busy = client();
  busy.send(post_text("/stream", "{}"));
  const auto reply = next().second;

  std::vector<HttpClient> many;
  for (int i = 0; i < 300; ++i) many.push_back(client());
  expect_error(many[10].answer(), 503, "too many");
  EXPECT_EQ(many[20].answer().status, 0) << "twice as many as may be there: closed without words";
  EXPECT_TRUE(many.back().is_closed());

  // Those that stay silent for a second make room.
  std::this_thread::sleep_for(milliseconds(1100));
  EXPECT_EQ(client().get("/echo").status, 200);
  reply->send(200, "text/plain", "patient");
  EXPECT_EQ(busy.answer().body, "patient") << "who is being answered is left alone";
}

// New descriptors are refused; those that are open stay.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{1, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoMoreDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(HttpServerTest, ALackOfDescriptorsPasses) {
  HttpClient early = client(), late;
  EXPECT_EQ(early.get("/echo").status, 200);
  {
    const NoMoreDescriptors lack;
    late.connect(port_);
    EXPECT_EQ(early.get("/echo").status, 200);
    const std::clock_t begin = std::clock();
    std::this_thread::sleep_for(milliseconds(250));
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 0.1);
  }
  EXPECT_EQ(late.get("/echo").status, 200);
}

}  // namespace
}  // namespace outrider::testing
