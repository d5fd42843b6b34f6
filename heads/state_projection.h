// What a head reads of committed positions: the target's states at its taps, normed and projected. It is the
// part of a head that is beside the target wherever the head drafts; behind it a row is as wide as the head,
// however many layers it reads. One thread.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "heads/head_config.h"
#include "transformer/model/thread_pool.h"
#include "transformer/model/weights.h"
#include "transformer/ops/cpu/cpu_ops.h"

namespace outrider {

// With T taps of the target's hidden size and hidden H of the head.
struct StateProjectionWeights {
  // EAGLE-3: [T * target hidden] with norm_before_fc or fc_norm, else empty. DFlash: empty. Other heads read
  // what the target's output head reads: its final norm.
  std::vector<float> norm;
  PackedMatrix fc;                    // EAGLE-3 and DFlash: [H, T * target hidden]; of others empty
  std::vector<float> projected_norm;  // DFlash: [H]; of others empty
};

class StateProjection {
 public:
  // `options.threads` and so on are those of the head.
  struct Options {
    int threads = 1;
    int64_t bytes_per_thread = int64_t{2} << 20;
    WeightFormat weight_format = WeightFormat::kAuto;
  };
  StateProjection(const HeadConfig& config, StateProjectionWeights weights, const Options& options);
  // This part of a head alone. Errors name file and tensor.
  static Result<std::shared_ptr<StateProjection>> load(const std::filesystem::path& directory,
                                                       const std::filesystem::path& target_directory,
                                                       const HeadConfig& config, const ModelConfig& target,
                                                       const Options& options);

  int64_t width() const { return width_; }  // of a row
  // `states` [rows, taps * hidden size of the target] is overwritten, `to` [rows, width()]. A row depends on
  // its own states alone.
  void apply(TensorView<float, 2> states, TensorView<float, 2> to);

 private:
  const int64_t width_;
  const size_t taps_;
  const bool norms_whole_, norms_taps_;
  const float epsilon_;
  const StateProjectionWeights weights_;
  ThreadPool pool_;
  MatmulScratch scratch_;
};

}  // namespace outrider
