#include "model_files/importance_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/printable.h"
#include "model_files/gguf_file.h"

namespace outrider {
namespace {

using Entries = std::map<std::string, std::vector<float>, std::less<>>;

bool are_weights(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x) && x >= 0; });
}

Status not_weights(const std::string& file, std::string_view name) {
  return malformed(fmt::format("{}: {} has numbers that are negative or not finite", file, printable(name)));
}

std::vector<float> floats_of(const TensorInfo& tensor) {
  std::vector<float> out(tensor.data.size() / sizeof(float));
  std::memcpy(out.data(), tensor.data.data(), out.size() * sizeof(float));
  return out;
}

// Sums over tokens become means; `counts` has one number for each matrix.
std::vector<float> means(std::vector<float> sums, const std::vector<float>& counts) {
  const size_t columns = sums.size() / counts.size();
  for (size_t i = 0; i < sums.size(); ++i) {
    const float count = counts[i / columns];
    sums[i] = count > 0 ? sums[i] / count : 1;
  }
  return sums;
}

Result<Entries> entries_of_gguf(std::span<const std::byte> bytes, const std::string& file) {
  constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";
  ASSIGN_OR_RETURN(const GgufContent content, parse_gguf(bytes, file));
  Entries out;
  for (const TensorInfo& tensor : content.tensors) {
    if (!tensor.name.ends_with(kSums)) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - kSums.size());
    const TensorInfo* counts = content.tensor(name + std::string(kCounts));
    const auto are_floats = [](const TensorInfo& t) { return t.dtype == Dtype::kF32 && !t.data.empty(); };
    if (!counts || !are_floats(tensor) || !are_floats(*counts) ||
        tensor.data.size() % counts->data.size() != 0)
      return malformed(fmt::format("{}: {} has no fitting {}{}, both in F32", file, printable(tensor.name),
                                   printable(name), kCounts));
    if (!are_weights(floats_of(*counts))) return not_weights(file, counts->name);
    std::vector<float> values = means(floats_of(tensor), floats_of(*counts));
    if (!are_weights(values)) return not_weights(file, name);
    out.emplace(name, std::move(values));
  }
  return out;
}

// Reads the legacy format from front to back.
class LegacyReader {
 public:
  LegacyReader(std::span<const std::byte> bytes, const std::string& file) : left_(bytes), file_(file) {}

  Result<Entries> read() {
    const auto count = number();
    if (!count || *count < 1) return wrong("does not begin with a number of entries");
    Entries out;
    for (int32_t i = 0; i < *count; ++i) {
      const auto name = take(number());
      if (!name || name->empty()) return wrong(fmt::format("ends inside the name of entry {}", i + 1));
      std::string text(reinterpret_cast<const char*>(name->data()), name->size());
      const auto calls = number(), size = number();
      const auto numbers = size && *size > 0 ? take(int64_t{*size} * 4) : std::nullopt;
      if (!calls || !numbers) return wrong(fmt::format("ends inside {}", printable(text)));
      std::vector<float> values(numbers->size() / sizeof(float));
      std::memcpy(values.data(), numbers->data(), numbers->size());
      if (*calls < 0)
        return malformed(fmt::format("{}: {} counts {} calls; give a whole file of llama-imatrix", file_,
                                     printable(text), *calls));
      if (*calls > 0)
        for (float& value : values) value /= static_cast<float>(*calls);
      if (!are_weights(values)) return not_weights(file_, text);
      out.emplace(std::move(text), std::move(values));
    }
    return out;
  }

 private:
  Status wrong(const std::string& why) const {
    return malformed(
        fmt::format("{}: {}; give a file of llama-imatrix, in GGUF or in its first format", file_, why));
  }
  std::optional<std::span<const std::byte>> take(std::optional<int64_t> size) {
    if (!size || *size < 0 || static_cast<uint64_t>(*size) > left_.size()) return std::nullopt;
    const auto out = left_.first(static_cast<size_t>(*size));
    left_ = left_.subspan(out.size());
    return out;
  }
  std::optional<int32_t> number() {
    const auto bytes = take(sizeof(int32_t));
    if (!bytes) return std::nullopt;
    int32_t value;
    std::memcpy(&value, bytes->data(), sizeof value);
    return value;
  }

  std::span<const std::byte> left_;
  const std::string& file_;
};

}  // namespace

Result<ImportanceMatrix> ImportanceMatrix::open(const std::filesystem::path& path) {
  const std::string name = path.string();
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  constexpr std::string_view kMagic = "GGUF";
  const auto bytes = file.bytes();
  const bool is_gguf =
      bytes.size() >= kMagic.size() && std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
  ImportanceMatrix out;
  ASSIGN_OR_RETURN(out.by_name_, is_gguf ? entries_of_gguf(bytes, name) : LegacyReader(bytes, name).read());
  if (out.by_name_.empty())
    return malformed(name + ": has no tensor NAME.in_sum2; give a file of llama-imatrix");
  return out;
}

std::span<const float> ImportanceMatrix::of(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? std::span<const float>() : found->second;
}

}  // namespace outrider
