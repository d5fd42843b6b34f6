// Which tensors a synthesised Llama has, and how large their weights are.
//
// Every projection keeps the size of what it is given (deviation 1 / sqrt(inputs)), so queries, keys and
// values of normalised inputs are standard normal, and so are the logits of a head whose final norm has gain
// 1. The exceptions:
// - The MLP's output is brought back to about 1, E[(silu(a) b)^2] being 0.36 for normal a and b. So is a
//   mixture's: the experts of a token, with weights that add up to 1, are independent. Of gpt-oss
//   E[(a sigmoid(1.702 a) (b + 1))^2] is 0.85. Its biases and sinks are 0.
// - DeepSeek's shared experts stand beside the chosen ones; each of the two adds half.
// - Attention adds half an embedding in the lower layers: each token still says more than the text before
//   it, or the distributions of one text would all be alike.
// - In the upper layers attention adds little, for what it adds is shared by neighbouring positions and fades
//   with the length of the text; acceptance should do neither.
// - A tied embedding has the head's scale, far below what the first layer adds, so a token does not predict
//   itself.
#include <cmath>
#include <limits>

#include "lab/synth/weight_file.h"

namespace outrider {
namespace {

constexpr double kSiluProduct = 0.6;      // root of that 0.36
constexpr double kClampedProduct = 0.92;  // root of that 0.85
constexpr double kUpperAttention = 0.1;
constexpr int32_t kStreamsPerLayer = 16;
constexpr int32_t kExpertStreams = 1 << 20;  // behind those of any layer

double keep_size(int64_t inputs) { return 1 / std::sqrt(static_cast<double>(inputs)); }

// Beside the norms and the matrices of attention. Experts share tensors: [experts, inputs, outputs].
void add_gpt_oss_layer(const SynthShape& s, const std::string& prefix, int32_t stream,
                       std::vector<SynthTensor>& tensors) {
  const auto random = [&](const char* name, std::vector<int64_t> shape, int32_t of, double deviation) {
    tensors.push_back(
        {.name = prefix + name, .shape = std::move(shape), .stream = of, .deviation = deviation});
  };
  const auto zeros = [&](const char* name, std::vector<int64_t> shape) {
    tensors.push_back({.name = prefix + name, .shape = std::move(shape)});
  };
  zeros("self_attn.q_proj.bias", {s.heads * s.head_dim});
  zeros("self_attn.k_proj.bias", {s.kv_heads * s.head_dim});
  zeros("self_attn.v_proj.bias", {s.kv_heads * s.head_dim});
  zeros("self_attn.o_proj.bias", {s.hidden});
  zeros("self_attn.sinks", {s.heads});
  random("mlp.router.weight", {s.experts, s.hidden}, stream + 4, keep_size(s.hidden));
  zeros("mlp.router.bias", {s.experts});
  random("mlp.experts.gate_up_proj", {s.experts, s.hidden, 2 * s.ffn}, stream + 5, keep_size(s.hidden));
  zeros("mlp.experts.gate_up_proj_bias", {s.experts, 2 * s.ffn});
  random("mlp.experts.down_proj", {s.experts, s.ffn, s.hidden}, stream + 6,
         std::sqrt(static_cast<double>(s.experts_per_token)) * keep_size(s.ffn) / kClampedProduct);
  zeros("mlp.experts.down_proj_bias", {s.experts, s.hidden});
}

// The matrices of latent attention, whose norms keep what they norm.
void add_latent_attention(const SynthShape& s, const std::string& prefix, int32_t stream, double attention,
                          std::vector<SynthTensor>& tensors) {
  const auto random = [&](const char* name, int64_t rows, int64_t columns, int32_t of, double size) {
    tensors.push_back({.name = prefix + "self_attn." + name + ".weight",
                       .shape = {rows, columns},
                       .stream = of,
                       .deviation = size * keep_size(columns)});
  };
  const auto norm = [&](const char* name, int64_t size) {
    tensors.push_back({.name = prefix + "self_attn." + name + ".weight", .shape = {size}, .constant = 1});
  };
  const int64_t queries = s.heads * (s.head_dim + s.rope_dim());
  if (s.q_rank > 0) {
    random("q_a_proj", s.q_rank, s.hidden, stream + 7, 1);
    norm("q_a_layernorm", s.q_rank);
    random("q_b_proj", queries, s.q_rank, stream, 1);
  } else {
    random("q_proj", queries, s.hidden, stream, 1);
  }
  random("kv_a_proj_with_mqa", s.kv_rank + s.rope_dim(), s.hidden, stream + 1, 1);
  norm("kv_a_layernorm", s.kv_rank);
  random("kv_b_proj", 2 * s.heads * s.head_dim, s.kv_rank, stream + 2, 1);
  random("o_proj", s.hidden, s.heads * s.head_dim, stream + 3, attention);
}

void add_mlp(const SynthShape& s, const std::string& prefix, int64_t ffn, int32_t stream, double size,
             std::vector<SynthTensor>& tensors) {
  const auto random = [&](const char* name, int64_t rows, int64_t columns, int32_t of, double deviation) {
    tensors.push_back(
        {.name = prefix + name + ".weight", .shape = {rows, columns}, .stream = of, .deviation = deviation});
  };
  random("gate_proj", ffn, s.hidden, stream, keep_size(s.hidden));
  random("up_proj", ffn, s.hidden, stream + 1, keep_size(s.hidden));
  random("down_proj", s.hidden, ffn, stream + 2, size * keep_size(ffn) / kSiluProduct);
}

// A layer of DeepSeek-V3 beside its two norms.
void add_latent_layer(const SynthShape& s, const std::string& prefix, int32_t stream, int32_t expert_stream,
                      double attention, bool has_experts, std::vector<SynthTensor>& tensors) {
  add_latent_attention(s, prefix, stream, attention, tensors);
  if (!has_experts) return add_mlp(s, prefix + "mlp.", s.dense_ffn, stream + 4, 1, tensors);
  const double half = std::sqrt(0.5);
  tensors.push_back({.name = prefix + "mlp.gate.weight",
                     .shape = {s.experts, s.hidden},
                     .stream = stream + 4,
                     .deviation = keep_size(s.hidden)});
  tensors.push_back({.name = prefix + "mlp.gate.e_score_correction_bias", .shape = {s.experts}});
  add_mlp(s, prefix + "mlp.shared_experts.", s.shared_experts * s.ffn, stream + 8, half, tensors);
  for (int64_t expert = 0; expert < s.experts; ++expert)
    add_mlp(s, fmt::format("{}mlp.experts.{}.", prefix, expert), s.ffn,
            expert_stream + static_cast<int32_t>(3 * expert),
            half * std::sqrt(static_cast<double>(s.experts_per_token)), tensors);
}

}  // namespace

int64_t SynthTensor::count() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

std::vector<std::string> synth_layer_gains(int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  return {prefix + "input_layernorm.weight", prefix + "post_attention_layernorm.weight"};
}

std::vector<SynthTensor> synth_tensors(const SynthShape& s, int64_t layers, int64_t shared_layers) {
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const double embedding = s.tied ? keep_size(s.hidden) : 1;
  std::vector<SynthTensor> tensors;
  const auto random = [&](std::string name, int64_t rows, int64_t columns, int32_t stream, double deviation) {
    tensors.push_back(
        {.name = std::move(name), .shape = {rows, columns}, .stream = stream, .deviation = deviation});
  };
  const auto gain = [&](std::string name, int64_t size) {
    tensors.push_back({.name = std::move(name), .shape = {size}, .constant = 1});
  };
  random("model.embed_tokens.weight", s.vocab, s.hidden, 0, embedding);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const auto stream = static_cast<int32_t>((layer + 1) * kStreamsPerLayer);
    const double attention = layer < shared_layers ? 0.5 * embedding : kUpperAttention;
    for (const std::string& name : synth_layer_gains(layer)) gain(name, s.hidden);
    if (s.is_latent()) {
      add_latent_layer(s, prefix, stream, kExpertStreams + static_cast<int32_t>(3 * layer * s.experts),
                       attention, layer >= s.dense_layers, tensors);
      continue;
    }
    random(prefix + "self_attn.q_proj.weight", q, s.hidden, stream, keep_size(s.hidden));
    random(prefix + "self_attn.k_proj.weight", kv, s.hidden, stream + 1, keep_size(s.hidden));
    random(prefix + "self_attn.v_proj.weight", kv, s.hidden, stream + 2, keep_size(s.hidden));
    random(prefix + "self_attn.o_proj.weight", s.hidden, q, stream + 3, attention * keep_size(q));
    const auto mlp = [&](const std::string& at, const char* gate, const char* up, const char* down,
                         int32_t first, double size) {
      random(at + gate + ".weight", s.ffn, s.hidden, first, keep_size(s.hidden));
      random(at + up + ".weight", s.ffn, s.hidden, first + 1, keep_size(s.hidden));
      random(at + down + ".weight", s.hidden, s.ffn, first + 2, size * keep_size(s.ffn) / kSiluProduct);
    };
    if (s.gpt_oss) {
      add_gpt_oss_layer(s, prefix, stream, tensors);
      continue;
    }
    if (s.experts == 0) {
      mlp(prefix + "mlp.", "gate_proj", "up_proj", "down_proj", stream + 4, 1);
      continue;
    }
    random(prefix + "block_sparse_moe.gate.weight", s.experts, s.hidden, stream + 4, keep_size(s.hidden));
    for (int64_t expert = 0; expert < s.experts; ++expert)
      mlp(fmt::format("{}block_sparse_moe.experts.{}.", prefix, expert), "w1", "w3", "w2",
          kExpertStreams + static_cast<int32_t>(3 * (layer * s.experts + expert)),
          std::sqrt(static_cast<double>(s.experts_per_token)));
  }
  gain(kSynthFinalNorm, s.hidden);
  if (!s.tied) random("lm_head.weight", s.vocab, s.hidden, 1, keep_size(s.hidden));
  return tensors;
}

