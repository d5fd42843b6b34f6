// Heads as drafters of a plan: their reads for a token and for a text, and the acceptance of their tokens.
// Sizes follow from the target's; nothing here was measured.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/simulate/hardware.h"

namespace outrider {

struct HeadPreset {
  std::string_view name;        // as --drafter says it
  std::string_view acceptance;  // as of --acceptance, of chains
  std::string_view source;      // of the acceptance
};
Result<HeadPreset> head_preset(std::string_view name);
std::string head_preset_names();  // for people

// On one device: the leader alone has the head, and so has a draft worker.
struct HeadCost {
  ForwardCost pass;           // for a drafted token or, with block_rows, for a draft
  double parameters = 0;      // all parameters ...
  double active = 0;          // ... and those that a drafted token uses
  double kv_token_bytes = 0;  // of the head's own layer, a committed token; 0: it has none
  double row_bytes = 0;       // that travel to a draft worker, a committed token
};
// `target` as of hardware_cost.
HeadCost head_cost(const HeadPreset& head, const HardwareCost& target);

}  // namespace outrider
