#include "transformer/model/early_exit.h"

#include "transformer/model/cpu_model.h"

namespace outrider {

Result<LogitsShard> forward_first(Model& model, std::span<const BatchSlice> batch, int64_t layers,
                                  std::span<ExitedTokens* const> exited) {
  auto* const on_host = dynamic_cast<CpuModel*>(&model);
  if (!on_host) return unsupported("only models on the CPU exit early");
  CHECK(layers >= 1 && layers <= model.config().num_layers, "{} layers of {}", layers,
        model.config().num_layers);
  return on_host->forward_first(batch, layers, exited);
}

int64_t rows_taken_up(const Model& model) {
  const auto* const on_host = dynamic_cast<const CpuModel*>(&model);
  return on_host ? on_host->rows_taken_up() : 0;
}

}  // namespace outrider
