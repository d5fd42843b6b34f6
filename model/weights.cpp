#include "model/weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "kernels/cpu/pack.h"
#include "model/quantized_file.h"
#include "model_files/weight_map.h"

namespace outrider {
namespace {

bool is_fp16(const TensorPart& part) { return !part.coded && part.tensor->dtype == Dtype::kF16; }

class Packer {
 public:
  // numbers: what those of matrices become that are not stored in codes.
  Packer(const ModelConfig& config, Shard shard, WeightType numbers, int64_t total,
         const WeightOptions& options, ThreadPool& pool)
      : config_(config),
        has_first_leaf_(shard_leaves(shard).begin == 0),
        float_type_(numbers),
        total_(total),
        options_(options),
        pool_(pool) {}

  Result<PackedMatrix> matrix(MatrixKind kind, const MatrixSource& source);
  Result<LayerWeights> layer(const LayerSources& sources);
  Result<ExpertMlp> mixture(const ExpertSources& sources);
  Result<LatentWeights> latent(const LatentSources& sources);
  Result<LayerInputWeights> layer_input(const LayerInputSources& sources);
  Result<InputTable> input_table(const InputTableSources& sources);
  static DeltaNetWeights delta_net(const DeltaNetSources& sources);
  std::vector<float> norm(const VectorSource& source) const;

 private:
  Result<DenseMlp> mlp(const MlpSources& sources);
  Result<WeightType> type_of(MatrixKind kind, const MatrixSource& source) const;
  void advance(int64_t bytes);

