#include "model_files/gguf_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "base/printable.h"
#include "model_files/gguf_keys.h"

namespace outrider {
namespace {

constexpr int64_t kMostParts = 10'000;

// "-00001-of-00003.gguf", as llama.cpp's gguf-split names parts.
std::string part_suffix(int64_t index, int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", index + 1, count);
}

struct Split {
  int64_t index = 0, count = 1;
};

Result<Split> split_of(const GgufContent& content, const std::string& name) {
  ASSIGN_OR_RETURN(const auto count, gguf_integer(content, "split.count", name));
  ASSIGN_OR_RETURN(const auto index, gguf_integer(content, "split.no", name));
  if (count.value_or(1) <= 1) return Split{};
  if (*count > kMostParts || index.value_or(0) < 0 || index.value_or(0) >= *count)
    return malformed(fmt::format("{}: split.no is {} of split.count {}", name, index.value_or(0), *count));
  return Split{index.value_or(0), *count};
}

}  // namespace

Result<GgufParts> open_gguf(const std::filesystem::path& path) {
  GgufParts out;
  const std::string name = path.string();
  ASSIGN_OR_RETURN(MappedFile first, MappedFile::open(path));
  ASSIGN_OR_RETURN(out.content, parse_gguf(first.bytes(), name));
  out.files.push_back(std::move(first));
  ASSIGN_OR_RETURN(const Split split, split_of(out.content, name));
  if (split.count == 1) return out;
  const std::string suffix = part_suffix(split.index, split.count);
  if (!name.ends_with(suffix))
    return unsupported(fmt::format(
        "{}: is part {} of {} (split.count); name the parts NAME{} and so on, or merge them into one file",
        name, split.index + 1, split.count, part_suffix(0, split.count)));
  const std::string stem = name.substr(0, name.size() - suffix.size());
  if (split.index != 0)
    return unsupported(fmt::format("{}: is part {} of {}; give the first, {}{}", name, split.index + 1,
                                   split.count, stem, part_suffix(0, split.count)));
  std::set<std::string, std::less<>> names;
  for (const TensorInfo& tensor : out.content.tensors) names.insert(tensor.name);
  for (int64_t i = 1; i < split.count; ++i) {
    const std::string part_name = stem + part_suffix(i, split.count);
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(part_name));
    ASSIGN_OR_RETURN(GgufContent part, parse_gguf(file.bytes(), part_name));
    ASSIGN_OR_RETURN(const Split own, split_of(part, part_name));
    if (own.index != i || own.count != split.count)
      return malformed(fmt::format("{}: says that it is part {} of {}", part_name, own.index + 1, own.count));
    for (TensorInfo& tensor : part.tensors) {
      if (!names.insert(tensor.name).second)
        return malformed(
            fmt::format("{}: has a tensor of another part: {}", part_name, printable(tensor.name)));
      out.content.tensors.push_back(std::move(tensor));
    }
    out.files.push_back(std::move(file));
  }
  ASSIGN_OR_RETURN(const auto tensors, gguf_integer(out.content, "split.tensors.count", name));
  if (tensors && *tensors != static_cast<int64_t>(out.content.tensors.size()))
    return malformed(fmt::format("{}: split.tensors.count is {}, but the parts have {} tensors", name,
                                 *tensors, out.content.tensors.size()));
  return out;
}

}  // namespace outrider