namespace {

// Branches of one layer each; of Hydra, branch i reads the state and i + 1 tokens.
std::vector<SynthTensor> synth_branches(const SynthShape& s, const SynthHead& head) {
  const bool is_hydra = head.kind == SynthHead::Kind::kHydra;
  std::vector<SynthTensor> tensors;
  int32_t stream = -1;
  const auto random = [&](const std::string& name, int64_t rows, int64_t columns) {
    tensors.push_back({.name = name + ".weight",
                       .shape = {rows, columns},
                       .stream = stream--,
                       .deviation = keep_size(columns)});
  };
  const auto bias = [&](const std::string& name, int64_t size) {
    tensors.push_back({.name = name + ".bias", .shape = {size}});
  };
  for (int64_t i = 0; i < head.branches; ++i) {
    const std::string layer = is_hydra ? fmt::format("hydra_mlp.{}.0", i) : fmt::format("{}.0", i);
    const std::string output = is_hydra ? fmt::format("hydra_lm_head.{}", i) : fmt::format("{}.1", i);
    const int64_t width = is_hydra ? (i + 2) * s.hidden : s.hidden;
    for (const char* part : {".linear", ".res_connection"}) {
      if (part == std::string_view(".res_connection") && !is_hydra) continue;
      random(layer + part, s.hidden, width);
      bias(layer + part, s.hidden);
    }
    random(output, s.vocab, s.hidden);
    if (is_hydra) bias(output, s.vocab);
  }
  return tensors;
}

}  // namespace

