// GGUF files for tests, right and wrong ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace outrider::testing {

// A file, piece by piece.
class Gguf {
 public:
  Gguf& text(const std::string& key, const std::string& value) { return add(key, 8, string(value)); }
  Gguf& number(const std::string& key, uint32_t value) { return add(key, 4, bytes(value)); }
  Gguf& real(const std::string& key, float value) { return add(key, 6, bytes(value)); }
  Gguf& tensor(const std::string& name, std::vector<uint64_t> dims, uint32_t type, uint64_t size) {
    return tensor_at(name, dims, type, offset_ = (offset_ + 31) / 32 * 32, size);
  }
  Gguf& tensor_at(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset,
                  uint64_t size) {
    infos_ += string(name) + bytes(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) infos_ += bytes(dim);
    infos_ += bytes(type) + bytes(offset);
    if (offset < uint64_t{1} << 30) offset_ = std::max(offset_, offset + size);  // else beyond the end
    ++tensors_;
    return *this;
  }
  std::string file(uint32_t version = 3) const {
    std::string out = "GGUF" + bytes(version) + bytes(tensors_) + bytes(keys_) + values_ + infos_;
    out.resize((out.size() + 31) / 32 * 32, '\0');
    return out + std::string(offset_, '\1');
  }
  // Another count than there are.
  std::string with_counts(uint64_t tensors, uint64_t keys) const {
    std::string out = file();
    out.replace(8, 16, bytes(tensors) + bytes(keys));
    return out;
  }
  Gguf& add(const std::string& key, uint32_t type, const std::string& value) {
    values_ += string(key) + bytes(type) + value;
    ++keys_;
    return *this;
  }
  template <class T>
  static std::string bytes(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  Gguf& texts(const std::string& key, const std::vector<std::string>& list) {
    std::string value = bytes(uint32_t{8}) + bytes(static_cast<uint64_t>(list.size()));
    for (const std::string& one : list) value += string(one);
    return add(key, 9, value);
  }
  // int32 (5) or float (6)
  template <class T>
  Gguf& numbers(const std::string& key, uint32_t type, const std::vector<T>& list) {
    std::string value = bytes(type) + bytes(static_cast<uint64_t>(list.size()));
    for (const T one : list) value += bytes(one);
    return add(key, 9, value);
  }
  Gguf& flag(const std::string& key, bool value) { return add(key, 7, bytes(static_cast<uint8_t>(value))); }
  static std::string string(const std::string& text) {
    return bytes(static_cast<uint64_t>(text.size())) + text;
  }

 private:
  std::string values_, infos_;
  uint64_t tensors_ = 0, keys_ = 0, offset_ = 0;
};

}  // namespace outrider::testing