  const ModelConfig& config_;
  const bool has_first_leaf_;
  const WeightType float_type_;
  int64_t done_ = 0, total_ = 0;  // bytes of matrices in the files
  const WeightOptions& options_;
  ThreadPool& pool_;
};

void Packer::advance(int64_t bytes) {
  done_ += bytes;
  if (options_.progress) options_.progress(std::min(done_, total_), total_);
}

Result<WeightType> Packer::type_of(MatrixKind kind, const MatrixSource& source) const {
  ASSIGN_OR_RETURN(const WeightType type, cpu_weight_type(source, options_.format, kind, float_type_));
  if (type != WeightType::kFloat8) return type;
  return unsupported(
      fmt::format("{}: fp8 weights are for CUDA devices; use --device cuda, or int8 of the original model",
                  options_.format == WeightFormat::kAuto
                      ? source.parts.front().tensor->name
                      : "--weight-format fp8 (of a draft model: --draft-weight-format)"));
}

Result<PackedMatrix> Packer::matrix(MatrixKind kind, const MatrixSource& source) {
  ASSIGN_OR_RETURN(const WeightType type, type_of(kind, source));
  PackedMatrix packed = pack_matrix(source, type, pool_, options_.activations);
  advance(source.bytes());
  return packed;
}

std::vector<float> Packer::norm(const VectorSource& source) const {
  return read_norm(source, config_.norm_adds_one);
}

Result<DenseMlp> Packer::mlp(const MlpSources& s) {
  DenseMlp w{.gate_up_bias = read_vector(s.gate_up_bias), .down_bias = read_vector(s.down_bias)};
  ASSIGN_OR_RETURN(w.gate_up, matrix(MatrixKind::kLayer, s.gate_up));
  ASSIGN_OR_RETURN(w.down, matrix(MatrixKind::kLayer, s.down));
  return w;
}

Result<ExpertMlp> Packer::mixture(const ExpertSources& s) {
  ExpertMlp w{.router = pack_matrix(s.router, WeightType::kFloat32, pool_),
              .router_bias = read_vector(s.router_bias),
              .correction = read_vector(s.correction)};
  for (const MlpSources& expert : s.experts) {
    ASSIGN_OR_RETURN(DenseMlp packed, mlp(expert));
    if (!has_first_leaf_) packed.down_bias.clear();
    w.experts.push_back(std::move(packed));
  }
  if (s.beside) {
    BesideMlp& beside = w.beside.emplace();
    ASSIGN_OR_RETURN(beside.mlp, mlp(s.beside->mlp));
    beside.mlp_out_norm = norm(s.beside->mlp_out_norm);
    beside.experts_norm = norm(s.beside->experts_norm);
    beside.experts_out_norm = norm(s.beside->experts_out_norm);
    beside.router_norm = read_vector(s.beside->router_scale);
    for (float& scale : beside.router_norm)
      scale *= static_cast<float>(1 / std::sqrt(static_cast<double>(config_.hidden_size)));
    beside.expert_scales = read_vector(s.beside->expert_scales);
  }
  if (s.shared) {
    ASSIGN_OR_RETURN(w.shared, mlp(*s.shared));
    if (!s.shared_gate.empty()) w.shared_gate = pack_matrix({s.shared_gate, {}}, WeightType::kFloat32, pool_);
  }
  return w;
}

Result<LatentWeights> Packer::latent(const LatentSources& s) {
  LatentWeights w{.q_norm = norm(s.q_norm), .kv_norm = norm(s.kv_norm)};
  if (!s.q_a.parts.empty()) {
    ASSIGN_OR_RETURN(w.q_a, matrix(MatrixKind::kLayer, s.q_a));
  }
  ASSIGN_OR_RETURN(w.q, matrix(MatrixKind::kLayer, s.q));
  ASSIGN_OR_RETURN(w.kv_a, matrix(MatrixKind::kLayer, s.kv_a));
  for (const auto& [from, to] : {std::pair{&s.key_up, &w.key_up}, {&s.value_up, &w.value_up}})
    for (const MatrixSource& source : *from) {
      ASSIGN_OR_RETURN(PackedMatrix packed, matrix(MatrixKind::kLayer, source));
      to->push_back(std::move(packed));
    }
  return w;
}

// The norm multiplies by its weight, whatever other norms of the family do.
DeltaNetWeights Packer::delta_net(const DeltaNetSources& s) {
  DeltaNetWeights w{
      .rate = read_vector(s.decay), .dt_bias = read_vector(s.dt_bias), .norm = read_vector(s.norm)};
  if (!s.is_rate)
    for (float& rate : w.rate) rate = -std::exp(rate);
  return w;
}

Result<LayerInputWeights> Packer::layer_input(const LayerInputSources& s) {
  LayerInputWeights w{.norm = norm(s.norm)};
  ASSIGN_OR_RETURN(w.gate, matrix(MatrixKind::kLayer, s.gate));
  ASSIGN_OR_RETURN(w.out, matrix(MatrixKind::kLayer, s.out));
  return w;
}

Result<InputTable> Packer::input_table(const InputTableSources& s) {
  ASSIGN_OR_RETURN(const WeightType type, type_of(MatrixKind::kVocabulary, s.table));
  InputTable w{.table = FileTable(s.table, type), .projection = {}, .norm = norm(s.norm)};
  advance(s.table.bytes());
  ASSIGN_OR_RETURN(w.projection, matrix(MatrixKind::kLayer, s.projection));
  return w;
}

Result<LayerWeights> Packer::layer(const LayerSources& s) {
  LayerWeights w{.attention_norm = norm(s.attention_norm),
                 .mlp_norm = norm(s.mlp_norm),
                 .attention_out_norm = norm(s.attention_out_norm),
                 .mlp_out_norm = norm(s.mlp_out_norm),
                 .q_norm = norm(s.q_norm),
                 .k_norm = norm(s.k_norm),
                 .qkv_bias = read_vector(s.qkv_bias),
                 .sinks = read_vector(s.sinks),
                 .conv = read_vector(s.conv),
                 .o_bias = read_vector(s.o_bias)};
  if (s.latent) {
    ASSIGN_OR_RETURN(w.latent, latent(*s.latent));
  } else {
    ASSIGN_OR_RETURN(w.qkv, matrix(MatrixKind::kLayer, s.qkv));
  }
  if (s.delta_net) w.delta_net = delta_net(*s.delta_net);
  if (s.input) {
    ASSIGN_OR_RETURN(w.input, layer_input(*s.input));
  }
  if (!s.scale.empty()) w.scale = read_vector(s.scale).front();
  ASSIGN_OR_RETURN(w.o, matrix(MatrixKind::kLayer, s.o));
  if (const ExpertSources* experts = s.mixture()) {
    ASSIGN_OR_RETURN(w.mlp, mixture(*experts));
  } else {
    ASSIGN_OR_RETURN(w.mlp, mlp(s.dense()));
  }
  return w;
}

}  // namespace

size_t ExpertMlp::bytes() const {
  size_t sum = router.bytes() + shared_gate.bytes() + (shared ? shared->bytes() : 0) +
               (beside ? beside->mlp.bytes() : 0);
  for (const DenseMlp& expert : experts) sum += expert.bytes();
  return sum;
}

size_t LatentWeights::bytes() const {
  size_t sum = q_a.bytes() + q.bytes() + kv_a.bytes();
  for (const auto* matrices : {&key_up, &value_up})
    for (const PackedMatrix& matrix : *matrices) sum += matrix.bytes();
  return sum;
}

size_t LayerWeights::bytes() const {
  return (latent ? latent->bytes() : 0) + qkv.bytes() + o.bytes() +
         (input ? input->gate.bytes() + input->out.bytes() : 0) +
         std::visit([](const auto& m) { return m.bytes(); }, mlp);
}

SourceRow source_row(const TensorPart& part, int64_t row) {
  const TensorInfo& tensor = *part.tensor;
  const int64_t at = part.rows.begin + row;
  if (part.coded && part.apart)
    return {.dtype = tensor.dtype,
            .coded = part.coded.get(),
            .row = part.apart->at(at, part.columns.begin),
            .step = part.apart->column};
  if (part.coded)
    return {.dtype = tensor.dtype, .coded = part.coded.get(), .row = at, .first = part.columns.begin};
  if (part.apart) {
    const int64_t bytes = dtype_bits(tensor.dtype) / 8;
    return {.data = tensor.data.data() + part.apart->at(at, part.columns.begin) * bytes,
            .dtype = tensor.dtype,
            .step = part.apart->column * bytes};
  }
  const auto row_bytes = static_cast<int64_t>(tensor.data.size()) / tensor.shape[0];
  const int64_t bits = tensor.dtype == Dtype::kU8 ? weight_bits(WeightType::kInt4) : dtype_bits(tensor.dtype);
  SourceRow source{
      .data = tensor.data.data() + stored_row(tensor, at) * row_bytes + part.columns.begin * bits / 8,
      .dtype = tensor.dtype};
  if (part.scales)
    source.scales = part.scales->data.data() +
                    (at * part.scales->shape[1] + part.first_group) * static_cast<int64_t>(sizeof(bf16));
  return source;
}

namespace {

// Parts that one form of packed rows can hold.
bool packs_alike(const TensorPart& a, const TensorPart& b) {
  if (!a.coded || !b.coded) return !a.coded && !b.coded && a.tensor->dtype == b.tensor->dtype;
  return a.coded->scheme() == b.coded->scheme() && a.coded->bits() == b.coded->bits() &&
         a.coded->order() == b.coded->order();
}

void release(const TensorPart& part) {
  if (part.coded) {  // most orders of codes spread a row's over the whole tensor
    for (const TensorInfo* tensor : part.coded->tensors()) release_pages(tensor->data);
    return;
  }
  if (part.apart) return release_pages(part.tensor->data);
  const auto width = part.tensor->data.size() / static_cast<size_t>(part.tensor->shape[0]);
  release_pages(part.tensor->data.subspan(static_cast<size_t>(part.rows.begin) * width,
                                          static_cast<size_t>(part.rows.size()) * width));
}

PackedMatrix pack_parts(std::span<const TensorPart> parts, WeightType type,
                        const std::vector<int64_t>& leaves, ThreadPool& pool, ActivationFormat activations) {
  int64_t n = 0;
  for (const TensorPart& part : parts) n += part.rows.size();
  const TensorPart& one = parts.front();
  if (one.coded && !takes_int8_inputs(one.coded->scheme().code)) activations = ActivationFormat::kBFloat16;
  PackedMatrix to = type == WeightType::kCodes ? PackedMatrix(CodedColumns{.scheme = one.coded->scheme(),
                                                                           .activations = activations,
                                                                           .bits = one.coded->bits(),
                                                                           .first = one.columns.begin,
                                                                           .order = one.coded->order(),
                                                                           .groups = one.coded->groups()},
                                                              n, one.columns.size(), leaves)
                                               : PackedMatrix(type, n, one.columns.size(), leaves);
  std::vector<SourceRow> rows;
  rows.reserve(static_cast<size_t>(round_up(to.n(), kTileColumns)));
  for (const TensorPart& part : parts)
    for (int64_t r = 0; r < part.rows.size(); ++r) rows.push_back(source_row(part, r));
  rows.resize(static_cast<size_t>(round_up(to.n(), kTileColumns)));
  pool.parallel_for(to.tiles(), 4, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      std::array<SourceRow, kTileColumns> of_tile;
      std::copy_n(rows.begin() + tile * kTileColumns, kTileColumns, of_tile.begin());
      pack_tile(to, tile, of_tile);
    }
  });
  for (const TensorPart& part : parts) release(part);
  return to;
}

}  // namespace

