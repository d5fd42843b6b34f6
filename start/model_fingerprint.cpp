#include "start/model_fingerprint.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "base/text_hash.h"
#include "transformer/files/gguf_file.h"
#include "transformer/files/safetensors.h"

namespace outrider {
namespace {

constexpr size_t kSampledBytes = 256;      // at either end of a tensor
constexpr size_t kGgufKeysSampled = 4096;  // what stands in for config.json comes first

uint64_t add(uint64_t hash, std::span<const std::byte> bytes) {
  return hash_bytes(hash, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace

Result<uint64_t> fingerprint_of_model(const std::filesystem::path& directory, uint64_t salt) {
  if (is_gguf_path(directory)) {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(directory));
    salt = add(salt, file.bytes().first(std::min<size_t>(file.bytes().size(), kGgufKeysSampled)));
  }
  std::ifstream config(directory / "config.json");
  uint64_t hash = hash_bytes(salt, std::string(std::istreambuf_iterator<char>(config), {}));
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
  for (const std::string_view name : files.names()) {
    const TensorInfo& tensor = *files.find(name);
    hash = hash_bytes(hash, name);
    hash = hash_combine(hash, static_cast<uint64_t>(tensor.dtype));
    for (const int64_t extent : tensor.shape) hash = hash_combine(hash, static_cast<uint64_t>(extent));
    const size_t sampled = std::min(tensor.data.size(), kSampledBytes);
    hash = add(hash, tensor.data.first(sampled));
    hash = add(hash, tensor.data.last(sampled));
  }
  return hash;
}

}  // namespace outrider
