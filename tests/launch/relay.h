// The wire between draft workers and a job, of TCP connections that a test can break.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace outrider::testing {

class Relay {
 public:
  // From a port of its own on 127.0.0.1 to that of `endpoint` (tcp://127.0.0.1:PORT).
  explicit Relay(const std::string& endpoint);
  ~Relay();

  std::string endpoint() const { return endpoint_; }
  // Resets every connection, and whoever connects until mend().
  void cut() { is_cut_ = true; }
  void mend() { is_cut_ = false; }
  int broken() const { return broken_; }  // connections that were carrying when they were cut
  int turned_away() const { return turned_away_; }

 private:
  struct Wire {
    int ends[2];
    bool is_open[2] = {true, true};  // to what that end sends
  };

  void run();
  void accept_one();
  void carry(Wire& wire, int from);

  const uint16_t to_;
  int listener_ = -1;
  std::string endpoint_;
  std::vector<Wire> wires_;
  std::atomic<bool> is_cut_ = false, ends_ = false;
  std::atomic<int> broken_ = 0, turned_away_ = 0;
  std::thread thread_;
};

}  // namespace outrider::testing
