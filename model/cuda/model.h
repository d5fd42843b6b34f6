// The model on one CUDA device. Decode and verify steps are captured as one graph for each number of rows.
#pragma once

#include <filesystem>
#include <map>
#include <memory>

#include "base/cuda.h"
#include "comm/device_group.h"
#include "model/cuda/batch_inputs.h"
#include "model/cuda/device_states.h"
#include "model/cuda/rope_tables.h"
#include "model/cuda/weights.h"
#include "model/kv/cuda_kv_storage.h"
#include "model/model.h"

namespace outrider::cuda {

struct Activations;
struct LayerParts;
struct MemoryPlan;

class CudaModel final : public Model {
 public:
  static Result<std::unique_ptr<Model>> load(const std::filesystem::path& directory,
                                             const ModelOptions& options, Collectives& collectives);
  // Noise instead of weights, in bf16 or as options.weight_format says.
  static Result<std::unique_ptr<CudaModel>> of_noise(const ModelConfig& config, const ModelOptions& options,
                                                     Collectives& collectives);
  ~CudaModel() override;

  Result<LogitsShard> forward(std::span<const BatchSlice> batch) override;
  Result<PlacedLogits> forward_in_place(std::span<const BatchSlice> batch) override;
  Result<LogitsShard> forward_first(std::span<const BatchSlice> batch, int64_t layers,
                                    std::span<ExitedTokens* const>) override;
  DeviceGroup* device_group() override { return group_.get(); }
  // forward_in_place(), whose logits are always on the device here.
  Result<DeviceLogits> forward_on_device(std::span<const BatchSlice> batch) {
    return forward_through(config_.num_layers, batch);
  }

  std::unique_ptr<TokenRunner> make_runner(int64_t vocab_size) override;

  KvCache& kv() override { return kv_; }
  void read_hidden_states(KvHandle sequence, int64_t index, std::span<float> to) const override;
  // Where those states are, complete when what is queued on stream() is.
  HiddenStateRows hidden_states() const { return storage_.hidden_states(); }
  StreamView stream() const { return *stream_; }
  // Null where other ranks have a part of it.
  const MatrixView* whole_embedding() const { return is_split() ? nullptr : &weights_.embedding_rows(); }
  int device_index() const { return options_.device.index; }
  const ModelConfig& config() const override { return config_; }
  int64_t max_positions() const override { return max_positions_; }
  int64_t max_rows() const override { return options_.max_rows; }
  int64_t max_logit_rows() const override { return options_.max_logit_rows; }
  int64_t weight_bytes() const override { return weights_.bytes; }
  std::string isa() const override { return "cuda " + device_.arch(); }

  // Steps of up to this many rows are graphs, when the sums over ranks can be captured and every row yields
  // logits.
  static constexpr int64_t kGraphRows = 16;

 private:
  friend class CudaTokenRunner;  // queues passes of its own

  CudaModel(const MemoryPlan& plan, const ModelOptions& options, Collectives& collectives,
            std::unique_ptr<Stream> stream, DeviceWeights weights, std::unique_ptr<DeviceKvStorage> storage);

  void warm_up();
  void capture_graphs();
  bool is_split() const { return group_->size() > 1; }
  float* logits() const;
  // Passes go through the first `layers` layers, the final norm and the output head.
  Result<DeviceLogits> forward_through(int64_t layers, std::span<const BatchSlice> batch);
  // queue_forward, as a graph where there is one.
  void queue_pass(int64_t layers, int64_t rows, int64_t logit_rows);
  void queue_forward(int64_t layers, int64_t rows, int64_t logit_rows);
  // Waits for them.
  LogitsShard fetch(const DeviceLogits& logits);
  bool has_graph(int64_t layers, int64_t rows) const { return graphs_.contains({layers, rows}); }
  void queue_embedding(int64_t rows);
  // rows: of arguments.added.
  void queue_sum_and_norm(const NormArguments& arguments, int64_t rows);
  NormArguments norm_arguments(const float* added, const float* weight) const;
  // Adds the output of this layer's MLP to the residual stream; -1: adds nothing.
  NormArguments norm_behind_mlp(int64_t layer, const float* weight) const;
  // The residual stream's sum and norm in front of a layer, then what it mixes tokens with.
  void queue_mixer(int64_t layer, int64_t rows);
  void queue_attention(int64_t layer, int64_t rows);
  void queue_convolution(int64_t layer, int64_t rows);
  void queue_delta_net(int64_t layer, int64_t rows);
  // Queries, and keys and values in the cache, of normed rows.
  void queue_projections(int64_t layer, const KvLayer& kv, int64_t rows);
  // Keeps the residual stream of all rows where a tap asks for this layer's input, or for the last layer's
  // output.
  void queue_hidden_states(int64_t layer, int64_t rows);
  void queue_squares(const DeviceLayer& w, int64_t rows);
  void queue_mlp(int64_t layer, int64_t rows);
  void multiply(int64_t rows, const void* x, int64_t x_stride, const DeviceStack& weight, float* out,
                int64_t out_stride, const GatedOutput& gated = {});
  LayerParts parts() const;

  ModelConfig config_;
  ModelOptions options_;
  ShardPlan plan_;
  int64_t max_positions_;
  DeviceInfo device_;
  std::unique_ptr<Stream> stream_;
  DeviceWeights weights_;
  DeviceKvStorage& storage_;  // of kv_
  KvCache kv_;
  AttentionTiles tiles_;
  BatchInputs inputs_;
  std::unique_ptr<DeviceGroup> group_;  // sums partial results over the ranks
  RopeTables rope_, local_rope_;        // local_rope_: of layers with the local rotation, if there are any
  std::unique_ptr<Activations> act_;
  DeviceBuffer<int32_t> expert_work_;  // MixtureRoom's
  std::unique_ptr<DeviceStates> states_;  // null where the model has no gated delta nets
  bool any_last_aux_layer_ = false;    // some rank keeps what the last layer yields
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Graph>> graphs_;  // by layers and rows
};

}  // namespace outrider::cuda
