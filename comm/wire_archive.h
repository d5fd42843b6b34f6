// Cereal archives for frames: a writer into a byte vector, and a reader that trusts no count. Included only
// by codec.cpp and by tests that visit all fields. Cereal's own binary archives resize containers to any
// count in the bytes (12 bytes could ask for a gigabyte), and its pointer and polymorphic support builds
// objects that the sender chooses; neither can be reached from here.
#pragma once

#include <bit>
#include <cereal/cereal.hpp>
#include <cmath>
#include <concepts>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/printable.h"
#include "base/types.h"
#include "comm/codec.h"

namespace outrider {

static_assert(std::endian::native == std::endian::little, "a big-endian port must swap in put() and get()");

template <class T>
concept WireNumber = std::integral<T> || std::same_as<T, float>;

// The first error; later data is ignored.
class WireError {
 public:
  void require(bool condition, const char* what) {
    if (!condition && !failed_) {
      failed_ = true;
      reason_ = what;
    }
  }
  bool ok() const { return !failed_; }
  const char* reason() const { return reason_; }

 private:
  bool failed_ = false;
  const char* reason_ = "";
};

class WireWriter : public cereal::OutputArchive<WireWriter>, public WireError {
 public:
  WireWriter(std::vector<std::byte>& out, const WireLimits& limits)
      : cereal::OutputArchive<WireWriter>(this), out_(out), limits_(limits) {}
  const WireLimits& limits() const { return limits_; }
  void put(const void* data, size_t bytes) {
    if (bytes == 0) return;
    const size_t end = out_.size();
    out_.resize(end + bytes);
    std::memcpy(out_.data() + end, data, bytes);
  }
  void skip_rest() {}

 private:
  std::vector<std::byte>& out_;
  const WireLimits& limits_;
};

class WireReader : public cereal::InputArchive<WireReader>, public WireError {
 public:
  WireReader(std::span<const std::byte> in, const WireLimits& limits)
      : cereal::InputArchive<WireReader>(this), in_(in), limits_(limits) {}
  const WireLimits& limits() const { return limits_; }
  size_t remaining() const { return in_.size(); }
  // Past the end: an error, and the destination keeps its value.
  void get(void* data, size_t bytes) {
    require(bytes <= in_.size(), "cut short");
    if (!ok() || bytes == 0) return;
    std::memcpy(data, in_.data(), bytes);
    in_ = in_.subspan(bytes);
  }
  // The unread bytes.
  std::span<const std::byte> rest() const { return in_; }
  void skip(size_t bytes) { in_ = in_.subspan(bytes); }
  // Skips bytes whose layout this version does not know.
  void skip_rest() { in_ = {}; }

