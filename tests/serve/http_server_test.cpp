// The HTTP server and its clients, including clients that send invalid requests, leave early, or are
// disconnected.
#include <thread>

#include "http_test_server.h"

namespace outrider::testing {
namespace {

using std::chrono::milliseconds;

TEST_F(HttpServerTest, OneConnectionServesManyRequests) {
  HttpClient c = client();
  for (int i = 0; i < 50; ++i) {
    const HttpAnswer answer = c.post("/echo", "body " + std::to_string(i));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "POST body " + std::to_string(i));
    EXPECT_EQ(answer.headers.at("connection"), "keep-alive");
  }
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInTheirOrder) {
  HttpClient c = client();
  std::string all;
  for (int i = 0; i < 100; ++i) all += post_text("/echo", std::to_string(i) + std::string(1000, '.'));
  std::thread sender([&] { c.send(all); });  // more than waits in the server
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(c.answer().body, "POST " + std::to_string(i) + std::string(1000, '.'));
  sender.join();
}

TEST_F(HttpServerTest, AHandlerThatThrowsCostsOneAnswer) {
  HttpClient c = client();
  EXPECT_EQ(c.post("/throw", "x").status, 500);
  EXPECT_EQ(client().post("/echo", "y").body, "POST y");
}

// The engine's thread may let go of a reply while that of the sockets still answers.
TEST_F(HttpServerTest, NoAnswerIsOvertakenByTheEndOfItsReply) {
  HttpClient c = client();
  c.send(post_text("/held", "x"));
  Held held = next();
  std::promise<void> sent, released;
  held.second->later([&, reply = held.second.get()] {
    reply->send(200, "text/plain", "kept");
    sent.set_value();
    released.get_future().wait();
  });
  sent.get_future().wait();
  held.second.reset();
  released.set_value();
  EXPECT_EQ(c.answer().body, "kept");
}

TEST_F(HttpServerTest, ABodyMayComeInChunks) {
  HttpClient c = client();
  c.send("POST /echo?query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (const char* piece :
       {"5\r\nhel", "lo\r\n", "6;extension=1\r\n world\r\n", "0\r\nTrailer: x\r\n\r", "\n"})
    c.send(piece);
  EXPECT_EQ(c.answer().body, "POST hello world");
  EXPECT_EQ(c.get("/echo").body, "GET ") << "the connection lives on";
}

TEST_F(HttpServerTest, WhoWaitsToBeAskedForABodyIsAsked) {
  HttpClient c = client();
  c.send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(c.answer().status, 100);
  c.send("body");
  EXPECT_EQ(c.answer().body, "POST body");
  c.send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9000\r\n\r\n");
  expect_error(c.answer(), 413, "8192 bytes");
}

TEST_F(HttpServerTest, HeadersAlone) {
  HttpClient c = client();
  c.send("HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  const HttpAnswer answer = c.answer(true);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-length"), "4");
  EXPECT_EQ(c.get("/echo").body, "GET ") << "nothing of a body was sent";
}

TEST_F(HttpServerTest, OldClientsAndThoseThatSayCloseAreClosed) {
  for (const char* request :
       {"GET /echo HTTP/1.0\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"}) {
    HttpClient c = client();
    c.send(request);
    const HttpAnswer answer = c.answer();
    EXPECT_EQ(answer.body, "GET ");
    EXPECT_EQ(answer.headers.at("connection"), "close");
    EXPECT_TRUE(c.is_closed());
  }
}

