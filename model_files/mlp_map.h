// The weights of a layer's MLP, or of its mixture of experts, of one tp_rank.
#pragma once

#include <array>
#include <string>

#include "base/status.h"
#include "model_files/family.h"
#include "model_files/tensor_parts.h"
#include "model_files/weight_sources.h"

namespace outrider {

class MlpMapper {
 public:
  explicit MlpMapper(const TensorParts& parts)  // outlives it
      : parts_(parts),
        files_(parts.files()),
        config_(parts.config()),
        plan_(parts.plan()),
        traits_(traits_of(config_.family)) {}

  // prefix: of the block's own names, "model.layers.0.mlp.".
  Result<MlpSources> dense_mlp(const std::string& prefix) const;
  // layer_prefix: "model.layers.0.".
  Result<ExpertSources> mixture(const std::string& layer_prefix) const;

 private:
  Result<BesideSources> beside(const std::string& layer_prefix) const;
  // gate, up, down: names of the projections; size: of the intermediate activations.
  Result<MlpSources> mlp(const std::array<std::string, 3>& names, int64_t size) const;
  // One of the experts that have tensors of their own, as GGUF has those of every family.
  Result<MlpSources> expert(const std::string& prefix, int64_t index) const;
  // One of the experts that share tensors.
  struct Packed {
    std::string name;
    int64_t expert, outputs, inputs;  // of the whole tensor
  };
  struct EveryOther {
    int64_t first = 0, step = 1;
  };
  Result<MlpSources> stacked_expert(const std::string& prefix, int64_t index) const;
  Result<MlpSources> packed_expert(const std::string& prefix, int64_t index) const;
  // Takes `rows` of the outputs that `every` selects, and `columns` of the inputs.
  Result<TensorPart> packed_matrix(const Packed& of, EveryOther every, IndexRange rows,
                                   IndexRange columns) const;
  Result<TensorPart> packed_bias(const Packed& of, EveryOther every, IndexRange part) const;

  const TensorParts& parts_;
  const TensorFiles& files_;
  const ModelConfig& config_;
  const ShardPlan& plan_;
  const FamilyTraits& traits_;
};

}  // namespace outrider
