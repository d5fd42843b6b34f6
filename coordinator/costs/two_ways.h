// Compares two ways to do rounds, the usual one and another: which brings more tokens per second, and how
// much time may still go into trying the worse one. Losses of trials are charged to a small share of all
// time, so a way that halves the speed is tried rarely, and an equal one often. Uses finished rounds; the
// caller decides when to make a trial. Pure.
#pragma once

#include <array>
#include <cstdint>

namespace outrider {

class TwoWays {
 public:
  static constexpr int64_t kFirstUsual = 24;  // rounds, before the other way is tried
  static constexpr int64_t kFirstOther = 12;  // rounds, before the two are compared

  // A round is over: `emitted` tokens of its sequence in `seconds`.
  void observe(bool other, int32_t emitted, double seconds);
  // Charges time that was lost outside of rounds.
  void charge(double seconds) { credit_ -= seconds; }
  // Whether the other way was better at the last comparison.
  bool other_is_better() const { return other_is_better_; }
  void compare();
  bool may_try() const { return of(false).count >= kFirstUsual && credit_ > 0; }
  // Whether the other way may be better.
  bool is_promising() const;
  // Tokens per second, and seconds of a round, of the better way at present.
  double rate() const { return of(other_is_better_).rate(); }
  double round_seconds() const;

 private:
  // Sums over some hundreds of rounds; single rounds vary much.
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
