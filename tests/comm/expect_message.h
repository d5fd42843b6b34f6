// Waiting for messages in tests.
#pragma once

#include <gtest/gtest.h>

#include "comm/transport.h"

namespace outrider {

// Only what is broken waits so long; a busy machine does not.
inline Clock::time_point soon() { return Clock::now() + std::chrono::seconds(30); }

// The next message, which must come and be a T.
template <class T>
T expect(Transport& end, PeerId* from = nullptr) {
  auto incoming = end.receive(soon());
  EXPECT_TRUE(incoming.has_value()) << "nothing arrived";
  if (!incoming) return {};
  if (from != nullptr) *from = incoming->peer;
  EXPECT_TRUE(std::holds_alternative<T>(incoming->message)) << kMessageNames[incoming->message.index()];
  return std::holds_alternative<T>(incoming->message) ? std::get<T>(incoming->message) : T{};
}

}  // namespace outrider
