// `outrider serve` with the demo pair, as a process of its own on a port of its own.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "http_client.h"
#include "tests/support/background_process.h"

namespace outrider::testing {

// A port that is free at this moment.
uint16_t free_port();

class ServedProgram {
 public:
  enum class Wait { kForReady, kNot };

  // With --model of the demo pair, unless `flags` have one.
  explicit ServedProgram(std::vector<std::string> flags = {}, Wait wait = Wait::kForReady);

  HttpClient client() { return HttpClient(port_); }
  // The answer to one request on a connection of its own.
  HttpAnswer post(const std::string& path, const nlohmann::json& body) {
    return client().post(path, body.dump());
  }
  // The reply's JSON; the status must be 200.
  nlohmann::json ask(const std::string& path, const nlohmann::json& body);
  nlohmann::json complete(const nlohmann::json& body) { return ask("/v1/completions", body); }
  BackgroundProcess& process() { return process_; }
  uint16_t port() const { return port_; }

 private:
  const TemporaryDirectory directory_;
  const uint16_t port_;
  BackgroundProcess process_;
};

// A stream's events: JSON but for the last one, which is "[DONE]" when all went well.
struct Events {
  std::vector<nlohmann::json> chunks;
  bool is_done = false;  // [DONE] came, and then the proper end
};
Events read_events(HttpClient& client);
// The concatenated text of the chunks of one choice.
std::string text_of(const Events& events, int choice = 0);

// A request whose text is the same on every server of the demo pair, and one with other fields.
inline const nlohmann::json kGreedy{{"prompt", "Once upon a time"}, {"max_tokens", 12}, {"temperature", 0}};
inline nlohmann::json with(nlohmann::json body, const nlohmann::json& more) {
  body.update(more);
  return body;
}

}  // namespace outrider::testing
