#include "transformer/model/early_exit.h"

#include "transformer/model/cpu_model.h"

namespace outrider {

Result<LogitsShard> forward_first(Model& model, std::span<const BatchSlice> batch, int64_t layers) {
  auto* const on_host = dynamic_cast<CpuModel*>(&model);
  if (!on_host) return unsupported("only models on the CPU exit early");
  CHECK(layers >= 1 && layers <= model.config().num_layers, "{} layers of {}", layers,
        model.config().num_layers);
  return on_host->forward_first(batch, layers);
}

}  // namespace outrider