PackedMatrix pack_matrix(const MatrixSource& source, WeightType type, ThreadPool& pool,
                         ActivationFormat activations) {
  std::vector<int64_t> leaves = source.leaf_ends;
  if (leaves.empty()) leaves = {source.k()};
  const std::span<const TensorPart> parts = source.parts;
  if (type != WeightType::kCodes) return pack_parts(parts, type, leaves, pool, activations);
  std::optional<PackedMatrix> whole;
  for (size_t i = 0, end; i < parts.size(); i = end) {
    for (end = i + 1; end < parts.size() && packs_alike(parts[i], parts[end]);) ++end;
    const WeightType own = parts[i].coded                           ? WeightType::kCodes
                           : parts[i].tensor->dtype == Dtype::kBF16 ? WeightType::kBFloat16
                           : is_fp16(parts[i])                      ? WeightType::kFloat16
                                                                    : WeightType::kFloat32;
    PackedMatrix some = pack_parts(parts.subspan(i, end - i), own, leaves, pool, activations);
    if (whole)
      whole->stack(std::move(some));
    else
      whole = std::move(some);
  }
  return std::move(*whole);
}

FileTable::FileTable(MatrixSource source, WeightType type) : source_(std::move(source)), type_(type) {
  if (source_.leaf_ends.empty()) source_.leaf_ends = {source_.k()};
}

