#include "model_files/weight_sources.h"

#include <cstring>

#include "base/bfloat16.h"
#include "model_files/stored_codes.h"

namespace outrider {

int64_t TensorPart::bytes(int64_t row_count) const {
  if (coded)
    return static_cast<int64_t>(static_cast<double>(coded->code_bytes()) * static_cast<double>(row_count) /
                                static_cast<double>(coded->n()) * static_cast<double>(columns.size()) /
                                static_cast<double>(coded->k()));
  const int64_t bits =
      tensor->dtype == Dtype::kU8 ? weight_bits(WeightType::kInt4) : dtype_bits(tensor->dtype);
  return row_count * columns.size() * bits / 8;
}

int64_t MatrixSource::bytes() const {
  int64_t sum = 0;
  for (const TensorPart& part : parts) sum += part.bytes(part.rows.size());
  return sum;
}

int64_t MatrixSource::n() const {
  int64_t rows = 0;
  for (const TensorPart& part : parts) rows += part.rows.size();
  return rows;
}

int64_t WeightMap::matrix_bytes() const {
  int64_t sum = 0;
  for (const MatrixSource* matrix : vocabulary_matrices()) sum += matrix->bytes();
  for (const MatrixSource* matrix : layer_matrices()) sum += matrix->bytes();
  return sum;
}

std::vector<const MatrixSource*> WeightMap::vocabulary_matrices() const {
  std::vector<const MatrixSource*> all{&head};
  if (embedding) all.push_back(&*embedding);
  if (inputs) all.push_back(&inputs->table);
  return all;
}

std::vector<const MatrixSource*> WeightMap::layer_matrices() const {
  std::vector<const MatrixSource*> all;
  if (inputs) all.push_back(&inputs->projection);
  for (const LayerSources& layer : layers) {
    const auto own = layer.matrices();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

std::vector<const MatrixSource*> LayerSources::attention_matrices() const {
  if (!latent) return {&qkv, &o};
  std::vector<const MatrixSource*> all{&latent->q, &latent->kv_a};
  if (!latent->q_a.parts.empty()) all.push_back(&latent->q_a);
  for (const MatrixSource& matrix : latent->key_up) all.push_back(&matrix);
  for (const MatrixSource& matrix : latent->value_up) all.push_back(&matrix);
  all.push_back(&o);
  return all;
}

std::vector<const MatrixSource*> LayerSources::matrices() const {
  std::vector<const MatrixSource*> all = attention_matrices();
  const auto add = [&](const MlpSources& m) { all.insert(all.end(), {&m.gate_up, &m.down}); };
  if (const ExpertSources* experts = mixture()) {
    for (const MlpSources& expert : experts->experts) add(expert);
    if (experts->shared) add(*experts->shared);
    if (experts->beside) add(experts->beside->mlp);
  } else {
    add(dense());
  }
  if (input) all.insert(all.end(), {&input->gate, &input->out});
  return all;
}

float tensor_element(const TensorInfo& tensor, int64_t index) {
  const std::byte* data = tensor.data.data();
  if (tensor.dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + index * 2, 2);
  return tensor.dtype == Dtype::kBF16 ? to_float(bf16{bits}) : half_to_float(bits);
}

std::vector<float> read_vector(const VectorSource& source) {
  std::vector<float> values;
  for (const TensorPart& part : source)
    for (int64_t i = part.columns.begin; i < part.columns.end; ++i)
      values.push_back(
          tensor_element(*part.tensor, part.apart ? part.apart->at(0, i) : stored_row(*part.tensor, i)));
  return values;
}

std::vector<float> read_norm(const VectorSource& source, bool adds_one) {
  std::vector<float> weights = read_vector(source);
  if (adds_one)
    for (float& weight : weights) weight = 1 + weight;
  return weights;
}

}  // namespace outrider
