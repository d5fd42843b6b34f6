#include "served_program.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

namespace outrider::testing {
namespace {

using nlohmann::json;

std::vector<std::string> command(std::vector<std::string> flags, uint16_t port) {
  std::vector<std::string> all{outrider_path(), "serve", "--port", std::to_string(port)};
  if (std::find(flags.begin(), flags.end(), "--model") == flags.end())
    all.insert(all.end(), {"--model", demo_target(), "--served-model-name", "demo"});
  all.insert(all.end(), flags.begin(), flags.end());
  return all;
}

}  // namespace

// The program prints its own port only when it is ready.
uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(fd);
  if (!bound) throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

ServedProgram::ServedProgram(std::vector<std::string> flags, Wait wait)
    : port_(free_port()), process_(directory_, "serve", command(std::move(flags), port_)) {
  if (wait == Wait::kForReady && !process_.says("serving "))
    throw std::runtime_error("the server did not start: " + process_.err());
}

json ServedProgram::ask(const std::string& path, const json& body) {
  const HttpAnswer answer = post(path, body);
  EXPECT_EQ(answer.status, 200) << answer.body;
  return json::parse(answer.body);
}

Events read_events(HttpClient& client) {
  Events events;
  bool done = false;
  while (const auto event = client.event()) {
    EXPECT_FALSE(done) << "after [DONE]: " << *event;
    done = *event == "[DONE]";
    if (!done) events.chunks.push_back(json::parse(*event));
  }
  events.is_done = done && client.ended_well();
  return events;
}

std::string text_of(const Events& events, int index) {
  std::string text;
  for (const json& chunk : events.chunks)
    for (const json& choice : chunk.value("choices", json::array()))
      if (choice["index"] == index)
        text += choice.contains("text") ? choice["text"].get<std::string>()
                                        : choice["delta"].value("content", "");
  return text;
}

}  // namespace outrider::testing
