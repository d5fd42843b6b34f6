// HeadCompute on a CUDA device. All is queued on one stream, beside a target on the target's, whose states
// are then there without anybody waiting; fetch() and samplers wait.
#pragma once

#include <array>
#include <map>
#include <optional>

#include "base/cuda.h"
#include "heads/cuda/head_rows.h"
#include "heads/head_compute.h"
#include "model/cuda/layer_parts.h"
#include "model/cuda/model.h"
#include "model/cuda/part_weights.h"

namespace outrider::cuda {

class DeviceCompute final : public HeadCompute {
 public:
  // `beside`: null, or a model on the same device, which must outlive it. `counts`: takes nothing of the
  // device and computes nothing, for room().
  DeviceCompute(int device, CudaModel* beside, bool counts);
  ~DeviceCompute() override;

  Result<HeadMatrix> matrix(const MatrixSource& source, WeightType type) override;
  HeadVector vector(std::span<const float> values) override;
  Result<HeadPart> latent(const LatentSources& sources, const ModelConfig& config,
                          const HeadPartTypes& types) override;
  Result<HeadPart> experts(const ExpertSources& sources, const ModelConfig& config,
                           const HeadPartTypes& types) override;
  Result<HeadTable> table(const TensorPart& rows, TableOf of) override;
  RowBuffer rows(int64_t count, int64_t columns) override;
  OperandBuffer operands(int64_t count, int64_t columns) override;
  std::unique_ptr<HeadAttention> attention(const HeadAttentionPlan& plan) override;
  std::unique_ptr<HeadMixture> mixture(const HeadPart& experts, const ModelConfig& config,
                                       int64_t max_rows) override;
  std::unique_ptr<HeadSampler> sampler(const HeadSamplerPlan& plan) override;
  std::unique_ptr<RecordedWork> record(const std::function<void()>& work) override;
  void settle(int64_t bytes, int64_t max_rows) override;
  std::shared_ptr<HeadCompute> counting() const override;
  Status room(const std::function<void(const std::string&)>& notice) const override;

  FloatRows open(FloatRows to) override;
  void close(FloatRows to) override;
  FloatRows fetch(FloatRows from) override;
  void copy(FloatRows from, FloatRows to) override;
  void widen(const uint16_t* from, FloatRows to) override;
  int64_t narrow(FloatRows from, uint16_t* to) override;
  void wait() override { stream().synchronize(); }
  void read_hidden_states(Model& target, KvHandle sequence, int64_t first, FloatRows to) override;

  void normalise(FloatRows x, const HeadVector& weight, float epsilon, FloatRows to) override;
  void normalise(FloatRows x, const HeadVector& weight, float epsilon, Operand to) override;
  void add(FloatRows x, FloatRows added, const HeadVector& bias) override;
  void add_silu(FloatRows x, FloatRows added, const HeadVector& bias) override;
  void add_bias(FloatRows x, const HeadVector& bias) override;
  void round_to_bf16(FloatRows x) override;
  void multiply(Operand x, const HeadMatrix& weight, FloatRows out) override;
  Operand gate(FloatRows gate_up, const HeadVector& bias, Operand room) override;
  void multiply_by_sigmoid(Operand x, FloatRows gate) override;

 private:
  // Pinned memory on its way to the device.
  struct Staging {
    PinnedBuffer<float> memory;
    Event sent;
  };
  StreamView stream() const;
  Uploader& uploader();
  Products products() const;
  // The type in which matrices of `type` are held here; all products take activations of one type.
  Result<WeightType> held_as(const std::string& name, WeightType type);
  Result<HeadPart> part(const Result<MatrixSizes>& sizes);
  WeightType activation() const { return activation_.value_or(WeightType::kFloat32); }
  void normalise(FloatRows x, const HeadVector& weight, float epsilon, void* to, int64_t to_stride,
                 WeightType type);

  const int device_;
  const DeviceInfo info_;
  CudaModel* const beside_;
  const bool counts_;
  std::unique_ptr<Stream> own_stream_;  // without `beside`
  std::optional<WeightType> activation_;
  std::optional<Uploader> uploader_;
  int64_t widest_ = 0;                         // weight rows of a matrix
  int64_t split_rows_ = 0, split_floats_ = 0;  // that there is room for
  DeviceBuffer<float> split_parts_;
  DeviceBuffer<uint32_t> split_arrived_;
  int64_t gathered_columns_ = 0, gathered_numbers_ = 0;  // of activations in the order of one matrix
  DeviceBuffer<bf16> gathered_;
  int64_t weight_bytes_ = 0, kv_bytes_ = 0, working_bytes_ = 0;
  Status unsupported_;
  std::array<Staging, 4> staging_;  // so that what is sent next seldom waits for what was
  size_t open_ = 0;
  int64_t largest_rows_ = 0;                             // numbers of one buffer
  std::map<const float*, PinnedBuffer<float>> fetched_;  // by where the rows begin
  PinnedBuffer<uint32_t> finite_;                        // of rows that are narrowed
};

}  // namespace outrider::cuda
