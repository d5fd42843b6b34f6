// ShardedVerifier on a CUDA device: the same verdicts from the same integers, given equal logits, without
// bringing logits to the host. A pass is one copy of its inputs, kernels and small collectives in stream
// order, and one copy of the verdicts, for which alone the host waits. Rows that report log-probabilities are
// copied besides, and reported by the host.
#pragma once

#include <vector>

#include "base/cuda.h"
#include "comm/device_group.h"
#include "kernels/sampling/logprobs.h"
#include "target_worker/cuda/ranked_rows.h"
#include "target_worker/cuda/verify_inputs.h"
#include "target_worker/verifier.h"

namespace outrider::cuda {

struct SearchTask;  // row_steps.h

struct VerifierLimits {
  int64_t rows = 64;  // of logits in one pass
  int64_t requests = 64;
  int64_t q_words = 0;  // weights of q in one pass that room is made for at once; more is made when needed
};

class DeviceVerifier final : public Verifier {
 public:
  // Ranks call verify() with the same requests and their own shard. `group` and `host` connect the same ranks
  // and must outlive the verifier; of `host` only log-probabilities make use. On the current device.
  DeviceVerifier(DeviceGroup& group, Collectives& host, const VerifierLimits& limits);
  ~DeviceVerifier() override;

  // The logits are DeviceLogits. Rows with log-probabilities go to their host_room.
  const std::vector<VerifyResult>& verify(std::span<const VerifyRequest> requests,
                                          const PlacedLogits& logits) override;
  const VerifierStats& stats() const override { return stats_; }
  LogitsShard on_host(std::span<const VerifyRequest> requests, const PlacedLogits& logits) override;
  void rank_rows(std::span<const int64_t> rows, const PlacedLogits& logits) override;
  std::span<const uint64_t> ranked_rows() const override { return ranked_.lists(); }
  std::optional<int64_t> busy_ns() const override;

 private:
  struct Memory;  // what the kernels work in

  void prepare(std::span<const VerifyRequest> requests, const DeviceLogits& logits);
  void keep_raw_rows(std::span<const VerifyRequest> requests, const DeviceLogits& logits);
  void queue_filters();
  void queue_cut(const SearchTask& task);
  void queue_draws();
  void fetch(std::span<const VerifyRequest> requests);
  void report_logprobs(std::span<const VerifyRequest> requests, const DeviceLogits& logits);
  void reduce(Reduction reduction, uint64_t* values, int64_t count);

  DeviceGroup& group_;
  const VerifierLimits limits_;
  VerifyInputs inputs_;
  std::unique_ptr<Memory> memory_;
  VerifyBatch batch_;  // of the pass in progress
  StreamView stream_;
  Event begun_, ended_;
  PinnedBuffer<Verdict> verdicts_;
  RankedRows ranked_;
  ShardLogprobs logprobs_;
  std::vector<LogprobQuery> queries_;
  std::vector<VerifyResult> results_;
  VerifierStats stats_;
};

}  // namespace outrider::cuda
