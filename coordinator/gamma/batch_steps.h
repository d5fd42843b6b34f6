// The key `steps` of policies that go by the batch: BATCH:LENGTHS/BATCH:LENGTHS, with growing batch sizes.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "coordinator/gamma/policies.h"

namespace outrider {

// Draft lengths for batches of this size and above, up to the next step's.
struct BatchStep {
  int32_t batch = 0;
  std::vector<int32_t> lengths;
};

// A batch size or a draft length.
std::optional<int32_t> read_step_number(std::string_view text);

// `lengths_of` reads what stands behind a colon; an empty list: it is wrong. `form`: how steps are written,
// for the error.
Result<std::vector<BatchStep>> read_batch_steps(const GammaArguments& arguments, std::string_view policy,
                                                std::string_view form,
                                                std::vector<int32_t> (*lengths_of)(std::string_view));

}  // namespace outrider
