// Read-only tensors of a model directory, memory-mapped: one safetensors file, or several with an index.
// Format: https://github.com/huggingface/safetensors (8 bytes of header length N, little endian; N bytes of
// JSON; data). Files are not trusted: every rule of the format is checked when a file is opened, before any
// tensor is handed out. Immutable after opening; safe to share between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "model_files/dtype.h"

namespace outrider {

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;       // outermost first; empty for a scalar
  std::span<const std::byte> data;  // row-major, little endian; the format does not promise any alignment
  // Some GGUF files store the rows of a head of q and k as interleaved pairs (i, i + half), for a rotation of
  // neighbours; this is the number of rows of such a head. 0: rows are in their usual order.
  int64_t paired_rows = 0;
  std::string gguf_name;  // in a GGUF file, where that is another
};

// Where row (or element of a vector) `row` is stored.
inline int64_t stored_row(const TensorInfo& tensor, int64_t row) {
  if (tensor.paired_rows == 0) return row;
  const int64_t in_head = row % tensor.paired_rows, half = tensor.paired_rows / 2;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

// A file mapped for reading. Its bytes are valid while this lives, unless the file is truncated in place:
// then touching them is SIGBUS, which the program explains (base/program/bus_error.h), and check_unchanged()
// after loading tells of other changes.
class MappedFile {
 public:
  // Throws NoMemory (base/threads.h) where the address space has no room for it.
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }
  Status check_unchanged() const;

 private:
  MappedFile() = default;

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
  int64_t modified_ns_ = 0;
};

// One file.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of their data
  const TensorInfo* find(std::string_view name) const;                 // null if absent
  const std::filesystem::path& path() const { return file_.path(); }
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  Status check_unchanged() const { return file_.check_unchanged(); }

 private:
  friend class TensorFiles;
  SafetensorsFile(MappedFile file, std::vector<TensorInfo> tensors);

  MappedFile file_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;  // keys view tensors_' names
};

// All weights of a model directory: model.safetensors, or the shards that model.safetensors.index.json lists.
// Or of a GGUF file, under the names that Hugging Face has for them.
class TensorFiles {
 public:
  static Result<TensorFiles> open(const std::filesystem::path& model_directory);
  TensorFiles(TensorFiles&&) noexcept = default;  // views into it survive a move
  TensorFiles& operator=(TensorFiles&&) noexcept = default;

  const TensorInfo* find(std::string_view name) const;  // null if absent
  // The tensor, or an error that names file, tensor and the difference.
  Result<const TensorInfo*> require(std::string_view name, const std::vector<int64_t>& shape) const;
  // The same for tensors of other types than weights have.
  Result<const TensorInfo*> require(std::string_view name, const std::vector<int64_t>& shape,
                                    std::initializer_list<Dtype> dtypes) const;
  // The tensor as its file names it, for messages; what a GGUF file lacks gets the name that it has
  // elsewhere.
  std::string shown_name(std::string_view name) const;
  bool is_gguf() const;
  // "DIRECTORY/model.safetensors", for messages about a tensor of it.
  std::string file_of(std::string_view name) const;
  std::vector<std::string_view> names() const;  // sorted
  size_t total_bytes() const;                   // of the data of all tensors
  Status check_unchanged() const;
  // All bytes of the first file.
  std::span<const std::byte> file_bytes() const { return files_.front().bytes(); }

 private:
  TensorFiles() = default;
  static Result<TensorFiles> open_sharded(const std::filesystem::path& directory);

  struct Place {
    const TensorInfo* tensor = nullptr;
    size_t file = 0;
  };

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string_view, Place> by_name_;  // keys and tensors live in files_
};

// These bytes of a tensor have been read: whole pages inside them leave this process's resident memory, so
// that a rank's peak is its own shard and not the file. They stay readable, at the price of reading them
// again.
void release_pages(std::span<const std::byte> bytes);

// The header alone, for tests and tools: `file` is everything from byte 0; data spans point into it.
Result<std::vector<TensorInfo>> parse_safetensors(std::span<const std::byte> file, const std::string& name);

}  // namespace outrider