 private:
  std::span<const std::byte> in_;
  const WireLimits& limits_;
};

// Found by Cereal through argument-dependent lookup.
template <WireNumber T>
void save(WireWriter& writer, const T& value) {
  writer.put(&value, sizeof value);
}
template <WireNumber T>
void load(WireReader& reader, T& value) {
  if constexpr (std::same_as<T, bool>) {
    uint8_t byte = 0;
    reader.get(&byte, 1);
    reader.require(byte <= 1, "a flag that is neither 0 nor 1");
    value = byte == 1;
  } else {
    reader.get(&value, sizeof value);
  }
}

template <class Archive, class Tag, class Rep>
void serialize(Archive& archive, StrongInt<Tag, Rep>& id) {
  Rep value = id.value();
  archive(value);
  id = StrongInt<Tag, Rep>(value);
}

// ---- fields with a bound
// -------------------------------------------------------------------------------------

template <class Enum>
struct EnumField {
  Enum& value;
  Enum last;
};
template <class Archive, class Enum>
void serialize(Archive& archive, EnumField<Enum>& field) {
  auto raw = static_cast<std::underlying_type_t<Enum>>(field.value);
  archive(raw);
  archive.require(raw <= static_cast<std::underlying_type_t<Enum>>(field.last),
                  "an enumeration out of range");
  if (archive.ok()) field.value = static_cast<Enum>(raw);
}

// A float that must be finite.
struct FiniteField {
  float& value;
};
template <class Archive>
void serialize(Archive& archive, FiniteField& field) {
  archive(field.value);
  archive.require(std::isfinite(field.value), "a number that is not finite");
}

// LEB128: seven bits a byte, the lowest first, in as few bytes as the number needs.
struct VarintField {
  uint64_t& value;
};
inline void save(WireWriter& writer, const VarintField& field) {
  uint8_t bytes[10];
  size_t count = 0;
  for (uint64_t rest = field.value; count == 0 || rest > 0; rest >>= 7)
    bytes[count++] = static_cast<uint8_t>((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
  writer.put(bytes, count);
}
inline void load(WireReader& reader, VarintField& field) {
  uint64_t value = 0;
  uint8_t byte = 0x80;
  for (int shift = 0; (byte & 0x80) && reader.ok(); shift += 7) {
    reader.require(shift < 64, "a number of too many bytes");
    reader.get(&byte, 1);
    if (!reader.ok()) return;
    reader.require((shift == 0 || byte != 0) && (shift < 63 || byte <= 1), "a number in the wrong form");
    value |= uint64_t{byte & 0x7fu} << shift;
  }
  if (reader.ok()) field.value = value;
}

// A string or vector of at most `cap` elements.
template <class Container>
struct Capped {
  Container& values;
  uint64_t cap;
};
template <class Container>
Capped(Container&, uint64_t) -> Capped<Container>;

// Element types whose bytes in memory are their bytes on the wire.
template <class T>
constexpr bool kBulk = WireNumber<T> && !std::same_as<T, bool>;
template <class Tag, class Rep>
constexpr bool kBulk<StrongInt<Tag, Rep>> = sizeof(StrongInt<Tag, Rep>) == sizeof(Rep);
template <>
constexpr bool kBulk<char> = true;

// The least number of bytes of a T on the wire: those of a default T, whose lists are all empty. An empty
// list of hidden states is shorter than an empty list of q rows.
template <class T>
size_t min_wire_bytes() {
  if constexpr (kBulk<T>) {
    return sizeof(T);
  } else {
    static const size_t bytes = [] {
      std::vector<std::byte> out;
      const WireLimits limits;
      WireWriter writer(out, limits);
      T smallest{};
      if constexpr (requires { smallest.q_kind = std::remove_cvref_t<decltype(smallest.q_kind)>::kHidden; })
        smallest.q_kind = std::remove_cvref_t<decltype(smallest.q_kind)>::kHidden;
      writer(smallest);
      return out.size();
    }();
    return bytes;
  }
}

template <class Container>
void save(WireWriter& writer, const Capped<Container>& field) {
  const uint64_t count = field.values.size();
  writer.require(count <= field.cap, "more elements than the limit");
  if (!writer.ok()) return;
  writer(count);
  if constexpr (kBulk<typename Container::value_type>) {
    writer.put(field.values.data(), count * sizeof(field.values[0]));
  } else {
    for (const auto& value : field.values) writer(value);
  }
}
template <class Container>
void load(WireReader& reader, Capped<Container>& field) {
  using T = typename Container::value_type;
  uint64_t count = 0;
  reader(count);
  reader.require(count <= field.cap, "more elements than the limit");
  reader.require(count <= reader.remaining() / min_wire_bytes<T>(), "more elements than the frame can hold");
  if (!reader.ok()) return;
  field.values.resize(count);
  if constexpr (kBulk<T>) {
    reader.get(field.values.data(), count * sizeof(T));
  } else {
    for (T& value : field.values) {
      reader(value);
      if (!reader.ok()) return;
    }
  }
}

// A string for people: made printable when it is decoded.
struct TextField {
  std::string& text;
};
inline void save(WireWriter& writer, const TextField& field) {
  writer(Capped{field.text, writer.limits().string_bytes});
}
inline void load(WireReader& reader, TextField& field) {
  reader(Capped{field.text, reader.limits().string_bytes});
  field.text = printable(field.text, reader.limits().string_bytes);
}

}  // namespace outrider

CEREAL_SETUP_ARCHIVE_TRAITS(outrider::WireReader, outrider::WireWriter)
