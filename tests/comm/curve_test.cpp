// CURVE keys, key files, and connections with the right key, a wrong key and no key.
#include "comm/curve.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/comm/expect_message.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

using namespace std::chrono_literals;

TEST(CurveKeys, FilesArePrivateAndNeverOverwritten) {
  const TemporaryDirectory directory;
  const auto file = directory / "worker.key";
  const CurveKeyPair keys = make_curve_key_pair().value();
  ASSERT_TRUE(write_curve_keys(file, keys).ok());
  struct stat info {};
  ASSERT_EQ(stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const Status again = write_curve_keys(file, make_curve_key_pair().value());
  EXPECT_NE(again.message().find("File exists; a key may be in use"), std::string::npos) << again.message();

  const CurveKeyPair read = read_curve_keys(file).value();
  EXPECT_EQ(read.public_key, keys.public_key);
  EXPECT_EQ(read.secret_key, keys.secret_key);
  EXPECT_EQ(read_public_keys(file).value(), std::vector<std::string>{keys.public_key});
  chmod(file.c_str(), 0644);
  EXPECT_NE(read_curve_keys(file).status().message().find("chmod 600"), std::string::npos);
  // Kubernetes mounts a secret like this: readable by a group of this process and not writable.
  for (const auto& [mode, is_private] :
       {std::pair{0440, true}, {0400, true}, {0640, false}, {0444, false}, {0460, false}}) {
    chmod(file.c_str(), static_cast<mode_t>(mode));
    EXPECT_EQ(read_curve_keys(file).ok(), is_private) << std::oct << mode;
  }
  chmod(file.c_str(), 0600);
  // The key that others are given, which they may read.
  ASSERT_TRUE(write_curve_keys(directory / "public", {.public_key = keys.public_key, .secret_key = {}}).ok());
  const std::string wrong = read_curve_keys(directory / "public").status().message();
  EXPECT_NE(wrong.find("public key alone"), std::string::npos) << wrong;
  EXPECT_EQ(wrong.find("chmod"), std::string::npos) << wrong;
}

TEST(CurveKeys, ListsAreCheckedLineByLine) {
  const TemporaryDirectory directory;
  const std::string a = make_curve_key_pair().value().public_key,
                    b = make_curve_key_pair().value().public_key;
  std::ofstream(directory / "good") << "# who may join\n\n" << a << "\npublic = " << b << "\n";
  EXPECT_EQ(read_public_keys(directory / "good").value(), (std::vector<std::string>{a, b}));
  std::ofstream(directory / "bad") << a << "\nnot a key\n";
  EXPECT_NE(read_public_keys(directory / "bad").status().message().find("line 2"), std::string::npos);
  std::ofstream(directory / "empty") << "#\n";
  EXPECT_FALSE(read_public_keys(directory / "empty").ok());
  EXPECT_EQ(read_public_keys(directory / "none").status().code(), StatusCode::kNotFound);
}

class CurveConnection : public testing::Test {
 protected:
  // Those who do not get in are not waited for long.
  ZmqOptions client_options(const CurveKeyPair& own, const std::string& server,
                            std::chrono::milliseconds connect_timeout = 400ms) const {
    return {.curve = CurveKeys{.own = own, .server = server, .allowed = {}},
            .connect_timeout = connect_timeout};
  }
  std::unique_ptr<Transport> registered_worker() const {
    return make_zmq_client(coordinator_->endpoint(), client_options(worker_, server_.public_key, 30s))
        .value();
  }
  CurveKeyPair server_ = make_curve_key_pair().value(), worker_ = make_curve_key_pair().value();
  std::unique_ptr<Transport> coordinator_ =
      make_zmq_server("tcp://127.0.0.1:*",
                      {.curve = CurveKeys{.own = server_, .server = {}, .allowed = {worker_.public_key}}})
          .value();
};

TEST_F(CurveConnection, ARegisteredWorkerTalksBothWays) {
  // Connects although the server's owner does not look: the handshake is answered aside.
  const auto worker = registered_worker();
  ASSERT_TRUE(worker->send(kCoordinatorPeer, Heartbeat{Generation(5)}).ok());
  PeerId peer;
  EXPECT_EQ(expect<Heartbeat>(*coordinator_, &peer).generation, Generation(5));
  ASSERT_TRUE(coordinator_->send(peer, Shutdown{}).ok());
  expect<Shutdown>(*worker);
  EXPECT_EQ(coordinator_->stats().refused_keys, 0u);
}

TEST_F(CurveConnection, AnUnknownKeyNeverReachesTheDecoder) {
  const auto stranger = make_zmq_client(coordinator_->endpoint(),
                                        client_options(make_curve_key_pair().value(), server_.public_key));
  EXPECT_FALSE(stranger.ok());
  const auto deadline = soon();
  while (coordinator_->stats().refused_keys == 0 && Clock::now() < deadline)
    EXPECT_FALSE(coordinator_->receive(Clock::now() + 100ms));
  EXPECT_GT(coordinator_->stats().refused_keys, 0u);
  EXPECT_EQ(coordinator_->stats().malformed_frames, 0u);
}

TEST_F(CurveConnection, NeitherDoesAPlainClientOrOneThatExpectsAnotherServer) {
  const auto plain = make_zmq_client(coordinator_->endpoint(), {.connect_timeout = 400ms});
  EXPECT_FALSE(plain.ok());  // told at once or not at all: libzmq's monitor may be late
  const auto misled = make_zmq_client(coordinator_->endpoint(),
                                      client_options(worker_, make_curve_key_pair().value().public_key));
  EXPECT_FALSE(misled.ok());
  EXPECT_FALSE(coordinator_->receive(Clock::now() + 100ms));
  EXPECT_EQ(coordinator_->stats().malformed_frames, 0u);
}

TEST_F(CurveConnection, OthersFailingDoNotDisturbAWorker) {
  const auto worker = registered_worker();
  const auto stranger = make_zmq_client(coordinator_->endpoint(), {.connect_timeout = 200ms});
  EXPECT_FALSE(stranger.ok());
  ASSERT_TRUE(worker->send(kCoordinatorPeer, Heartbeat{}).ok());
  expect<Heartbeat>(*coordinator_);
}

// The list is read for every client that comes.
TEST(CurveList, WhoIsStruckCannotConnectAgainAndWhoIsAddedCan) {
  const TemporaryDirectory directory;
  const auto list = directory / "allowed";
  const CurveKeyPair server = make_curve_key_pair().value(), first = make_curve_key_pair().value(),
                     second = make_curve_key_pair().value();
  const auto allow = [&](const std::string& text) { directory.write("allowed", text); };
  allow(first.public_key + "\n");
  const auto coordinator =
      make_zmq_server("tcp://127.0.0.1:*", {.curve = CurveKeys{.own = server, .allowed_file = list}}).value();
  const auto connect = [&](const CurveKeyPair& own, std::chrono::milliseconds patience) {
    return make_zmq_client(
        coordinator->endpoint(),
        {.curve = CurveKeys{.own = own, .server = server.public_key}, .connect_timeout = patience});
  };
  constexpr auto kShort = 400ms, kLong = 30'000ms;
  auto open = connect(first, kLong);
  ASSERT_TRUE(open.ok());
  EXPECT_FALSE(connect(second, kShort).ok());

  allow(second.public_key + "\n");
  EXPECT_TRUE(connect(second, kLong).ok());
  EXPECT_FALSE(connect(first, kShort).ok());
  ASSERT_TRUE((*open)->send(kCoordinatorPeer, Heartbeat{Generation(5)}).ok());
  EXPECT_EQ(expect<Heartbeat>(*coordinator).generation, Generation(5)) << "what is open stays";

  for (const char* nobody : {"", "not a key\n"}) {
    allow(nobody);
    EXPECT_FALSE(connect(second, kShort).ok());
  }
  std::filesystem::remove(list);
  EXPECT_FALSE(connect(second, kShort).ok());
  allow(first.public_key + "\n" + second.public_key + "\n");
  EXPECT_TRUE(connect(first, kLong).ok());
  EXPECT_TRUE(connect(second, kLong).ok());
}

TEST(CurveOptions, WithKeysAnyAddressMayBeBoundAndBadKeysAreRefused) {
  const CurveKeyPair own = make_curve_key_pair().value();
  EXPECT_TRUE(make_zmq_server("tcp://0.0.0.0:*",
                              {.curve = CurveKeys{.own = own, .server = {}, .allowed = {own.public_key}}})
                  .ok());
  EXPECT_FALSE(
      make_zmq_server("tcp://0.0.0.0:*", {.curve = CurveKeys{.own = own, .server = {}, .allowed = {"short"}}})
          .ok());
  EXPECT_FALSE(
      make_zmq_client("tcp://127.0.0.1:1", {.curve = CurveKeys{.own = own, .server = "", .allowed = {}}})
          .ok());
}

}  // namespace
}  // namespace outrider
