#include "transformer/cuda/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "transformer/quantized_file.h"
#include "transformer/weights.h"

namespace outrider::cuda {
namespace {

constexpr int64_t kStagingBytes = int64_t{32} << 20;  // of each of two: long enough to hide a copy's start

Slices slices_of(WeightType type, int64_t k, const std::vector<int64_t>& leaf_ends) {
  return leaf_ends.empty() ? even_slices(k, step_columns(type))
                           : slices_from_ends(leaf_ends, step_columns(type));
}

DeviceBuffer<float> to_device(std::span<const float> values, StreamView stream) {
  DeviceBuffer<float> buffer(static_cast<int64_t>(values.size()));
  copy(buffer.data(), values.data(), buffer.size(), stream);
  stream.synchronize();  // the host vector goes away
  return buffer;
}

bool is_stored_as(const TensorInfo& tensor, WeightType type) {
  return is_quantized(type) ? tensor.dtype == stored_dtype(type)
                            : tensor.dtype == (type == WeightType::kBFloat16 ? Dtype::kBF16 : Dtype::kF32);
}

// The type in which rows of a tensor travel to a matrix of `type`: as it, or as the numbers to be quantised.
WeightType staged_type(const TensorInfo& tensor, WeightType type) {
  if (!is_quantized(type) || is_stored_as(tensor, type)) return type;
  return tensor.dtype == Dtype::kBF16 ? WeightType::kBFloat16 : WeightType::kFloat32;
}

// Row `row` of a part, as elements of `type`.
void stage_row(const TensorPart& part, int64_t row, WeightType type, std::byte* to) {
  const TensorInfo& tensor = *part.tensor;
  const int64_t first = (part.rows.begin + row) * tensor.shape[1] + part.columns.begin;
  const int64_t count = part.columns.size();
  if (is_stored_as(tensor, type)) {
    const int64_t element = element_bytes(type);
    std::memcpy(to, tensor.data.data() + first * element, static_cast<size_t>(count * element));
    return;
  }
  CHECK(!is_quantized(type), "the device quantises");
  for (int64_t i = 0; i < count; ++i) {
    const float value = tensor_element(tensor, first + i);
    if (type == WeightType::kFloat32)
      std::memcpy(to + i * 4, &value, 4);
    else
      reinterpret_cast<bf16*>(to)[i] = to_bf16(value);
  }
}

// The scales of a row of codes that this rank has.
void stage_scales(const TensorPart& part, int64_t row, int64_t count, std::byte* to) {
  const TensorInfo& scales = *part.scales;
  const int64_t first = (part.rows.begin + row) * scales.shape[1] + part.first_group;
  std::memcpy(to, scales.data.data() + first * 2, static_cast<size_t>(count) * 2);
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
  int64_t done_ = 0, total_ = 0;  // bytes of matrices in the files
  StreamView stream_;
  const LoadProgress& progress_;
  Staging staging_[2];
  int next_ = 0;
};

DeviceMatrix Uploader::matrix(const MatrixSource& source) {
  DeviceMatrix matrix(type_, source.n(), slices_of(type_, source.k(), source.leaf_ends));
  int64_t row = 0;
  for (const TensorPart& part : source.parts) {
    upload(part, row, matrix.view());
    row += part.rows.size();
  }
  return matrix;
}

void Uploader::upload(const TensorPart& part, int64_t first_row, const MatrixView& to) {
  const WeightType staged = staged_type(*part.tensor, type_);
  const int64_t row_bytes = part.columns.size() * element_bytes(staged);
  const int64_t scales = is_quantized(staged) ? to.slices.steps() : 0;
  if (row_bytes == 0) return;
  const int64_t rows_at_once = kStagingBytes / (row_bytes + scales * 2);
  CHECK(rows_at_once > 0, "a row of {} bytes", row_bytes);
  const auto stored_row = part.tensor->data.size() / static_cast<size_t>(part.tensor->shape[0]);
  for (int64_t row = 0; row < part.rows.size(); row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, part.rows.size() - row);
    Staging& s = staging_[next_ ^= 1];
    if (s.used) s.free.synchronize();
    std::byte* scales_at = s.host.data() + rows * row_bytes;  // row_bytes is even
    for (int64_t r = 0; r < rows; ++r) {
      stage_row(part, row + r, staged, s.host.data() + r * row_bytes);
      if (scales > 0) stage_scales(part, row + r, scales, scales_at + r * scales * 2);
    }
    copy(s.device.data(), s.host.data(), rows * (row_bytes + scales * 2), stream_);
    if (staged == type_)
      pack_rows(stream_, to, first_row + row, rows, s.device.data());
    else
      quantize_rows(stream_, to, first_row + row, rows, staged, s.device.data());
    if (scales > 0)
      pack_scales(stream_, to, first_row + row, rows,
                  reinterpret_cast<const bf16*>(s.device.data() + rows * row_bytes));
    s.free.record(stream_);
    s.used = true;
    release_pages(part.tensor->data.subspan(static_cast<size_t>(part.rows.begin + row) * stored_row,
                                            static_cast<size_t>(rows) * stored_row));
    done_ += part.bytes(rows);
    if (progress_) progress_(std::min(done_, total_), total_);
  }
}

void count_bytes(DeviceWeights& weights) {
  weights.bytes = weights.head.bytes() + weights.embedding.bytes();
  for (const DeviceLayer& l : weights.layers)
    weights.bytes += l.qkv.bytes() + l.o.bytes() + l.gate_up.bytes() + l.down.bytes();
}

}  // namespace

