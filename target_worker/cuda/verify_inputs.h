// Inputs of a verification pass on a device, packed into one copy. The host prepares a request's rows and
// tokens; kernels compute every number that depends on a logit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "target_worker/cuda/verify_batch.h"
#include "target_worker/verifier.h"

namespace outrider::cuda {

// Makes room for `size` elements, twice that if more is needed. What was there before is kept to the end:
// freeing waits for the device, where a kernel of a peer may be waiting for this rank.
template <class Buffer>
void make_room(Buffer& buffer, std::vector<Buffer>& retired, int64_t size) {
  if (size <= buffer.size()) return;
  retired.push_back(std::move(buffer));
  buffer = Buffer(2 * size);
}

class VerifyInputs {
 public:
  explicit VerifyInputs(int64_t q_words)
      : staging_(kUsualBytes + q_words * int64_t{sizeof(uint32_t)}), memory_(staging_.size()) {}

  // Packs `requests` for the slice `range` of rank `rank`, and queues the copy. The pointers it sets in
  // `batch` are valid until the next call, which must not come before the copy is done.
  void send(std::span<const VerifyRequest> requests, IndexRange range, StreamView stream, VerifyBatch& batch);

  // Draft tokens with q = 0 among the last requests.
  uint64_t q_zero_draws() const { return q_zero_draws_; }

 private:
  void clear();
  void add_request(const VerifyRequest& request, IndexRange range);
  void add_row(const VerifyRequest& request, int32_t index, IndexRange range);
  void add_mask(const VerifyRequest& request, int32_t index, IndexRange range);
  void add_penalties(const VerifyRequest& request, IndexRange range, RequestInput& input);
  void add_q(const VerifyRequest& request, int32_t index, IndexRange range, TestInput& test);

  // A run of q's words, wherever the request holds them; ids become local as they are copied.
  struct Words {
    std::span<const uint32_t> from;
    uint32_t subtract = 0;
  };

  std::vector<RowInput> rows_;
  std::vector<TestInput> tests_;
  std::vector<RequestInput> requests_;
  std::vector<Decision> decisions_;
  std::vector<CountedToken> counted_;
  std::vector<Bias> biases_;
  std::vector<int32_t> top_k_, top_p_, min_p_, noisy_, drawn_;
  std::vector<RowMask> masks_;
  std::vector<uint32_t> mask_words_;
  std::vector<Words> words_;
  int64_t word_count_ = 0;
  uint64_t q_zero_draws_ = 0;
  static constexpr int64_t kUsualBytes = int64_t{4} << 20;
  PinnedBuffer<std::byte> staging_;
  DeviceBuffer<std::byte> memory_;
  std::vector<PinnedBuffer<std::byte>> retired_staging_;
  std::vector<DeviceBuffer<std::byte>> retired_memory_;
};

}  // namespace outrider::cuda
