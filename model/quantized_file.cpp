#include "model/quantized_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/cpu/pack.h"
#include "kernels/cpu/quantize.h"
#include "model/weight_output.h"
#include "model/weights.h"
#include "model_files/weight_map.h"

namespace outrider {
namespace {

// A tensor of the original, and how its contraction is cut if it is a matrix to quantise.
struct Item {
  const TensorInfo* tensor = nullptr;
  std::optional<WeightType> type;
  std::vector<int64_t> leaf_ends;
};

std::vector<Item> plan_items(const TensorFiles& files, const WeightMap& map, WeightFormat format) {
  std::map<const TensorInfo*, Item> matrices;
  const auto add = [&](MatrixKind kind, const MatrixSource& source) {
    for (const TensorPart& part : source.parts)
      matrices[part.tensor] = {
          part.tensor, weight_type(format, kind),
          source.leaf_ends.empty() ? std::vector<int64_t>{source.k()} : source.leaf_ends};
  };
  for (const MatrixSource* source : map.vocabulary_matrices()) add(MatrixKind::kVocabulary, *source);
  for (const MatrixSource* source : map.layer_matrices()) add(MatrixKind::kLayer, *source);
  std::vector<Item> items;
  for (std::string_view name : files.names()) {
    const TensorInfo* tensor = files.find(name);
    const auto matrix = matrices.find(tensor);
    items.push_back(matrix == matrices.end() ? Item{.tensor = tensor} : matrix->second);
  }
  return items;
}

int64_t groups_of(const Item& item) {
  return count_groups(*item.type, item.leaf_ends, item.leaf_ends.size());
}

std::string header_of(const std::vector<Item>& items) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  int64_t offset = 0;
  const auto add = [&](const std::string& name, Dtype dtype, const std::vector<int64_t>& shape,
                       int64_t bytes) {
    header[name] = {
        {"dtype", dtype_name(dtype)}, {"shape", shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  };
  for (const Item& item : items) {
    const TensorInfo& tensor = *item.tensor;
    if (!item.type) {
      add(tensor.name, tensor.dtype, tensor.shape, static_cast<int64_t>(tensor.data.size()));
      continue;
    }
    const int64_t n = tensor.shape[0], columns = stored_columns(*item.type, tensor.shape[1]);
    add(tensor.name, stored_dtype(*item.type), {n, columns}, n * columns);
    add(tensor.name + kScalesSuffix, Dtype::kBF16, {n, groups_of(item)}, 2 * n * groups_of(item));
  }
  return safetensors_beginning(header);
}

// One row: integers as the file holds them, and its scales.
void quantize_row(const Item& item, std::span<const PackedMatrix::Group> groups, int64_t row,
                  uint8_t* integers, bf16* scales) {
  const TensorInfo& tensor = *item.tensor;
  const SourceRow source{.data = tensor.data.data() + row * tensor.shape[1] * dtype_bits(tensor.dtype) / 8,
                         .dtype = tensor.dtype};
  float weights[kMaxGroupColumns];
  int8_t q[kMaxGroupColumns];
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto count = static_cast<size_t>(groups[g].end - groups[g].begin);
    read_floats(source, groups[g].begin, {weights, count});
    scales[g] = quantize_group(*item.type, {weights, count}, q);
    for (size_t i = 0; i < count; ++i) {
      const size_t column = static_cast<size_t>(groups[g].begin) + i;
      if (*item.type != WeightType::kInt4)
        integers[column] = static_cast<uint8_t>(q[i]);
      else if (column % 2 == 0)
        integers[column / 2] = static_cast<uint8_t>(q[i] + 8);
      else
        integers[column / 2] = static_cast<uint8_t>(integers[column / 2] | (q[i] + 8) << 4);
    }
  }
}

bool write_matrix(const Item& item, ThreadPool& pool, std::FILE* to) {
  const TensorInfo& tensor = *item.tensor;
  const int64_t n = tensor.shape[0], columns = stored_columns(*item.type, tensor.shape[1]);
  const PackedMatrix layout(*item.type, 0, tensor.shape[1], item.leaf_ends);  // for its groups
  const auto groups = static_cast<int64_t>(layout.groups().size());
  constexpr int64_t kChunkRows = 1024;
  std::vector<uint8_t> integers(static_cast<size_t>(std::min(n, kChunkRows) * columns));
  std::vector<bf16> scales(static_cast<size_t>(n * groups));
  for (int64_t first = 0; first < n; first += kChunkRows) {
    const int64_t rows = std::min(kChunkRows, n - first);
    pool.parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        quantize_row(item, layout.groups(), first + row, integers.data() + row * columns,
                     scales.data() + (first + row) * groups);
    });
    if (!write_bytes(to, integers.data(), static_cast<size_t>(rows * columns))) return false;
  }
  release_pages(tensor.data);
  return write_bytes(to, scales.data(), scales.size() * sizeof(bf16));
}

}  // namespace

Status write_quantized(const TensorFiles& files, const ModelConfig& config, WeightFormat format,
                       ThreadPool& pool, const LoadProgress& progress, std::FILE* to) {
  CHECK(is_quantized(format), "format {}", weight_format_name(format));
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, config, ShardPlan(config, {})));
  if (map.has_codes)
    return invalid_argument("the weights are quantised already; quantise the original model");
  for (const LayerSources& layer : map.layers)
    for (const MatrixSource* source : layer.matrices())
      if (const TensorPart& part = source->parts.front(); part.apart)
        return unsupported(fmt::format(
            "{} holds several matrices in one tensor, of which files of {} are not made; quantise while "
            "loading, with --weight-format {}",
            part.tensor->name, weight_format_name(format), weight_format_name(format)));
  const std::vector<Item> items = plan_items(files, map, format);
  const auto total = static_cast<int64_t>(files.total_bytes());
  int64_t done = 0;
  const std::string header = header_of(items);
  if (!write_bytes(to, header.data(), header.size())) return weights_unwritten();
  for (const Item& item : items) {
    const bool written = item.type ? write_matrix(item, pool, to)
                                   : write_bytes(to, item.tensor->data.data(), item.tensor->data.size());
    if (!written) return weights_unwritten();
    done += static_cast<int64_t>(item.tensor->data.size());
    if (progress) progress(done, total);
  }
  return files.check_unchanged();
}

}  // namespace outrider
