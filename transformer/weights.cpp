#include "transformer/weights.h"

#include <algorithm>

#include "transformer/weight_map.h"

namespace outrider {
namespace {

class Packer {
 public:
  Packer(WeightType type, int64_t total_bytes, ThreadPool& pool, const LoadProgress& progress)
      : type_(type), total_(total_bytes), pool_(pool), progress_(progress) {}

  PackedMatrix matrix(const MatrixSource& source);
  LayerWeights layer(const LayerSources& sources);

 private:
  void pack(const TensorPart& part, int64_t first_row, PackedMatrix& to);
  void advance(int64_t bytes);

  WeightType type_;
  int64_t done_ = 0;
  int64_t total_ = 0;
  ThreadPool& pool_;
  const LoadProgress& progress_;
};

void Packer::advance(int64_t bytes) {
  done_ += bytes;
  if (progress_) progress_(std::min(done_, total_), total_);
}

PackedMatrix Packer::matrix(const MatrixSource& source) {
  std::vector<int64_t> leaves = source.leaf_ends;
  if (leaves.empty()) leaves = {source.k()};
  PackedMatrix packed(type_, source.n(), source.k(), std::move(leaves));
  int64_t row = 0;
  for (const TensorPart& p : source.parts) {
    pack(p, row, packed);
    row += p.rows.size();
  }
  return packed;
}

void Packer::pack(const TensorPart& part, int64_t first_row, PackedMatrix& to) {
  const TensorInfo& tensor = *part.tensor;
  const int64_t stride = tensor.shape[1];
  constexpr int64_t kBlock = kTileColumns;
  const int64_t blocks = (part.rows.size() + kBlock - 1) / kBlock;
  pool_.parallel_for(blocks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t last = std::min(part.rows.size(), (block + 1) * kBlock);
      for (int64_t c = 0; c < part.columns.size();
           c += 64)  // columns in chunks, so that the tile stays in cache
        for (int64_t r = block * kBlock; r < last; ++r)
          for (int64_t i = c; i < std::min(c + 64, part.columns.size()); ++i)
            to.set(first_row + r, i,
                   tensor_element(tensor, (part.rows.begin + r) * stride + part.columns.begin + i));
    }
  });
  const auto width = tensor.data.size() / static_cast<size_t>(std::max<int64_t>(1, tensor.shape[0]));
  release_pages(tensor.data.subspan(static_cast<size_t>(part.rows.begin) * width,
                                    static_cast<size_t>(part.rows.size()) * width));
  advance(part.elements() * (type_ == WeightType::kBFloat16 ? 2 : 4));
}

LayerWeights Packer::layer(const LayerSources& s) {
  return {.attention_norm = read_vector(s.attention_norm),
          .mlp_norm = read_vector(s.mlp_norm),
          .q_norm = read_vector(s.q_norm),
          .k_norm = read_vector(s.k_norm),
          .qkv = matrix(s.qkv),
          .qkv_bias = read_vector(s.qkv_bias),
          .o = matrix(s.o),
          .o_bias = read_vector(s.o_bias),
          .gate_up = matrix(s.gate_up),
          .gate_up_bias = read_vector(s.gate_up_bias),
          .down = matrix(s.down),
          .down_bias = read_vector(s.down_bias)};
}

}  // namespace

Result<Weights> load_weights(TensorFiles& files, const ModelConfig& config, const ShardPlan& plan,
                             ThreadPool& pool, const LoadProgress& progress) {
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, config, plan));
  const WeightType type = map.all_bf16 ? WeightType::kBFloat16 : WeightType::kFloat32;
  Packer packer(type, map.matrix_elements() * (map.all_bf16 ? 2 : 4), pool, progress);
  Weights weights;
  if (map.embedding) weights.embedding = packer.matrix(*map.embedding);
  weights.head = packer.matrix(map.head);
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
