#include "model_files/safetensors.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/json_file.h"
#include "base/model_download.h"
#include "base/threads.h"
#include "model_files/gguf_model.h"
#include "model_files/gguf_parts.h"
#include "model_files/stored_codes.h"
#include "model_files/wrapper_config.h"

namespace outrider {
namespace {

using nlohmann::json;

// An index of a model with half a million tensors is about 50 MB.
constexpr JsonLimits kIndexLimits{.max_bytes = size_t{64} << 20, .max_depth = 4};
constexpr size_t kMaxShards = 10'000;

int64_t modified_ns(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

// Closes on every path; the mapping outlives the descriptor.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Shards lie beside their index: a name with a path in it could read any file of the machine.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// The error for a directory without safetensors weights.
Status no_weights(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error))
    return not_found(directory.string() + ": no such directory; give the directory of a Hugging Face model");
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"})
    if (std::filesystem::exists(directory / other, error))
      return unsupported((directory / other).string() +
                         ": pickled weights are not read; save the model again with safe_serialization=True");
  const std::string name = hub_name(directory);
  return not_found(fmt::format(
      "{}: has neither model.safetensors nor model.safetensors.index.json; download the weights{}",
      directory.string(), name.empty() ? "" : fmt::format(" with `hf download {}`", name)));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const FileDescriptor fd(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO must not block us
  if (fd.get() < 0 && errno == ENOENT) return missing_file(path);
  if (fd.get() < 0) {
    const std::string why = path.string() + ": " + std::strerror(errno);
    return invalid_argument(why);
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return invalid_argument(path.string() + ": not a regular file");
  MappedFile file;
  file.path_ = path;
  file.modified_ns_ = modified_ns(info);
  if (info.st_size == 0) return file;
  const auto size = static_cast<size_t>(info.st_size);
  void* start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (start == MAP_FAILED) {
    const std::string what = fmt::format("{}: cannot map {} bytes", path.string(), size);
    if (errno == ENOMEM) throw NoMemory(what);  // as a buffer of that size does: a limit, not a bad file
    return unavailable(what + ": " + std::strerror(errno));
  }
  file.bytes_ = {static_cast<const std::byte*>(start), size};
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      modified_ns_(other.modified_ns_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(modified_ns_, other.modified_ns_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Status MappedFile::check_unchanged() const {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0)
    return unavailable(path_.string() + ": disappeared while the model was loaded; load it again");
  if (static_cast<size_t>(info.st_size) != bytes_.size() || modified_ns(info) != modified_ns_)
    return unavailable(path_.string() + ": changed while the model was loaded; load it again");
  return {};
}

SafetensorsFile::SafetensorsFile(MappedFile file, std::vector<TensorInfo> tensors)
    : file_(std::move(file)), tensors_(std::move(tensors)) {
  by_name_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

namespace {

// A matrix that was stored in blocks of GGUF becomes one of that type (stored_codes.h).
Status take_blocks(TensorInfo& tensor, const std::string& file) {
  for (const Dtype type : {Dtype::kQ4K, Dtype::kQ5K, Dtype::kQ6K, Dtype::kQ5_0, Dtype::kQ8_0}) {
    const std::string suffix = block_suffix(type);
    if (tensor.dtype != Dtype::kU8 || !tensor.name.ends_with(suffix)) continue;
    const DtypeBlock block = dtype_block(type);
    if (tensor.shape.size() != 2 || tensor.shape[1] % block.bytes != 0)
      return malformed(
          fmt::format("{}: {} is not as `outrider quantize` writes it: its rows are no whole blocks of {}",
                      file, tensor.name, dtype_name(type)));
    tensor.name.resize(tensor.name.size() - suffix.size());
    tensor.dtype = type;
    tensor.shape[1] = tensor.shape[1] / block.bytes * block.elements;
    return {};
  }
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors, parse_safetensors(file.bytes(), path.string()));
  std::set<std::string_view> names;
  for (TensorInfo& tensor : tensors) {
    tensor.name = text_model_name(std::move(tensor.name));
    RETURN_IF_ERROR(take_blocks(tensor, path.string()));
    if (!names.insert(tensor.name).second)
      return malformed(fmt::format("{}: two tensors are {} of the text model", path.string(), tensor.name));
  }
  return SafetensorsFile(std::move(file), std::move(tensors));
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

namespace {

// weight_map of the index: tensor name -> shard's file name.
Result<std::map<std::string, std::string>> read_index(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const json root, read_json_file(path, kIndexLimits));
  ASSIGN_OR_RETURN(const JsonObject index, JsonObject::view(root, path.string()));
  const json* weight_map = index.find("weight_map");
  if (weight_map == nullptr) return index.wrong("weight_map", "is missing");
  if (!weight_map->is_object() || weight_map->empty())
    return index.wrong("weight_map", "must be an object that maps tensors to files");
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>()))
      return index.wrong("weight_map", "puts " + tensor.substr(0, 200) +
                                           " in something other than a file of the same directory");
    if (!shard_of.emplace(text_model_name(tensor), shard.get<std::string>()).second)
      return index.wrong("weight_map",
                         "has two tensors " + text_model_name(tensor).substr(0, 200) + " of the text model");
  }
  return shard_of;
}

Status check_shards_exist(const std::filesystem::path& directory, const std::set<std::string>& shards) {
  std::vector<std::string> missing;
  for (const std::string& shard : shards) {
    std::error_code error;
    if (!std::filesystem::exists(directory / shard, error)) missing.push_back(shard);
  }
  if (missing.empty()) return {};
  return not_found(
      fmt::format("{}: missing; {} of the {} files in model.safetensors.index.json are: download them",
                  (directory / missing.front()).string(), missing.size(), shards.size()));
}

}  // namespace

Result<TensorFiles> TensorFiles::open_sharded(const std::filesystem::path& directory) {
  ASSIGN_OR_RETURN(const auto shard_of, read_index(directory / "model.safetensors.index.json"));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) shards.insert(shard);
  if (shards.size() > kMaxShards)
    return malformed(fmt::format("{}: more than {} shards", directory.string(), kMaxShards));
  RETURN_IF_ERROR(check_shards_exist(directory, shards));

  TensorFiles out;
  out.files_.reserve(shards.size());
  for (const std::string& shard : shards) {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(directory / shard));
    for (const TensorInfo& tensor : file.tensors()) {
      const auto listed = shard_of.find(tensor.name);
      if (listed == shard_of.end())
        continue;  // as Hugging Face does: what the index leaves out is not loaded
      if (listed->second != shard)
        return malformed(fmt::format("{}: holds {}, which the index puts in {}", file.path().string(),
                                     tensor.name, listed->second));
      out.by_name_.emplace(tensor.name, Place{&tensor, out.files_.size()});
    }
    out.files_.push_back(std::move(file));
  }
  for (const auto& [tensor, shard] : shard_of)
    if (!out.by_name_.contains(tensor))
      return malformed(fmt::format("{}: {} is missing, though the index puts it here",
                                   (directory / shard).string(), tensor));
  return out;
}

Result<TensorFiles> TensorFiles::open(const std::filesystem::path& model_directory) {
  TensorFiles out;
  if (is_gguf_path(model_directory)) {
    ASSIGN_OR_RETURN(GgufParts parts, open_gguf(model_directory));
    ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors,
                     gguf_tensors(std::move(parts.content), model_directory.string()));
    // The first file names the tensors of all parts, and the others stay mapped beside it.
    for (MappedFile& file : parts.files)
      out.files_.push_back(SafetensorsFile(
          std::move(file), out.files_.empty() ? std::move(tensors) : std::vector<TensorInfo>()));
    for (const TensorInfo& tensor : out.files_.front().tensors())
      out.by_name_.emplace(tensor.name, Place{&tensor, 0});
  } else if (is_entry(model_directory / "model.safetensors")) {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(model_directory / "model.safetensors"));
    out.files_.push_back(std::move(file));
    for (const TensorInfo& tensor : out.files_.front().tensors())
      out.by_name_.emplace(tensor.name, Place{&tensor, 0});
  } else if (is_entry(model_directory / "model.safetensors.index.json")) {
    ASSIGN_OR_RETURN(out, open_sharded(model_directory));
  } else {
    return no_weights(model_directory);
  }
  out.directory_ = model_directory;
  return out;
}

