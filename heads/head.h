// A head: a small network beside a target, whose states it reads. What all kinds have in common.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"
#include "heads/head_compute.h"
#include "heads/head_config.h"
#include "heads/hidden_state_projection.h"
#include "model_files/weight_format.h"

namespace outrider {

struct HeadOptions {
  HeadKind kind = HeadKind::kEagle3;
  int threads = 1;                              // at most
  int64_t bytes_per_thread = int64_t{2} << 20;  // as in ModelOptions
  std::shared_ptr<HeadCompute> compute;         // null: the host's, with these threads
  int64_t max_rows = 256;                       // in one pass
  int64_t max_sequences = 16;                   // at once, each with logits for one row of a pass
  int64_t max_positions = 0;                    // longest text; 0: what the target supports
  int64_t kv_tokens = 0;                        // over all sequences; 0: one longest sequence
  int64_t tree_nodes = 0;                       // of each sequence, that a draft may look behind
  WeightFormat weight_format = WeightFormat::kAuto;
  // Receives a text that describes device memory before it is allocated.
  std::function<void(const std::string&)> notice;

  // Nodes of trees that are looked behind at once, at most, where drafts may branch.
  int64_t tree_rows() const { return tree_nodes > 0 ? std::max<int64_t>(max_sequences, 32) : 0; }
};

class Head {
 public:
  virtual ~Head() = default;
  // The class that its kind asks for.
  static Result<std::unique_ptr<Head>> load(const std::filesystem::path& directory,
                                            const std::filesystem::path& target_directory,
                                            const HeadOptions& options);

  const HeadConfig& config() const { return config_; }
  const HeadOptions& options() const { return options_; }
  int64_t hidden_size() const { return config_.layer.hidden_size; }  // of committed states
  int64_t vocab_size() const { return config_.layer.vocab_size; }    // of the target
  int64_t max_positions() const { return options_.max_positions; }
  int64_t max_rows() const { return options_.max_rows; }
  virtual int64_t weight_bytes() const = 0;  // read for each drafted token
  // The target's ids of the rows of logits; empty: they are all its ids, in order.
  virtual std::span<const TokenId> target_ids() const { return {}; }

  HeadCompute& compute() const { return *options_.compute; }
  // Projects hidden states of committed positions to the head's inputs (HiddenStateProjection::apply).
  void committed_hidden_states(FloatRows hidden_states, FloatRows to) {
    projection_->apply(hidden_states, to);
  }
  const std::shared_ptr<HiddenStateProjection>& projection() const { return projection_; }

 protected:
  // `options` with a compute.
  Head(HeadConfig config, const HeadOptions& options, HiddenStateProjectionWeights projection)
      : config_(std::move(config)),
        options_(options),
        projection_(std::make_shared<HiddenStateProjection>(config_, std::move(projection), options.compute,
                                                            options.max_rows)) {}
  // Completes the given options with a compute and the target's limits.
  static HeadOptions complete(HeadOptions asked, const ModelConfig& target);
  float epsilon() const { return static_cast<float>(config_.layer.rms_norm_eps); }

  const HeadConfig config_;
  const HeadOptions options_;
  const std::shared_ptr<HiddenStateProjection> projection_;
};

}  // namespace outrider
