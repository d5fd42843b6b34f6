#include "lab/synth/weight_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json_text.h"
#include "base/threads.h"
#include "lab/synth/random_weights.h"

namespace outrider {
namespace {

constexpr int64_t kPartElements = int64_t{1} << 20;  // 2 MB of a tensor: what a thread holds
static_assert(kPartElements % kWeightsPerDraw == 0);

// Safetensors: length of the header, header, data in the order of the header.
std::string header_of(const std::vector<SynthTensor>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  int64_t offset = 0;
  for (const SynthTensor& tensor : tensors) {
    const int64_t end = offset + tensor.bytes();
    header[tensor.name] = {{"dtype", tensor.is_index ? "I64" : "BF16"},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = json_text(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

struct Part {
  const SynthTensor* tensor = nullptr;
  const NormalTable* table = nullptr;
  int64_t first = 0, count = 0;  // elements
  int64_t offset = 0;            // in the file
};

}  // namespace

SynthWeightFile::SynthWeightFile(SynthWeightFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      places_(std::move(other.places_)),
      bytes_(other.bytes_) {}

SynthWeightFile::~SynthWeightFile() {
  if (fd_ >= 0) close(fd_);
}

Status SynthWeightFile::error(const char* what, int number) const {
  const std::string reason = std::strerror(number);
  return unavailable(
      fmt::format("{}: {}: {}{}", path_.string(), what, reason,
                  number == ENOSPC ? "; choose a disk with more space or a smaller --shape" : ""));
}

Status SynthWeightFile::write_at(const void* data, size_t bytes, int64_t offset) const {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = pwrite(fd_, from, bytes, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return error("cannot be written", errno);
    from += written;
    offset += written;
    bytes -= static_cast<size_t>(written);
  }
  return {};
}

Result<SynthWeightFile> SynthWeightFile::write(const std::filesystem::path& path,
                                               const std::vector<SynthTensor>& tensors,
                                               const SynthWriteOptions& options) {
  SynthWeightFile file(path, open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.fd_ < 0) return file.error("cannot be created", errno);
  const std::string header = header_of(tensors);
  auto offset = static_cast<int64_t>(header.size());
  for (const SynthTensor& tensor : tensors) {
    file.places_[tensor.name] = {offset, tensor.bytes() / 2};
    offset += tensor.bytes();
  }
  file.bytes_ = offset - static_cast<int64_t>(header.size());
  const int reserved = posix_fallocate(file.fd_, 0, offset);
  if (reserved != 0 && reserved != EOPNOTSUPP && reserved != EINVAL)
    return file.error(fmt::format("{:.1f} GB cannot be reserved", static_cast<double>(offset) * 1e-9).c_str(),
                      reserved);
  RETURN_IF_ERROR(file.write_at(header.data(), header.size(), 0));
  RETURN_IF_ERROR(file.write_tensors(tensors, options));
  return file;
}

Status SynthWeightFile::write_tensors(const std::vector<SynthTensor>& tensors,
                                      const SynthWriteOptions& options) {
  std::map<double, NormalTable> tables;  // by deviation
  std::vector<Part> parts;
  for (const SynthTensor& tensor : tensors) {
    if (tensor.deviation == 0) {
      RETURN_IF_ERROR(set_constant(tensor.name, tensor.constant));
      continue;
    }
    const NormalTable& table = tables.try_emplace(tensor.deviation, tensor.deviation).first->second;
    const Place& place = places_.at(tensor.name);
    for (int64_t first = 0; first < place.count; first += kPartElements)
      parts.push_back({.tensor = &tensor,
                       .table = &table,
                       .first = first,
                       .count = std::min(kPartElements, place.count - first),
                       .offset = place.offset + 2 * first});
  }
  std::atomic<size_t> next{0};
  std::atomic<int64_t> done{0};
  std::mutex mutex;
  Status status;
  const auto work = [&](bool reports) {
    std::vector<bf16> weights(kPartElements);
    for (size_t i = next++; i < parts.size(); i = next++) {
      const Part& part = parts[i];
      const auto out = std::span(weights).first(static_cast<size_t>(part.count));
      fill_normal(*part.table, options.seed, part.tensor->stream, part.first, out);
      Status wrote = write_at(out.data(), out.size_bytes(), part.offset);
      if (wrote.ok() && options.interrupted && options.interrupted()) wrote = unavailable("interrupted");
      if (!wrote.ok()) {
        const std::lock_guard lock(mutex);
        if (status.ok()) status = std::move(wrote);
        next = parts.size();
        return;
      }
      done += 2 * part.count;
      if (reports && options.progress) options.progress(done, bytes_);
    }
  };
  run_on_threads(std::max(1, options.threads), [&](int thread) { work(thread == 0); });
  if (status.ok() && options.progress) options.progress(bytes_, bytes_);
  return status;
}

Status SynthWeightFile::set_constant(const std::string& name, float value) {
  const Place& place = places_.at(name);
  const std::vector<bf16> weights(static_cast<size_t>(place.count), to_bf16(value));
  return write_at(weights.data(), weights.size() * sizeof(bf16), place.offset);
}

Status SynthWeightFile::sync() { return fsync(fd_) == 0 ? Status() : error("cannot be written", errno); }

}  // namespace outrider
