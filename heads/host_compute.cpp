// HeadCompute on the host, with the kernels of the models there.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "heads/head_compute.h"
#include "kernels/cpu/delta_net.h"
#include "model/activations.h"
#include "model/expert_rows.h"
#include "model/kv/cpu_kv_storage.h"
#include "model/latent_attention.h"
#include "model/rope.h"
#include "model/weights.h"

namespace outrider {
namespace {

FloatRows floats_of(const Operand& x) {
  return {reinterpret_cast<float*>(x.data), {x.rows, x.columns}, {x.stride, 1}};
}

Operand operand_of(TensorView<const float, 2> x) {
  return {.data = reinterpret_cast<std::byte*>(const_cast<float*>(x.data())),
          .rows = x.extent(0),
          .columns = x.extent(1),
          .stride = x.stride(0)};
}

// The threads of a head's passes. Their number follows from the weights' bytes once these are known.
struct HostThreads {
  int most = 1;
  int64_t bytes_each = 0;
  int worth = 0;
  std::unique_ptr<ThreadPool> pool;
};

class HostAttention final : public HeadAttention {
 public:
  HostAttention(HostThreads& threads, const HeadAttentionPlan& plan, std::unique_ptr<CpuKvStorage> storage)
      : HostAttention(threads, plan, *storage, std::move(storage)) {}

  void begin(std::span<const Row> rows, int64_t first_that_attends) override {
    rows_.assign(rows.begin(), rows.end());
    seen_.clear();
    own_.clear();
    for (const Row& row : rows.subspan(static_cast<size_t>(first_that_attends))) {
      const int32_t* const table = kv_.block_table(row.sequence);
      seen_.push_back({.block_table = table, .position = row.sees});
      own_.push_back({.block_table = table, .position = row.position});
    }
    if (threads_.pool->size() == scratch_threads_) return;
    scratch_threads_ = threads_.pool->size();
    scratch_ = AttentionScratch(scratch_threads_, max_positions_, config_.head_dim);
  }

  Operand attend_latent(int64_t layer, Operand x) override {
    const LatentWeights& w = *static_cast<const LatentWeights*>(latent_.packed.get());
    const int64_t d = config_.head_dim, q = config_.q_size();
    const KvLayerView cache = storage_.layer(layer);
    const FloatRows queries = heads_->slice(x.rows, 0, q), attended = attended_->rows(x.rows),
                    keys = heads_->slice(x.rows, q, d), values = heads_->slice(x.rows, q + d, d);
    latent_rows_->project(*threads_.pool, matmul_scratch_, w, floats_of(x), rope_, seen_,
                          {.queries = queries, .keys = keys, .values = values});
    for (int64_t m = 0; m < x.rows; ++m) {
      const Row& row = rows_[static_cast<size_t>(m)];
      const KvSlot at = kv_.slot(row.sequence, row.position);
      store_kv(cache, at.block, at.slot, 0, keys.row(m), values.row(m));
    }
    attend(layer, queries, operand_of(attended));
    return operand_of(latent_rows_->expand(*threads_.pool, matmul_scratch_, w, attended));
  }

  void prepare(int64_t layer, const Heads& heads) override {
    const auto epsilon = static_cast<float>(config_.rms_norm_eps);
    const KvLayerView cache = storage_.layer(layer);
    const auto d = config_.head_dim;
    const auto size = static_cast<size_t>(d);
    if (heads.bias) add_bias(heads.numbers, {heads.bias->data.get(), static_cast<size_t>(heads.bias->size)});
    const auto norm = [&](float* first, int64_t count, const HeadVector* weight) {
      if (count == 0 || !weight || weight->empty()) return;
      const FloatRows all(first, {count, d});
      rms_norm(all, {weight->data.get(), size}, epsilon, all);
    };
    for (int64_t m = 0; m < heads.numbers.extent(0); ++m) {
      float* const q = heads.numbers.data() + m * heads.numbers.stride(0);
      float* const k = q + heads.queries * d;
      float* const v = k + heads.keys * d;
      norm(q, heads.queries, heads.q_norm);
      norm(k, heads.keys, heads.k_norm);
      const Row& row = rows_[static_cast<size_t>(heads.first_row + m)];
      const KvSlot at = kv_.slot(row.sequence, row.position);
      for (int64_t h = 0; h < heads.queries; ++h) rope_.rotate({q + h * d, size}, row.position);
      for (int64_t h = 0; h < heads.keys; ++h) {
        rope_.rotate({k + h * d, size}, row.position);
        store_kv(cache, at.block, at.slot, h, {k + h * d, size}, {v + h * d, size});
      }
    }
  }

