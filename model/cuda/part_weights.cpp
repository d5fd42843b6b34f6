#include "model/cuda/part_weights.h"

#include <algorithm>

namespace outrider::cuda {
namespace {

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
Result<MixturePlan> plan_experts(const ExpertSources& s, const ModelConfig& config, const ShardPlan& plan,
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

// The matrices that compute latents (or queries and latents) from normed rows, stacked.
MatrixSource inputs_of(const LatentSources& s) {
  MatrixSource all = s.q_a.parts.empty() ? s.q : s.q_a;
  all.parts.insert(all.parts.end(), s.kv_a.parts.begin(), s.kv_a.parts.end());
  return all;
}

bool has_query_latent(const LatentSources& s) { return !s.q_a.parts.empty(); }

void append(MatrixSource& all, const MatrixSource& some) {
  all.parts.insert(all.parts.end(), some.parts.begin(), some.parts.end());
}

}  // namespace

DeviceBuffer<float> to_device(std::span<const float> values, StreamView stream) {
  DeviceBuffer<float> buffer(static_cast<int64_t>(values.size()));
  copy(buffer.data(), values.data(), buffer.size(), stream);
  stream.synchronize();  // the host vector goes away
  return buffer;
}

void add(MatrixSizes& to, const StackPlan& stack) {
  for (const MatrixPlan& matrix : stack) {
    to.bytes += matrix.bytes();
    to.gathered_columns = std::max(to.gathered_columns, matrix.gathered_columns());
    to.widest = std::max(to.widest, matrix.n);
  }
}

DeviceStack upload(Uploader& uploader, const StackPlan& plans) {
  DeviceStack stack;
  for (const MatrixPlan& one : plans) stack.add(uploader.matrix(one));
  return stack;
}

DeviceBuffer<float> upload_norm(const VectorSource& source, const ModelConfig& config, StreamView stream) {
  return to_device(read_norm(source, config.norm_adds_one), stream);
}

// Refuses two cases. Our own coded files have scales along an expert's columns. Where groups have an order,
// every expert has its own order.
Status check_mixture(const ExpertSources& mixture, bool keeps_codes) {
  for (const MlpSources& expert : mixture.experts) {
    const TensorPart& down = expert.down.parts.front();
    if (down.scales)
      return unsupported(
          fmt::format("{} holds codes, and CUDA devices quantise experts while loading; use the original "
                      "model with --weight-format (--draft-weight-format), or --device cpu",
                      down.tensor->name));
    if (keeps_codes && down.coded && !down.coded->order().empty())
      return unsupported(
          fmt::format("{} is in act-order, which CUDA devices do not take of experts; use --device cpu, or "
                      "--weight-format (of a draft model or head: --draft-weight-format) bf16, int8, int4 or "
                      "fp8, which dequantises them while loading",
                      down.tensor->name));
  }
  return {};
}

Result<MatrixSizes> plan_latents(const LatentSources& s, WeightType type) {
  MatrixSizes sizes;
  ASSIGN_OR_RETURN(const StackPlan inputs, plan_stack(inputs_of(s), type));
  add(sizes, inputs);
  if (has_query_latent(s)) {
    ASSIGN_OR_RETURN(const StackPlan queries, plan_stack(s.q, type));
    add(sizes, queries);
  }
  for (const std::vector<MatrixSource>* heads : {&s.key_up, &s.value_up})
    sizes.bytes += plan_heads(*heads, activation_type(type)).bytes();
  return sizes;
}

void upload_latents(const LatentSources& s, const ModelConfig& config, WeightType type, Uploader& uploader,
                    StreamView stream, DeviceLayer& to) {
  to.qkv = upload(uploader, plan_stack(inputs_of(s), type).value());
  to.latent.q_norm = upload_norm(s.q_norm, config, stream);
  to.latent.kv_norm = upload_norm(s.kv_norm, config, stream);
  if (has_query_latent(s)) to.latent.q = upload(uploader, plan_stack(s.q, type).value());
  to.latent.key_up = uploader.matrix(plan_heads(s.key_up, activation_type(type)));
  to.latent.value_up = uploader.matrix(plan_heads(s.value_up, activation_type(type)));
}

Result<MatrixSizes> plan_mixture(const ExpertSources& s, const ModelConfig& config, const ShardPlan& plan,
                                 WeightType type) {
  ASSIGN_OR_RETURN(const MixturePlan mixture, plan_experts(s, config, plan, type));
  MatrixSizes sizes;
  add(sizes, mixture.gate_up);
  add(sizes, mixture.down);
  return sizes;
}

void upload_mixture(const ExpertSources& s, const ModelConfig& config, const ShardPlan& plan, WeightType type,
                    Uploader& uploader, StreamView stream, DeviceLayer& to) {
  const MixturePlan mixture = plan_experts(s, config, plan, type).value();
  to.gate_up = upload(uploader, mixture.gate_up);
  to.down = upload(uploader, mixture.down);
  upload_choice(s, config, plan, stream, to);
}

MatrixSource formatted_matrices(const LatentSources& s) {
  MatrixSource all = inputs_of(s);
  if (has_query_latent(s)) append(all, s.q);
  return all;
}

MatrixSource formatted_matrices(const ExpertSources& s) {
  MatrixSource all;
  for (const MlpSources& expert : s.experts)
    for (const MatrixSource* matrix : {&expert.gate_up, &expert.down}) append(all, *matrix);
  if (s.shared)
    for (const MatrixSource* matrix : {&s.shared->gate_up, &s.shared->down}) append(all, *matrix);
  return all;
}

}  // namespace outrider::cuda
