#include "transformer/model/cuda/uploader.h"

#include <algorithm>
#include <cstring>

#include "transformer/files/quantized_file.h"
#include "transformer/model/weights.h"

namespace outrider::cuda {
namespace {

bool is_stored_as(const TensorInfo& tensor, WeightType type) {
  return is_quantized(type) ? tensor.dtype == stored_dtype(type)
                            : tensor.dtype == (type == WeightType::kBFloat16 ? Dtype::kBF16 : Dtype::kF32);
}

// The type in which rows of a part travel to a matrix of `type`: as it, or as the numbers to be quantised.
WeightType staged_type(const TensorPart& part, WeightType type) {
  const TensorInfo& tensor = *part.tensor;
  if (part.coded) return is_quantized(type) ? WeightType::kFloat32 : type;
  if (!is_quantized(type) || is_stored_as(tensor, type)) return type;
  return tensor.dtype == Dtype::kBF16 ? WeightType::kBFloat16 : WeightType::kFloat32;
}

// What is not stored row by row.
void stage_numbers(const TensorPart& part, int64_t row, WeightType type, std::byte* to) {
  std::vector<float> values(static_cast<size_t>(part.columns.size()));
  read_floats(source_row(part, row), 0, values);
  if (type == WeightType::kFloat32)
    std::memcpy(to, values.data(), values.size() * sizeof(float));
  else
    std::transform(values.begin(), values.end(), reinterpret_cast<bf16*>(to), to_bf16);
}

// The scales of a row of codes that this rank has.
void stage_scales(const TensorPart& part, int64_t row, int64_t count, std::byte* to) {
  const TensorInfo& scales = *part.scales;
  const int64_t first = (part.rows.begin + row) * scales.shape[1] + part.first_group;
  std::memcpy(to, scales.data.data() + first * 2, static_cast<size_t>(count) * 2);
}

}  // namespace

Slices slices_of(WeightType type, int64_t k, const std::vector<int64_t>& leaf_ends) {
  return leaf_ends.empty() ? even_slices(k, step_columns(type))
                           : slices_from_ends(leaf_ends, step_columns(type));
}

void stage_row(const TensorPart& part, int64_t row, WeightType type, std::byte* to) {
  const TensorInfo& tensor = *part.tensor;
  const int64_t count = part.columns.size();
  if (part.coded) return stage_numbers(part, row, type, to);
  if (!part.apart && is_stored_as(tensor, type)) {
    const int64_t row_size = static_cast<int64_t>(tensor.data.size()) / tensor.shape[0];
    CHECK(type != WeightType::kInt4 || part.columns.begin % 2 == 0, "column {}", part.columns.begin);
    std::memcpy(to,
                tensor.data.data() + stored_row(tensor, part.rows.begin + row) * row_size +
                    row_bytes(type, part.columns.begin),
                static_cast<size_t>(row_bytes(type, count)));
    return;
  }
  CHECK(!is_quantized(type), "the device quantises");
  if (part.apart) return stage_numbers(part, row, type, to);
  const int64_t first = stored_row(tensor, part.rows.begin + row) * tensor.shape[1] + part.columns.begin;
  for (int64_t i = 0; i < count; ++i) {
    const float value = tensor_element(tensor, first + i);
    if (type == WeightType::kFloat32)
      std::memcpy(to + i * 4, &value, 4);
    else
      reinterpret_cast<bf16*>(to)[i] = to_bf16(value);
  }
}

Uploader::~Uploader() {
  try {
    stream_.synchronize();           // the staging memory is still being read
  } catch (const std::exception&) {  // the next call on the device fails as well, and says why
  }
}

DeviceMatrix Uploader::matrix(WeightType type, const MatrixSource& source) {
  DeviceMatrix matrix(type, source.n(), slices_of(type, source.k(), source.leaf_ends));
  int64_t row = 0;
  for (const TensorPart& part : source.parts) {
    upload(part, row, matrix.view());
    row += part.rows.size();
  }
  return matrix;
}

Uploader::Staging& Uploader::next_free() {
  Staging& s = (*staging_)[next_ ^= 1];
  if (s.used) s.free.synchronize();
  s.used = true;
  return s;
}

DeviceMatrix Uploader::side_by_side(WeightType type, const std::vector<TensorPart>& parts,
                                    const std::vector<int64_t>& leaf_ends) {
  int64_t k = 0;
  for (const TensorPart& part : parts) k += part.columns.size();
  const int64_t n = parts.front().rows.size();
  DeviceMatrix matrix(type, n, slices_of(type, k, leaf_ends));
  const WeightType staged = is_quantized(type) ? WeightType::kFloat32 : type;
  const int64_t bytes_of_row = row_bytes(staged, k);
  if (bytes_of_row == 0) return matrix;
  const int64_t rows_at_once = kStagingBytes / bytes_of_row;
  CHECK(rows_at_once > 0, "a row of {} bytes", bytes_of_row);
  for (int64_t row = 0; row < n; row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, n - row);
    Staging& s = next_free();
    std::byte* to = s.host.data();
    for (int64_t r = row; r < row + rows; ++r)
      for (const TensorPart& part : parts) {
        stage_row(part, r, staged, to);
        to += row_bytes(staged, part.columns.size());
      }
    copy(s.device.data(), s.host.data(), rows * bytes_of_row, stream_);
    if (staged == type)
      pack_rows(stream_, matrix.view(), row, rows, s.device.data());
    else
      quantize_rows(stream_, matrix.view(), row, rows, staged, s.device.data());
    s.free.record(stream_);
    for (const TensorPart& part : parts) done_ += part.bytes(rows);
    if (progress_) progress_(std::min(done_, total_), total_);
  }
  for (const TensorPart& part : parts)
    if (!part.coded) release_pages(part.tensor->data);
  return matrix;
}