  void attend(int64_t layer, FloatRows queries, Operand to) override {
    const int64_t window = config_.layer(layer).window;
    if (is_causal(causal_layers_, layer)) return attend(layer, queries, to, own_, window);
    const auto sees_the_beginning = [&](const AttentionRow& row) { return row.position < window; };
    if (window == 0 || std::all_of(own_.begin(), own_.end(), sees_the_beginning))
      return attend(layer, queries, to, seen_, 0);
    // The kernel's windows end where a row's sight does, so each row has one of another length.
    for (size_t m = 0; m < seen_.size(); ++m) {
      const auto row = static_cast<int64_t>(m);
      const FloatRows one(queries.data() + row * queries.stride(0), {1, queries.extent(1)},
                          {queries.stride(0), 1});
      attend(layer, one, to.from_row(row, 1), std::span(seen_).subspan(m, 1),
             window + seen_[m].position - own_[m].position);
    }
  }

 private:
  void attend(int64_t layer, FloatRows queries, Operand to, std::span<const AttentionRow> rows,
              int64_t window) {
    const AttentionShape shape{.heads = config_.num_heads,
                               .heads_per_kv = config_.heads_per_kv_head(),
                               .scale = static_cast<float>(config_.scales.attention),
                               .window = window};
    attention(*threads_.pool, scratch_, queries, storage_.layer(layer), shape, rows, floats_of(to));
  }

  HostAttention(HostThreads& threads, const HeadAttentionPlan& plan, const CpuKvStorage& storage,
                std::unique_ptr<CpuKvStorage>&& owned)
      : HeadAttention(std::move(owned), plan.kv_blocks),
        threads_(threads),
        config_(plan.config),
        storage_(storage),
        latent_(plan.latent),
        causal_layers_(plan.causal_layers),
        max_positions_(plan.max_positions),
        rope_(rope_frequencies(config_.rope, config_.head_dim), plan.max_positions,
              static_cast<float>(config_.rope.amplitude)) {
    rows_.reserve(static_cast<size_t>(plan.max_rows));
    seen_.reserve(static_cast<size_t>(plan.max_rows));
    own_.reserve(static_cast<size_t>(plan.max_rows));
    if (!config_.latent) return;
    latent_rows_.emplace(config_, ShardPlan(config_, {}), plan.max_rows);
    heads_.emplace(plan.max_rows, config_.q_size() + 2 * config_.head_dim);
    attended_.emplace(plan.max_rows, config_.q_size());
  }

  HostThreads& threads_;
  const ModelConfig config_;
  const CpuKvStorage& storage_;
  const HeadPart latent_;
  const std::vector<bool> causal_layers_;
  const int64_t max_positions_;
  const RopeTable rope_;
  AttentionScratch scratch_;
  int scratch_threads_ = 0;
  std::vector<Row> rows_;
  std::vector<AttentionRow> seen_, own_;  // up to where rows see, and up to their own positions
  // Latent attention: queries, keys and values side by side, and attention's output.
  MatmulScratch matmul_scratch_;
  std::optional<LatentRows> latent_rows_;
  std::optional<ActivationRows> heads_, attended_;
};

class HostMixture final : public HeadMixture {
 public:
  HostMixture(HostThreads& threads, const HeadPart& experts, const ModelConfig& config, int64_t max_rows)
      : threads_(threads), experts_(experts), config_(config), max_rows_(max_rows) {}

  void forward(Operand x, FloatRows out) override {
    if (rows_threads_ != threads_.pool->size()) {  // known once all weights are
      rows_threads_ = threads_.pool->size();
      rows_.emplace(config_, ShardPlan(config_, {}), max_rows_, rows_threads_);
    }
    rows_->forward(*threads_.pool, scratch_, *static_cast<const ExpertMlp*>(experts_.packed.get()),
                   floats_of(x), out);
  }

 private:
  HostThreads& threads_;
  const HeadPart experts_;
  const ModelConfig config_;
  const int64_t max_rows_;
  int rows_threads_ = 0;
  MatmulScratch scratch_;
  std::optional<ExpertRows> rows_;
};

int64_t bytes_of(const ExpertMlp& w, const ExpertConfig& config) {
  size_t experts = 0;
  for (const DenseMlp& expert : w.experts) experts += expert.bytes();
  return static_cast<int64_t>(w.bytes() - experts) +
         static_cast<int64_t>(experts) * config.chosen / config.count;
}

class HostCompute final : public HeadCompute {
 public:
  HostCompute(int threads, int64_t bytes_per_thread)
      : threads_{
            .most = threads, .bytes_each = bytes_per_thread, .pool = std::make_unique<ThreadPool>(threads)} {}

