#include "comm/zmq_doorkeeper.h"

#include <array>

#include "base/log.h"
#include "comm/zmq_socket.h"

namespace outrider {

Doorkeeper::Doorkeeper(zmq::context_t& context, const std::vector<std::string>& keys)
    : door_(context, zmq::socket_type::rep) {
  for (const std::string& key : keys) {
    std::string bytes(32, '\0');
    CHECK(zmq_z85_decode(reinterpret_cast<uint8_t*>(bytes.data()), key.c_str()),
          "a key that was not checked");
    allowed_.insert(std::move(bytes));
  }
  door_.set(zmq::sockopt::linger, 0);
  door_.bind("inproc://zeromq.zap.01");
  thread_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested())
      if (poll_in(door_, std::chrono::milliseconds{20})) answer();
  });
}

void Doorkeeper::answer() {
  zmq::message_t part;
  if (!receive_now(door_, part)) return;
  std::vector<std::string> question{part.to_string()};
  while (part.more() && receive_now(door_, part)) question.push_back(part.to_string());
  // version, request, domain, address, identity, mechanism, credentials
  const bool known = question.size() == 7 && question[5] == "CURVE" && allowed_.contains(question[6]);
  refused_ += !known;
  const std::array<std::string, 6> reply{
      "1.0", question.size() > 1 ? question[1] : "", known ? "200" : "400", known ? "OK" : "unknown key", "",
      ""};
  for (size_t i = 0; i < reply.size(); ++i)
    door_.send(zmq::buffer(reply[i]),
               i + 1 < reply.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
}

}  // namespace outrider
