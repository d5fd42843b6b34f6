#include "heads/hidden_state_projection.h"

#include "heads/head_weights.h"

namespace outrider {

HiddenStateProjection::HiddenStateProjection(const HeadConfig& config, HiddenStateProjectionWeights weights,
                                             std::shared_ptr<HeadCompute> compute, int64_t max_rows)
    : width_(config.layer.hidden_size),
      max_rows_(max_rows),
      epsilon_(static_cast<float>(config.layer.rms_norm_eps)),
      weights_(std::move(weights)),
      compute_(std::move(compute)) {
  if (weights_.fc.n > 0) operands_ = compute_->operands(max_rows, weights_.fc.k);
  if (!weights_.projected_norm.empty()) projected_ = compute_->rows(max_rows, width_);
}

Result<std::shared_ptr<HiddenStateProjection>> HiddenStateProjection::load(
    const std::filesystem::path& directory, const std::filesystem::path& target_directory,
    const HeadConfig& config, const ModelConfig& target, WeightFormat format, int64_t max_rows,
    std::shared_ptr<HeadCompute> compute, const std::function<void(const std::string&)>& notice) {
  const auto load = [&](std::shared_ptr<HeadCompute> on) -> Result<std::shared_ptr<HiddenStateProjection>> {
    ASSIGN_OR_RETURN(HiddenStateProjectionWeights weights,
                     load_hidden_state_projection(directory, config, target_directory, target, format, *on));
    on->settle(weights.fc.bytes, max_rows);
    return std::make_shared<HiddenStateProjection>(config, std::move(weights), std::move(on), max_rows);
  };
  if (const auto counting = compute->counting()) {
    ASSIGN_OR_RETURN(const auto counted, load(counting));
    counting->rows(max_rows,
                   static_cast<int64_t>(config.aux_layers.size()) * target.hidden_size + counted->width());
    RETURN_IF_ERROR(counting->room(notice));
  }
  return load(std::move(compute));
}

void HiddenStateProjection::apply(FloatRows hidden_states, FloatRows to) {
  const int64_t rows = hidden_states.extent(0);
  CHECK(rows <= max_rows_, "{} rows of {}", rows, max_rows_);
  if (weights_.fc.n == 0) return compute_->normalise(hidden_states, weights_.norm, epsilon_, to);
  const Operand inputs = operands_.rows(rows);
  if (weights_.aux_layer_norms.empty()) compute_->normalise(hidden_states, weights_.norm, epsilon_, inputs);
  int64_t first = 0;
  for (const HeadVector& norm : weights_.aux_layer_norms) {
    const FloatRows of_aux_layer(hidden_states.data() + first, {rows, norm.size},
                                 {hidden_states.stride(0), 1});
    compute_->normalise(of_aux_layer, norm, epsilon_, inputs.slice(first, norm.size));
    first += norm.size;
  }
  if (weights_.projected_norm.empty()) return compute_->multiply(inputs, weights_.fc, to);
  const FloatRows projected = projected_.rows(rows);
  compute_->multiply(inputs, weights_.fc, projected);
  compute_->normalise(projected, weights_.projected_norm, epsilon_, to);
}

}  // namespace outrider
