#include "model_files/model_size.h"

#include "model_files/family.h"

namespace outrider {
namespace {

int64_t latent_parameters(const ModelConfig& config) {
  const LatentConfig& c = *config.latent;
  const int64_t heads = config.num_heads, hidden = config.hidden_size;
  const int64_t queries = c.q_rank > 0 ? hidden * c.q_rank + c.q_rank + c.q_rank * heads * c.query_dim()
                                       : hidden * heads * c.query_dim();
  return queries + hidden * (c.kv_rank + c.rope_dim) + c.kv_rank +
         c.kv_rank * heads * (c.nope_dim + c.value_dim) + heads * c.value_dim * hidden;
}

// `c` has the sizes of the layer.
int64_t attention_parameters(const ModelConfig& c, const LayerKind& kind) {
  if (c.latent) return latent_parameters(c);
  const bool has_keys = kind.kv_of < 0;
  const int64_t qkv = c.q_size() + (has_keys ? (kind.values_are_keys ? 1 : 2) * c.kv_size() : 0);
  int64_t count = qkv * c.hidden_size + c.q_size() * c.hidden_size;
  if (c.attention_gate) count += c.q_size() * c.hidden_size;
  if (c.qkv_bias) count += qkv;
  if (c.o_bias) count += c.hidden_size;
  if (c.attention_sinks) count += c.num_heads;
  if (c.qk_norm == QkNorm::kHead) count += (has_keys ? 2 : 1) * c.head_dim;
  if (c.qk_norm == QkNorm::kWhole) count += c.q_size() + c.kv_size();
  return count;
}

int64_t mixer_parameters(const ModelConfig& c, const LayerKind& kind) {
  if (kind.mixer == Mixer::kAttention) return attention_parameters(c, kind);
  if (kind.mixer == Mixer::kDeltaNet) {
    const DeltaNetConfig& d = *c.delta_net;
    return (d.row_size() + 2 * d.value_size()) * c.hidden_size + d.channels() * d.taps + 2 * d.value_heads +
           d.value_dim;
  }
  return (4 * c.hidden_size + c.conv_taps) * c.hidden_size;
}

// Cached of a token.
int64_t cached_numbers(const ModelConfig& c, const LayerKind& kind) {
  if (kind.kv_of >= 0) return 0;
  if (kind.mixer == Mixer::kShortConv) return c.hidden_size;
  if (kind.mixer == Mixer::kDeltaNet) return c.delta_net->row_size();
  return c.latent ? c.head_dim : 2 * c.kv_size();
}

int64_t mlp_parameters(const ModelConfig& c, int64_t size, bool biases) {
  return 3 * c.hidden_size * size + (biases ? 2 * size + c.hidden_size : 0);
}

}  // namespace

ModelSize size_of_layer(const ModelConfig& model, const LayerKind& kind) {
  const ModelConfig c = model.sized_for(kind);
  const int64_t norms = c.norm_place == NormPlace::kAround ? 4 : 2;
  ModelSize size{.parameters = norms * c.hidden_size + mixer_parameters(c, kind),
                 .kv_numbers = cached_numbers(c, kind),
                 .row_numbers = kind.mixer == Mixer::kAttention ? 0 : cached_numbers(c, kind),
                 .state_numbers = kind.mixer == Mixer::kDeltaNet ? c.delta_net->state_size() : 0,
                 .shares_kv = c.latent.has_value()};
  if (c.layer_input_size > 0) size.parameters += (2 * c.layer_input_size + 1) * c.hidden_size;
  if (c.scales_layers) ++size.parameters;
  if (!kind.has_experts) {
    size.parameters += mlp_parameters(c, c.intermediate_size, c.mlp_bias);
    return size;
  }
  const ExpertConfig& e = *c.experts;
  size.experts = e.count;
  size.chosen = e.chosen;
  size.of_experts = e.count * mlp_parameters(c, e.intermediate_size, e.biases);
  const int64_t router = c.hidden_size + (e.biases ? 1 : 0) + (e.corrected ? 1 : 0);
  size.parameters += size.of_experts + e.count * router;
  if (e.beside_mlp)
    size.parameters += mlp_parameters(c, c.intermediate_size, c.mlp_bias) + 4 * c.hidden_size + e.count;
  if (e.shared_intermediate_size > 0) {
    const ExpertNames* const names = traits_of(c.family).experts;
    size.parameters += mlp_parameters(c, e.shared_intermediate_size, false);
    if (names && names->shared_is_gated) size.parameters += c.hidden_size;
  }
  return size;
}

ModelSize size_of(const ModelConfig& c) {
  ModelSize size{.parameters = (c.tie_word_embeddings ? 1 : 2) * c.vocab_size * c.hidden_size + c.hidden_size,
                 .shares_kv = c.latent.has_value()};
  if (c.layer_input_size > 0)
    size.parameters +=
        c.num_layers * c.layer_input_size * (c.vocab_size + c.hidden_size) + c.layer_input_size;
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const ModelSize layer = size_of_layer(c, c.layer(i));
    size.parameters += layer.parameters;
    size.of_experts += layer.of_experts;
    size.kv_numbers += layer.kv_numbers;
    size.row_numbers += layer.row_numbers;
    size.state_numbers += layer.state_numbers;
    if (layer.experts == 0) continue;
    size.experts = layer.experts;
    size.chosen = layer.chosen;
  }
  return size;
}

}  // namespace outrider
