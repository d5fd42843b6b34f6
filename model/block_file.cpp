#include "model/block_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/log.h"
#include "kernels/cpu/gguf_quantize.h"
#include "kernels/cpu/pack.h"
#include "model/weight_output.h"
#include "model_files/gguf_codes.h"
#include "model_files/gguf_parts.h"
#include "model_files/stored_codes.h"
#include "model_files/weight_map.h"

namespace outrider {
namespace {

// A tensor of the original. Matrices of several experts count as one with all their rows.
struct BlockItem {
  const TensorInfo* tensor = nullptr;
  std::optional<Dtype> type;  // of its blocks; else it stays
  std::span<const float> importance;  // of each matrix' columns, one matrix behind the other; empty: unknown
  int64_t k() const { return tensor->shape.back(); }
  int64_t rows() const {
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < tensor->shape.size(); ++i) rows *= tensor->shape[i];
    return rows;
  }
  int64_t row_bytes() const {
    const DtypeBlock block = dtype_block(*type);
    return k() / block.elements * block.bytes;
  }
  int64_t bytes() const { return type ? rows() * row_bytes() : static_cast<int64_t>(tensor->data.size()); }
};

// The matrices that are products' weights, by where their data begin.
using Places = std::map<const std::byte*, Place>;

Places places_of(const WeightMap& map) {
  Places places;
  const auto add = [&](const MatrixSource& source, Place place) {
    for (const TensorPart& part : source.parts) places.emplace(part.tensor->data.data(), place);
  };
  for (const MatrixSource* source : map.vocabulary_matrices()) add(*source, Place::kVocabulary);
  for (const MatrixSource* source : map.layer_matrices()) add(*source, Place::kLayer);
  return places;
}

// The place of the first matrix within the tensor's data.
std::optional<Place> place_of(const Places& places, const TensorInfo& tensor) {
  const auto first = places.lower_bound(tensor.data.data());
  if (first == places.end() || first->first >= tensor.data.data() + tensor.data.size()) return std::nullopt;
  return first->second;
}

Result<BlockItem> plan_item(const TensorInfo& tensor, const Places& places, const BlockTypes& types,
                            const BlockWriting& how) {
  BlockItem item{.tensor = &tensor};
  const std::optional<Place> place = place_of(places, tensor);
  if (!place || tensor.shape.size() < 2) return item;
  const std::optional<Dtype> type = types.of(tensor.name, *place, tensor.shape.back());
  if (!type || *type == tensor.dtype) return item;
  if (is_gguf_block(tensor.dtype) && !how.takes_codes)
    return invalid_argument(
        fmt::format("{} is {} already, and would lose twice; give the original model, or --allow-requantize",
                    tensor.name, dtype_name(tensor.dtype)));
  item.type = type;
  if (!how.importance) return item;
  item.importance = how.importance->of(tensor.name);
  const auto each = static_cast<size_t>(item.k()), matrices = item.importance.size() / each;
  if (matrices * each != item.importance.size() ||
      (matrices > 1 && item.rows() % static_cast<int64_t>(matrices) != 0))
    return invalid_argument(
        fmt::format("the importance matrix has {} numbers of {}, whose rows have {}; it is of another model",
                    item.importance.size(), tensor.name, each));
  return item;
}

// Importance that no tensor has is of another model.
Status check_importance(const std::vector<BlockItem>& items, const BlockWriting& how) {
  const auto has = [](const BlockItem& item) { return !item.importance.empty(); };
  if (!how.importance || std::any_of(items.begin(), items.end(), has)) return {};
  return invalid_argument("the importance matrix has no tensor that is quantised; it is of another model");
}

// A file that would be a copy under the name of another format is not written.
Status check_changes(const std::vector<BlockItem>& items, const BlockFormat& format) {
  if (std::any_of(items.begin(), items.end(), [](const BlockItem& item) { return item.type.has_value(); }))
    return {};
  return invalid_argument(fmt::format(
      "nothing to quantise: each matrix is of {} already, or its rows are no whole blocks of 32 numbers",
      format.name));
}

Status write_rows(const BlockItem& item, ThreadPool& pool, std::FILE* to) {
  // Blocks are read as a matrix, whatever the dimensions.
  TensorInfo flat = *item.tensor;
  flat.shape = {item.rows(), item.k()};
  flat.paired_rows = 0;  // rows keep their order
  const std::shared_ptr<const CodedMatrix> coded = is_gguf_block(flat.dtype) ? gguf_codes(flat) : nullptr;
  const int64_t width = coded ? 0 : item.k() * dtype_bits(flat.dtype) / 8, row_bytes = item.row_bytes();
  constexpr int64_t kChunkRows = 256;
  std::vector<std::byte> blocks(static_cast<size_t>(std::min(item.rows(), kChunkRows) * row_bytes));
  std::atomic<bool> is_finite = true;
  for (int64_t first = 0; first < item.rows(); first += kChunkRows) {
    const int64_t rows = std::min(kChunkRows, item.rows() - first);
    pool.parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> numbers(static_cast<size_t>(item.k()));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = first + i;
        read_floats(coded ? SourceRow{.dtype = flat.dtype, .coded = coded.get(), .row = row}
                          : SourceRow{.data = flat.data.data() + row * width, .dtype = flat.dtype},
                    0, numbers);
        if (!std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); })) {
          is_finite = false;
          return;
        }
        std::span<const float> importance = item.importance;
        if (!importance.empty()) {
          const auto matrices = static_cast<int64_t>(importance.size()) / item.k();
          importance = importance.subspan(static_cast<size_t>(row / (item.rows() / matrices) * item.k()),
                                          static_cast<size_t>(item.k()));
        }
        quantize_blocks(*item.type, numbers, blocks.data() + i * row_bytes, importance);
      }
    });
    if (!is_finite) return malformed(fmt::format("{} holds numbers that are not finite", item.tensor->name));
    if (!write_bytes(to, blocks.data(), static_cast<size_t>(rows * row_bytes))) return weights_unwritten();
  }
  release_pages(flat.data);
  return {};
}

