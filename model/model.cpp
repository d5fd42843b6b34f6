#include "model/model.h"

#include <algorithm>

#include "model/cpu_model.h"
#include "model/cuda_backend.h"
#include "model/token_runner.h"

namespace outrider {
namespace {

Status check_aux_layers(const std::filesystem::path& directory, const ModelOptions& options) {
  ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(directory));
  for (const int64_t aux_layer : options.aux_layers)
    if (aux_layer < 0 || aux_layer > config.num_layers)
      return invalid_argument(fmt::format("the drafter reads states of layer {}; the target has {} layers",
                                          aux_layer, config.num_layers));
  return {};
}

}  // namespace

Result<std::unique_ptr<Model>> Model::load(const std::filesystem::path& directory,
                                           const ModelOptions& options, Collectives& collectives) {
  CHECK(collectives.size() == options.shard.tp_size && collectives.rank() == options.shard.tp_rank,
        "collectives of rank {} of {}, shard {} of {}", collectives.rank(), collectives.size(),
        options.shard.tp_rank, options.shard.tp_size);
  if (!options.aux_layers.empty()) RETURN_IF_ERROR(check_aux_layers(directory, options));
  if (options.device.kind == Device::Kind::kCuda) return load_cuda_model(directory, options, collectives);
  return CpuModel::load(directory, options, collectives);
}

void Model::read_hidden_states(KvHandle, int64_t, std::span<float>) const {
  CHECK(false, "a model without taps");
}

Result<LogitsShard> Model::forward_first(std::span<const BatchSlice>, int64_t,
                                         std::span<ExitedTokens* const>) {
  return unsupported("this model does not exit early");
}

std::unique_ptr<TokenRunner> Model::make_runner(int64_t) { return nullptr; }

int64_t planned_positions(const ModelConfig& config, const ModelOptions& options) {
  return options.max_positions > 0 ? std::min(options.max_positions, config.max_position_embeddings)
                                   : config.max_position_embeddings;
}

}  // namespace outrider
