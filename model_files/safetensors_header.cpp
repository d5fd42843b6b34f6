// The header of a safetensors file: parsed by events into at most one TensorInfo per entry, so that hostile
// nesting costs no stack and a hostile header no more than a small multiple of its own size.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/json_file.h"
#include "model_files/safetensors.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // MAX_HEADER_SIZE of the reference implementation
constexpr size_t kMaxExtents = 8;
constexpr int kMaxDepth = 4;
constexpr std::string_view kMetadata = "__metadata__";

struct Entry {
  TensorInfo info;
  uint64_t begin = 0;  // offsets from the start of the data
  uint64_t end = 0;
};

// Grammar: { name: { "dtype": text, "shape": [n...], "data_offsets": [begin, end] }..., "__metadata__": {
// text: text... } }. Whatever else comes is an error where it comes.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  std::vector<Entry> take() { return std::move(entries_); }
  const std::string& error() const { return error_; }

  bool start_object(size_t) override {
    ++depth_;
    if (depth_ == 1) return true;
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ == 2) {
      seen_ = 0;
      return true;
    }
    return misplaced("an object");
  }
  bool end_object() override {
    if (--depth_ == 1 && !in_metadata_ && seen_ != (kDtype | kShape | kOffsets))
      return fail(where() + " lacks one of dtype, shape and data_offsets");
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) return start_entry(name);
    if (in_metadata_)
      return metadata_keys_.insert(name).second || fail("__metadata__ has a key twice: " + shown(name));
    return start_field(name);
  }
  bool start_array(size_t) override {
    ++depth_;
    if (depth_ != 3 || in_metadata_ || field_ == kDtype) return misplaced("an array");
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    --depth_;
    if (field_ == kShape) {
      entries_.back().info.shape.assign(numbers_.begin(), numbers_.end());
      return true;
    }
    if (numbers_.size() != 2) return fail(where() + ": data_offsets must be two numbers");
    entries_.back().begin = numbers_[0];
    entries_.back().end = numbers_[1];
    return true;
  }
  bool string(std::string& value) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || field_ != kDtype) return misplaced("a string");
    const std::optional<Dtype> dtype = dtype_from_safetensors(value);
    if (!dtype) return fail(where() + " has an unknown dtype: " + shown(value));
    entries_.back().info.dtype = *dtype;
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (depth_ != 3 || value > uint64_t{INT64_MAX}) return misplaced("a number");
    if (numbers_.size() == kMaxExtents)
      return fail(fmt::format("{} has more than {} extents", where(), kMaxExtents));
    numbers_.push_back(value);
    return true;
  }
  bool number_integer(int64_t) override { return misplaced("a negative number"); }
  bool number_float(double, const std::string&) override { return misplaced("a fraction"); }
  bool null() override { return misplaced("null"); }
  bool boolean(bool) override { return misplaced("a boolean"); }
  bool binary(json::binary_t&) override { return misplaced("a binary value"); }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    return fail(fmt::format("not valid JSON at byte {} of the header", position));
  }

 private:
  enum Field : unsigned { kNone = 0, kDtype = 1, kShape = 2, kOffsets = 4 };

  static std::string shown(const std::string& text) { return text.substr(0, 200); }
  std::string where() const { return entries_.empty() ? "the header" : shown(entries_.back().info.name); }
  bool fail(std::string why) {
    error_ = std::move(why);
    return false;
  }
  bool misplaced(const std::string& what) {
    if (depth_ > kMaxDepth) return fail(fmt::format("nested more than {} levels deep", kMaxDepth));
    return fail(
        fmt::format("{}: {} where the format has none", in_metadata_ ? "__metadata__" : where(), what));
  }
  bool start_entry(const std::string& name) {
    if (!names_.insert(name).second) return fail("two entries are called " + shown(name));
    in_metadata_ = name == kMetadata;
    if (!in_metadata_) entries_.emplace_back().info.name = name;
    field_ = kNone;
    return true;
  }
  bool start_field(const std::string& name) {
    field_ = name == "dtype" ? kDtype : name == "shape" ? kShape : name == "data_offsets" ? kOffsets : kNone;
    if (field_ == kNone) return fail(where() + " has an unknown key: " + shown(name));
    if ((seen_ & field_) != 0) return fail(where() + " has a key twice: " + name);
    seen_ |= field_;
    return true;
  }

  std::vector<Entry> entries_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_keys_;
  std::vector<uint64_t> numbers_;  // of the array being read
  int depth_ = 0;
  bool in_metadata_ = false;
  unsigned field_ = kNone;  // the key whose value comes next
  unsigned seen_ = 0;       // keys of the current entry
  std::string error_;
};

