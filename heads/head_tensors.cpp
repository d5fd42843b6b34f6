#include "heads/head_tensors.h"

#include <algorithm>
#include <cstring>

#include "model/quantized_file.h"

namespace outrider {

void TokenTable::read(TokenId id, std::span<float> to) const {
  read_floats(source_row(rows_, id.value()), 0, to);
}

Status TokenTable::keep_at(HeadCompute& compute) {
  ASSIGN_OR_RETURN(there_, compute.table(rows_, of_));
  return {};
}

HeadTensors::HeadTensors(const TensorFiles& files, HeadKind kind, std::string name, WeightFormat format,
                         HeadCompute& compute)
    : files_(files), kind_(kind), name_(std::move(name)), format_(format), compute_(compute) {
  for (const std::string_view tensor : files.names()) {
    const TensorInfo& info = *files.find(tensor);
    all_bf16_ &= info.shape.size() != 2 || info.dtype == Dtype::kBF16;
  }
}

std::string HeadTensors::layer(const std::string& tail) const {
  if (kind_ == HeadKind::kHydra) return "prefix_embeding_layer.layers.0." + tail;  // as it is spelt
  for (const char* prefix : {"midlayer.", "layers.0.", "model.midlayer.", "model.layers.0."})
    if (files_.find(prefix + tail)) return prefix + tail;
  return (kind_ == HeadKind::kEagle3 ? "midlayer." : "layers.0.") + tail;
}

std::string HeadTensors::own(const std::string& tail) const {
  if (kind_ == HeadKind::kHydra) return "prefix_embeding_layer." + tail;
  return files_.find("model." + tail) ? "model." + tail : tail;
}

const TensorInfo* HeadTensors::find(const std::string& name) {
  const TensorInfo* info = files_.find(name);
  if (info) used_.insert(info->name);
  return info;
}

Result<TensorPart> HeadTensors::part(const std::string& name, const std::vector<int64_t>& shape) {
  ASSIGN_OR_RETURN(const TensorInfo* info, files_.require(name, shape));
  if (!is_weight_dtype(info->dtype))
    return unsupported(fmt::format("{}: tensor {} is {}; a head's weights must be F32, BF16 or F16", name_,
                                   name, dtype_name(info->dtype)));
  used_.insert(info->name);
  const bool is_vector = shape.size() == 1;
  return TensorPart{
      .tensor = info, .rows = {0, is_vector ? 1 : shape[0]}, .columns = {0, is_vector ? shape[0] : shape[1]}};
}

Result<HeadVector> HeadTensors::vectors(const std::vector<std::string>& names,
                                        const std::vector<int64_t>& sizes) {
  VectorSource source;
  for (size_t i = 0; i < names.size(); ++i) {
    ASSIGN_OR_RETURN(const TensorPart found, part(names[i], {sizes[i]}));
    source.push_back(found);
  }
  return compute_.vector(read_vector(source));
}

Result<HeadVector> HeadTensors::numbers(const std::string& name, const std::vector<int64_t>& shape,
                                        int64_t first, int64_t count) {
  ASSIGN_OR_RETURN(TensorPart found, part(name, shape));
  found.rows = {0, 1};
  found.columns = {0, count};
  found.apart = ElementsApart{.first = first, .row = 0, .column = 1};
  return compute_.vector(read_vector({found}));
}

Result<HeadMatrix> HeadTensors::matrix(const std::vector<std::string>& names,
                                       const std::vector<int64_t>& rows, int64_t columns, MatrixKind kind) {
  MatrixSource source;
  for (size_t i = 0; i < names.size(); ++i) {
    ASSIGN_OR_RETURN(const TensorPart found, part(names[i], {rows[i], columns}));
    source.parts.push_back(found);
  }
  const WeightType numbers = all_bf16_ ? WeightType::kBFloat16 : WeightType::kFloat32;
  ASSIGN_OR_RETURN(const WeightType type, weight_type(source, format_, kind, numbers));
  return compute_.matrix(source, type);
}

Result<std::vector<TokenId>> HeadTensors::target_ids(int64_t rows, int64_t vocab_size) {
  const bool lists_ids = kind_ == HeadKind::kMedusa;  // the others list what is added to the row's number
  const char* const name = lists_ids ? "token_map" : "d2t";
  const TensorInfo* const map = find(name);
  if (!map && rows == vocab_size) return std::vector<TokenId>();
  if (!map)
    return not_found(fmt::format("tensor {} is missing: the head knows {} of {} tokens, and it says which",
                                 name, rows, vocab_size));
  if (map->dtype != Dtype::kI64 || map->shape != std::vector<int64_t>{rows})
    return malformed(fmt::format("tensor {} is {} of {} dimensions; it must be I64 [{}]", name,
                                 dtype_name(map->dtype), map->shape.size(), rows));
  std::vector<TokenId> ids;
  std::set<int64_t> seen;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t entry = 0;
    std::memcpy(&entry, map->data.data() + i * static_cast<int64_t>(sizeof entry), sizeof entry);
    const bool is_sane = entry >= -vocab_size && entry <= vocab_size;
    const int64_t id = is_sane ? entry + (lists_ids ? 0 : i) : -1;
    if (id < 0 || id >= vocab_size || !seen.insert(id).second)
      return malformed(
          fmt::format("tensor {}: entry {} gives token {}, which is outside the vocabulary of {} or there "
                      "twice",
                      name, i, id, vocab_size));
    ids.emplace_back(static_cast<int32_t>(id));
  }
  return ids;
}

Status HeadTensors::check_all_used(std::span<const std::string_view> of_others) const {
  for (const std::string_view tensor : files_.names()) {
    if (std::any_of(of_others.begin(), of_others.end(),
                    [&](std::string_view name) { return tensor.starts_with(name); }))
      continue;
    if (used_.contains(tensor) || tensor == "t2d" || tensor.ends_with(".rotary_emb.inv_freq")) continue;
    // DSpark's confidence head predicts how many tokens to verify; here the length policy decides that.
    if (kind_ == HeadKind::kDFlash && tensor.starts_with("confidence_head.")) continue;
    return invalid_argument(fmt::format("{}: tensor {} belongs to no {} head; is it another --drafter's?",
                                        name_, tensor, head_kind_name(kind_)));
  }
  return {};
}

Result<TokenTable> target_embedding(TensorFiles files, const WeightMap& map, const std::string& head,
                                    const std::string& target, int64_t width) {
  const TensorPart rows = (map.embedding ? *map.embedding : map.head).parts.front();
  if (rows.scales)
    return unsupported(
        fmt::format("{}: the head reads {}, which is stored quantised; name the original target", target,
                    rows.tensor->name));
  if (rows.columns.size() != width)
    return not_found(
        fmt::format("{}: embed_tokens.weight is missing, and the target's rows have {} columns, not {}", head,
                    rows.columns.size(), width));
  return TokenTable(std::move(files), rows, TableOf::kTarget);
}

Result<HeadMatrix> target_head(const WeightMap& map, WeightFormat format, HeadCompute& compute) {
  const WeightType numbers = map.all_bf16 ? WeightType::kBFloat16 : WeightType::kFloat32;
  ASSIGN_OR_RETURN(const WeightType type, weight_type(map.head, format, MatrixKind::kVocabulary, numbers));
  return compute.matrix(map.head, type);
}

}  // namespace outrider
