// Device memory of one pass, of the sizes of a plan, taken once at start-up.
#pragma once

#include "base/cuda.h"
#include "model/cuda/memory_plan.h"

namespace outrider::cuda {

// Buffers of latent attention (MLA).
struct LatentActivations {
  LatentActivations() = default;
  LatentActivations(const LatentConfig& c, int64_t heads, int64_t head_dim, WeightType type, int64_t rows)
      : q_latent(rows * c.q_rank * element_bytes(type)),
        q(c.q_rank > 0 ? rows * heads * c.query_dim() : 0),
        queries(rows * heads * head_dim),
        values(rows * heads * c.value_dim * element_bytes(type)) {}

  DeviceBuffer<std::byte> q_latent;  // [rows, q_rank] of activation_type
  DeviceBuffer<float> q;             // [rows, query_dim of all heads], where queries have a latent
  DeviceBuffer<float> queries;       // [rows, head_dim of all heads], as attention takes them
  DeviceBuffer<std::byte> values;    // [rows, value_dim of all heads] of activation_type
};

struct Activations {
  Activations(const MemoryPlan& p, const ModelOptions& o, int64_t max_positions)
      : q_size(p.shard.query_heads.size() * p.config.head_dim),
        qkv_size(attention_inputs(p.config, p.shard).front().n),
        columns(p.columns()),
        vocab(p.shard.vocab.size()),
        residual(o.max_rows * p.config.hidden_size),
        normed(o.max_rows * p.config.hidden_size * element_bytes(p.activation())),
        qkv(o.max_rows * p.projected_columns()),
        squares(p.config.qk_norm == QkNorm::kWhole ? 2 * o.max_rows : 0),
        attended(o.max_rows * p.attended_columns() * element_bytes(p.activation())),
        workspace(p.attention_floats(max_positions)),
        gathered(o.max_rows * p.gathered_columns() * element_bytes(p.activation())),
        gate_up(o.max_rows * 2 * p.weights.gate_columns),
        activated(o.max_rows * columns * element_bytes(p.activation())),
        expert_weights(p.config.experts ? o.max_rows * (p.config.experts->count + 1) : 0),
        partial(o.max_rows * p.config.hidden_size),
        split_parts(p.activation() == WeightType::kBFloat16 ? p.split_floats(o.max_rows) : 0),
        split_arrived(p.activation() == WeightType::kBFloat16 ? kSplitCounters : 0),
        last_hidden(o.max_logit_rows * p.config.hidden_size * element_bytes(p.activation())),
        logits(o.max_logit_rows * vocab),
        host_logits(o.max_logit_rows * vocab) {
    if (p.config.latent)
      latent = LatentActivations(*p.config.latent, p.shard.query_heads.size(), p.config.head_dim,
                                 p.activation(), o.max_rows);
  }

  int64_t bytes() const {
    return static_cast<int64_t>(residual.bytes() + normed.bytes() + qkv.bytes() + attended.bytes() +
                                workspace.bytes() + split_parts.bytes() + gathered.bytes() + gate_up.bytes() +
                                activated.bytes() + partial.bytes() + last_hidden.bytes() + logits.bytes());
  }

  int64_t q_size, qkv_size, columns, vocab;  // of this rank
  DeviceBuffer<float> residual;              // [rows, hidden]
  DeviceBuffer<std::byte> normed;            // [rows, hidden] of activation_type
  DeviceBuffer<float> qkv;                   // [rows, q + k + v], their latents (DeviceLatent), or B, C and x
  LatentActivations latent;
  DeviceBuffer<float> squares;       // [rows, 2]: sums of squares of q and k
  DeviceBuffer<std::byte> attended;  // [rows, value_dim of all heads, or channels]
  DeviceBuffer<float> workspace;
  DeviceBuffer<std::byte> gathered;    // [rows, columns of codes]: inputs in the order of one matrix
  DeviceBuffer<float> gate_up;         // [rows, gates, then ups], where a product leaves them so
  DeviceBuffer<std::byte> activated;   // [rows, columns]
  DeviceBuffer<float> expert_weights;  // [rows, experts + 1]
  DeviceBuffer<float> partial;         // [rows, hidden]: this rank's leaves, then the sum over ranks
  DeviceBuffer<float> split_parts;     // SplitRoom
  DeviceBuffer<uint32_t> split_arrived;
  DeviceBuffer<std::byte> last_hidden;  // [logit rows, hidden]
  DeviceBuffer<float> logits;           // [logit rows, vocabulary of this rank]
  PinnedBuffer<float> host_logits;
};

}  // namespace outrider::cuda