const TensorInfo* TensorFiles::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second.tensor;
}

Result<const TensorInfo*> TensorFiles::require(std::string_view name,
                                               const std::vector<int64_t>& shape) const {
  return require(name, shape, {Dtype::kF32, Dtype::kBF16, Dtype::kF16});
}

Result<const TensorInfo*> TensorFiles::require(std::string_view name, const std::vector<int64_t>& shape,
                                               std::initializer_list<Dtype> dtypes) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end())
    return not_found(is_gguf()
                         ? fmt::format("{}: has no tensor {}; the file is damaged or incomplete: {}",
                                       directory_.string(), shown_name(name), download_again(directory_))
                         : fmt::format("{}: has no tensor {}; config.json may belong to another model",
                                       directory_.string(), name));
  const TensorInfo& tensor = *found->second.tensor;
  const std::string where = files_[found->second.file].path().string();
  const std::string shown = shown_name(name);
  if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) == dtypes.end()) {
    std::vector<std::string_view> names;
    for (const Dtype dtype : dtypes) names.push_back(dtype_name(dtype));
    return unsupported(names.size() == 1
                           ? fmt::format("{}: {} is {}; only {} is supported", where, shown,
                                         dtype_name(tensor.dtype), names[0])
                           : fmt::format("{}: {} is {}; supported are {} and {}", where, shown,
                                         dtype_name(tensor.dtype),
                                         fmt::join(names.begin(), names.end() - 1, ", "), names.back()));
  }
  if (tensor.shape != shape)
    return invalid_argument(
        fmt::format("{}: {} has shape {}, but {} for {}", where, shown, shape_text(tensor.shape),
                    is_gguf() ? "the file's keys ask" : "config.json asks", shape_text(shape)));
  return &tensor;
}

bool TensorFiles::is_gguf() const { return is_gguf_path(directory_); }

std::string TensorFiles::shown_name(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (tensor && !tensor->gguf_name.empty()) return tensor->gguf_name;
  if (tensor || !is_gguf()) return std::string(name);
  const auto file = open_gguf(directory_);
  return file.ok() ? gguf_tensor_name(name, file->content) : std::string(name);
}

std::string TensorFiles::file_of(std::string_view name) const {
  const auto found = by_name_.find(name);
  return (found == by_name_.end() ? directory_ : files_[found->second.file].path()).string();
}

std::vector<std::string_view> TensorFiles::names() const {
  std::vector<std::string_view> names;
  names.reserve(by_name_.size());
  for (const auto& [name, place] : by_name_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

size_t TensorFiles::total_bytes() const {
  size_t total = 0;
  for (const auto& [name, place] : by_name_) total += place.tensor->data.size();
  return total;
}

Status TensorFiles::check_unchanged() const {
  for (const SafetensorsFile& file : files_) RETURN_IF_ERROR(file.check_unchanged());
  return {};
}

void release_pages(std::span<const std::byte> bytes) {
  static const auto kPage = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t begin = (address + kPage - 1) / kPage * kPage;
  const uintptr_t end = (address + bytes.size()) / kPage * kPage;
  // Advice: where it fails, memory is merely freed later.
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace outrider
