// Where a head computes, in the memory of the host or of a device: rows of numbers, weights, and the
// operations that the equations of heads are made of. A head is written in them once, and runs in both
// places. A row of any result depends on that row of the inputs alone, bit for bit. One thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/tensor_view.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/sampling/confidence.h"
#include "kernels/sampling/draft_sampler.h"
#include "kernels/sampling/token_look.h"
#include "model/kv/kv_cache.h"
#include "model/model.h"
#include "model_files/model_config.h"
#include "model_files/weight_format.h"
#include "model_files/weight_sources.h"

namespace outrider {

// fp32, where the head computes: on a device data() is no address of the host.
using FloatRows = TensorView<float, 2>;

// Input of a product: fp32 on the host; on a device fp32 or bf16, as the weights require.
struct Operand {
  std::byte* data = nullptr;
  int64_t rows = 0, columns = 0, stride = 0;  // numbers
  int64_t number_bytes = 4;

  Operand from_row(int64_t first, int64_t count) const {
    return {data + first * stride * number_bytes, count, columns, stride, number_bytes};
  }
  Operand slice(int64_t first, int64_t count) const {
    return {data + first * number_bytes, rows, count, stride, number_bytes};
  }
};

// Owners of rows, cheap to copy. Views stay true when the owner moves.
struct RowBuffer {
  FloatRows rows(int64_t row_count) const { return from(0, row_count); }
  FloatRows from(int64_t first, int64_t row_count) const {
    return {data + first * stride, {row_count, columns}, {stride, 1}};
  }
  FloatRows slice(int64_t row_count, int64_t first_column, int64_t column_count) const {
    return {data + first_column, {row_count, column_count}, {stride, 1}};
  }

  std::shared_ptr<void> memory;
  float* data = nullptr;
  int64_t capacity = 0, columns = 0, stride = 0;
};
struct OperandBuffer {
  Operand rows(int64_t count) const { return Operand(all).from_row(0, count); }

  std::shared_ptr<void> memory;
  Operand all;
};

struct HeadVector {
  bool empty() const { return size == 0; }

  std::shared_ptr<const float> data;
  int64_t size = 0;
};
struct HeadMatrix {
  std::shared_ptr<const void> packed;  // as the compute that made it has matrices
  int64_t n = 0, k = 0, bytes = 0;
  WeightType type = WeightType::kFloat32;
};

// Matrices that a layer has beside those of Llama's: of latent attention, or of a mixture of experts.
struct HeadPart {
  std::shared_ptr<const void> packed;  // as the compute that made it has them
  int64_t bytes = 0;                   // read for one row
};
// How a part's matrices are held: in `format`, else as stored, else as `numbers`.
struct HeadPartTypes {
  WeightFormat format = WeightFormat::kAuto;
  WeightType numbers = WeightType::kFloat32;
};

// Keys and values of a head, and attention over them. The rows of a pass are announced before the pass.
class HeadAttention {
 public:
  // Its keys and values lie at `position`, where it is turned to, and it attends up to position `sees`. A
  // layer's window ends at `position`: behind it all is seen.
  struct Row {
    KvHandle sequence;
    int64_t position = 0, sees = 0;
  };
  // Heads side by side: queries, keys, values; of either kind there may be none.
  struct Heads {
    FloatRows numbers;
    int64_t first_row = 0;  // of the pass
    int64_t queries = 0, keys = 0;
    const HeadVector* bias = nullptr;
    const HeadVector* q_norm = nullptr;  // [head_dim]; may be empty
    const HeadVector* k_norm = nullptr;
  };

  explicit HeadAttention(std::unique_ptr<KvStorage> storage, int64_t blocks)
      : kv_(std::move(storage), blocks) {}
  virtual ~HeadAttention() = default;

  KvCache& kv() { return kv_; }
  // There is room for their positions in kv(). Those from `first_that_attends` on have queries.
  virtual void begin(std::span<const Row> rows, int64_t first_that_attends) = 0;
  // The first rows of begin() stand one position further on, and see one more; queued like any operation.
  virtual void advance(int64_t) { CHECK(false, "rows on the host are told anew"); }
  // Adds the bias, normalises, turns, and writes keys and values to the cache.
  virtual void prepare(int64_t layer, const Heads& heads) = 0;
  // to[m, :] = what queries[m, :] see, of row first_that_attends + m.
  virtual void attend(int64_t layer, FloatRows queries, Operand to) = 0;
  // Both in one, of latent attention (latent_attention.h), where every row sees up to its own position: of
  // normed rows x, what the output projection reads. Valid until the next call.
  virtual Operand attend_latent(int64_t layer, Operand x) = 0;

