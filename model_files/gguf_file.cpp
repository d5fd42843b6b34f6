#include "model_files/gguf_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/json_file.h"
#include "base/model_download.h"
#include "base/printable.h"
#include "model_files/gguf_codes.h"

namespace outrider {
namespace {

constexpr uint64_t kMaxTensors = 1'000'000, kMostKeys = 100'000, kMaxDimensions = 4;
constexpr uint64_t kLongestName = 1000, kLargestExtent = uint64_t{1} << 40;

// Numbers of value types in files.
enum GgufValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64
};
constexpr std::array<size_t, 13> kValueBytes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct TensorType {
  std::string_view name;
  std::optional<Dtype> dtype;  // nothing: not read
};

// Maps numbers of enum ggml_type. There are plain number types, types that llama.cpp uses only while
// computing, and block types.
std::optional<TensorType> tensor_type(uint32_t number) {
  switch (number) {
    case 0:
      return TensorType{"F32", Dtype::kF32};
    case 1:
      return TensorType{"F16", Dtype::kF16};
    case 30:
      return TensorType{"BF16", Dtype::kBF16};
    case 9:
      return TensorType{"Q8_1", {}};
    case 15:
      return TensorType{"Q8_K", {}};
    case 24:
      return TensorType{"I8", {}};
    case 25:
      return TensorType{"I16", {}};
    case 26:
      return TensorType{"I32", {}};
    case 27:
      return TensorType{"I64", {}};
    case 28:
      return TensorType{"F64", {}};
    case 41:
      return TensorType{"Q1_0", {}};
    default:
      for (const GgufType& type : gguf_block_types())
        if (type.number == number) return TensorType{dtype_name(type.dtype), type.dtype};
      return {};
  }
}

std::string supported_tensor_types() {
  std::string names = "F32, F16, BF16";
  for (const GgufType& type : gguf_block_types()) names += fmt::format(", {}", dtype_name(type.dtype));
  return names;
}

class GgufReader {
 public:
  GgufReader(std::span<const std::byte> file, const std::string& name) : file_(file), name_(name) {}

  Result<GgufContent> read();

 private:
  Status wrong(const std::string& what) const { return malformed(name_ + ": " + what); }
  // The file does not hold together.
  Status damaged(const std::string& what) const {
    return wrong(fmt::format("{}; the file is damaged: {}", what, download_again(name_)));
  }
  Status cut_short() const {
    return wrong(fmt::format("is cut short: the file ends at byte {}, inside its header; {}", file_.size(),
                             download_again(name_)));
  }
  uint64_t left() const { return file_.size() - at_; }