  Result<HeadMatrix> matrix(const MatrixSource& source, WeightType type) override {
    if (type == WeightType::kFloat8)
      return unsupported("fp8 weights are for CUDA devices, and this head is on the CPU; use int8");
    auto packed = std::make_shared<PackedMatrix>(pack_matrix(source, type, pool()));
    HeadMatrix made{.n = packed->n(),
                    .k = source.k(),
                    .bytes = static_cast<int64_t>(packed->bytes()),
                    .type = packed->type()};
    made.packed = std::move(packed);
    return made;
  }
  HeadVector vector(std::span<const float> values) override {
    const auto held = std::make_shared<std::vector<float>>(values.begin(), values.end());
    return {.data = {held, held->data()}, .size = static_cast<int64_t>(held->size())};
  }
  Result<HeadPart> latent(const LatentSources& sources, const ModelConfig& config,
                          const HeadPartTypes& types) override {
    ASSIGN_OR_RETURN(LatentWeights packed, pack_latent(sources, config, types.format, types.numbers, pool()));
    const auto bytes = static_cast<int64_t>(packed.bytes());
    return HeadPart{.packed = std::make_shared<LatentWeights>(std::move(packed)), .bytes = bytes};
  }
  Result<HeadPart> experts(const ExpertSources& sources, const ModelConfig& config,
                           const HeadPartTypes& types) override {
    ASSIGN_OR_RETURN(ExpertMlp packed, pack_mixture(sources, config, types.format, types.numbers, pool()));
    const int64_t bytes = bytes_of(packed, *config.experts);
    return HeadPart{.packed = std::make_shared<ExpertMlp>(std::move(packed)), .bytes = bytes};
  }
  std::unique_ptr<HeadMixture> mixture(const HeadPart& experts, const ModelConfig& config,
                                       int64_t max_rows) override {
    return std::make_unique<HostMixture>(threads_, experts, config, max_rows);
  }
  RowBuffer rows(int64_t count, int64_t columns) override {
    const auto held = std::make_shared<ActivationRows>(count, columns);
    return {.memory = held,
            .data = held->data.data(),
            .capacity = count,
            .columns = columns,
            .stride = held->stride};
  }
  OperandBuffer operands(int64_t count, int64_t columns) override {
    const RowBuffer made = rows(count, columns);
    return {.memory = made.memory,
            .all = {.data = reinterpret_cast<std::byte*>(made.data),
                    .rows = count,
                    .columns = columns,
                    .stride = made.stride}};
  }
  std::unique_ptr<HeadAttention> attention(const HeadAttentionPlan& plan) override {
    const KvShape shape{.layers = plan.config.num_layers,
                        .kv_heads = plan.config.num_kv_heads,
                        .head_dim = plan.config.head_dim,
                        .type = plan.bf16 ? KvType::kBFloat16 : KvType::kFloat32};
    return std::make_unique<HostAttention>(threads_, plan,
                                           std::make_unique<CpuKvStorage>(shape, plan.kv_blocks));
  }
  // Loading takes all threads; passes take those of the largest head that computes here.
  void settle(int64_t bytes, int64_t) override {
    threads_.worth = std::max(threads_.worth, threads_worth(bytes, threads_.bytes_each, threads_.most));
    if (pool().size() != threads_.worth) threads_.pool = std::make_unique<ThreadPool>(threads_.worth);
  }

  FloatRows open(FloatRows to) override { return to; }
  void close(FloatRows) override {}
  FloatRows fetch(FloatRows from) override { return from; }
  void copy(FloatRows from, FloatRows to) override {
    for (int64_t r = 0; r < from.extent(0); ++r)
      if (from.row(r).data() != to.row(r).data())
        std::memmove(to.row(r).data(), from.row(r).data(), from.row(r).size_bytes());
  }
  void widen(const uint16_t* from, FloatRows to) override {
    for (int64_t r = 0; r < to.extent(0); ++r)
      for (float& number : to.row(r)) number = to_float(bf16{*from++});
  }
  int64_t narrow(FloatRows from, uint16_t* to) override {
    for (int64_t r = 0; r < from.extent(0); ++r)
      for (const float number : from.row(r)) {
        const bf16 rounded = to_bf16(number);
        if (!std::isfinite(to_float(rounded))) return r;
        *to++ = rounded.bits;
      }
    return from.extent(0);
  }
  void wait() override {}
  void read_hidden_states(Model& target, KvHandle sequence, int64_t first, FloatRows to) override {
    for (int64_t r = 0; r < to.extent(0); ++r) target.read_hidden_states(sequence, first + r, to.row(r));
  }