 protected:
  KvCache kv_;
};

struct HeadAttentionPlan {
  const ModelConfig& config;  // of its layers
  int64_t kv_blocks = 0;
  int64_t max_rows = 0;
  int64_t max_positions = 0;
  bool bf16 = false;  // keys and values
  HeadPart latent;    // where config.latent is there
  // For each layer, whether a row attends up to its own position, whatever Row::sees says. Empty: none.
  std::vector<bool> causal_layers = {};
};
inline bool is_causal(const std::vector<bool>& causal_layers, int64_t layer) {
  return !causal_layers.empty() && causal_layers[static_cast<size_t>(layer)];
}

// A mixture of experts for a bounded number of rows.
class HeadMixture {
 public:
  virtual ~HeadMixture() = default;
  // out[m, :] = the mixture of x[m, :] (expert_rows.h).
  virtual void forward(Operand x, FloatRows out) = 0;
};

// Rows by token, as the compute that made them has them. Null: the host alone has them.
using HeadTable = std::shared_ptr<const void>;
enum class TableOf { kHead, kTarget };  // kTarget: the embedding in the target's files

// Draws tokens where the logits are: bit for bit what DraftSampler draws from the same rows on the host.
// Drawn tokens stay where the head computes, as inputs of the next logits, so the host waits once for several
// tokens.
class HeadSampler {
 public:
  struct Row {
    DraftStep first;
    int32_t tokens = 1;  // one behind the other
  };
  virtual ~HeadSampler() = default;

  // How many tokens each row may get with one begin(); 0: the rows exceed the plan, and the host must draw.
  virtual int32_t most_tokens(std::span<const Row> rows) = 0;
  // Rows with more tokens come first. The previous begin() must have been waited for. `measures`: for
  // confidence().
  virtual void begin(std::span<const Row> rows, bool measures) = 0;
  // Queues the draw of the next token of the first rows: of row i from this row of a head's own vocabulary.
  virtual void draw(FloatRows logits, std::span<const int32_t> row_numbers) = 0;
  // True if the work of draw() depends on its arguments alone, so that it may be recorded.
  virtual bool is_plain() const = 0;
  // to[i, :] = the table's row of the token that row i drew last.
  virtual void read_drawn(const HeadTable& table, FloatRows to) = 0;
  // For all that was queued. Then what a row drew, its first token being number 0:
  virtual void wait() = 0;
  virtual std::optional<TokenId> token(size_t row, int32_t number) const = 0;  // empty: it was not finite
  virtual DraftConfidence confidence(size_t row, int32_t number) const = 0;
  virtual void read_q(size_t row, int32_t number, QRow& q) const = 0;  // under rules with q
  // From the first draw behind begin() to the last one.
  virtual int64_t ns_behind_first() const = 0;

  // ---- nodes of trees, under match rules ----------------------------------------------------------------
  // How many of the first looks can be ranked at once; 0: not even one, and the host must rank.
  virtual size_t most_looks(std::span<const TokenLook> looks) = 0;
  // Ranks these looks, in rows of a head's own vocabulary, and waits. The previous begin() must have been
  // waited for.
  virtual void rank(FloatRows logits, std::span<const TokenLook> looks) = 0;
  // Bit for bit what TokenGuesser::best finds in a row behind DraftSampler::process; none where that is not
  // finite. Until the next rank().
  virtual std::span<const RankedToken> best(size_t look) const = 0;
};

// Work that is queued as a whole.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void queue() const = 0;
};

struct HeadSamplerPlan {
  int64_t rows = 0;  // at a time
  int64_t vocab_size = 0;
  std::span<const TokenId> target_ids;  // of a head's row; empty: all, in order
  int64_t counted = 0;                  // committed tokens of all sequences, which penalties may count
  int64_t looks = 0;                    // at a time
};

class HeadCompute {
 public:
  virtual ~HeadCompute() = default;

  // ---- at start-up --------------------------------------------------------------------------------------
  // An error names what cannot be computed here.
  virtual Result<HeadMatrix> matrix(const MatrixSource& source, WeightType type) = 0;
  virtual HeadVector vector(std::span<const float> values) = 0;
  virtual Result<HeadPart> latent(const LatentSources& sources, const ModelConfig& config,
                                  const HeadPartTypes& types) = 0;
  virtual Result<HeadPart> experts(const ExpertSources& sources, const ModelConfig& config,
                                   const HeadPartTypes& types) = 0;
  // A table of a [tokens, columns] tensor, for HeadSampler::read_drawn.
  virtual Result<HeadTable> table(const TensorPart&, TableOf) { return HeadTable(); }
  virtual RowBuffer rows(int64_t count, int64_t columns) = 0;
  virtual OperandBuffer operands(int64_t count, int64_t columns) = 0;
  virtual std::unique_ptr<HeadAttention> attention(const HeadAttentionPlan& plan) = 0;
  virtual std::unique_ptr<HeadMixture> mixture(const HeadPart& experts, const ModelConfig& config,
                                               int64_t max_rows) = 0;
  // Null: the host draws.
  virtual std::unique_ptr<HeadSampler> sampler(const HeadSamplerPlan&) { return nullptr; }
  // Records the work that `work` queues, without running it. Its memory must keep its addresses. Null:
  // recording is not supported here.
  virtual std::unique_ptr<RecordedWork> record(const std::function<void()>&) { return nullptr; }
  // Called after a head's matrices are loaded. A pass of at most `max_rows` rows reads `bytes` bytes of
  // weights.
  virtual void settle(int64_t bytes, int64_t max_rows) = 0;
  // A compute that only counts the memory of a head loaded into it, and allocates nothing; then ask room().
  // Null where memory is not limited.
  virtual std::shared_ptr<HeadCompute> counting() const { return nullptr; }
  // An error if there is too little memory. `notice` receives a text that describes the memory.
  virtual Status room(const std::function<void(const std::string&)>&) const { return {}; }

