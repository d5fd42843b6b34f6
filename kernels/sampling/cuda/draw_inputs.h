// The host's description of rows that draw: filled in pinned memory, sent to device memory at fixed
// addresses, so that a captured graph serves every draft. Sizes are planned at start-up; a larger request is
// refused.
#pragma once

#include <span>

#include "base/cuda.h"
#include "kernels/sampling/cuda/draw_batch.h"
#include "kernels/sampling/cuda/row_steps.h"
#include "kernels/sampling/draft_sampler.h"

namespace outrider::cuda {

struct DrawLimits {
  int64_t rows = 0;     // at a time
  int64_t steps = 0;    // with one send()
  int64_t width = 0;    // ids that may be drawn: [0, width)
  int64_t stride = 0;   // of the rows of logits
  int64_t q_rows = 0;   // dense rows of q that are kept, over all rows and steps, or more compact ones
  int64_t counted = 0;  // distinct tokens that penalties count, over all rows
  int64_t biases = 0;   // over all rows

  // A dense row of q takes two bytes a token.
  int64_t q_row_bytes() const { return (2 * width + 7) / 8 * 8; }
  // A compact row, of eight bytes an entry, takes no more.
  int64_t most_entries() const { return q_row_bytes() / 8; }
};

// One row. Its first token is `first`, the next ones follow it.
struct DrawRow {
  DraftStep first;
  int64_t logits_row = 0;  // at the first step; later row i of the draws is row i of the logits
  int32_t steps = 1;
};

class DrawInputs {
 public:
  explicit DrawInputs(const DrawLimits& limits);
  static int64_t bytes_for(const DrawLimits& limits);
  // Where everything will be.
  void set(DrawBatch& batch) const;

  bool takes(std::span<const DrawRow> rows) const;
  // `measured`: RowMoments are wanted. Call only when all work queued earlier is done.
  void send(std::span<const DrawRow> rows, bool measured, StreamView stream);

  // The state of a row that was sent.
  const DrawState& state(int64_t row) const { return states_.host.data()[row]; }
  int64_t q_bytes() const { return q_bytes_; }
  // The rows of each kind among the first `rows` rows that were sent.
  SearchTask top_k(int64_t rows) const { return task_of(top_k_, rows); }
  SearchTask top_p(int64_t rows) const { return task_of(top_p_, rows, true); }
  SearchTask min_p(int64_t rows) const { return task_of(min_p_, rows); }
  SearchTask noisy(int64_t rows) const { return task_of(noisy_, rows); }
  SearchTask compact(int64_t rows) const { return task_of(compact_, rows); }
  // Some row has any of the first four.
  bool has_filtered_rows() const { return top_k_.size + top_p_.size + min_p_.size + noisy_.size > 0; }

 private:
  template <class T>
  struct Sent {
    explicit Sent(int64_t capacity) : host(capacity), device(capacity) {}
    void push(const T& value) { host.data()[size++] = value; }
    void send(StreamView stream) const {
      if (size > 0) copy(device.data(), host.data(), size, stream);
    }

    PinnedBuffer<T> host;
    DeviceBuffer<T> device;
    int64_t size = 0;
  };

  static SearchTask task_of(const Sent<int32_t>& list, int64_t rows, bool by_mass = false);
  int64_t q_bytes_of(const DrawRow& row) const;
  void clear();
  void add_row(const DrawRow& row, bool measured);
  void add_q(const DrawRow& row);
  void add_penalties(const DrawRow& row, RequestInput& request);
  void add_counts(const TokenCounts& counts, RequestInput& request);

  const DrawLimits limits_;
  Sent<RowInput> rows_;
  Sent<RequestInput> requests_;
  Sent<DrawState> states_;
  Sent<CountedToken> counted_;
  Sent<Bias> biases_;
  Sent<int32_t> top_k_, top_p_, min_p_, noisy_, compact_;  // rows, ascending
  Sent<RowInput> selections_;                 // by row: which of its weights a compact one may list
  const TokenCounts* last_counts_ = nullptr;  // of the last row with penalties, and where they are
  int32_t last_first_count_ = 0, last_count_ = 0;
  int64_t q_bytes_ = 0;
};

}  // namespace outrider::cuda
