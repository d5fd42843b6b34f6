// The input of a head at committed positions: the target's hidden states at its aux layers, normed and
// projected. This part of a head runs beside the target, wherever the head drafts. Its output rows have the
// head's width, however many layers are read. One thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "heads/head_compute.h"
#include "heads/head_config.h"
#include "model_files/weight_format.h"

namespace outrider {

// With T aux layers of the target's hidden size and hidden H of the head.
struct HiddenStateProjectionWeights {
  // EAGLE-3: [T * target hidden] with norm_before_fc, else empty. DFlash: empty. Other heads read what the
  // target's output head reads: its final norm.
  HeadVector norm;
  std::vector<HeadVector> aux_layer_norms;  // EAGLE-3 with fc_norm: [target hidden] of each aux layer
  HeadMatrix fc;                            // EAGLE-3 and DFlash: [H, T * target hidden]; of others empty
  HeadVector projected_norm;                // DFlash: [H]; of others empty
};

class HiddenStateProjection {
 public:
  HiddenStateProjection(const HeadConfig& config, HiddenStateProjectionWeights weights,
                        std::shared_ptr<HeadCompute> compute, int64_t max_rows);
  // Loads this part of a head alone. Errors name file and tensor, or report too little memory for it and for
  // the rows of its readers. Where the compute counts memory, `notice` receives a text that describes the
  // memory.
  static Result<std::shared_ptr<HiddenStateProjection>> load(
      const std::filesystem::path& directory, const std::filesystem::path& target_directory,
      const HeadConfig& config, const ModelConfig& target, WeightFormat format, int64_t max_rows,
      std::shared_ptr<HeadCompute> compute, const std::function<void(const std::string&)>& notice = {});

  int64_t width() const { return width_; }        // of a row
  int64_t max_rows() const { return max_rows_; }  // at a time
  HeadCompute& compute() { return *compute_; }
  // `hidden_states` [rows, aux_layers * hidden size of the target], `to` [rows, width()]. A row depends on
  // its own states alone.
  void apply(FloatRows hidden_states, FloatRows to);

 private:
  const int64_t width_, max_rows_;
  const float epsilon_;
  const HiddenStateProjectionWeights weights_;
  const std::shared_ptr<HeadCompute> compute_;
  OperandBuffer operands_;  // [rows, aux_layers * hidden size of the target], with an fc
  RowBuffer projected_;     // [rows, H], with a norm behind it
};

}  // namespace outrider
