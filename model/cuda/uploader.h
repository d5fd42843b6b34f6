// Matrices on their way from mapped files to a device: rows are gathered in pinned memory, copied, and put
// into the order of the kernels by the device, which also quantises. Two staging buffers, so that reading and
// copying overlap.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/cuda.h"
#include "base/load_progress.h"
#include "kernels/cuda/cuda_ops.h"
#include "model/cuda/matrix_plan.h"
#include "model_files/weight_sources.h"

namespace outrider::cuda {

// Row `row` of a part, as elements of `type`.
void stage_row(const TensorPart& part, int64_t row, WeightType type, std::byte* to);

class Uploader {
 public:
  Uploader(int64_t total_bytes, StreamView stream, const LoadProgress& progress)
      : total_(total_bytes), stream_(stream), progress_(progress) {}
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  DeviceMatrix matrix(const MatrixPlan& plan);
  // That it takes itself.
  static constexpr int64_t device_bytes() { return 2 * kStagingBytes; }
  // The staging buffers. The caller keeps them until every rank has finished loading
  // (DeviceWeights::staging).
  std::shared_ptr<void> staging() const { return staging_; }

 private:
  static constexpr int64_t kStagingBytes = int64_t{16} << 20;  // long enough to hide a copy's start
  struct Staging {
    PinnedBuffer<std::byte> host{kStagingBytes};
    DeviceBuffer<std::byte> device{kStagingBytes};
    Event free;
    bool used = false;
  };

  void upload(const TensorPart& part, int64_t first_row, const MatrixView& to);
  // Parts one beside the other, in numbers.
  void upload_wide(const std::vector<TensorPart>& parts, const MatrixView& to);
  // Rows of all pieces, numbered as in their files.
  void upload_codes(const CodePlan& plan, std::span<const CodedPiece> pieces, IndexRange rows,
                    int64_t first_row, const MatrixView& to);
  void advance(int64_t bytes);
  Staging& next_free();

  int64_t done_ = 0, total_ = 0;  // bytes of matrices in the files
  StreamView stream_;
  const LoadProgress& progress_;
  std::shared_ptr<std::array<Staging, 2>> staging_ = std::make_shared<std::array<Staging, 2>>();
  size_t next_ = 0;
};

}  // namespace outrider::cuda
