// Finds stored matrices and vectors by name, whatever format they are stored in, and checks their shapes.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model_files/model_config.h"
#include "model_files/safetensors.h"
#include "model_files/shard_plan.h"
#include "model_files/weight_sources.h"

namespace outrider {

// All three outlive it. Errors name the tensor and its file.
class TensorParts {
 public:
  TensorParts(const TensorFiles& files, const ModelConfig& config, const ShardPlan& plan)
      : files_(files), config_(config), plan_(plan) {}

  // model_leaf_ends: of the whole contraction, where tensor parallelism cuts it.
  Result<TensorPart> matrix(const std::string& name, std::vector<int64_t> shape, IndexRange rows,
                            IndexRange columns, const std::vector<int64_t>& model_leaf_ends = {}) const;
  Result<TensorPart> vector(const std::string& name, int64_t size, IndexRange part) const;
  // Rows of one of several matrices that lie one behind the other in a stored one.
  Result<TensorPart> stacked(const std::string& name, int64_t stored_rows, int64_t offset,
                             IndexRange rows) const;

  const TensorFiles& files() const { return files_; }
  const ModelConfig& config() const { return config_; }
  const ShardPlan& plan() const { return plan_; }

 private:
  Result<TensorPart> codes(const TensorInfo& stored, const std::vector<int64_t>& shape,
                           std::vector<int64_t> model_leaf_ends) const;

  const TensorFiles& files_;
  const ModelConfig& config_;
  const ShardPlan& plan_;
};

}  // namespace outrider
