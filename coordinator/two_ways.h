// Two ways to do rounds, the usual one and another: which of them brings more tokens per second, and how much
// time may still go into trying the worse one. What is lost on trials is charged to a small share of all
// time, so that a way which loses half of the speed is tried rarely, and one that is level often. Looks at
// rounds that are over; when a trial is made its user decides. Pure.
#pragma once

#include <array>
#include <cstdint>

namespace outrider {

class TwoWays {
 public:
  static constexpr int64_t kFirstUsual = 24;  // rounds, before the other way is tried
  static constexpr int64_t kFirstOther = 12;  // rounds, before the two are compared

  // A round is over: tokens that it brought to its sequence, seconds that it took.
  void observe(bool other, int32_t emitted, double seconds);
  // So much time was lost beside rounds.
  void charge(double seconds) { credit_ -= seconds; }
  // Whether the other way is the better one, as was last compared.
  bool other_is_better() const { return other_is_better_; }
  void compare();
  bool may_try() const { return of(false).count >= kFirstUsual && credit_ > 0; }
  // It may be the better one.
  bool is_promising() const;
  // Tokens per second, and seconds of a round, of the better way as its rounds are now.
  double rate() const { return of(other_is_better_).rate(); }
  double round_seconds() const;

 private:
  // Over some hundreds of rounds: a round brings one token or many.
  struct Rounds {
    double tokens = 0, seconds = 0, weight = 0;
    int64_t count = 0;
    void add(int32_t emitted, double round_seconds);
    double rate() const { return seconds > 0 ? tokens / seconds : 0; }
    double variance() const;  // of the rate, as a share of it, squared
  };
  Rounds& of(bool other) { return rounds_[other ? 1 : 0]; }
  const Rounds& of(bool other) const { return rounds_[other ? 1 : 0]; }

  std::array<Rounds, 2> rounds_;
  double credit_ = 0;  // seconds that trials may still lose
  bool other_is_better_ = false;
};

}  // namespace outrider
