#include "model/cuda/memory_plan.h"

#include <algorithm>

#include "model/weights.h"

namespace outrider::cuda {
namespace {

double gigabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

}  // namespace

int64_t MemoryPlan::activation_bytes(const ModelOptions& o) const {
  const int64_t element = element_bytes(activation()), heads = shard.query_heads.size();
  int64_t attention = attended_columns() * element + 4 * projected_columns();
  if (config.latent && config.latent->q_rank > 0) attention += 4 * attention_inputs(config, shard).back().n;
  if (config.latent)
    attention +=
        config.latent->q_rank * element + heads * (4 * config.head_dim + config.output_dim() * element);
  const int64_t per_row = config.hidden_size * (8 + element) + attention + columns() * element +
                          8 * weights.gate_columns + gathered_columns() * element;
  return o.max_rows * per_row + o.max_logit_rows * (config.hidden_size * element + 4 * shard.vocab.size()) +
         4 * (attention_floats(planned_positions(config, o)) + split_floats(o.max_rows));
}

Status MemoryPlan::check(const ModelOptions& options) const {
  if (activation() == WeightType::kBFloat16 && (config.hidden_size % 2 || columns() % 2))
    return unsupported(
        fmt::format("{} weights of an odd hidden_size or intermediate_size: run with --device cpu",
                    weight_type_name(weights.types.layers)));
  if (config.experts && config.experts->count > ExpertChoices::kMost)
    return unsupported(fmt::format("{} experts: the CUDA kernels take at most {}", config.experts->count,
                                   ExpertChoices::kMost));
  const DeviceInfo device = describe_device(options.device.index);
  if (kv.type == KvType::kBFloat16 && tiles(device.shared_bytes, 1).rows == 0)
    return unsupported(
        fmt::format("KV heads of {} dimensions in bf16 are too large for a block of this device; run with "
                    "--kv-dtype fp32, or --device cpu",
                    config.head_dim));
  const int64_t working = activation_bytes(options) + draw_bytes(options);
  const int64_t needed = weights.bytes + kv_bytes() + state_bytes() + working;
  std::string text = fmt::format(
      "device {} ({}, {:.1f} GB free): weights {:.2f} GB, KV cache {:.2f} GB, activations {:.2f} GB",
      options.device.index, device.name, gigabytes(device.free_bytes), gigabytes(weights.bytes),
      gigabytes(kv_bytes()), gigabytes(working));
  if (states > 0)
    text += fmt::format(", recurrent states {:.2f} GB for {} sequences", gigabytes(state_bytes()), states);
  if (needed > device.free_bytes)
    return resource_exhausted(
        text +
        "; that does not fit: lower --max-model-len or --max-num-seqs, or raise --tensor-parallel-size");
  if (options.notice) options.notice(text);
  return {};
}

}  // namespace outrider::cuda
