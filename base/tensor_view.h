// A shaped, non-owning view of row-major numbers. Cheap to copy; the owner must outlive it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/log.h"

namespace outrider {

template <class T, int N>
class TensorView {
 public:
  TensorView() = default;
  // Contiguous, last extent fastest.
  TensorView(T* data, std::array<int64_t, N> extents) : data_(data), extents_(extents) {
    int64_t stride = 1;
    for (int i = N - 1; i >= 0; --i) {
      strides_[i] = stride;
      stride *= extents_[i];
    }
  }
  TensorView(T* data, std::array<int64_t, N> extents, std::array<int64_t, N> strides)
      : data_(data), extents_(extents), strides_(strides) {}
  // A view of mutable numbers is also a view of constant ones.
  template <class U>
  requires(std::is_same_v<const U, T> && !std::is_const_v<U>) TensorView(const TensorView<U, N>& other)
      : data_(other.data()), extents_(other.extents()), strides_(other.strides()) {}

  T* data() const { return data_; }
  int64_t extent(int i) const { return extents_[i]; }
  int64_t stride(int i) const { return strides_[i]; }
  const std::array<int64_t, N>& extents() const { return extents_; }
  const std::array<int64_t, N>& strides() const { return strides_; }
  int64_t size() const {
    int64_t n = 1;
    for (int64_t e : extents_) n *= e;
    return n;
  }

  template <class... Index>
  requires(sizeof...(Index) == N) T& operator()(Index... index) const {
    const std::array<int64_t, N> at{static_cast<int64_t>(index)...};
    int64_t offset = 0;
    for (int i = 0; i < N; ++i) {
      DCHECK(at[i] >= 0 && at[i] < extents_[i], "index {} of extent {}", at[i], extents_[i]);
      offset += at[i] * strides_[i];
    }
    return data_[offset];
  }
  // Row i of a matrix with contiguous rows.
  std::span<T> row(int64_t i) const requires(N == 2) {
    DCHECK(i >= 0 && i < extents_[0], "row {} of {}", i, extents_[0]);
    return {data_ + i * strides_[0], static_cast<size_t>(extents_[1])};
  }

 private:
  T* data_ = nullptr;
  std::array<int64_t, N> extents_{};
  std::array<int64_t, N> strides_{};
};

}  // namespace outrider
