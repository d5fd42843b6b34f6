#include "transformer/weights.h"

#include <algorithm>
#include <array>

#include "transformer/ops/pack.h"
#include "transformer/weight_map.h"

namespace outrider {
namespace {

enum class MatrixKind { kLayer, kVocabulary };

class Packer {
 public:
  Packer(const WeightMap& map, const WeightOptions& options, ThreadPool& pool)
      : float_type_(map.all_bf16 ? WeightType::kBFloat16 : WeightType::kFloat32),
        total_(map.matrix_elements()),
        options_(options),
        pool_(pool) {}

  PackedMatrix matrix(MatrixKind kind, const MatrixSource& source);
  LayerWeights layer(const LayerSources& sources);

 private:
  WeightType type_of(MatrixKind kind) const;
  void pack(const std::vector<TensorPart>& parts, PackedMatrix& to);
  void advance(int64_t elements);

  const WeightType float_type_;
  int64_t done_ = 0, total_ = 0;  // matrix elements
  const WeightOptions& options_;
  ThreadPool& pool_;
};

void Packer::advance(int64_t elements) {
  done_ += elements;
  if (options_.progress) options_.progress(std::min(done_, total_), total_);
}

// int4 keeps the vocabulary's matrices in int8: they are a small part of the work, and every token's logits
// are read straight from one of them.
WeightType Packer::type_of(MatrixKind kind) const {
  switch (options_.format) {
    case WeightFormat::kAuto:
      return float_type_;
    case WeightFormat::kBFloat16:
      return WeightType::kBFloat16;
    case WeightFormat::kInt8:
      return WeightType::kInt8;
    case WeightFormat::kInt4:
      return kind == MatrixKind::kLayer ? WeightType::kInt4 : WeightType::kInt8;
  }
  __builtin_unreachable();
}

PackedMatrix Packer::matrix(MatrixKind kind, const MatrixSource& source) {
  std::vector<int64_t> leaves = source.leaf_ends;
  if (leaves.empty()) leaves = {source.k()};
  PackedMatrix packed(type_of(kind), source.n(), source.k(), leaves);
  pack(source.parts, packed);
  return packed;
}

SourceRow source_row(const TensorPart& part, int64_t row) {
  const TensorInfo& tensor = *part.tensor;
  const int64_t first = (part.rows.begin + row) * tensor.shape[1] + part.columns.begin;
  return {.data = tensor.data.data() + first * dtype_bits(tensor.dtype) / 8, .dtype = tensor.dtype};
}

void Packer::pack(const std::vector<TensorPart>& parts, PackedMatrix& to) {
  std::vector<SourceRow> rows;
  rows.reserve(static_cast<size_t>(round_up(to.n(), kTileColumns)));
  for (const TensorPart& part : parts)
    for (int64_t r = 0; r < part.rows.size(); ++r) rows.push_back(source_row(part, r));
  rows.resize(static_cast<size_t>(round_up(to.n(), kTileColumns)));
  pool_.parallel_for(to.tiles(), 4, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      std::array<SourceRow, kTileColumns> of_tile;
      std::copy_n(rows.begin() + tile * kTileColumns, kTileColumns, of_tile.begin());
      pack_tile(to, tile, of_tile);
    }
  });
  for (const TensorPart& part : parts) {
    const auto width = part.tensor->data.size() / static_cast<size_t>(part.tensor->shape[0]);
    release_pages(part.tensor->data.subspan(static_cast<size_t>(part.rows.begin) * width,
                                            static_cast<size_t>(part.rows.size()) * width));
  }
  advance(to.n() * to.k());
}

LayerWeights Packer::layer(const LayerSources& s) {
  return {.attention_norm = read_vector(s.attention_norm),
          .mlp_norm = read_vector(s.mlp_norm),
          .q_norm = read_vector(s.q_norm),
          .k_norm = read_vector(s.k_norm),
          .qkv = matrix(MatrixKind::kLayer, s.qkv),
          .qkv_bias = read_vector(s.qkv_bias),
          .o = matrix(MatrixKind::kLayer, s.o),
          .o_bias = read_vector(s.o_bias),
          .gate_up = matrix(MatrixKind::kLayer, s.gate_up),
          .gate_up_bias = read_vector(s.gate_up_bias),
          .down = matrix(MatrixKind::kLayer, s.down),
          .down_bias = read_vector(s.down_bias)};
}

}  // namespace

Result<Weights> load_weights(TensorFiles& files, const ModelConfig& config, const ShardPlan& plan,
                             const WeightOptions& options, ThreadPool& pool) {
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, config, plan));
  Packer packer(map, options, pool);
  Weights weights;
  if (map.embedding) weights.embedding = packer.matrix(MatrixKind::kVocabulary, *map.embedding);
  weights.head = packer.matrix(MatrixKind::kVocabulary, map.head);
  for (const LayerSources& sources : map.layers) {
    LayerWeights w = packer.layer(sources);
    weights.bytes += static_cast<int64_t>(w.qkv.bytes() + w.o.bytes() + w.gate_up.bytes() + w.down.bytes());
    weights.layers.push_back(std::move(w));
  }
  weights.final_norm = read_vector(map.final_norm);
  weights.bytes += static_cast<int64_t>(weights.head.bytes() + weights.embedding.bytes());
  RETURN_IF_ERROR(files.check_unchanged());
  return weights;
}

}  // namespace outrider
