#include "transformer/cuda/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace outrider::cuda {
namespace {

constexpr int64_t kStagingBytes = int64_t{32} << 20;  // of each of two: long enough to hide a copy's start

Slices slices_of(int64_t k, const std::vector<int64_t>& leaf_ends) {
  return leaf_ends.empty() ? even_slices(k) : slices_from_ends(leaf_ends);
}

DeviceBuffer<float> to_device(std::span<const float> values, StreamView stream) {
  DeviceBuffer<float> buffer(static_cast<int64_t>(values.size()));
  copy(buffer.data(), values.data(), buffer.size(), stream);
  stream.synchronize();  // the host vector goes away
  return buffer;
}

// Row `row` of a part, as elements of the matrix' type.
void stage_row(const TensorPart& part, int64_t row, WeightType type, std::byte* to) {
  const TensorInfo& tensor = *part.tensor;
  const int64_t first = (part.rows.begin + row) * tensor.shape[1] + part.columns.begin;
  const int64_t count = part.columns.size();
  const bool as_stored = tensor.dtype == (type == WeightType::kBFloat16 ? Dtype::kBF16 : Dtype::kF32);
  if (as_stored) {
    const int64_t element = element_bytes(type);
    std::memcpy(to, tensor.data.data() + first * element, static_cast<size_t>(count * element));
    return;
  }
  CHECK(type == WeightType::kFloat32, "only fp32 is converted to");
  for (int64_t i = 0; i < count; ++i) {
    const float value = tensor_element(tensor, first + i);
    std::memcpy(to + i * 4, &value, 4);
  }
}

class Uploader {
 public:
  Uploader(WeightType type, int64_t total_bytes, StreamView stream, const LoadProgress& progress)
      : type_(type), total_(total_bytes), stream_(stream), progress_(progress) {}
  ~Uploader() { stream_.synchronize(); }  // the staging memory is still being read

  DeviceMatrix matrix(const MatrixSource& source);

 private:
  struct Staging {
    PinnedBuffer<std::byte> host{kStagingBytes};
    DeviceBuffer<std::byte> device{kStagingBytes};
    Event free;
    bool used = false;
  };

  void upload(const TensorPart& part, int64_t first_row, const MatrixView& to);

  WeightType type_;
  int64_t done_ = 0, total_ = 0;
  StreamView stream_;
  const LoadProgress& progress_;
  Staging staging_[2];
  int next_ = 0;
};

DeviceMatrix Uploader::matrix(const MatrixSource& source) {
  DeviceMatrix matrix(type_, source.n(), slices_of(source.k(), source.leaf_ends));
  int64_t row = 0;
  for (const TensorPart& part : source.parts) {
    upload(part, row, matrix.view());
    row += part.rows.size();
  }
  return matrix;
}

void Uploader::upload(const TensorPart& part, int64_t first_row, const MatrixView& to) {
  const int64_t row_bytes = part.columns.size() * element_bytes(type_);
  if (row_bytes == 0) return;
  const int64_t rows_at_once = std::max<int64_t>(1, kStagingBytes / row_bytes);
  CHECK(row_bytes <= kStagingBytes, "a row of {} bytes", row_bytes);
  const auto stored_row = part.tensor->data.size() / static_cast<size_t>(part.tensor->shape[0]);
  for (int64_t row = 0; row < part.rows.size(); row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, part.rows.size() - row);
    Staging& s = staging_[next_ ^= 1];
    if (s.used) s.free.synchronize();
    for (int64_t r = 0; r < rows; ++r) stage_row(part, row + r, type_, s.host.data() + r * row_bytes);
    copy(s.device.data(), s.host.data(), rows * row_bytes, stream_);
    pack_rows(stream_, to, first_row + row, rows, s.device.data());
    s.free.record(stream_);
    s.used = true;
    release_pages(part.tensor->data.subspan(static_cast<size_t>(part.rows.begin + row) * stored_row,
                                            static_cast<size_t>(rows) * stored_row));
    done_ += rows * row_bytes;
    if (progress_) progress_(std::min(done_, total_), total_);
  }
}

void count_bytes(DeviceWeights& weights) {
  weights.bytes = weights.head.bytes() + weights.embedding.bytes();
  for (const DeviceLayer& l : weights.layers)
    weights.bytes += l.qkv.bytes() + l.o.bytes() + l.gate_up.bytes() + l.down.bytes();
}

}  // namespace