  void normalise(FloatRows x, const HeadVector& weight, float epsilon, FloatRows to) override {
    if (weight.empty()) return copy(x, to);
    rms_norm(x, span_of(weight), epsilon, to);
  }
  void normalise(FloatRows x, const HeadVector& weight, float epsilon, Operand to) override {
    normalise(x, weight, epsilon, floats_of(to));
  }
  void add(FloatRows x, FloatRows added, const HeadVector& bias) override {
    outrider::add_bias(added, span_of(bias));
    add_rows(x, added);
  }
  void add_silu(FloatRows x, FloatRows added, const HeadVector& bias) override {
    outrider::add_bias(added, span_of(bias));
    silu_mul(pool(), added, ones(added), added.extent(1));
    add_rows(x, added);
  }
  void add_bias(FloatRows x, const HeadVector& bias) override { outrider::add_bias(x, span_of(bias)); }
  void round_to_bf16(FloatRows x) override {
    for (int64_t r = 0; r < x.extent(0); ++r)
      for (float& number : x.row(r)) number = to_float(to_bf16(number));
  }
  void multiply(Operand x, const HeadMatrix& weight, FloatRows out) override {
    matmul(pool(), scratch_, floats_of(x), *static_cast<const PackedMatrix*>(weight.packed.get()), out);
  }
  Operand gate(FloatRows gate_up, const HeadVector& bias, Operand) override {
    const int64_t rows = gate_up.extent(0), columns = gate_up.extent(1) / 2, stride = gate_up.stride(0);
    outrider::add_bias(gate_up, span_of(bias));
    const FloatRows gates(gate_up.data(), {rows, columns}, {stride, 1});
    silu_mul(pool(), gates, FloatRows(gate_up.data() + columns, {rows, columns}, {stride, 1}), columns);
    return operand_of(gates);
  }
  void multiply_by_sigmoid(Operand x, FloatRows gate) override { sigmoid_mul(pool(), floats_of(x), gate); }

  bool has_convolutions() const override { return true; }
  void convolve(FloatRows x, const BlockConvolution& by, FloatRows to) override {
    const int64_t columns = x.extent(1), groups = columns / by.group, taps = by.base->size / columns;
    const float* const base = by.base->data.get();
    for (int64_t m = 0; m < x.extent(0); ++m) {
      const auto out = to.row(m);
      const auto coefficients = by.coefficients.row(m);
      std::fill(out.begin(), out.end(), 0.0f);
      for (int64_t t = 0; t < std::min(taps, m % by.block + 1); ++t) {
        const auto from = x.row(m - t);
        for (int64_t c = 0; c < columns; ++c)
          out[static_cast<size_t>(c)] +=
              (base[t * columns + c] + coefficients[static_cast<size_t>(t * groups + c / by.group)]) *
              from[static_cast<size_t>(c)];
      }
    }
  }
  void scale(FloatRows x, float factor, float cap) override {
    for (int64_t m = 0; m < x.extent(0); ++m)
      for (float& number : x.row(m)) {
        number *= factor;
        if (cap > 0) number = cap * std::tanh(number / cap);
      }
  }

 private:
  ThreadPool& pool() { return *threads_.pool; }
  static std::span<const float> span_of(const HeadVector& v) {
    return {v.data.get(), static_cast<size_t>(v.size)};
  }
  // As many ones, all in one row.
  FloatRows ones(FloatRows like) {
    const auto size = static_cast<size_t>(round_up(like.extent(1), kRowPadding));
    if (ones_.size() < size) ones_.assign(size, 1.0f);
    return {ones_.data(), like.extents(), {0, 1}};
  }

  HostThreads threads_;
  MatmulScratch scratch_;
  std::vector<float> ones_;
};

}  // namespace

void put_rows(HeadCompute& on, const uint16_t* from, FloatRows to) {
  const FloatRows written = on.open(to);
  for (int64_t r = 0; r < to.extent(0); ++r)
    for (float& number : written.row(r)) number = to_float(bf16{*from++});
  on.close(to);
}

std::shared_ptr<HeadCompute> make_host_compute(int threads, int64_t bytes_per_thread) {
  return std::make_shared<HostCompute>(threads, bytes_per_thread);
}

}  // namespace outrider
