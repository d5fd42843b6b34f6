#include "start/model_fingerprint.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "base/hash.h"
#include "transformer/files/safetensors.h"

namespace outrider {
namespace {

constexpr size_t kSampledBytes = 256;  // at either end of a tensor

uint64_t add(uint64_t hash, std::string_view bytes) {
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;  // FNV-1a
  return mix64(hash ^ bytes.size());
}

uint64_t add(uint64_t hash, std::span<const std::byte> bytes) {
  return add(hash, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace

uint64_t fingerprint_of_text(std::string_view text) { return add(0xcbf29ce484222325, text); }

Result<uint64_t> fingerprint_of_model(const std::filesystem::path& directory, uint64_t salt) {
  std::ifstream config(directory / "config.json");
  uint64_t hash = add(salt, std::string(std::istreambuf_iterator<char>(config), {}));
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
  for (const std::string_view name : files.names()) {
    const TensorInfo& tensor = *files.find(name);
    hash = add(hash, name);
    hash = hash_combine(hash, static_cast<uint64_t>(tensor.dtype));
    for (const int64_t extent : tensor.shape) hash = hash_combine(hash, static_cast<uint64_t>(extent));
    const size_t sampled = std::min(tensor.data.size(), kSampledBytes);
    hash = add(hash, tensor.data.first(sampled));
    hash = add(hash, tensor.data.last(sampled));
  }
  return hash;
}

}  // namespace outrider