// Pages stay mapped: texts come back to the same tokens.
void FileTable::copy_row(int64_t row, std::span<float> to) const {
  for (const TensorPart& part : source_.parts) {
    if (row < part.rows.size()) return read_row(source_row(part, row), type_, source_.leaf_ends, to);
    row -= part.rows.size();
  }
  CHECK(false, "row {} behind the table", row);
}

WeightType weight_type(WeightFormat format, MatrixKind kind) {
  CHECK(format != WeightFormat::kAuto, "auto names no type");
  if (format == WeightFormat::kBFloat16) return WeightType::kBFloat16;
  if (format == WeightFormat::kFloat8) return WeightType::kFloat8;
  return format == WeightFormat::kInt4 && kind == MatrixKind::kLayer ? WeightType::kInt4 : WeightType::kInt8;
}

Result<WeightType> weight_type(const MatrixSource& source, WeightFormat format, MatrixKind kind,
                               WeightType numbers) {
  const WeightType asked = format == WeightFormat::kAuto ? numbers : weight_type(format, kind);
  const auto is_coded = [](const TensorPart& part) { return part.coded != nullptr; };
  const auto is_turned = [](const TensorPart& part) { return part.coded && part.apart; };
  if (std::any_of(source.parts.begin(), source.parts.end(), is_turned))  // no kernel takes codes of columns
    return format == WeightFormat::kAuto ? WeightType::kFloat32 : asked;
  if (std::any_of(source.parts.begin(), source.parts.end(), is_coded))
    return format == WeightFormat::kAuto ? WeightType::kCodes : asked;
  const TensorInfo& first = *source.parts.front().tensor;
  const auto stored = stored_type(first.dtype);
  for (const TensorPart& part : source.parts)
    if (stored_type(part.tensor->dtype) != stored)
      return malformed(fmt::format("{} and {} are quantised differently; quantise the original again",
                                   first.name, part.tensor->name));
  if (stored && format != WeightFormat::kAuto && *stored != asked)
    return invalid_argument(
        fmt::format("--weight-format {} (of a draft model: --draft-weight-format): {} is stored as {}; leave "
                    "the flag out, or give the original model",
                    weight_format_name(format), first.name, weight_type_name(*stored)));
  return stored.value_or(asked);
}

