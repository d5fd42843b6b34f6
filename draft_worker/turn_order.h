// The order of turns at a draft worker that several coordinators share: start-time fair queueing (Goyal et
// al. 1996) of computing time. Each session has a clock, which advances by the time it used divided by its
// weight. Of the sessions that have work, the one whose clock is behind is next. So sessions that always have
// work get time in proportion to their weights, and an idle session's share goes to the others. A session
// that was idle saves nothing up: its clock is set to that of the present turn. Deterministic, and reads no
// real clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace outrider {

class TurnOrder {
 public:
  using Time = std::chrono::nanoseconds;

  // The weight of each session, above 0.
  explicit TurnOrder(const std::vector<double>& weights);

  // The session has work from now on. Repeating it changes nothing.
  void wait(size_t session);
  // It has no work, or is gone.
  void leave(size_t session);
  // The session that has the present turn; empty: no session waits. Among equal clocks the session that waits
  // longest is next. After its turn it waits behind the others.
  std::optional<size_t> next();
  // Charges time to a session, whether it was its turn or not.
  void charge(size_t session, Time time);

  Time used(size_t session) const { return sessions_[session].used; }

 private:
  struct Session {
    double weight;
    double clock = 0;  // nanoseconds / weight
    Time used{0};
    bool waits = false;
    uint64_t since = 0;  // when it began to wait, or had its last turn
  };

  std::vector<Session> sessions_;
  double clock_ = 0;  // of the session whose turn was last
  uint64_t events_ = 0;
};

// The parts of `total` for these weights: at least one each, together `total`, as near to the proportion as
// whole numbers are (largest remainders). `total` must be at least the number of weights.
std::vector<int64_t> parts_by_weight(int64_t total, const std::vector<double>& weights);

}  // namespace outrider