TEST_F(HttpServerTest, WhatIsNotHttpIsRefused) {
  for (const char* request :
       {"hello\r\n\r\n", "GET / HTTP/9.9\r\nHost: x\r\n\r\n", "GET http://other/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        "GET /echo HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n",
        "POST /echo HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: "
        "chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    SCOPED_TRACE(request);
    HttpClient c = client();
    c.send(request);
    expect_error(c.answer(), 400, "");
    EXPECT_TRUE(c.is_closed());
  }
  EXPECT_EQ(client().get("/echo").status, 200);
}

class BehindAProxy : public HttpServerTest {
 protected:
  HttpOptions options_of(const HttpLimits& limits) override {
    HttpOptions options{.limits = limits};
    options.trusted_proxies = TrustedProxies::parse({"127.0.0.1"}).value();
    options.on_answered = [this](const HttpRecord& record) {
      const std::lock_guard lock(mutex_);
      logged_.push_back(record.client);
    };
    return options;
  }
  std::string client_of(HttpClient& c, const std::string& headers) {
    c.send("GET /held HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
    const Held held = next();
    held.second->send(200, "text/plain", "");
    c.answer();
    return held.first.client;
  }
  std::vector<std::string> logged_;  // guarded by mutex_
};

TEST_F(BehindAProxy, ClientsHaveTheirOwnAddresses) {
  HttpClient c = client();  // one connection of the proxy, for several clients
  EXPECT_EQ(client_of(c, "X-Forwarded-For: 10.1.1.1\r\n"), "10.1.1.1");
  EXPECT_EQ(client_of(c, "X-Forwarded-For: 10.1.1.1, 10.2.2.2\r\n"), "10.2.2.2")
      << "the last one is the proxy's";
  EXPECT_EQ(client_of(c, "X-Forwarded-For: 10.1.1.1\r\nX-Forwarded-For: 2001:db8::1\r\n"), "2001:db8::1");
  EXPECT_EQ(client_of(c, ""), "127.0.0.1");
  server_.reset();
  EXPECT_EQ(logged_, (std::vector<std::string>{"10.1.1.1", "10.2.2.2", "2001:db8::1", "127.0.0.1"}));
}

TEST_F(HttpServerTest, NobodyBelievesAClientThatForwards) {
  HttpClient c = client();
  c.send("GET /held HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 10.1.1.1\r\n\r\n");
  const Held held = next();
  EXPECT_EQ(held.first.client, "127.0.0.1");
  held.second->send(200, "text/plain", "");
}

TEST_F(HttpServerTest, CommentsNamesAndTimes) {
  HttpClient c = client();
  c.send(post_text("/stream", "{}"));
  const auto [request, reply] = next();
  EXPECT_EQ(request.client, "127.0.0.1");
  reply->begin_events();
  EXPECT_EQ(c.head().status, 200);
  reply->after(milliseconds(1), [held = reply] { held->comment("still here"); });
  EXPECT_EQ(c.comment(), "still here");
  reply->event("{}", "named");
  EXPECT_EQ(c.event(), "{}");
  reply->end_events();
  EXPECT_FALSE(c.event());
  EXPECT_TRUE(c.ended_well());
}

// Its handler holds up every thread that handles requests until the test lets it.
class BusyHttpServer : public HttpServerTest {
 protected:
  HttpOptions options_of(const HttpLimits& limits) override {
    return {.limits = limits,
            .short_body_bytes = 100,
            .is_quick = [](const HttpRequest& request) { return request.method == "GET"; },
            .on_answered =
                [this](const HttpRecord& record) {
                  const std::lock_guard lock(mutex_);
                  records_.push_back(record);
                }};
  }
  void SetUp() override {
    start(kSmall);
    server_.reset();
    auto started =
        HttpServer::start("127.0.0.1", 0, options_of(kSmall), [this](HttpRequest request, auto reply) {
          if (request.path == "/block") {
            blocked_.set_value();
            opened_.get_future().wait();
          }
          reply->send(200, "text/plain", request.path);
        });
    ASSERT_TRUE(started.ok());
    server_ = std::move(started).value();
    const std::string address = server_->address();
    port_ = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }
  std::promise<void> blocked_, opened_;
  std::vector<HttpRecord> records_;  // guarded by mutex_
};

TEST_F(BusyHttpServer, ShortRequestsDoNotWaitForLongOnes) {
  HttpClient slow = client(), behind = client();
  slow.send(post_text("/block", std::string(1000, 'x')));
  blocked_.get_future().wait();
  behind.send(post_text("/long", std::string(1000, 'x')));
  EXPECT_EQ(client().get("/quick").body, "/quick") << "at once, on the thread of the sockets";
  EXPECT_EQ(client().post("/short", "x").body, "/short") << "by the thread that takes short ones";
  opened_.set_value();
  EXPECT_EQ(slow.answer().body, "/block");
  EXPECT_EQ(behind.answer().body, "/long");
}

TEST_F(BusyHttpServer, EveryAnswerIsRecorded) {
  client().post("/short", "x");
  client().send("nonsense\r\n\r\n");
  {
    HttpClient leaver = client();
    leaver.send(post_text("/block", "x"));
    blocked_.get_future().wait();
    leaver.reset();
  }
  const auto count = [this] {
    const std::lock_guard lock(mutex_);
    return records_.size();
  };
  for (int i = 0; i < 500 && count() < 3; ++i) std::this_thread::sleep_for(milliseconds(10));
  opened_.set_value();
  const std::lock_guard lock(mutex_);
  ASSERT_EQ(records_.size(), 3u);
  std::map<int, HttpRecord> by_status;
  for (const HttpRecord& record : records_) by_status[record.status] = record;
  EXPECT_EQ(by_status.at(200).path, "/short");
  EXPECT_TRUE(by_status.at(200).is_whole);
  EXPECT_GT(by_status.at(200).bytes, 100u);
  EXPECT_EQ(by_status.at(400).path, "");
  EXPECT_FALSE(by_status.at(499).is_whole);
}

TEST_F(HttpServerTest, EventsComeAsTheyAreMade) {
  HttpClient c = client();
  c.send(post_text("/stream", "{}"));
  const auto [request, reply] = next();
  EXPECT_EQ(request.content_type, "application/json");
  reply->begin_events();
  const HttpAnswer head = c.head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-type"), "text/event-stream; charset=utf-8");
  for (const std::string event : {"one", "two"}) {
    reply->event(event);
    EXPECT_EQ(c.event(), event);
  }
  Departure departure(*reply);
  reply->end_events();
  EXPECT_EQ(c.event(), std::nullopt);
  EXPECT_TRUE(c.ended_well());
  EXPECT_EQ(c.get("/echo").status, 200) << "the connection lives on";
  EXPECT_FALSE(departure.is_told_already());
}

TEST_F(HttpServerTest, WhoLeavesWhileTheAnswerIsMadeIsNoticed) {
  for (const bool rudely : {false, true}) {
    HttpClient c = client();
    c.send(post_text("/stream", "{}") + post_text("/echo", "pipelined"));
    const auto [request, reply] = next();
    Departure departure(*reply);
    reply->begin_events();
    reply->event("one");
    c.head();
    EXPECT_EQ(c.event(), "one");
    EXPECT_FALSE(departure.is_told_already());
    rudely ? c.reset() : c.leave();
    EXPECT_TRUE(departure.is_told());
    reply->later([] { ADD_FAILURE() << "for nobody"; });
    reply->event("two");
    reply->end_events();
    Departure again(*reply);
    EXPECT_TRUE(again.is_told_already()) << "who has left already is told at once";
  }
  EXPECT_EQ(client().get("/echo").status, 200);
}

TEST_F(HttpServerTest, TasksOfAnAnswerRunInOrder) {
  HttpClient c = client();
  c.send(post_text("/stream", "{}"));
  const auto reply = next().second;
  reply->later([reply] { reply->begin_events(); });
  for (int i = 0; i < 100; ++i) reply->later([reply, i] { reply->event(std::to_string(i)); });
  reply->later([reply] { reply->end_events(); });
  c.head();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(c.event(), std::to_string(i));
  EXPECT_EQ(c.event(), std::nullopt);
}

TEST_F(HttpServerTest, RequestsThatAreForgottenAreAnswered) {
  expect_error(client().get("/drop"), 500, "not answered");
  HttpClient c = client();
  c.send(post_text("/stream", "{}"));
  {
    const auto reply = next().second;
    reply->begin_events();
    reply->event("one");
  }
  c.head();
  EXPECT_EQ(c.event(), "one");
  EXPECT_EQ(c.event(), std::nullopt);
  EXPECT_FALSE(c.ended_well()) << "a stream that broke off must not look complete";
}

TEST_F(HttpServerTest, AnswersWithoutABodyAndHeadersWithLineBreaks) {
  HttpClient c = client();
  c.send("OPTIONS /x HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto [request, reply] = next();
  EXPECT_EQ(request.method, "OPTIONS");
  reply->send(204, "", "", {{"Allow", "GET\r\nX-Injected: yes"}});
  const HttpAnswer answer = c.answer();
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.headers.count("x-injected"), 0u);
  EXPECT_EQ(answer.headers.count("content-length"), 0u);
  EXPECT_EQ(answer.headers.at("allow"), "GET  X-Injected: yes");
}

// Accepting fails and fails: the server must neither spin nor give up.
TEST_F(HttpServerTest, DrainingFinishesWhatIsAsked) {
  HttpClient idle = client(), busy = client();
  EXPECT_EQ(idle.get("/echo").status, 200);
  busy.send(post_text("/stream", "{}"));
  const auto reply = next().second;
  auto drained =
      std::async(std::launch::async, [&] { server_->drain(std::chrono::seconds(20 * kPatience)); });
  EXPECT_TRUE(idle.is_closed());
  EXPECT_THROW(client(), std::runtime_error);
  EXPECT_NE(drained.wait_for(milliseconds(0)), std::future_status::ready);
  reply->send(200, "text/plain", "done");
  const HttpAnswer answer = busy.answer();
  EXPECT_EQ(answer.body, "done");
  EXPECT_EQ(answer.headers.at("connection"), "close");
  drained.get();

  start(kSmall);
  HttpClient endless = client();
  endless.send(post_text("/stream", "{}"));
  const auto unanswered = next().second;
  server_->drain(milliseconds(50));  // returns, although the request has no answer
}

TEST_F(HttpServerTest, AnswersMayOutliveTheServer) {
  HttpClient c = client();
  c.send(post_text("/stream", "{}"));
  const auto reply = next().second;
  Departure departure(*reply);
  server_.reset();
  EXPECT_TRUE(departure.is_told_already());
  EXPECT_TRUE(c.is_closed());
  reply->later([] { ADD_FAILURE(); });
  reply->begin_events();
  reply->send(200, "text/plain", "late");
}

TEST_F(HttpServerTest, AddressesThatCannotBeHadAreNamed) {
  const auto start_at = [](const std::string& host, uint16_t port) {
    return HttpServer::start(host, port, {}, [](HttpRequest, std::shared_ptr<HttpReply>) {})
        .status()
        .message();
  };
  const std::string taken = start_at("127.0.0.1", port_);
  EXPECT_NE(taken.find("--port " + std::to_string(port_)), std::string::npos) << taken;
  EXPECT_NE(taken.find("another program"), std::string::npos) << taken;
  EXPECT_NE(start_at("192.0.2.1", 0).find("--host 192.0.2.1"), std::string::npos);
  EXPECT_NE(start_at("no such host", 0).find("--host no such host"), std::string::npos);
}

}  // namespace
}  // namespace outrider::testing