  template <class T>
  Result<T> number() {
    if (left() < sizeof(T)) return cut_short();
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  Result<std::string_view> text(uint64_t longest);
  Result<GgufValue> value(uint32_t type);
  Result<GgufValue> array();
  Status read_values(uint64_t count, GgufContent& to);
  Result<TensorInfo> tensor_info();
  Status place_tensors(GgufContent& to);

  std::span<const std::byte> file_;
  const std::string& name_;
  uint64_t at_ = 0;
  std::vector<uint64_t> offsets_;  // of the tensors
};

Result<std::string_view> GgufReader::text(uint64_t longest) {
  ASSIGN_OR_RETURN(const uint64_t length, number<uint64_t>());
  if (length > longest && longest > 0) return damaged(fmt::format("has a name of {} bytes", length));
  if (length > left()) return cut_short();
  const std::string_view out(reinterpret_cast<const char*>(file_.data()) + at_, length);
  at_ += length;
  return out;
}

template <class T, class Wide>
Result<GgufValue> widened(Result<T> number) {
  if (!number.ok()) return number.status();
  return GgufValue(static_cast<Wide>(*number));
}

Result<GgufValue> GgufReader::value(uint32_t type) {
  switch (type) {
    case kU8:
      return widened<uint8_t, uint64_t>(number<uint8_t>());
    case kI8:
      return widened<int8_t, int64_t>(number<int8_t>());
    case kU16:
      return widened<uint16_t, uint64_t>(number<uint16_t>());
    case kI16:
      return widened<int16_t, int64_t>(number<int16_t>());
    case kU32:
      return widened<uint32_t, uint64_t>(number<uint32_t>());
    case kI32:
      return widened<int32_t, int64_t>(number<int32_t>());
    case kF32:
      return widened<float, double>(number<float>());
    case kBool:
      return widened<uint8_t, bool>(number<uint8_t>());
    case kText: {
      ASSIGN_OR_RETURN(const std::string_view out, text(0));
      return GgufValue(out);
    }
    case kArray:
      return array();
    case kU64:
      return widened<uint64_t, uint64_t>(number<uint64_t>());
    case kI64:
      return widened<int64_t, int64_t>(number<int64_t>());
    case kF64:
      return widened<double, double>(number<double>());
    default:
      return damaged(fmt::format("has a value of type {}, which does not exist", type));
  }
}

Result<GgufValue> GgufReader::array() {
  GgufArray out;
  ASSIGN_OR_RETURN(out.type, number<uint32_t>());
  ASSIGN_OR_RETURN(out.count, number<uint64_t>());
  if (out.type >= kValueBytes.size() || out.type == kArray)
    return wrong(fmt::format("has an array of type {}, which is not read", out.type));
  const size_t least = out.type == kText ? sizeof(uint64_t) : kValueBytes[out.type];
  if (out.count > left() / least) return cut_short();
  if (out.type != kText) {
    out.numbers = file_.subspan(at_, out.count * least);
    at_ += out.numbers.size();
    return GgufValue(std::move(out));
  }
  out.texts.reserve(out.count);
  for (uint64_t i = 0; i < out.count; ++i) {
    ASSIGN_OR_RETURN(const std::string_view one, text(0));
    out.texts.push_back(one);
  }
  return GgufValue(std::move(out));
}

Status GgufReader::read_values(uint64_t count, GgufContent& to) {
  for (uint64_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const std::string_view key, text(kLongestName));
    ASSIGN_OR_RETURN(const uint32_t type, number<uint32_t>());
    Result<GgufValue> found = value(type);
    if (!found.ok()) return found.status();
    if (!to.values.emplace(std::string(key), std::move(found).value()).second)
      return wrong("has a key twice: " + printable(key));
  }
  return {};
}

Result<TensorInfo> GgufReader::tensor_info() {
  TensorInfo tensor;
  ASSIGN_OR_RETURN(const std::string_view name, text(kLongestName));
  tensor.name = std::string(name);
  const std::string what = "tensor " + printable(name);
  ASSIGN_OR_RETURN(const uint32_t dimensions, number<uint32_t>());
  if (dimensions == 0 || dimensions > kMaxDimensions)
    return damaged(fmt::format("{} has {} dimensions", what, dimensions));
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    ASSIGN_OR_RETURN(const uint64_t extent, number<uint64_t>());
    if (extent == 0 || extent > kLargestExtent || elements > kLargestExtent / extent)
      return damaged(fmt::format("{} has an absurd size", what));
    elements *= extent;
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
  }
  ASSIGN_OR_RETURN(const uint32_t type, number<uint32_t>());
  const std::optional<TensorType> known = tensor_type(type);
  if (!known || !known->dtype)
    return unsupported(fmt::format("{}: {} is {}; supported are {}", name_, what,
                                   known ? std::string(known->name) : fmt::format("of type {}", type),
                                   supported_tensor_types()));
  tensor.dtype = *known->dtype;
  const DtypeBlock block = dtype_block(tensor.dtype);
  if (tensor.shape.back() % block.elements != 0)
    return wrong(fmt::format("{} has rows of {}, which are no whole blocks of {}", what, tensor.shape.back(),
                             known->name));
  ASSIGN_OR_RETURN(const uint64_t offset, number<uint64_t>());
  const uint64_t bytes =
      elements / static_cast<uint64_t>(block.elements) * static_cast<uint64_t>(block.bytes);
  if (bytes > file_.size())
    return wrong(fmt::format(
        "{} has {} bytes, but the file ends at byte {}: it is cut short, or its download goes on; {}", what,
        bytes, file_.size(), download_again(name_)));
  tensor.data = file_.first(bytes);  // until it is placed
  offsets_.push_back(offset);
  return tensor;
}

