// The model on the CPU.
#pragma once

#include <filesystem>
#include <memory>

#include "kernels/cpu/cpu_ops.h"
#include "model/expert_rows.h"
#include "model/host_states.h"
#include "model/kv/cpu_kv_storage.h"
#include "model/latent_attention.h"
#include "model/model.h"
#include "model/taken_up_rows.h"
#include "model/weights.h"

namespace outrider {

class CpuModel final : public Model {
 public:
  static Result<std::unique_ptr<Model>> load(const std::filesystem::path& directory,
                                             const ModelOptions& options, Collectives& collectives);
  ~CpuModel() override;

  Result<LogitsShard> forward(std::span<const BatchSlice> batch) override;
  Result<LogitsShard> forward_first(std::span<const BatchSlice> batch, int64_t layers,
                                    std::span<ExitedTokens* const> exited) override;
  // Rows of whole passes that went on from where they had exited, since the model was made.
  int64_t rows_taken_up() const { return taken_up_.total(); }

  KvCache& kv() override { return kv_; }
  void read_hidden_states(KvHandle sequence, int64_t index, std::span<float> to) const override;
  const ModelConfig& config() const override { return config_; }
  int64_t max_positions() const override { return max_positions_; }
  int64_t max_rows() const override { return options_.max_rows; }
  int64_t max_logit_rows() const override { return options_.max_logit_rows; }
  int64_t weight_bytes() const override { return weights_.bytes; }
  int threads() const override { return pool_.size(); }
  std::string isa() const override { return isa_name(); }

 private:
  struct Activations;  // [rows, ...], planned at start-up

  CpuModel(ModelConfig config, const ModelOptions& options, Weights weights, Collectives& collectives,
           std::unique_ptr<CpuKvStorage> storage, int64_t kv_blocks);

  Status make_room(std::span<const BatchSlice> batch);
  void enter(std::span<const BatchSlice> batch);
  void run_layers(std::span<const BatchSlice> batch, int64_t first, int64_t last);
  LogitsShard finish(std::span<const BatchSlice> batch);
  void locate_rows(std::span<const BatchSlice> batch);
  // Writes the rows of a table, one for each token: of embeddings, or of inputs of layers.
  template <class CopyRow>  // (row, its numbers)
  void read_table(const CopyRow& copy_row, std::span<const BatchSlice> batch, int64_t columns,
                  ActivationRows& to);
  void embed(std::span<const BatchSlice> batch, ActivationRows& to);
  // Makes the inputs of all layers of embedded tokens.
  void make_layer_inputs(std::span<const BatchSlice> batch, TensorView<const float, 2> embedded);
  void add_layer_input(int64_t layer, int64_t rows);
  void keep_hidden_states(int64_t layer, std::span<const BatchSlice> batch);
  // Attention, a short convolution or a gated delta net of normed rows into `partial`, this rank's part.
  void attend(int64_t layer, std::span<const BatchSlice> batch, TensorView<const float, 2> in);
  void convolve(int64_t layer, std::span<const BatchSlice> batch, TensorView<const float, 2> in);
  void run_delta_net(int64_t layer, std::span<const BatchSlice> batch, TensorView<const float, 2> in);
  void update_states(int64_t layer, std::span<const BatchSlice> batch, int64_t rows);
  void mixer_block(int64_t layer, std::span<const BatchSlice> batch, int64_t rows);
  void mlp_block(int64_t layer, int64_t rows);
  // This rank's part of an MLP of `in`, into `partial`.
  void run_mlp(const DenseMlp& mlp, int64_t layer, TensorView<const float, 2> in);
  // Experts, and the MLP beside them.
  void beside_block(int64_t layer, const ExpertMlp& mixture, int64_t rows);
  void finish_block(TensorView<float, 2> partial, std::span<const float> bias, std::span<const float> norm);
  void compute_logits(int64_t rows);
  void norm_projections(const LayerWeights& w, int64_t rows);
  void project(int64_t layer, TensorView<const float, 2> x);
  void prepare_heads(int64_t layer, std::span<const BatchSlice> batch);
  void sum_over_ranks(TensorView<float, 2> partial);

  ModelConfig config_;
  ModelOptions options_;
  ShardPlan plan_;
  std::vector<LayerPart> parts_;  // by layer
  Weights weights_;
  CpuKvStorage& storage_;  // of kv_
  KvCache kv_;
  int64_t max_positions_;
  ThreadPool pool_;
  Collectives* collectives_;
  std::vector<float> value_norm_;  // ones; empty where values have no norm
  RopeTable rope_, local_rope_;  // local_rope_: of layers with the local rotation, if there are any
  MatmulScratch matmul_scratch_;
  AttentionScratch attention_scratch_;
  std::unique_ptr<Activations> act_;
  TakenUpRows taken_up_;
  std::unique_ptr<ExpertRows> experts_;  // null where the model has none
  std::unique_ptr<LatentRows> latent_;   // null where attention is not latent
  // Present if the model has gated delta nets.
  struct DeltaNets {
    DeltaNetShape shape;
    HostStates states;
    DeltaNetScratch scratch;
  };
  std::unique_ptr<DeltaNets> delta_nets_;
};

}  // namespace outrider