int64_t device_weight_bytes(const ModelConfig& c, const ShardPlan& plan, WeightType type) {
  const int64_t q = plan.query_heads.size() * c.head_dim, kv = plan.kv_heads.size() * c.head_dim;
  const int64_t columns = plan.mlp_columns.size();
  const auto bytes = [&](int64_t n, int64_t k, const std::vector<int64_t>& ends = {}) {
    return DeviceMatrix::bytes_for(type, n, slices_of(k, ends));
  };
  const int64_t layer = bytes(q + 2 * kv, c.hidden_size) + bytes(c.hidden_size, q, plan.attention_leaf_ends) +
                        bytes(2 * columns, c.hidden_size) + bytes(c.hidden_size, columns, plan.mlp_leaf_ends);
  return c.num_layers * layer + (c.tie_word_embeddings ? 1 : 2) * bytes(plan.vocab.size(), c.hidden_size);
}

DeviceWeights upload_weights(const WeightMap& map, StreamView stream, const LoadProgress& progress) {
  DeviceWeights weights;
  weights.type = map.all_bf16 ? WeightType::kBFloat16 : WeightType::kFloat32;
  Uploader uploader(weights.type, map.matrix_elements() * element_bytes(weights.type), stream, progress);
  if (map.embedding) weights.embedding = uploader.matrix(*map.embedding);
  weights.head = uploader.matrix(map.head);
  weights.final_norm = to_device(read_vector(map.final_norm), stream);
  for (const LayerSources& s : map.layers) {
    DeviceLayer l;
    l.attention_norm = to_device(read_vector(s.attention_norm), stream);
    l.mlp_norm = to_device(read_vector(s.mlp_norm), stream);
    l.q_norm = to_device(read_vector(s.q_norm), stream);
    l.k_norm = to_device(read_vector(s.k_norm), stream);
    l.qkv_bias = to_device(read_vector(s.qkv_bias), stream);
    l.o_bias = to_device(read_vector(s.o_bias), stream);
    l.gate_up_bias = to_device(read_vector(s.gate_up_bias), stream);
    l.down_bias = to_device(read_vector(s.down_bias), stream);
    l.qkv = uploader.matrix(s.qkv);
    l.o = uploader.matrix(s.o);
    l.gate_up = uploader.matrix(s.gate_up);
    l.down = uploader.matrix(s.down);
    weights.layers.push_back(std::move(l));
  }
  count_bytes(weights);
  return weights;
}

DeviceWeights noise_weights(const ModelConfig& c, const ShardPlan& plan, WeightType type, StreamView stream) {
  const int64_t q = plan.query_heads.size() * c.head_dim, kv = plan.kv_heads.size() * c.head_dim;
  uint64_t seed = 0;
  const auto matrix = [&](int64_t n, int64_t k, const std::vector<int64_t>& ends = {}) {
    DeviceMatrix m(type, n, slices_of(k, ends));
    fill_noise(stream, m.view(), ++seed, 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(k, 1))));
    return m;
  };
  const auto ones = [&](int64_t size) {
    return to_device(std::vector<float>(static_cast<size_t>(size), 1.0f), stream);
  };
  DeviceWeights weights;
  weights.type = type;
  weights.head = matrix(plan.vocab.size(), c.hidden_size);
  if (!c.tie_word_embeddings) weights.embedding = matrix(plan.vocab.size(), c.hidden_size);
  weights.final_norm = ones(c.hidden_size);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    DeviceLayer l;
    l.attention_norm = ones(c.hidden_size);
    l.mlp_norm = ones(c.hidden_size);
    if (c.qk_norm) {
      l.q_norm = ones(c.head_dim);
      l.k_norm = ones(c.head_dim);
    }
    l.qkv = matrix(q + 2 * kv, c.hidden_size);
    l.o = matrix(c.hidden_size, q, plan.attention_leaf_ends);
    l.gate_up = matrix(2 * plan.mlp_columns.size(), c.hidden_size);
    l.down = matrix(c.hidden_size, plan.mlp_columns.size(), plan.mlp_leaf_ends);
    weights.layers.push_back(std::move(l));
  }
  count_bytes(weights);
  return weights;
}

}  // namespace outrider::cuda
