// A view of a CUDA stream. It needs neither CUDA's headers nor a back-end, so headers that are also read
// where there is no CUDA can hold one.
#pragma once

namespace outrider::cuda {

// What the back-end of base/cuda.h calls a stream: CUDA's own or its emulation's. Defined nowhere.
struct StreamHandle;

// A stream that somebody owns. Cheap to copy.
class StreamView {
 public:
  StreamView() = default;
  explicit StreamView(StreamHandle* handle, bool overlaps = false) : handle_(handle), overlaps_(overlaps) {}
  StreamHandle* handle() const { return handle_; }
  bool overlaps() const { return overlaps_; }
  void synchronize() const;  // throws what the work before it did wrong

 private:
  StreamHandle* handle_ = nullptr;
  bool overlaps_ = false;
};

}  // namespace outrider::cuda
