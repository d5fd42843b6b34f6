// Owning, zero-filled, 64-byte aligned host memory. Large buffers come straight from the kernel: untouched
// pages take no memory, and huge pages are requested.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace outrider {

template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(int64_t size) : size_(size) {
    if (size != 0) data_ = static_cast<T*>(take(bytes()));
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() {
    if (data_) give_back(data_, bytes());
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  size_t bytes() const { return static_cast<size_t>(size_) * sizeof(T); }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  std::span<T> span() { return {data_, static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data_, static_cast<size_t>(size_)}; }

 private:
#if defined(__SANITIZE_ADDRESS__)  // it watches the bounds of what its own allocator gave, and of no mapping
  static void* take(size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes) != 0) throw std::bad_alloc();
    return std::memset(memory, 0, bytes);
  }
  static void give_back(void* memory, size_t) { std::free(memory); }
#else
  static void* take(size_t bytes) {
    void* memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    constexpr size_t kHugePage = size_t{2} << 20;
    if (bytes >= 2 * kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
  }
  static void give_back(void* memory, size_t bytes) { munmap(memory, bytes); }
#endif

  T* data_ = nullptr;
  int64_t size_ = 0;
};

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace outrider
