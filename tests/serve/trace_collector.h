// An OpenTelemetry collector for tests: takes POSTs on a port of this machine and keeps their bodies.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace outrider::testing {

class TraceCollector {
 public:
  // `status`: of its answers; 0: it never answers.
  explicit TraceCollector(int status = 200);
  ~TraceCollector();

  uint16_t port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  // All spans, once there are `count` with this name; fewer after a long wait.
  std::vector<nlohmann::json> spans(const std::string& name, size_t count);
  std::vector<size_t> posts() const;  // the number of spans in each
  // The head of the last request.
  std::string head() const;
  std::map<std::string, std::string> resource() const;  // of the last request

 private:
  void run();
  void serve(int connection);

  const int status_;
  int socket_ = -1;
  uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<nlohmann::json> spans_;
  std::vector<size_t> posts_;
  nlohmann::json last_;
  std::string head_;
  std::vector<int> silent_;  // connections without an answer
  std::jthread thread_;
};

// The value of an attribute of a span; null: it has none.
nlohmann::json attribute(const nlohmann::json& span, const std::string& key);

}  // namespace outrider::testing
