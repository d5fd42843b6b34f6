// One direction of a connection: a fixed delay, a bandwidth, messages in order, and a share of lost messages.
#pragma once

#include <algorithm>
#include <random>
#include <variant>

#include "cluster/simulation/event_queue.h"
#include "comm/messages.h"

namespace outrider {

struct LinkOptions {
  double delay_s = 0;           // one way
  double bytes_per_second = 0;  // 0: unlimited
  double loss = 0;              // share of optional messages lost: Propose, Draft, Resync
  uint64_t seed = 1;            // selects the lost messages
};

// Approximate size of a message on the wire, in bytes: a frame and the lists in it.
inline size_t wire_bytes(const Message& message) {
  constexpr size_t kFrame = 96, kId = 4;
  if (const auto* propose = std::get_if<Propose>(&message)) return kFrame + kId * propose->committed.size();
  if (const auto* open = std::get_if<Open>(&message)) return kFrame + kId * open->ids.size();
  const auto* draft = std::get_if<Draft>(&message);
  if (!draft) return kFrame;
  size_t q = 0;
  for (const QRow& row : draft->q)
    q += 8 + (row.ids.empty() ? 2 * row.weights.size() : 5 * row.ids.size() / 4);
  return kFrame + kId * draft->ids.size() + q;
}

class Link {
 public:
  // `number`: different numbers lose different messages.
  explicit Link(const LinkOptions& options, uint64_t number = 0)
      : options_(options), random_(options.seed * 1'000'003 + number) {}
  bool loses(const Message& message) {
    const bool can_miss = std::holds_alternative<Propose>(message) ||
                          std::holds_alternative<Draft>(message) || std::holds_alternative<Resync>(message);
    return can_miss && options_.loss > 0 && std::uniform_real_distribution<>()(random_) < options_.loss;
  }
  // The arrival time of a message that is sent now.
  SimTime arrival(SimTime now, size_t bytes) {
    free_at_ = std::max(free_at_, now);
    if (options_.bytes_per_second > 0)
      free_at_ += sim_time(static_cast<double>(bytes) / options_.bytes_per_second);
    bytes_ += bytes;
    return free_at_ + sim_time(options_.delay_s);
  }
  size_t bytes() const { return bytes_; }

 private:
  LinkOptions options_;
  std::mt19937_64 random_;
  SimTime free_at_ = 0;  // the wire is busy until then
  size_t bytes_ = 0;
};

}  // namespace outrider
