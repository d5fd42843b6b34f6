#include "start/model_fingerprint.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "base/text_hash.h"
#include "base/threads.h"
#include "model_files/gguf_file.h"
#include "model_files/gguf_parts.h"
#include "model_files/safetensors.h"

namespace outrider {
namespace {

constexpr size_t kChunkBytes = size_t{4} << 20;

uint64_t hash_of_file(uint64_t salt, const std::filesystem::path& path) {
  std::ifstream file(path);
  return hash_bytes(salt, std::string(std::istreambuf_iterator<char>(file), {}));
}

uint64_t add_shape(uint64_t hash, const TensorInfo& tensor) {
  hash = hash_combine(hash, static_cast<uint64_t>(tensor.dtype));
  for (const int64_t extent : tensor.shape) hash = hash_combine(hash, static_cast<uint64_t>(extent));
  return hash;
}

// A piece of a tensor or file; `place` identifies it and its position.
struct Chunk {
  std::span<const std::byte> bytes;
  uint64_t place = 0;
};

void add_chunks(std::vector<Chunk>& chunks, std::span<const std::byte> bytes, uint64_t owner) {
  for (size_t at = 0; at < bytes.size(); at += kChunkBytes)
    chunks.push_back(
        {bytes.subspan(at, std::min(kChunkBytes, bytes.size() - at)), hash_combine(owner, uint64_t{at})});
}

uint64_t sum_of(const std::vector<Chunk>& chunks, size_t part, size_t parts, int threads) {
  std::atomic<size_t> next = part;
  std::atomic<uint64_t> sum = 0;
  run_on_threads(std::max(1, threads), [&](int) {
    for (size_t i; (i = next.fetch_add(parts)) < chunks.size();) {
      const Chunk& chunk = chunks[i];
      sum += XXH3_64bits_withSeed(chunk.bytes.data(), chunk.bytes.size(), chunk.place);
      release_pages(chunk.bytes);
    }
  });
  return sum;
}

}  // namespace

Result<uint64_t> fingerprint_of_shapes(const std::filesystem::path& directory) {
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
  uint64_t hash = 0;
  for (const std::string_view name : files.names())
    hash = add_shape(hash_bytes(hash, name), *files.find(name));
  return hash;
}

uint64_t fingerprint_of_config(const std::filesystem::path& directory) {
  return is_gguf_path(directory) ? 0 : hash_of_file(0, directory / "config.json");
}

// Does not use the device number, which every host of a shared file system chooses itself. st_ctim changes
// only with the file.
Result<uint64_t> identity_of_weights(const std::filesystem::path& directory) {
  std::set<std::string> paths;
  if (is_gguf_path(directory)) {
    ASSIGN_OR_RETURN(const GgufParts parts, open_gguf(directory));
    for (const MappedFile& file : parts.files) paths.insert(file.path().string());
  } else {
    ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
    for (const std::string_view name : files.names()) paths.insert(files.file_of(name));
  }
  uint64_t hash = 0;
  for (const std::string& path : paths) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return not_found(path + ": disappeared while the run started");
    for (const int64_t value :
         {int64_t(info.st_ino), int64_t(info.st_size), int64_t(info.st_mtim.tv_sec),
          int64_t(info.st_mtim.tv_nsec), int64_t(info.st_ctim.tv_sec), int64_t(info.st_ctim.tv_nsec)})
      hash = hash_combine(hash, static_cast<uint64_t>(value));
  }
  return hash;
}

Result<uint64_t> weights_sum(const std::filesystem::path& directory, int part, int parts, int threads) {
  CHECK(part >= 0 && part < parts, "part {} of {}", part, parts);
  std::vector<Chunk> chunks;
  const auto sum = [&] {
    return sum_of(chunks, static_cast<size_t>(part), static_cast<size_t>(parts), threads);
  };
  if (is_gguf_path(directory)) {
    ASSIGN_OR_RETURN(const GgufParts parts, open_gguf(directory));
    for (size_t i = 0; i < parts.files.size(); ++i) add_chunks(chunks, parts.files[i].bytes(), i);
    return sum();
  }
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
  for (const std::string_view name : files.names())
    add_chunks(chunks, files.find(name)->data, fingerprint_of_text(name));
  return sum();
}

Result<uint64_t> whole_fingerprint_of_model(const std::filesystem::path& directory, uint64_t salt,
                                            int threads) {
  uint64_t hash = hash_combine(salt, fingerprint_of_config(directory));
  ASSIGN_OR_RETURN(const uint64_t shapes, fingerprint_of_shapes(directory));
  ASSIGN_OR_RETURN(const uint64_t weights, weights_sum(directory, 0, 1, threads));
  return hash_combine(hash_combine(hash, shapes), weights);
}

}  // namespace outrider
