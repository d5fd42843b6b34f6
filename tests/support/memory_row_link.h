// A link for tests of either end: it records the requested transfers, and copies nothing between hosts and
// devices.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "comm/row_link.h"

namespace outrider::testing {

struct MemoryRowLink : RowLink {
  LinkState now = LinkState::kReady;
  std::string why;
  bool accepting = true;
  uint64_t over = 0;  // transfers that are done

  LinkState state() override { return now; }
  const std::string& reason() const override { return why; }
  void abort(std::string reason) override { now = LinkState::kBroken, why = std::move(reason); }
  bool accepts() override { return accepting; }
  uint64_t done() const override { return over; }
  std::span<uint16_t> host_slot(int32_t) override { return {}; }
  void fill(int32_t, int32_t) override {}
  void keep(int32_t, int32_t, const uint16_t*) override {}
  void settle() override {}
  void fetch(int32_t, int32_t) override {}
};

}  // namespace outrider::testing
