#include "comm/zmq_authenticator.h"

#include <array>
#include <utility>

#include "base/log.h"
#include "base/log_line.h"
#include "base/threads.h"
#include "comm/zmq_socket.h"

namespace outrider {

namespace {

std::set<std::string> decoded(const std::vector<std::string>& keys) {
  std::set<std::string> all;
  for (const std::string& key : keys) {
    std::string bytes(32, '\0');
    CHECK(zmq_z85_decode(reinterpret_cast<uint8_t*>(bytes.data()), key.c_str()),
          "a key that was not checked");
    all.insert(std::move(bytes));
  }
  return all;
}

}  // namespace

Authenticator::Authenticator(zmq::context_t& context, const CurveKeys& keys)
    : socket_(context, zmq::socket_type::rep), allowed_(decoded(keys.allowed)), file_(keys.allowed_file) {
  socket_.set(zmq::sockopt::linger, 0);
  socket_.bind("inproc://zeromq.zap.01");
  thread_ = start_thread([this](const std::stop_token& stop) {
    set_thread_role("keys");
    while (!stop.stop_requested())
      if (poll_in(socket_, std::chrono::milliseconds{20})) answer();
  });
}

void Authenticator::answer() {
  zmq::message_t part;
  if (!receive_now(socket_, part)) return;
  std::vector<std::string> question{part.to_string()};
  while (part.more() && receive_now(socket_, part)) question.push_back(part.to_string());
  // version, request, domain, address, identity, mechanism, credentials
  const bool known = question.size() == 7 && question[5] == "CURVE" && may_enter(question[6]);
  refused_ += !known;
  const std::array<std::string, 6> reply{
      "1.0", question.size() > 1 ? question[1] : "", known ? "200" : "400", known ? "OK" : "unknown key", "",
      ""};
  for (size_t i = 0; i < reply.size(); ++i)
    socket_.send(zmq::buffer(reply[i]),
                 i + 1 < reply.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
}

bool Authenticator::may_enter(const std::string& key) {
  return allowed_.contains(key) || (!file_.empty() && listed_keys().contains(key));
}

std::set<std::string> Authenticator::listed_keys() {
  const auto keys = read_public_keys(file_);
  const std::string& fault = keys.status().message();
  if (std::exchange(told_, fault) != fault && !keys.ok())
    log_line(LogLevel::kWarning, "none of the workers' keys may enter: {}", fault);
  return keys.ok() ? decoded(*keys) : std::set<std::string>();
}

}  // namespace outrider