  // ---- between the host and here ------------------------------------------------------------------------
  // Host memory of this shape; what is written to it before close() is then in `to`. One at a time.
  virtual FloatRows open(FloatRows to) = 0;
  virtual void close(FloatRows to) = 0;
  // On the host, until rows that begin there are fetched again; may be overwritten. Waits.
  virtual FloatRows fetch(FloatRows from) = 0;
  virtual void copy(FloatRows from, FloatRows to) = 0;
  // Rows of bf16 numbers in the memory here, one behind the other: from them, and to them, `to` at least as
  // large. narrow() waits, and returns how many rows are finite before the first one that is not.
  virtual void widen(const uint16_t* from, FloatRows to) = 0;
  virtual int64_t narrow(FloatRows from, uint16_t* to) = 0;
  // Until all that was asked for is done.
  virtual void wait() = 0;
  // The target's hidden states of tokens [first, first + rows) of a sequence.
  virtual void read_hidden_states(Model& target, KvHandle sequence, int64_t first, FloatRows to) = 0;

  // ---- arithmetic ---------------------------------------------------------------------------------------
  // to[m, :] = x[m, :] / sqrt(mean(x[m, :]^2) + epsilon) * weight; without weight x itself.
  virtual void normalise(FloatRows x, const HeadVector& weight, float epsilon, FloatRows to) = 0;
  virtual void normalise(FloatRows x, const HeadVector& weight, float epsilon, Operand to) = 0;
  // x[m, :] += added[m, :] + bias, which may be empty.
  virtual void add(FloatRows x, FloatRows added, const HeadVector& bias) = 0;
  // x[m, :] += silu(added[m, :] + bias).
  virtual void add_silu(FloatRows x, FloatRows added, const HeadVector& bias) = 0;
  virtual void add_bias(FloatRows x, const HeadVector& bias) = 0;
  virtual void round_to_bf16(FloatRows x) = 0;
  // out[m, n] = sum over k of x[m, k] * weight[n, k].
  virtual void multiply(Operand x, const HeadMatrix& weight, FloatRows out) = 0;
  // silu(gate + bias) * (up + bias), gates and ups side by side; overwrites them. In `room`, or where it
  // says.
  virtual Operand gate(FloatRows gate_up, const HeadVector& bias, Operand room) = 0;
  // x[m, :] *= sigmoid(gate[m, :]).
  virtual void multiply_by_sigmoid(Operand x, FloatRows gate) = 0;

  // ---- of DFlash 2 --------------------------------------------------------------------------------------
  virtual bool has_convolutions() const { return false; }  // else the two below are not there
  // Rows in blocks of `block`, channels in groups of `group`, and one coefficient of a row for each tap and
  // group: to[m, c] = sum over taps t of (base[t, c] + coefficients[m, t, c / group]) * x[m - t, c], where
  // rows of another block count as 0.
  struct BlockConvolution {
    FloatRows coefficients;
    const HeadVector* base = nullptr;
    int64_t block = 0, group = 0;
  };
  virtual void convolve(FloatRows, const BlockConvolution&, FloatRows) {
    CHECK(false, "convolutions of blocks are not supported here");
  }
  // x = factor * x, then cap * tanh(x / cap), where the cap is above 0.
  virtual void scale(FloatRows, float, float) { CHECK(false, "logits are not scaled here"); }
};

// To rows where a head computes, from rows of bf16 numbers in the host's memory, one behind the other.
void put_rows(HeadCompute& on, const uint16_t* from, FloatRows to);

// Computes on the host with at most `threads` threads, one for each `bytes_per_thread` bytes of weights.
std::shared_ptr<HeadCompute> make_host_compute(int threads, int64_t bytes_per_thread);
// On `device`; beside a target that computes on the same device, in turn with it.
Result<std::shared_ptr<HeadCompute>> make_device_compute(const Device& device, Model* beside);

}  // namespace outrider