// begin and end lie in the data, and their distance is what shape and dtype ask for.
Status check_span(const Entry& entry, uint64_t data_bytes) {
  const TensorInfo& info = entry.info;
  if (entry.begin > entry.end || entry.end > data_bytes)
    return malformed(
        fmt::format("{}: data_offsets [{}, {}] leave the file's {} bytes of data; the file may be cut "
                    "short: download it again",
                    info.name, entry.begin, entry.end, data_bytes));
  uint64_t bits = static_cast<uint64_t>(dtype_bits(info.dtype));
  for (int64_t extent : info.shape)
    if (__builtin_mul_overflow(bits, static_cast<uint64_t>(extent), &bits))
      return malformed(info.name + ": its shape is larger than 64 bits can count");
  if (bits % 8 != 0 || bits / 8 != entry.end - entry.begin)
    return malformed(fmt::format("{}: shape [{}] of {} takes {} bytes, but data_offsets span {}", info.name,
                                 fmt::join(info.shape, ", "), dtype_name(info.dtype), bits / 8,
                                 entry.end - entry.begin));
  return {};
}

// Sorted by offset, the tensors must tile the data: an overlap would give two readers different tensors, a
// hole could carry anything.
Status check_tiling(const std::vector<Entry>& entries, uint64_t data_bytes) {
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin < covered) return malformed(entry.info.name + ": overlaps the tensor before it");
    if (entry.begin > covered)
      return malformed(fmt::format("{}: {} unused bytes before it", entry.info.name, entry.begin - covered));
    covered = entry.end;
  }
  if (covered != data_bytes)
    return malformed(
        fmt::format("{} bytes of data belong to no tensor; the file is damaged: download it again",
                    data_bytes - covered));
  return {};
}

// The header's JSON, or why the first bytes are none.
Result<std::string_view> header_text(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (file.size() < 8)
    return malformed(
        file.empty()
            ? std::string("the file is empty; download it again")
            : fmt::format("cut short: the file ends at byte {}, inside its header; download it again",
                          file.size()));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | std::to_integer<uint64_t>(file[static_cast<size_t>(i)]);
  if (length < 8 || length > kMaxHeaderBytes)
    return malformed(fmt::format(
        "header length {} is not between 8 and {}; this is no safetensors file, or a damaged one: "
        "download it again",
        length, kMaxHeaderBytes));
  if (length > file.size() - 8)
    return malformed(fmt::format("cut short: the header has {} bytes, the file {}; download it again", length,
                                 file.size()));
  const std::string_view header = text.substr(8, length);
  if (header.front() != '{')
    return malformed("the header does not start with {; the file is damaged: download it again");
  return header;
}

}  // namespace

Result<std::vector<TensorInfo>> parse_safetensors(std::span<const std::byte> file, const std::string& name) {
  const std::string_view start(reinterpret_cast<const char*>(file.data()),
                               std::min<size_t>(file.size(), 256));
  if (is_git_lfs_pointer(start)) return git_lfs_pointer_error(name);
  const Result<std::string_view> header = header_text(file);
  if (!header.ok()) return header.status().in(name);
  HeaderReader reader;
  if (!json::sax_parse(header->begin(), header->end(), &reader))
    return malformed(name + ": " + reader.error());

  std::vector<Entry> entries = reader.take();
  const std::span<const std::byte> data = file.subspan(8 + header->size());
  for (const Entry& entry : entries) RETURN_IF_ERROR(check_span(entry, data.size()).in(name));
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  RETURN_IF_ERROR(check_tiling(entries, data.size()).in(name));

  std::vector<TensorInfo> tensors;
  tensors.reserve(entries.size());
  for (Entry& entry : entries) {
    entry.info.data = data.subspan(entry.begin, entry.end - entry.begin);
    tensors.push_back(std::move(entry.info));
  }
  return tensors;
}

}  // namespace outrider
