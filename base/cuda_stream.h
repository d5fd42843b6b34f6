// A view of a CUDA stream. Needs neither CUDA's headers nor a back-end, so headers for builds without CUDA
// can hold one.
#pragma once

namespace outrider::cuda {

// Handle of the back-end's stream (CUDA or its emulation, see base/cuda.h). Declared only, never defined.
struct StreamHandle;

// A non-owning view of a stream. Cheap to copy.
class StreamView {
 public:
  StreamView() = default;
  explicit StreamView(StreamHandle* handle, bool overlaps = false) : handle_(handle), overlaps_(overlaps) {}
  StreamHandle* handle() const { return handle_; }
  bool overlaps() const { return overlaps_; }
  void synchronize() const;  // throws the error of earlier work

 private:
  StreamHandle* handle_ = nullptr;
  bool overlaps_ = false;
};

}  // namespace outrider::cuda
