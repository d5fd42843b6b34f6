#include "model/cuda/uploader.h"

#include <algorithm>
#include <cstring>

#include "model/quantized_file.h"
#include "model/weights.h"

namespace outrider::cuda {
namespace {

bool is_stored_as(const TensorInfo& tensor, WeightType type) {
  if (is_quantized(type)) return tensor.dtype == stored_dtype(type);
  return tensor.dtype == (type == WeightType::kBFloat16  ? Dtype::kBF16
                          : type == WeightType::kFloat16 ? Dtype::kF16
                                                         : Dtype::kF32);
}

// The type in which rows of a part travel to a matrix of `type`: as it, or as the numbers to be quantised.
WeightType staged_type(const TensorPart& part, WeightType type) {
  const TensorInfo& tensor = *part.tensor;
  if (part.coded) return is_quantized(type) ? WeightType::kFloat32 : type;
  if (!is_quantized(type) || is_stored_as(tensor, type)) return type;
  return tensor.dtype == Dtype::kBF16 ? WeightType::kBFloat16 : WeightType::kFloat32;
}

// Stages a row that is not stored contiguously, number by number.
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

DeviceMatrix Uploader::matrix(const MatrixPlan& plan) {
  if (!plan.codes) {
    DeviceMatrix matrix(plan.type, plan.n, plan.slices);
    if (plan.is_paired) matrix.pair_rows();
    if (plan.is_wide) {
      upload_wide(plan.parts, matrix.view());
      return matrix;
    }
    int64_t row = 0;
    for (const TensorPart& part : plan.parts) {
      upload(part, row, matrix.view());
      row += plan.rows_each > 0 ? plan.rows_each : part.rows.size();
    }
    return matrix;
  }
  DeviceMatrix matrix(plan.codes->form, plan.n, plan.slices, plan.codes->columns, stream_);
  if (plan.is_paired) matrix.pair_rows();
  std::vector<CodedPiece> pieces;
  for (const TensorPart& part : plan.parts) pieces.push_back({part.coded.get(), part.columns});
  int64_t row = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TensorPart& part = plan.parts[i];
    if (!plan.is_wide) {
      upload_codes(*plan.codes, {&pieces[i], 1}, part.rows, row, matrix.view());
      row += part.rows.size();
    } else if (i == 0) {
      upload_codes(*plan.codes, pieces, part.rows, 0, matrix.view());
    }
    advance(part.bytes(part.rows.size()));
  }
  for (const TensorPart& part : plan.parts)  // most orders of codes spread a row's over the whole tensor
    for (const TensorInfo* tensor : part.coded->tensors()) release_pages(tensor->data);
  return matrix;
}

void Uploader::advance(int64_t bytes) {
  done_ += bytes;
  if (progress_) progress_(std::min(done_, total_), total_);
}

Uploader::Staging& Uploader::next_free() {
  Staging& s = (*staging_)[next_ ^= 1];
  if (s.used) s.free.synchronize();
  s.used = true;
  return s;
}

void Uploader::upload_wide(const std::vector<TensorPart>& parts, const MatrixView& to) {
  const WeightType staged = is_quantized(to.type) ? WeightType::kFloat32 : to.type;
  const int64_t bytes_of_row = row_bytes(staged, to.slices.k());
  if (bytes_of_row == 0) return;
  const int64_t rows_at_once = kStagingBytes / bytes_of_row;
  CHECK(rows_at_once > 0, "a row of {} bytes", bytes_of_row);
  for (int64_t row = 0; row < to.n; row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, to.n - row);
    Staging& s = next_free();
    std::byte* at = s.host.data();
    for (int64_t r = row; r < row + rows; ++r)
      for (const TensorPart& part : parts) {
        stage_row(part, r, staged, at);
        at += row_bytes(staged, part.columns.size());
      }
    copy(s.device.data(), s.host.data(), rows * bytes_of_row, stream_);
    if (staged == to.type)
      pack_rows(stream_, to, row, rows, s.device.data());
    else
      quantize_rows(stream_, to, row, rows, staged, s.device.data());
    s.free.record(stream_);
    for (const TensorPart& part : parts) advance(part.bytes(rows));
  }
  for (const TensorPart& part : parts)
    if (!part.coded) release_pages(part.tensor->data);
}

void Uploader::upload_codes(const CodePlan& plan, std::span<const CodedPiece> pieces, IndexRange rows,
                            int64_t first_row, const MatrixView& to) {
  const int64_t code_bytes = staged_code_bytes(plan), words = staged_words(plan);
  if (code_bytes == 0) return;
  const int64_t rows_at_once = (kStagingBytes - 1) / (code_bytes + words * 2);  // 1: for the words' place
  CHECK(rows_at_once > 0, "a row of {} bytes", code_bytes);
  for (int64_t row = 0; row < rows.size(); row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, rows.size() - row);
    Staging& s = next_free();
    const int64_t words_at = round_up(count * code_bytes, 2);
    auto* own_words = reinterpret_cast<uint16_t*>(s.host.data() + words_at);
    for (int64_t r = 0; r < count; ++r)
      stage_codes(plan, pieces, rows.begin + row + r, s.host.data() + r * code_bytes, own_words + r * words);
    copy(s.device.data(), s.host.data(), words_at + count * words * 2, stream_);
    pack_rows(stream_, to, first_row + row, count, s.device.data());
    pack_words(stream_, to, first_row + row, count,
               reinterpret_cast<const uint16_t*>(s.device.data() + words_at));
    s.free.record(stream_);
  }
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
    advance(part.bytes(rows));
  }
}

}  // namespace outrider::cuda