Result<WeightType> cpu_weight_type(const MatrixSource& source, WeightFormat format, MatrixKind kind,
                                   WeightType numbers) {
  ASSIGN_OR_RETURN(const WeightType type, weight_type(source, format, kind, numbers));
  const bool stays = type == WeightType::kFloat32 && format == WeightFormat::kAuto &&
                     std::all_of(source.parts.begin(), source.parts.end(), is_fp16);
  return stays ? WeightType::kFloat16 : type;
}

const char* weight_type_name(WeightType type) {
  constexpr const char* kNames[]{"fp32", "bf16", "int8", "int4", "fp8", "codes", "fp16"};
  return kNames[static_cast<int>(type)];
}

Result<ExpertMlp> pack_mixture(const ExpertSources& sources, const ModelConfig& config, WeightFormat format,
                               WeightType numbers, ThreadPool& pool) {
  const WeightOptions options{.format = format};
  return Packer(config, {}, numbers, 0, options, pool).mixture(sources);
}

Result<LatentWeights> pack_latent(const LatentSources& sources, const ModelConfig& config,
                                  WeightFormat format, WeightType numbers, ThreadPool& pool) {
  const WeightOptions options{.format = format};
  return Packer(config, {}, numbers, 0, options, pool).latent(sources);
}

Result<Weights> load_weights(TensorFiles files, const ModelConfig& config, const ShardPlan& plan,
                             const WeightOptions& options, ThreadPool& pool) {
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, config, plan));
  Packer packer(config, plan.shard, map.all_bf16 ? WeightType::kBFloat16 : WeightType::kFloat32,
                map.matrix_bytes(), options, pool);
  Weights weights;
  if (map.embedding) {
    ASSIGN_OR_RETURN(weights.embedding, packer.matrix(MatrixKind::kVocabulary, *map.embedding));
  }
  ASSIGN_OR_RETURN(weights.head, packer.matrix(MatrixKind::kVocabulary, map.head));
  if (map.inputs) {
    ASSIGN_OR_RETURN(weights.inputs, packer.input_table(*map.inputs));
    weights.bytes += static_cast<int64_t>(weights.inputs->projection.bytes());
  }
  for (const LayerSources& sources : map.layers) {
    ASSIGN_OR_RETURN(LayerWeights w, packer.layer(sources));
    weights.bytes += static_cast<int64_t>(w.bytes());
    weights.layers.push_back(std::move(w));
  }
  weights.final_norm = packer.norm(map.final_norm);
  weights.bytes += static_cast<int64_t>(weights.head.bytes() + weights.embedding.bytes());
  RETURN_IF_ERROR(files.check_unchanged());
  if (weights.inputs) weights.inputs->table.keep(std::make_shared<const TensorFiles>(std::move(files)));
  return weights;
}

}  // namespace outrider