// The items' data, each begun at a multiple of `alignment` bytes.
Status write_items(const std::vector<BlockItem>& items, int64_t alignment, const BlockWriting& how,
                   std::FILE* to) {
  int64_t total = 0, done = 0, at = 0;
  for (const BlockItem& item : items) total += static_cast<int64_t>(item.tensor->data.size());
  for (const BlockItem& item : items) {
    const std::string padding(static_cast<size_t>((alignment - at % alignment) % alignment), '\0');
    if (!write_bytes(to, padding.data(), padding.size())) return weights_unwritten();
    if (item.type)
      RETURN_IF_ERROR(write_rows(item, how.pool, to));
    else if (!write_bytes(to, item.tensor->data.data(), item.tensor->data.size()))
      return weights_unwritten();
    at += static_cast<int64_t>(padding.size()) + item.bytes();
    done += static_cast<int64_t>(item.tensor->data.size());
    if (how.progress) how.progress(done, total);
  }
  const std::string padding(static_cast<size_t>((alignment - at % alignment) % alignment), '\0');
  return write_bytes(to, padding.data(), padding.size()) ? Status() : weights_unwritten();
}

std::string safetensors_header(const std::vector<BlockItem>& items) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  int64_t at = 0;
  for (const BlockItem& item : items) {
    const TensorInfo& tensor = *item.tensor;
    const bool is_kept = !item.type;
    const std::vector<int64_t> shape = is_kept ? tensor.shape : std::vector{item.rows(), item.row_bytes()};
    header[is_kept ? tensor.name : tensor.name + block_suffix(*item.type)] = {
        {"dtype", dtype_name(is_kept ? tensor.dtype : Dtype::kU8)},
        {"shape", shape},
        {"data_offsets", {at, at + item.bytes()}}};
    at += item.bytes();
  }
  return safetensors_beginning(header);
}

template <class T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string& to, std::string_view text) {
  put(to, uint64_t{text.size()});
  to += text;
}

uint32_t gguf_number(Dtype type) {
  if (type == Dtype::kF32) return 0;
  if (type == Dtype::kF16) return 1;
  if (type == Dtype::kBF16) return 30;
  for (const GgufType& block : gguf_block_types())
    if (block.dtype == type) return block.number;
  CHECK(false, "{} is no type of GGUF", dtype_name(type));
}

// The keys, with the new file type.
std::string gguf_keys(const GgufContent& content, uint32_t file_type, uint64_t& count) {
  constexpr uint32_t kUint32 = 4;
  std::string keys(reinterpret_cast<const char*>(content.key_bytes.data()), content.key_bytes.size());
  count = content.key_count;
  const auto set = [&](std::string_view key, uint32_t value) {
    std::string entry;
    put_text(entry, key);
    put(entry, kUint32);
    const size_t at = keys.find(entry);
    if (at != keys.npos && content.find(key)) {
      std::memcpy(keys.data() + at + entry.size(), &value, sizeof value);
    } else if (!content.find(key)) {
      put(entry, value);
      keys += entry;
      ++count;
    }
  };
  set("general.file_type", file_type);
  set("general.quantization_version", 2);  // of ggml's blocks, since 2023
  return keys;
}