Result<WeightType> device_weight_type(const WeightMap& map, WeightFormat format) {
  const WeightType numbers = map.all_bf16 ? WeightType::kBFloat16 : WeightType::kFloat32;
  std::vector<const MatrixSource*> sources{&map.head};
  if (map.embedding) sources.push_back(&*map.embedding);
  for (const LayerSources& l : map.layers)
    for (const MatrixSource* source : {&l.qkv, &l.o, &l.gate_up, &l.down}) sources.push_back(source);
  std::optional<WeightType> type;
  for (const MatrixSource* source : sources) {
    ASSIGN_OR_RETURN(const WeightType own, weight_type(*source, format, MatrixKind::kLayer, numbers));
    const std::string& name = source->parts.front().tensor->name;
    if (own == WeightType::kInt4)
      return unsupported(
          fmt::format("{}: int4 weights are for CPUs; use --device cpu, or --weight-format int8 or fp8 of "
                      "the original model",
                      format == WeightFormat::kInt4 ? "--weight-format int4" : name));
    if (type.value_or(own) != own)
      return unsupported(
          fmt::format("{} would be {} and other matrices {}; quantise the original model again", name,
                      weight_type_name(own), weight_type_name(*type)));
    type = own;
  }
  return *type;
}

int64_t device_weight_bytes(const ModelConfig& c, const ShardPlan& plan, WeightType type) {
  const int64_t q = plan.query_heads.size() * c.head_dim, kv = plan.kv_heads.size() * c.head_dim;
  const int64_t columns = plan.mlp_columns.size();
  const auto bytes = [&](int64_t n, int64_t k, const std::vector<int64_t>& ends = {}) {
    return DeviceMatrix::bytes_for(type, n, slices_of(type, k, ends));
  };
  const int64_t layer = bytes(q + 2 * kv, c.hidden_size) + bytes(c.hidden_size, q, plan.attention_leaf_ends) +
                        bytes(2 * columns, c.hidden_size) + bytes(c.hidden_size, columns, plan.mlp_leaf_ends);
  return c.num_layers * layer + (c.tie_word_embeddings ? 1 : 2) * bytes(plan.vocab.size(), c.hidden_size);
}

DeviceWeights upload_weights(const WeightMap& map, WeightType type, StreamView stream,
                             const LoadProgress& progress) {
  DeviceWeights weights;
  weights.type = type;
  Uploader uploader(type, map.matrix_bytes(), stream, progress);
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
    DeviceMatrix m(type, n, slices_of(type, k, ends));
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
