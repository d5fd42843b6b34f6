#include "transformer/model/cuda/weights.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "transformer/model/cuda/uploader.h"
#include "transformer/model/weights.h"
#include "transformer/ops/cuda/latent_ops.h"

namespace outrider::cuda {
namespace {

DeviceBuffer<float> to_device(std::span<const float> values, StreamView stream) {
  DeviceBuffer<float> buffer(static_cast<int64_t>(values.size()));
  copy(buffer.data(), values.data(), buffer.size(), stream);
  stream.synchronize();  // the host vector goes away
  return buffer;
}

// Calls use(mlp, range of its columns on this rank) in the order of ExpertColumns.
template <class Use>
void for_expert_columns(const ExpertSources& s, const ExpertColumns& columns, Use use) {
  for (int32_t leaf = 0; leaf < columns.each.count; ++leaf) {
    for (const MlpSources& expert : s.experts)
      use(expert, IndexRange{columns.each.begin(leaf), columns.each.end[leaf]});
    if (s.shared) use(*s.shared, IndexRange{columns.shared.begin(leaf), columns.shared.end[leaf]});
  }
}

IndexRange inside(IndexRange whole, IndexRange part) {
  return {whole.begin + part.begin, whole.begin + part.end};
}

DeviceBuffer<float> numbers_of(const TensorPart& part, StreamView stream) {
  std::vector<float> values(static_cast<size_t>(part.rows.size() * part.columns.size()));
  auto* to = reinterpret_cast<std::byte*>(values.data());
  for (int64_t row = 0; row < part.rows.size(); ++row, to += part.columns.size() * int64_t{sizeof(float)})
    stage_row(part, row, WeightType::kFloat32, to);
  return to_device(values, stream);
}

// Gates, then ups, in the order of ExpertColumns.
std::vector<float> wide_bias(const ExpertSources& s, const ExpertColumns& columns) {
  std::vector<float> wide;
  for (const size_t side : {size_t{0}, size_t{1}})
    for_expert_columns(s, columns, [&](const MlpSources& mlp, IndexRange own) {
      TensorPart part = mlp.gate_up_bias.at(side);
      part.columns = inside(part.columns, own);
      const std::vector<float> some = read_vector({part});
      wide.insert(wide.end(), some.begin(), some.end());
    });
  return wide;
}

// The matrices of a mixture's experts, in the order of ExpertColumns.
struct MixturePlan {
  StackPlan gate_up, down;
};
Result<MixturePlan> plan_mixture(const ExpertSources& s, const ModelConfig& config, const ShardPlan& plan,
                                 WeightType type) {
  const ExpertColumns columns = expert_columns(*config.experts, plan.shard);
  MatrixSource gate_up;
  for (const size_t side : {size_t{0}, size_t{1}})
    for_expert_columns(s, columns, [&](const MlpSources& mlp, IndexRange own) {
      TensorPart& part = gate_up.parts.emplace_back(mlp.gate_up.parts[side]);
      part.rows = inside(part.rows, own);
    });
  std::vector<TensorPart> down;
  for_expert_columns(s, columns, [&](const MlpSources& mlp, IndexRange own) {
    TensorPart& part = down.emplace_back(mlp.down.parts.front());
    part.columns = inside(part.columns, own);
  });
  MixturePlan mixture;
  ASSIGN_OR_RETURN(mixture.gate_up, plan_stack(gate_up, type));
  ASSIGN_OR_RETURN(mixture.down,
                   plan_side_by_side(std::move(down), mlp_columns(config, plan, true).leaf_ends, type));
  return mixture;
}

// All of a mixture but its matrices.
void upload_choice(const ExpertSources& s, const ModelConfig& config, const ShardPlan& plan,
                   StreamView stream, DeviceLayer& to) {
  to.router = numbers_of(s.router.parts.front(), stream);
  if (!s.shared_gate.empty()) to.shared_gate = numbers_of(s.shared_gate.front(), stream);
  to.correction = to_device(read_vector(s.correction), stream);
  if (!config.experts->biases) return;
  to.router_bias = to_device(read_vector(s.router_bias), stream);
  to.gate_up_bias = to_device(wide_bias(s, expert_columns(*config.experts, plan.shard)), stream);
  std::vector<float> down_bias;
  for (const MlpSources& expert : s.experts) {
    const std::vector<float> own = read_vector(expert.down_bias);
    down_bias.insert(down_bias.end(), own.begin(), own.end());
  }
  to.expert_down_bias = to_device(down_bias, stream);
}

// What one of our own files holds in codes has scales along an expert's columns; and where groups have an
// order, every expert has its own.
Status check_mixture(const ExpertSources& mixture, bool keeps_codes) {
  for (const MlpSources& expert : mixture.experts) {
    const TensorPart& down = expert.down.parts.front();
    if (down.scales)
      return unsupported(
          fmt::format("{} holds codes, and CUDA devices quantise experts while loading; use the original "
                      "model with --weight-format, or --device cpu",
                      down.tensor->name));
    if (keeps_codes && down.coded && !down.coded->order().empty())
      return unsupported(
          fmt::format("{} is in act-order, which CUDA devices do not take of experts; use --device cpu, or "
                      "--weight-format bf16, int8, int4 or fp8, which dequantises them while loading",
                      down.tensor->name));
  }
  return {};
}

void count_bytes(DeviceWeights& weights) {
  weights.bytes = weights.head.bytes() + weights.embedding.bytes();
  for (const DeviceLayer& l : weights.layers)
    weights.bytes += l.qkv.bytes() + l.latent.bytes() + l.o.bytes() + l.gate_up.bytes() + l.down.bytes();
}

// What makes q, k and v, or their latents, of normed rows.
MatrixSource inputs_of(const LayerSources& s) {
  if (!s.latent) return s.qkv;
  MatrixSource all = s.latent->q_a.parts.empty() ? s.latent->q : s.latent->q_a;
  all.parts.insert(all.parts.end(), s.latent->kv_a.parts.begin(), s.latent->kv_a.parts.end());
  return all;
}

bool has_query_latent(const LayerSources& s) { return s.latent && !s.latent->q_a.parts.empty(); }

// Not of what is held apart, by head, as numbers (plan_heads).
std::vector<const MatrixSource*> formatted_matrices(const LayerSources& s) {
  std::vector<const MatrixSource*> all = s.matrices();
  if (!s.latent) return all;
  for (const std::vector<MatrixSource>* heads : {&s.latent->key_up, &s.latent->value_up})
    for (const MatrixSource& head : *heads) std::erase(all, &head);
  return all;
}

// [n, k] of those matrices of all heads.
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
  constexpr int64_t kMostHeadDim = 256, kMostLatentDim = 1024;
  if (!c.latent && c.head_dim > kMostHeadDim)
    return unsupported(
        fmt::format("head_dim {}: the CUDA kernels take at most {}", c.head_dim, kMostHeadDim));
  if (!c.latent) return {};
  if (c.head_dim > kMostLatentDim)
    return unsupported(
        fmt::format("kv_lora_rank {} and qk_rope_head_dim {}: the CUDA kernels take at most {} together; "
                    "run with --device cpu",
                    c.latent->kv_rank, c.latent->rope_dim, kMostLatentDim));
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
  if (!c.latent) return {{(plan.query_heads.size() + 2 * plan.kv_heads.size()) * c.head_dim, c.hidden_size}};
  const int64_t q = plan.query_heads.size() * c.latent->query_dim();
  if (c.latent->q_rank == 0) return {{q + c.head_dim, c.hidden_size}};
  return {{c.latent->q_rank + c.head_dim, c.hidden_size}, {q, c.latent->q_rank}};
}

Result<WeightPlan> plan_weights(const WeightMap& map, const ModelConfig& config, const ShardPlan& plan,
                                WeightFormat format) {
  WeightPlan all;
  ASSIGN_OR_RETURN(all.types, device_weight_types(map, format));
  const auto add = [&](const Result<StackPlan>& stack) -> Status {
    if (!stack.ok()) return stack.status();
    for (const MatrixPlan& matrix : *stack) {
      all.bytes += matrix.bytes();
      all.gathered_columns = std::max(all.gathered_columns, matrix.gathered_columns());
    }
    return {};
  };
  const MatrixSource& embedding = map.embedding ? *map.embedding : map.head;
  ASSIGN_OR_RETURN(const StackPlan table, plan_stack(embedding, all.types.vocabulary));
  if (table.front().gathered_columns() > 0)
    return unsupported(fmt::format(
        "{}: the CUDA kernels do not take an embedding in such groups; use --device cpu, or --weight-format "
        "bf16, int8, int4 or fp8, which dequantises it while loading",
        embedding.parts.front().tensor->name));
  if (map.embedding) RETURN_IF_ERROR(add(table));
  RETURN_IF_ERROR(add(plan_stack(map.head, all.types.vocabulary)));
  for (const LayerSources& s : map.layers) {
    RETURN_IF_ERROR(add(plan_stack(inputs_of(s), all.types.layers)));
    if (s.latent) {
      if (has_query_latent(s)) RETURN_IF_ERROR(add(plan_stack(s.latent->q, all.types.layers)));
      for (const std::vector<MatrixSource>* heads : {&s.latent->key_up, &s.latent->value_up})
        all.bytes += plan_heads(*heads, all.types.activation()).bytes();
    }
    RETURN_IF_ERROR(add(plan_stack(s.o, all.types.layers)));
    if (const ExpertSources* experts = s.mixture()) {
      ASSIGN_OR_RETURN(MixturePlan mixture, plan_mixture(*experts, config, plan, all.types.layers));
      RETURN_IF_ERROR(add(std::move(mixture.gate_up)));
      RETURN_IF_ERROR(add(std::move(mixture.down)));
    } else {
      RETURN_IF_ERROR(add(plan_gates(s.dense().gate_up, all.types.layers)));
      RETURN_IF_ERROR(add(plan_stack(s.dense().down, all.types.layers)));
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
  int64_t layers = c.num_layers * attention;
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const MlpColumns columns = mlp_columns(c, plan, c.layer(i).has_experts);
    layers +=
        bytes(2 * columns.count, c.hidden_size) + bytes(c.hidden_size, columns.count, columns.leaf_ends);
  }
  const int64_t vocabulary = bytes_as(types.vocabulary, plan.vocab.size(), c.hidden_size, {});
  return {.types = types, .bytes = layers + (c.tie_word_embeddings ? 1 : 2) * vocabulary};
}

DeviceWeights upload_weights(const WeightMap& map, const ModelConfig& config, const ShardPlan& plan,
                             const DeviceWeightTypes& types, StreamView stream,
                             const LoadProgress& progress) {
  const auto norm = [&](const VectorSource& source) {
    std::vector<float> values = read_vector(source);
    if (config.norm_adds_one)
      for (float& value : values) value = 1 + value;
    return to_device(values, stream);
  };
  DeviceWeights weights;
  weights.types = types;
  Uploader uploader(map.matrix_bytes(), stream, progress);
  // plan_weights has seen the same plans without an error.
  const auto upload = [&](const StackPlan& plans) {
    DeviceStack stack;
    for (const MatrixPlan& one : plans) stack.add(uploader.matrix(one));
    return stack;
  };
  if (map.embedding) weights.embedding = upload(plan_stack(*map.embedding, types.vocabulary).value());
  weights.head = upload(plan_stack(map.head, types.vocabulary).value());
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
    l.o_bias = to_device(read_vector(s.o_bias), stream);
    l.qkv = upload(plan_stack(inputs_of(s), types.layers).value());
    if (s.latent) {
      l.latent.q_norm = norm(s.latent->q_norm);
      l.latent.kv_norm = norm(s.latent->kv_norm);
      if (has_query_latent(s)) l.latent.q = upload(plan_stack(s.latent->q, types.layers).value());
      l.latent.key_up = uploader.matrix(plan_heads(s.latent->key_up, types.activation()));
      l.latent.value_up = uploader.matrix(plan_heads(s.latent->value_up, types.activation()));
    }
    l.o = upload(plan_stack(s.o, types.layers).value());
    if (const ExpertSources* experts = s.mixture()) {
      const MixturePlan mixture = plan_mixture(*experts, config, plan, types.layers).value();
      l.gate_up = upload(mixture.gate_up);
      l.down = upload(mixture.down);
      upload_choice(*experts, config, plan, stream, l);
    } else {
      l.gate_up_bias = to_device(read_vector(s.dense().gate_up_bias), stream);
      l.down_bias = to_device(read_vector(s.dense().down_bias), stream);
      l.gate_up = upload(plan_gates(s.dense().gate_up, types.layers).value());
      l.down = upload(plan_stack(s.dense().down, types.layers).value());
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
    if (c.qk_norm != QkNorm::kNone) {
      const bool whole = c.qk_norm == QkNorm::kWhole;
      l.q_norm = ones(whole ? plan.query_heads.size() * c.head_dim : c.head_dim);
      l.k_norm = ones(whole ? plan.kv_heads.size() * c.head_dim : c.head_dim);
    }
    const std::vector<MatrixSize> inputs = attention_inputs(c, plan), of_heads = head_matrices(c, plan);
    l.qkv = matrix(inputs[0].n, inputs[0].k);
    if (inputs.size() > 1) l.latent.q = matrix(inputs[1].n, inputs[1].k);
    if (c.latent) {
      l.latent.q_norm = ones(c.latent->q_rank);
      l.latent.kv_norm = ones(c.latent->kv_rank);
      const WeightType numbers = types.activation();
      l.latent.key_up = one_matrix(numbers, of_heads[0].n, of_heads[0].k, {of_heads[0].k});
      l.latent.value_up = one_matrix(numbers, of_heads[1].n, of_heads[1].k, {of_heads[1].k});
    }
    l.o = matrix(c.hidden_size, plan.query_heads.size() * c.output_dim(), plan.attention_leaf_ends);
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