std::string gguf_header(const GgufContent& content, const std::vector<BlockItem>& items,
                        const BlockFormat& format, int64_t alignment) {
  uint64_t key_count = 0;
  const std::string keys = gguf_keys(content, format.gguf_file_type, key_count);
  std::string header = "GGUF";
  put(header, uint32_t{3});
  put(header, uint64_t{items.size()});
  put(header, key_count);
  header += keys;
  int64_t at = 0;
  for (const BlockItem& item : items) {
    const std::vector<int64_t>& shape = item.tensor->shape;
    put_text(header, item.tensor->name);
    put(header, static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) put(header, static_cast<uint64_t>(shape[i]));
    put(header, gguf_number(item.type.value_or(item.tensor->dtype)));
    put(header, static_cast<uint64_t>(at));
    at += (item.bytes() + alignment - 1) / alignment * alignment;
  }
  const auto unit = static_cast<size_t>(alignment);
  header.resize((header.size() + unit - 1) / unit * unit, '\0');
  return header;
}

}  // namespace

Status write_blocks(const TensorFiles& files, const ModelConfig& config, const BlockWriting& how,
                    std::FILE* to) {
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, config, ShardPlan(config, {})));
  if (map.has_codes)
    return invalid_argument("the weights are quantised already; quantise the original model");
  for (const LayerSources& layer : map.layers)
    for (const MatrixSource* source : layer.matrices())
      if (const TensorPart& part = source->parts.front(); part.apart)
        return unsupported(
            fmt::format("{} holds several matrices in one tensor, of which files of {} are not made; "
                        "quantise while loading, with --weight-format int4",
                        part.tensor->name, how.format.name));
  const Places places = places_of(map);
  const BlockTypes types(how.format, config, files.names());
  std::vector<BlockItem> items;
  for (const std::string_view name : files.names()) {
    ASSIGN_OR_RETURN(const BlockItem item, plan_item(*files.find(name), places, types, how));
    items.push_back(item);
  }
  RETURN_IF_ERROR(check_changes(items, how.format));
  const std::string header = safetensors_header(items);
  if (!write_bytes(to, header.data(), header.size())) return weights_unwritten();
  RETURN_IF_ERROR(write_items(items, 1, how, to));
  return files.check_unchanged();
}

Status write_gguf_blocks(const std::filesystem::path& path, const TensorFiles& files,
                         const ModelConfig& config, const BlockWriting& how, std::FILE* to) {
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, config, ShardPlan(config, {})));
  ASSIGN_OR_RETURN(const GgufParts file, open_gguf(path));
  if (file.files.size() > 1)
    return unsupported(
        fmt::format("{}: is in {} parts; merge them into one file, with llama-gguf-split --merge",
                    path.string(), file.files.size()));
  // The file is mapped twice; matrices are known by their distance from its start.
  Places places;
  for (const auto& [data, place] : places_of(map))
    places.emplace(file.files.front().bytes().data() + (data - files.file_bytes().data()), place);
  std::vector<std::string_view> names;
  for (const TensorInfo& tensor : file.content.tensors) names.push_back(tensor.name);
  const BlockTypes types(how.format, config, names);
  std::vector<BlockItem> items;
  for (const TensorInfo& tensor : file.content.tensors) {
    ASSIGN_OR_RETURN(const BlockItem item, plan_item(tensor, places, types, how));
    items.push_back(item);
  }
  RETURN_IF_ERROR(check_changes(items, how.format));
  RETURN_IF_ERROR(check_importance(items, how));
  constexpr int64_t kAlignment = 32;
  int64_t alignment = kAlignment;
  if (const GgufValue* value = file.content.find("general.alignment"))
    alignment = static_cast<int64_t>(std::get<uint64_t>(*value));
  const std::string header = gguf_header(file.content, items, how.format, alignment);
  if (!write_bytes(to, header.data(), header.size())) return weights_unwritten();
  RETURN_IF_ERROR(write_items(items, alignment, how, to));
  return files.check_unchanged();
}

}  // namespace outrider