namespace {

// DeepSeek's: one more layer of its target, under the names that it has behind the last.
std::vector<SynthTensor> synth_latent_module(const SynthShape& s) {
  const std::string prefix = fmt::format("model.layers.{}.", s.layers);
  constexpr int32_t kModule = std::numeric_limits<int32_t>::min();  // streams of no other tensor
  std::vector<SynthTensor> tensors{{.name = prefix + "eh_proj.weight",
                                    .shape = {s.hidden, 2 * s.hidden},
                                    .stream = kModule,
                                    .deviation = keep_size(2 * s.hidden)}};
  std::vector<std::string> norms = synth_layer_gains(s.layers);
  for (const char* name : {"enorm", "hnorm", "shared_head.norm"}) norms.push_back(prefix + name + ".weight");
  for (std::string& norm : norms)
    tensors.push_back({.name = std::move(norm), .shape = {s.hidden}, .constant = 1});
  add_latent_layer(s, prefix, kModule + 1, kModule + kStreamsPerLayer, 1, true, tensors);
  return tensors;
}

}  // namespace

// It agrees with the target by chance alone: what counts is how long it takes.
std::vector<SynthTensor> synth_head_tensors(const SynthShape& target, const SynthHead& head) {
  if (head.branches > 0) return synth_branches(target, head);
  if (head.kind == SynthHead::Kind::kMtp && target.is_latent()) return synth_latent_module(target);
  const SynthShape s = plain_layers(target);
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const bool is_mtp = head.kind == SynthHead::Kind::kMtp;
  // EAGLE-3's layer reads a token beside a state; that of MTP reads what a projection makes of both.
  const int64_t inputs = head.kind == SynthHead::Kind::kEagle3 ? 2 * s.hidden : s.hidden;
  std::vector<SynthTensor> tensors;
  int32_t stream = -1;
  const auto random = [&](const std::string& name, int64_t rows, int64_t columns) {
    tensors.push_back(
        {.name = name, .shape = {rows, columns}, .stream = stream--, .deviation = keep_size(columns)});
  };
  const auto norm = [&](const std::string& name) {
    tensors.push_back({.name = name + ".weight", .shape = {s.hidden}, .constant = 1});
  };
  if (head.draft_vocab < s.vocab)
    tensors.push_back({.name = "d2t", .shape = {head.draft_vocab}, .is_index = true});
  const std::string mtp = "model.mtp_layers.0.";
  random(is_mtp ? mtp + "input_proj.weight" : "fc.weight", s.hidden, (is_mtp ? 2 : 3) * s.hidden);
  for (int64_t i = 0; i < head.layers; ++i) {
    const std::string layer = is_mtp ? mtp : head.is_block() ? fmt::format("layers.{}.", i) : "midlayer.";
    random(layer + "self_attn.q_proj.weight", q, inputs);
    random(layer + "self_attn.k_proj.weight", kv, inputs);
    random(layer + "self_attn.v_proj.weight", kv, inputs);
    random(layer + "self_attn.o_proj.weight", s.hidden, q);
    random(layer + "mlp.gate_proj.weight", s.ffn, s.hidden);
    random(layer + "mlp.up_proj.weight", s.ffn, s.hidden);
    random(layer + "mlp.down_proj.weight", s.hidden, s.ffn);
    norm(layer + "input_layernorm");
    norm(layer + "post_attention_layernorm");
  }
  if (is_mtp) {
    for (const char* name : {"token_layernorm", "hidden_layernorm", "final_layernorm"}) norm(mtp + name);
    return tensors;
  }
  if (head.has_output(s)) random("lm_head.weight", head.draft_vocab, s.hidden);
  norm(head.is_block() ? "hidden_norm" : "midlayer.hidden_norm");
  norm("norm");
  return tensors;
}

}  // namespace outrider