// Gives tensors their data: aligned, inside the file, and each its own.
Status GgufReader::place_tensors(GgufContent& to) {
  uint64_t alignment = 32;
  if (const GgufValue* value = to.find("general.alignment")) {
    const auto* number = std::get_if<uint64_t>(value);
    if (!number || *number == 0 || *number > 1 << 20 || (*number & (*number - 1)) != 0)
      return wrong("general.alignment is no power of two");
    alignment = *number;
  }
  const uint64_t start = (at_ + alignment - 1) / alignment * alignment;
  std::vector<std::pair<uint64_t, size_t>> order;
  for (size_t i = 0; i < to.tensors.size(); ++i) {
    TensorInfo& tensor = to.tensors[i];
    const uint64_t bytes = tensor.data.size();
    if (offsets_[i] % alignment != 0)
      return damaged(fmt::format("tensor {} is not aligned to {} bytes", printable(tensor.name), alignment));
    if (start > file_.size() || offsets_[i] > file_.size() - start ||
        bytes > file_.size() - start - offsets_[i])
      return wrong(
          fmt::format("tensor {} lies beyond the end of the file at byte {}: it is cut short, or its "
                      "download goes on; {}",
                      printable(tensor.name), file_.size(), download_again(name_)));
    tensor.data = file_.subspan(start + offsets_[i], bytes);
    order.emplace_back(offsets_[i], i);
  }
  std::sort(order.begin(), order.end());
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i - 1].first + to.tensors[order[i - 1].second].data.size() > order[i].first)
      return damaged(fmt::format("tensors {} and {} overlap", printable(to.tensors[order[i - 1].second].name),
                                 printable(to.tensors[order[i].second].name)));
  std::vector<std::string_view> names;
  for (const TensorInfo& tensor : to.tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  return twice == names.end() ? Status() : wrong("has a tensor twice: " + printable(*twice));
}

Result<GgufContent> GgufReader::read() {
  const std::string_view start(reinterpret_cast<const char*>(file_.data()),
                               std::min<size_t>(file_.size(), 4));
  if (is_git_lfs_pointer({reinterpret_cast<const char*>(file_.data()), std::min<size_t>(file_.size(), 200)}))
    return git_lfs_pointer_error(name_);
  if (file_.empty()) return empty_file(name_);
  if (start != "GGUF")
    return wrong("is no GGUF file: it does not start with GGUF; name another file, or " +
                 download_again(name_));
  at_ = 4;
  ASSIGN_OR_RETURN(const uint32_t version, number<uint32_t>());
  if (version != 2 && version != 3)
    return unsupported(
        fmt::format("{}: is GGUF of version {}; supported are 2 and 3, little endian", name_, version));
  ASSIGN_OR_RETURN(const uint64_t tensors, number<uint64_t>());
  ASSIGN_OR_RETURN(const uint64_t keys, number<uint64_t>());
  if (tensors > kMaxTensors || keys > kMostKeys)
    return damaged(fmt::format("its header counts {} tensors and {} keys", tensors, keys));
  GgufContent content;
  const uint64_t first_key = at_;
  RETURN_IF_ERROR(read_values(keys, content));
  content.key_count = keys;
  content.key_bytes = file_.subspan(first_key, at_ - first_key);
  for (uint64_t i = 0; i < tensors; ++i) {
    ASSIGN_OR_RETURN(TensorInfo tensor, tensor_info());
    content.tensors.push_back(std::move(tensor));
  }
  RETURN_IF_ERROR(place_tensors(content));
  return content;
}

}  // namespace

namespace {

template <class T>
T element(std::span<const std::byte> numbers, uint64_t i) {
  T value;
  std::memcpy(&value, numbers.data() + i * sizeof value, sizeof value);
  return value;
}

}  // namespace

std::optional<int64_t> GgufArray::whole(uint64_t i) const {
  switch (type) {
    case kU8:
    case kBool:
      return element<uint8_t>(numbers, i);
    case kI8:
      return element<int8_t>(numbers, i);
    case kU16:
      return element<uint16_t>(numbers, i);
    case kI16:
      return element<int16_t>(numbers, i);
    case kU32:
      return element<uint32_t>(numbers, i);
    case kI32:
      return element<int32_t>(numbers, i);
    case kI64:
      return element<int64_t>(numbers, i);
    case kU64:
      if (const auto value = element<uint64_t>(numbers, i); std::in_range<int64_t>(value))
        return static_cast<int64_t>(value);
      return {};
    default:
      return {};
  }
}

double GgufArray::number(uint64_t i) const {
  if (type == kF32) return element<float>(numbers, i);
  if (type == kF64) return element<double>(numbers, i);
  if (type == kU64) return static_cast<double>(element<uint64_t>(numbers, i));
  return static_cast<double>(whole(i).value_or(0));  // 0 in an array of texts
}

const GgufValue* GgufContent::find(std::string_view key) const {
  const auto found = values.find(key);
  return found == values.end() ? nullptr : &found->second;
}

const TensorInfo* GgufContent::tensor(std::string_view name) const {
  for (const TensorInfo& tensor : tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

Result<GgufContent> parse_gguf(std::span<const std::byte> file, const std::string& name) {
  return GgufReader(file, name).read();
}

bool is_gguf_path(const std::filesystem::path& path) {
  std::error_code error;
  return path.extension() == ".gguf" && !std::filesystem::is_directory(path, error);
}

}  // namespace outrider
