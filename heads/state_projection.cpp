#include "heads/state_projection.h"

#include "heads/head_weights.h"

namespace outrider {

StateProjection::StateProjection(const HeadConfig& config, StateProjectionWeights weights,
                                 const Options& options)
    : width_(config.layer.hidden_size),
      taps_(config.taps.size()),
      norms_whole_(config.norm_before_fc),
      norms_taps_(config.fc_norm),
      epsilon_(static_cast<float>(config.layer.rms_norm_eps)),
      weights_(std::move(weights)),
      pool_(threads_worth(static_cast<int64_t>(weights_.fc.bytes()), options.bytes_per_thread,
                          options.threads)) {}

Result<std::shared_ptr<StateProjection>> StateProjection::load(const std::filesystem::path& directory,
                                                               const std::filesystem::path& target_directory,
                                                               const HeadConfig& config,
                                                               const ModelConfig& target,
                                                               const Options& options) {
  ThreadPool loaders(options.threads);
  ASSIGN_OR_RETURN(
      StateProjectionWeights weights,
      load_state_projection(directory, config, target_directory, target, options.weight_format, loaders));
  return std::make_shared<StateProjection>(config, std::move(weights), options);
}

void StateProjection::apply(TensorView<float, 2> states, TensorView<float, 2> to) {
  if (weights_.fc.n() == 0) return rms_norm(states, weights_.norm, epsilon_, to);
  if (norms_whole_) rms_norm(states, weights_.norm, epsilon_, states);
  if (norms_taps_) {
    const int64_t rows = states.extent(0), size = states.extent(1) / static_cast<int64_t>(taps_);
    for (size_t i = 0; i < taps_; ++i) {
      const auto first = static_cast<int64_t>(i) * size;
      const TensorView<float, 2> of_layer(states.data() + first, {rows, size}, {states.stride(0), 1});
      rms_norm(of_layer,
               std::span(weights_.norm).subspan(static_cast<size_t>(first), static_cast<size_t>(size)),
               epsilon_, of_layer);
    }
  }
  matmul(pool_, scratch_, states, weights_.fc, to);
  if (!weights_.projected_norm.empty()) rms_norm(to, weights_.projected_norm, epsilon_, to);
}

}  // namespace outrider
