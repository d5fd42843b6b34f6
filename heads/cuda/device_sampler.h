// HeadSampler on a CUDA device: rows of a head become rows of the target's vocabulary, from which DeviceDraws
// draws.
#pragma once

#include <optional>
#include <vector>

#include "base/cuda.h"
#include "heads/head_compute.h"
#include "kernels/sampling/cuda/device_draws.h"
#include "kernels/sampling/cuda/device_ranking.h"

namespace outrider::cuda {

class DeviceSampler final : public HeadSampler {
 public:
  // On the current device, which is `device`.
  DeviceSampler(const HeadSamplerPlan& plan, int device, StreamView stream);
  static int64_t bytes_for(const HeadSamplerPlan& plan);

  int32_t most_tokens(std::span<const Row> rows) override;
  void begin(std::span<const Row> rows, bool measures) override;
  void draw(FloatRows logits, std::span<const int32_t> row_numbers) override;
  bool is_plain() const override { return draws_.is_plain(); }
  void read_drawn(const HeadTable& table, FloatRows to) override;
  void wait() override;
  std::optional<TokenId> token(size_t row, int32_t number) const override;
  DraftConfidence confidence(size_t row, int32_t number) const override;
  void read_q(size_t row, int32_t number, QRow& q) const override;
  int64_t ns_behind_first() const override;
  size_t most_looks(std::span<const TokenLook> looks) override;
  void rank(FloatRows logits, std::span<const TokenLook> looks) override;
  std::span<const RankedToken> best(size_t look) const override;

 private:
  void spread(FloatRows logits, std::span<const int32_t> row_numbers);
  void put_looks(std::span<const TokenLook> looks);

  const int device_;
  const StreamView stream_;
  const DrawLimits limits_, look_limits_;
  DeviceBuffer<int32_t> own_of_;  // [vocabulary]: a token's place in a head's row, -1: none; empty: its own
  DeviceBuffer<float> logits_;    // [rows or looks, vocabulary]
  DeviceBuffer<int32_t> tokens_, positions_;  // [rows]: drawn last, and where that stands
  DeviceDraws draws_;
  std::optional<DeviceRanking> ranking_;  // where there may be trees
  std::vector<DrawRow> rows_;
  std::vector<int32_t> look_rows_, counts_;  // of the looks
  bool wants_q_ = false;
  bool is_first_ = false;  // nothing was drawn since begin()
  Event first_drawn_, last_drawn_;
};

}  // namespace outrider::cuda
