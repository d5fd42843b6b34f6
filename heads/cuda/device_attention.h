// HeadAttention on a CUDA device: what changes from pass to pass is filled on the host and sent in one copy.
#pragma once

#include <array>
#include <functional>

#include "base/cuda.h"
#include "heads/head_compute.h"
#include "kernels/cuda/cuda_ops.h"
#include "model/cuda/layer_parts.h"
#include "model/kv/cuda_kv_storage.h"

namespace outrider::cuda {

// Device memory and tile shapes of a head's attention, computed before anything is allocated.
struct DeviceAttentionPlan {
  DeviceAttentionPlan(const HeadAttentionPlan& plan, WeightType activation_type, const DeviceInfo& device);

  int64_t latent_dim() const { return config.latent ? config.latent->kv_rank : 0; }  // KvLayer's
  int64_t value_dim() const { return config.latent ? latent_dim() : config.head_dim; }
  int64_t kv_bytes() const { return DeviceKvStorage::bytes_for(kv, latent_dim(), kv_blocks); }
  int64_t working_bytes() const;
  // An error names what the kernels do not take.
  Status check() const;

  ModelConfig config;
  HeadPart latent;
  std::vector<bool> causal_layers;
  WeightType activation = WeightType::kFloat32;
  KvShape kv;
  int64_t kv_blocks = 0, max_rows = 0, max_positions = 0;
  AttentionTile tile;
  int64_t turn_rows = 1;
  int multiprocessors = 1;
};

class DeviceAttention final : public HeadAttention {
 public:
  // On the current device, which is `device`. products: of latent attention, at any time.
  DeviceAttention(const DeviceAttentionPlan& plan, int device, StreamView stream,
                  std::function<Products()> products);

  void begin(std::span<const Row> rows, int64_t first_that_attends) override;
  void advance(int64_t rows) override;
  void prepare(int64_t layer, const Heads& heads) override;
  void attend(int64_t layer, FloatRows queries, Operand to) override;
  Operand attend_latent(int64_t layer, Operand x) override;

 private:
  DeviceAttention(const DeviceAttentionPlan& plan, int device, StreamView stream,
                  std::function<Products()> products, std::unique_ptr<DeviceKvStorage>&& storage);
  DeviceAttention(const DeviceAttentionPlan& plan, int device, StreamView stream,
                  std::function<Products()> products, const DeviceKvStorage& storage,
                  std::unique_ptr<DeviceKvStorage>&& owned);
  void attend(int64_t layer, const float* queries, int64_t q_stride, int64_t rows, void* to);
  // Rows from `first` on, which stand at these positions.
  DeviceBatch batch(const int32_t* positions, int64_t first) const;
  void group_rows(std::span<const Row> rows, int64_t first, int32_t* tile_rows) const;

  const DeviceAttentionPlan plan_;
  const int device_;
  const StreamView stream_;
  const std::function<Products()> products_;
  const DeviceKvStorage& storage_;  // of kv_
  const RopeTables rope_;
  const int64_t table_stride_;
  int64_t first_that_attends_ = 0;
  // [4][max_rows] positions, what rows see, which table, tiles; then the tables.
  struct Staging {
    PinnedBuffer<int32_t> memory;
    Event sent;
  };
  std::array<Staging, 2> staging_;  // two, so that a draft's steps do not wait for the previous pass
  size_t next_staging_ = 0;
  DeviceBuffer<int32_t> memory_;
  DeviceBuffer<float> workspace_;
  // Buffers of latent attention.
  const ShardPlan whole_;
  DeviceBuffer<float> latents_;  // [rows, what DeviceLayer::qkv makes]
  LatentActivations latent_heads_;
  DeviceBuffer<std::byte> attended_;  // [rows, value_dim of all heads]
};

}  // namespace outrider::cuda