void Uploader::upload(const TensorPart& part, int64_t first_row, const MatrixView& to) {
  const WeightType staged = staged_type(part, to.type);
  const int64_t bytes_of_row = row_bytes(staged, part.columns.size());
  const int64_t scales = is_quantized(staged) ? to.groups() : 0;
  if (bytes_of_row == 0) return;
  const int64_t rows_at_once = (kStagingBytes - 1) / (bytes_of_row + scales * 2);  // 1: for the scales' place
  CHECK(rows_at_once > 0, "a row of {} bytes", bytes_of_row);
  const auto row_size = part.tensor->data.size() / static_cast<size_t>(part.tensor->shape[0]);
  for (int64_t row = 0; row < part.rows.size(); row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, part.rows.size() - row);
    Staging& s = next_free();
    const int64_t scales_at = round_up(rows * bytes_of_row, 2);
    for (int64_t r = 0; r < rows; ++r) {
      stage_row(part, row + r, staged, s.host.data() + r * bytes_of_row);
      if (scales > 0) stage_scales(part, row + r, scales, s.host.data() + scales_at + r * scales * 2);
    }
    copy(s.device.data(), s.host.data(), scales_at + rows * scales * 2, stream_);
    if (staged == to.type)
      pack_rows(stream_, to, first_row + row, rows, s.device.data());
    else
      quantize_rows(stream_, to, first_row + row, rows, staged, s.device.data());
    if (scales > 0)
      pack_scales(stream_, to, first_row + row, rows,
                  reinterpret_cast<const bf16*>(s.device.data() + scales_at));
    s.free.record(stream_);
    if (!part.coded && !part.apart)  // what a row has may lie anywhere
      release_pages(part.tensor->data.subspan(static_cast<size_t>(part.rows.begin + row) * row_size,
                                              static_cast<size_t>(rows) * row_size));
    done_ += part.bytes(rows);
    if (progress_) progress_(std::min(done_, total_), total_);
  }
}

}  // namespace outrider::cuda
