#include "model_files/tensor_parts.h"

#include <fmt/format.h>

#include "model_files/gguf_codes.h"
#include "model_files/published_codes.h"
#include "model_files/stored_codes.h"

namespace outrider {

Result<TensorPart> TensorParts::codes(const TensorInfo& stored, const std::vector<int64_t>& shape,
                                      std::vector<int64_t> model_leaf_ends) const {
  const WeightType type = *stored_type(stored.dtype);
  if (model_leaf_ends.empty()) model_leaf_ends = {shape[1]};
  const std::vector<int64_t> scales_shape{shape[0],
                                          count_groups(type, model_leaf_ends, model_leaf_ends.size())};
  const std::vector<int64_t> stored_shape{shape[0], stored_columns(type, shape[1])};
  const TensorInfo* scales = files_.find(stored.name + kScalesSuffix);
  if (stored.shape != stored_shape || !scales || scales->dtype != Dtype::kBF16 ||
      scales->shape != scales_shape)
    return malformed(
        fmt::format("{} is {} but not as `outrider quantize` writes it: [{}, {}] with BF16 [{}, {}] in "
                    "{}{}; quantise the original again",
                    stored.name, dtype_name(stored.dtype), stored_shape[0], stored_shape[1], scales_shape[0],
                    scales_shape[1], stored.name, kScalesSuffix));
  const auto leaves = static_cast<size_t>(model_leaf_ends.size() > 1 ? shard_leaves(plan_.shard).begin : 0);
  return TensorPart{
      .tensor = &stored, .scales = scales, .first_group = count_groups(type, model_leaf_ends, leaves)};
}

Result<TensorPart> TensorParts::matrix(const std::string& name, std::vector<int64_t> shape, IndexRange rows,
                                       IndexRange columns,
                                       const std::vector<int64_t>& model_leaf_ends) const {
  constexpr std::string_view kWeight = ".weight";
  if (config_.quantization && shape.size() == 2) {
    const std::string module = name.substr(0, name.size() - kWeight.size());
    ASSIGN_OR_RETURN(const auto coded,
                     find_published_codes(files_, *config_.quantization, module, shape[0], shape[1]));
    if (coded)
      return TensorPart{.tensor = coded->tensors()[0], .rows = rows, .columns = columns, .coded = coded};
  }
  if (const TensorInfo* stored = files_.find(name);
      stored && shape.size() == 2 && is_gguf_block(stored->dtype)) {
    if (stored->shape != shape)
      return invalid_argument(fmt::format("{}: {} has shape [{}], but {} for [{}]", files_.file_of(name),
                                          files_.shown_name(name), fmt::join(stored->shape, ", "),
                                          files_.is_gguf() ? "the file's keys ask" : "config.json asks",
                                          fmt::join(shape, ", ")));
    return TensorPart{.tensor = stored, .rows = rows, .columns = columns, .coded = gguf_codes(*stored)};
  }
  if (const TensorInfo* stored = files_.find(name);
      !config_.quantization && stored && shape.size() == 2 && stored_type(stored->dtype)) {
    ASSIGN_OR_RETURN(TensorPart part, codes(*stored, shape, model_leaf_ends));
    part.rows = rows;
    part.columns = columns;
    return part;
  }
  ASSIGN_OR_RETURN(const TensorInfo* info, files_.require(name, shape));
  if (!is_weight_dtype(info->dtype))
    return unsupported(fmt::format("tensor {} is {}; weights must be F32, BF16 or F16",
                                   files_.shown_name(name), dtype_name(info->dtype)));
  return TensorPart{.tensor = info, .rows = rows, .columns = columns};
}

Result<TensorPart> TensorParts::vector(const std::string& name, int64_t size, IndexRange part) const {
  return matrix(name, {size}, {0, 1}, part);
}

Result<TensorPart> TensorParts::stacked(const std::string& name, int64_t stored_rows, int64_t offset,
                                        IndexRange rows) const {
  return matrix(name, {stored_rows, config_.hidden_size}, {offset + rows.begin, offset + rows.end},
                {0, config_.hidden_size});
}

}  // namespace outrider
