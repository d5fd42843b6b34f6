#include "model/cuda/weights.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/cuda/delta_ops.h"
#include "kernels/cuda/latent_ops.h"
#include "model/cuda/part_weights.h"
#include "model/weights.h"

namespace outrider::cuda {
namespace {

void count_bytes(DeviceWeights& weights) {
  weights.bytes = weights.head.bytes() + weights.embedding.bytes();
  for (const DeviceLayer& l : weights.layers)
    weights.bytes += l.qkv.bytes() + l.latent.bytes() + l.o.bytes() + l.gate_up.bytes() + l.down.bytes();
}

DeviceDeltaNet upload_delta_net(const DeltaNetSources& s, StreamView stream) {
  std::vector<float> rate = read_vector(s.decay);
  if (!s.is_rate)
    for (float& each : rate) each = -std::exp(each);
  return {.rate = to_device(rate, stream),
          .dt_bias = to_device(read_vector(s.dt_bias), stream),
          .norm = to_device(read_vector(s.norm), stream)};
}

// Not of what is held apart, by head, as numbers (plan_heads).
std::vector<const MatrixSource*> formatted_matrices(const LayerSources& s) {
  std::vector<const MatrixSource*> all = s.matrices();
  if (!s.latent) return all;
  for (const std::vector<MatrixSource>* heads : {&s.latent->key_up, &s.latent->value_up})
    for (const MatrixSource& head : *heads) std::erase(all, &head);
  return all;
}

// [n, k] of latent attention's per-head matrices, over all heads of this rank.
std::vector<MatrixSize> head_matrices(const ModelConfig& c, const ShardPlan& plan) {
  if (!c.latent) return {};
  const int64_t heads = plan.query_heads.size();
  return {{heads * head_rows(c.latent->kv_rank), c.latent->nope_dim},
          {heads * head_rows(c.latent->value_dim), c.latent->kv_rank}};
}

Result<DeviceWeightTypes> device_weight_types(const WeightMap& map, WeightFormat format) {
  const WeightType numbers = map.all_bf16 ? WeightType::kBFloat16 : WeightType::kFloat32;
  std::optional<WeightType> vocabulary, layers;
  bool keeps_codes = false;
  // All matrices of a kind are alike, unless a published checkpoint says what each is.
  const auto add = [&](MatrixKind kind, std::optional<WeightType>& type,
                       const MatrixSource& source) -> Status {
    ASSIGN_OR_RETURN(const WeightType own, weight_type(source, format, kind, numbers));
    keeps_codes |= own == WeightType::kCodes;
    if (type.value_or(own) != own && !keeps_codes)
      return unsupported(
          fmt::format("{} would be {} and other matrices {}; quantise the original model again",
                      source.parts.front().tensor->name, weight_type_name(own), weight_type_name(*type)));
    type = own;
    return {};
  };
  RETURN_IF_ERROR(add(MatrixKind::kVocabulary, vocabulary, map.head));
  if (map.embedding) RETURN_IF_ERROR(add(MatrixKind::kVocabulary, vocabulary, *map.embedding));
  for (const LayerSources& l : map.layers)
    if (const ExpertSources* mixture = l.mixture())
      RETURN_IF_ERROR(check_mixture(*mixture, format == WeightFormat::kAuto));
  for (const LayerSources& l : map.layers)
    for (const MatrixSource* source : formatted_matrices(l))
      RETURN_IF_ERROR(add(MatrixKind::kLayer, layers, *source));
  if (keeps_codes) return DeviceWeightTypes{WeightType::kCodes, WeightType::kCodes};
  const DeviceWeightTypes types{layers.value_or(*vocabulary), *vocabulary};
  if (types.activation() != activation_type(types.vocabulary))
    return unsupported(fmt::format("{} is {} and the layers are {}; quantise the original model again",
                                   map.head.parts.front().tensor->name, weight_type_name(types.vocabulary),
                                   weight_type_name(types.layers)));
  return types;
}

}  // namespace

ExpertColumns expert_columns(const ExpertConfig& config, Shard shard) {
  ExpertColumns columns{.experts = static_cast<int32_t>(config.count),
                        .each = leaves_from_ends(MlpCut(config.intermediate_size, shard).leaf_ends),
                        .shared = leaves_from_ends(MlpCut(config.shared_intermediate_size, shard).leaf_ends)};
  return columns;
}

MlpColumns mlp_columns(const ModelConfig& config, const ShardPlan& plan, bool has_experts) {
  if (!has_experts) return {plan.mlp_columns.size(), plan.mlp_leaf_ends};
  const ExpertColumns columns = expert_columns(*config.experts, plan.shard);
  MlpColumns all{.count = columns.size()};
  for (int32_t leaf = 0; leaf < columns.each.count; ++leaf) all.leaf_ends.push_back(columns.begin(leaf + 1));
  return all;
}

Status check_heads(const ModelConfig& c) {
  constexpr int64_t kMaxHeadDim = 256, kMaxLatentDim = 1024;
  if (c.delta_net && c.delta_net->key_dim > kMostDeltaKeyDim)
    return unsupported(
        fmt::format("linear_key_head_dim {}: the CUDA kernels take at most {}; run with --device cpu",
                    c.delta_net->key_dim, kMostDeltaKeyDim));
  if (c.values_normed)
    return unsupported(
        fmt::format("{} runs on the CPU alone; run with --device cpu", architecture_name(c.family)));
  if (!c.latent && c.head_dim > kMaxHeadDim)
    return unsupported(fmt::format("head_dim {}: the CUDA kernels take at most {}", c.head_dim, kMaxHeadDim));
  if (!c.latent) return {};
  if (c.head_dim > kMaxLatentDim)
    return unsupported(
        fmt::format("kv_lora_rank {} and qk_rope_head_dim {}: the CUDA kernels take at most {} together; "
                    "run with --device cpu",
                    c.latent->kv_rank, c.latent->rope_dim, kMaxLatentDim));
  for (const auto& [name, size] : {std::pair{"q_lora_rank", c.latent->q_rank},
                                   {"kv_lora_rank", c.latent->kv_rank},
                                   {"qk_nope_head_dim", c.latent->nope_dim},
                                   {"v_head_dim", c.latent->value_dim}})
    if (size % 2 != 0)
      return unsupported(
          fmt::format("{} {}: the CUDA kernels take even ones; run with --device cpu", name, size));
  return {};
}

std::vector<MatrixSize> attention_inputs(const ModelConfig& c, const ShardPlan& plan) {
  const int64_t gates = c.attention_gate ? plan.query_heads.size() : 0;
  if (!c.latent)
    return {{(plan.query_heads.size() + 2 * plan.kv_heads.size() + gates) * c.head_dim, c.hidden_size}};
  const int64_t q = plan.query_heads.size() * c.latent->query_dim();
  if (c.latent->q_rank == 0) return {{q + c.head_dim, c.hidden_size}};
  return {{c.latent->q_rank + c.head_dim, c.hidden_size}, {q, c.latent->q_rank}};
}

MatrixSize delta_input(const ModelConfig& c, const ShardPlan& plan) {
  if (!plan.delta_net) return {};
  return {plan.delta_net->row_size() + plan.delta_net->value_size(), c.hidden_size};
}

Result<WeightPlan> plan_weights(const WeightMap& map, const ModelConfig& config, const ShardPlan& plan,
                                WeightFormat format) {
  WeightPlan all;
  ASSIGN_OR_RETURN(all.types, device_weight_types(map, format));
  const auto add_stack = [&](const Result<StackPlan>& stack) -> Status {
    if (!stack.ok()) return stack.status();
    add(all, *stack);
    return {};
  };
  const auto add_part = [&](const Result<MatrixSizes>& part) -> Status {
    if (!part.ok()) return part.status();
    all.bytes += part->bytes;
    all.gathered_columns = std::max(all.gathered_columns, part->gathered_columns);
    return {};
  };
  const MatrixSource& embedding = map.embedding ? *map.embedding : map.head;
  ASSIGN_OR_RETURN(const StackPlan table, plan_stack(embedding, all.types.vocabulary));
  if (table.front().gathered_columns() > 0)
    return unsupported(fmt::format(
        "{}: the CUDA kernels do not take an embedding in such groups; use --device cpu, or --weight-format "
        "bf16, int8, int4 or fp8, which dequantises it while loading",
        embedding.parts.front().tensor->name));
  if (map.embedding) RETURN_IF_ERROR(add_stack(table));
  RETURN_IF_ERROR(add_stack(plan_stack(map.head, all.types.vocabulary)));
  for (const LayerSources& s : map.layers) {
    if (s.latent)
      RETURN_IF_ERROR(add_part(plan_latents(*s.latent, all.types.layers)));
    else
      RETURN_IF_ERROR(add_stack(plan_stack(s.qkv, all.types.layers)));
    RETURN_IF_ERROR(add_stack(plan_stack(s.o, all.types.layers)));
    if (const ExpertSources* experts = s.mixture()) {
      RETURN_IF_ERROR(add_part(plan_mixture(*experts, config, plan, all.types.layers)));
      all.gate_columns = std::max(all.gate_columns, mlp_columns(config, plan, true).count);
    } else {
      ASSIGN_OR_RETURN(const StackPlan gate_up, plan_gates(s.dense().gate_up, all.types.layers));
      add(all, gate_up);
      if (!gate_up.front().is_paired)
        all.gate_columns = std::max(all.gate_columns, mlp_columns(config, plan, false).count);
      RETURN_IF_ERROR(add_stack(plan_stack(s.dense().down, all.types.layers)));
    }
  }
  return all;
}

WeightPlan plan_weights(const ModelConfig& c, const ShardPlan& plan, WeightFormat format) {
  if (format == WeightFormat::kAuto) format = WeightFormat::kBFloat16;
  const DeviceWeightTypes types{weight_type(format, MatrixKind::kLayer),
                                weight_type(format, MatrixKind::kVocabulary)};
  const auto bytes_as = [](WeightType type, int64_t n, int64_t k, const std::vector<int64_t>& ends) {
    return DeviceMatrix::bytes_for(type, n, slices_of(type, k, ends));
  };
  const auto bytes = [&](int64_t n, int64_t k, const std::vector<int64_t>& ends = {}) {
    return bytes_as(types.layers, n, k, ends);
  };
  int64_t attention =
      bytes(c.hidden_size, plan.query_heads.size() * c.output_dim(), plan.attention_leaf_ends);
  for (const MatrixSize& size : attention_inputs(c, plan)) attention += bytes(size.n, size.k);
  for (const MatrixSize& size : head_matrices(c, plan))
    attention += bytes_as(types.activation(), size.n, size.k, {size.k});
  const int64_t channels = plan.conv_channels.size();
  const int64_t convolution =
      bytes(3 * channels, c.hidden_size) + bytes(c.hidden_size, channels, plan.conv_leaf_ends);
  const MatrixSize delta = delta_input(c, plan);
  const int64_t delta_net = plan.delta_net
                                ? bytes(delta.n, delta.k) + bytes(c.hidden_size, plan.delta_net->value_size(),
                                                                  plan.delta_net->leaf_ends)
                                : 0;
  WeightPlan all;
  int64_t layers = 0;
  for (int64_t i = 0; i < c.num_layers; ++i) {
    layers += c.is_conv(i) ? convolution : c.is_delta_net(i) ? delta_net : attention;
    const MlpColumns columns = mlp_columns(c, plan, c.layer(i).has_experts);
    layers +=
        bytes(2 * columns.count, c.hidden_size) + bytes(c.hidden_size, columns.count, columns.leaf_ends);
    if (c.layer(i).has_experts || !can_pair(types.layers, 2 * columns.count))
      all.gate_columns = std::max(all.gate_columns, columns.count);
  }
  const int64_t vocabulary = bytes_as(types.vocabulary, plan.vocab.size(), c.hidden_size, {});
  all.types = types;
  all.bytes = layers + (c.tie_word_embeddings ? 1 : 2) * vocabulary;
  return all;
}

DeviceWeights upload_weights(const WeightMap& map, const ModelConfig& config, const ShardPlan& plan,
                             const DeviceWeightTypes& types, StreamView stream,
                             const LoadProgress& progress) {
  const auto norm = [&](const VectorSource& source) { return upload_norm(source, config, stream); };
  DeviceWeights weights;
  weights.types = types;
  Uploader uploader(map.matrix_bytes(), stream, progress);
  // plan_weights has seen the same plans without an error.
  const auto matrix = [&](const MatrixSource& source, WeightType type) {
    return upload(uploader, plan_stack(source, type).value());
  };
  if (map.embedding) weights.embedding = matrix(*map.embedding, types.vocabulary);
  weights.head = matrix(map.head, types.vocabulary);
  weights.final_norm = norm(map.final_norm);
  for (const LayerSources& s : map.layers) {
    DeviceLayer l;
    l.attention_norm = norm(s.attention_norm);
    l.mlp_norm = norm(s.mlp_norm);
    l.attention_out_norm = norm(s.attention_out_norm);
    l.mlp_out_norm = norm(s.mlp_out_norm);
    l.q_norm = norm(s.q_norm);
    l.k_norm = norm(s.k_norm);
    l.qkv_bias = to_device(read_vector(s.qkv_bias), stream);
    l.sinks = to_device(read_vector(s.sinks), stream);
    l.conv = to_device(read_vector(s.conv), stream);
    if (s.delta_net) l.delta_net = upload_delta_net(*s.delta_net, stream);
    l.o_bias = to_device(read_vector(s.o_bias), stream);
    if (s.latent)
      upload_latents(*s.latent, config, types.layers, uploader, stream, l);
    else
      l.qkv = matrix(s.qkv, types.layers);
    l.o = matrix(s.o, types.layers);
    if (const ExpertSources* experts = s.mixture()) {
      upload_mixture(*experts, config, plan, types.layers, uploader, stream, l);
    } else {
      l.gate_up_bias = to_device(read_vector(s.dense().gate_up_bias), stream);
      l.down_bias = to_device(read_vector(s.dense().down_bias), stream);
      l.gate_up = upload(uploader, plan_gates(s.dense().gate_up, types.layers).value());
      l.down = matrix(s.dense().down, types.layers);
    }
    weights.layers.push_back(std::move(l));
  }
  count_bytes(weights);
  weights.staging = uploader.staging();
  return weights;
}

DeviceWeights noise_weights(const ModelConfig& c, const ShardPlan& plan, const DeviceWeightTypes& types,
                            StreamView stream) {
  uint64_t seed = 0;
  const auto one_matrix = [&](WeightType type, int64_t n, int64_t k, const std::vector<int64_t>& ends,
                              bool is_paired = false) {
    DeviceMatrix m(type, n, slices_of(type, k, ends));
    if (is_paired) m.pair_rows();
    fill_noise(stream, m.view(), ++seed, 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(k, 1))));
    return m;
  };
  const auto matrix_as = [&](WeightType type, int64_t n, int64_t k, const std::vector<int64_t>& ends) {
    return DeviceStack(one_matrix(type, n, k, ends));
  };
  const auto matrix = [&](int64_t n, int64_t k, const std::vector<int64_t>& ends = {}) {
    return matrix_as(types.layers, n, k, ends);
  };
  const auto ones = [&](int64_t size) {
    return to_device(std::vector<float>(static_cast<size_t>(size), 1.0f), stream);
  };
  DeviceWeights weights;
  weights.types = types;
  weights.head = matrix_as(types.vocabulary, plan.vocab.size(), c.hidden_size, {});
  if (!c.tie_word_embeddings)
    weights.embedding = matrix_as(types.vocabulary, plan.vocab.size(), c.hidden_size, {});
  weights.final_norm = ones(c.hidden_size);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    DeviceLayer l;
    if (c.norm_place != NormPlace::kAfter) {
      l.attention_norm = ones(c.hidden_size);
      l.mlp_norm = ones(c.hidden_size);
    }
    if (c.norm_place != NormPlace::kBefore) {
      l.attention_out_norm = ones(c.hidden_size);
      l.mlp_out_norm = ones(c.hidden_size);
    }
    const Mixer mixer = c.layer(i).mixer;
    const bool is_conv = mixer == Mixer::kShortConv, is_delta_net = mixer == Mixer::kDeltaNet;
    if (c.qk_norm != QkNorm::kNone && mixer == Mixer::kAttention) {
      const bool whole = c.qk_norm == QkNorm::kWhole;
      l.q_norm = ones(whole ? plan.query_heads.size() * c.head_dim : c.head_dim);
      l.k_norm = ones(whole ? plan.kv_heads.size() * c.head_dim : c.head_dim);
    }
    const std::vector<MatrixSize> inputs = attention_inputs(c, plan), of_heads = head_matrices(c, plan);
    l.qkv = matrix(is_conv        ? 3 * plan.conv_channels.size()
                   : is_delta_net ? delta_input(c, plan).n
                                  : inputs[0].n,
                   inputs[0].k);
    if (is_conv) l.conv = ones(c.conv_taps * plan.conv_channels.size());
    if (is_delta_net) {
      const DeltaNetPart& own = *plan.delta_net;
      l.conv = ones(c.delta_net->taps * (2 * own.key_size() + own.value_size()));
      const std::vector<float> rates(static_cast<size_t>(own.values.size()), -1.0f);
      l.delta_net = {
          .rate = to_device(rates, stream), .dt_bias = ones(own.values.size()), .norm = ones(own.value_dim)};
    }
    if (inputs.size() > 1) l.latent.q = matrix(inputs[1].n, inputs[1].k);
    if (c.latent) {
      l.latent.q_norm = ones(c.latent->q_rank);
      l.latent.kv_norm = ones(c.latent->kv_rank);
      const WeightType numbers = types.activation();
      l.latent.key_up = one_matrix(numbers, of_heads[0].n, of_heads[0].k, {of_heads[0].k});
      l.latent.value_up = one_matrix(numbers, of_heads[1].n, of_heads[1].k, {of_heads[1].k});
    }
    l.o = is_conv ? matrix(c.hidden_size, plan.conv_channels.size(), plan.conv_leaf_ends)
          : is_delta_net
              ? matrix(c.hidden_size, plan.delta_net->value_size(), plan.delta_net->leaf_ends)
              : matrix(c.hidden_size, plan.query_heads.size() * c.output_dim(), plan.attention_leaf_ends);
    if (c.attention_sinks) l.sinks = ones(plan.query_heads.size());
    const bool has_experts = c.layer(i).has_experts;
    const MlpColumns columns = mlp_columns(c, plan, has_experts);
    const int64_t gates_and_ups = 2 * columns.count;
    l.gate_up = DeviceStack(one_matrix(types.layers, gates_and_ups, c.hidden_size, {},
                                       !has_experts && can_pair(types.layers, gates_and_ups)));
    l.down = matrix(c.hidden_size, columns.count, columns.leaf_ends);
    if (has_experts) {
      l.router = ones(c.experts->count * c.hidden_size);
      if (c.experts->shared_intermediate_size > 0 && !c.latent) l.shared_gate = ones(c.hidden_size);
      if (c.experts->corrected) l.correction = ones(c.experts->count);
      if (c.experts->biases) {
        l.router_bias = ones(c.experts->count);
        l.gate_up_bias = ones(2 * columns.count);
        l.expert_down_bias = ones(c.experts->count * c.hidden_size);
      }
    }
    weights.layers.push_back(std::move(l));
  }
  count_bytes(weights);
  return weights;
}

}  // namespace outrider::cuda
