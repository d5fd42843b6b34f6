#include "transformer/model/expert_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "transformer/ops/cpu/cpu_ops.h"

namespace outrider {
namespace {

constexpr int64_t kFloatsWorthAThread = 64 << 10;

int64_t most_columns(const ExpertConfig& config, Shard shard) {
  return std::max(MlpCut(config.intermediate_size, shard).columns.size(),
                  MlpCut(config.shared_intermediate_size, shard).columns.size());
}

int64_t gate_up_stride(int64_t columns) { return round_up(2 * columns, kRowPadding); }

}  // namespace

void gate_and_up(ThreadPool& pool, MatmulScratch& scratch, const DenseMlp& mlp, Activation activation,
                 TensorView<const float, 2> x, TensorView<float, 2> gate_up) {
  matmul(pool, scratch, x, mlp.gate_up, gate_up);
  add_bias(gate_up, mlp.gate_up_bias);
  const int64_t columns = mlp.gate_up.n() / 2;
  const TensorView<float, 2> up(gate_up.data() + columns, {gate_up.extent(0), columns},
                                {gate_up.stride(0), 1});
  if (activation == Activation::kGeluTanh)
    gelu_tanh_mul(pool, gate_up, up, columns);
  else
    silu_mul(pool, gate_up, up, columns);
}

void choose_experts(std::span<float> logits, bool renormalise, std::span<ExpertChoice> choices) {
  CHECK(choices.size() <= logits.size(), "{} of {} experts", choices.size(), logits.size());
  for (size_t n = 0; n < choices.size(); ++n) {
    const auto taken = choices.first(n);
    int32_t best = -1;
    for (int32_t e = 0; e < static_cast<int32_t>(logits.size()); ++e) {
      const auto is_e = [e](const ExpertChoice& c) { return c.expert == e; };
      if (best >= 0 && !(logits[static_cast<size_t>(e)] > logits[static_cast<size_t>(best)])) continue;
      if (std::none_of(taken.begin(), taken.end(), is_e)) best = e;
    }
    choices[n] = {.expert = best};
  }
  const float largest = logits[static_cast<size_t>(choices.front().expert)];
  std::sort(choices.begin(), choices.end(),
            [](const ExpertChoice& a, const ExpertChoice& b) { return a.expert < b.expert; });
  float sum = 0;
  for (float& logit : logits) {
    logit = std::exp(logit - largest);
    sum += logit;
  }
  float chosen = 0;
  for (ExpertChoice& choice : choices) {
    choice.weight = logits[static_cast<size_t>(choice.expert)] / sum;
    chosen += choice.weight;
  }
  if (!renormalise) return;
  for (ExpertChoice& choice : choices) choice.weight /= chosen;
}

ExpertRows::ExpertRows(const ModelConfig& config, const ShardPlan& plan, int64_t max_rows)
    : config_(*config.experts),
      activation_(config.activation),
      leaves_(shard_leaves(plan.shard).size()),
      logits_(max_rows, config_.count),
      sums_(max_rows, leaves_ * config.hidden_size),
      gathered_(std::min(max_rows, kRowsTogether), config.hidden_size),
      gate_up_(std::min(max_rows, kRowsTogether) * gate_up_stride(most_columns(config_, plan.shard))),
      products_(std::min(max_rows, kRowsTogether), leaves_ * config.hidden_size) {
  choices_.resize(static_cast<size_t>(max_rows * config_.chosen));
  visits_.resize(static_cast<size_t>(max_rows * std::max<int64_t>(1, config_.chosen)));
  begins_.resize(static_cast<size_t>(config_.count + 1));
}

void ExpertRows::forward(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp,
                         TensorView<const float, 2> x, TensorView<float, 2> out) {
  const auto sums = sums_.flat(x.extent(0));
  std::fill(sums.begin(), sums.end(), 0.0f);
  route(pool, scratch, mlp, x);
  for (size_t e = 0; e < mlp.experts.size(); ++e)
    visit(pool, scratch, mlp.experts[e], x,
          std::span(visits_).subspan(static_cast<size_t>(begins_[e]),
                                     static_cast<size_t>(begins_[e + 1] - begins_[e])));
  if (mlp.shared) add_shared(pool, scratch, mlp, x);
  sum_leaves(pool, out);
}

// Leaves every row's choices in visits_, by expert.
void ExpertRows::route(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp,
                       TensorView<const float, 2> x) {
  const int64_t rows = x.extent(0), chosen = config_.chosen;
  const auto logits = logits_.rows(rows);
  matmul(pool, scratch, x, mlp.router, logits);
  std::fill(begins_.begin(), begins_.end(), 0);
  for (int64_t m = 0; m < rows; ++m) {
    const auto choices =
        std::span(choices_).subspan(static_cast<size_t>(m * chosen), static_cast<size_t>(chosen));
    choose_experts(logits.row(m), config_.renormalise, choices);
    for (const ExpertChoice& choice : choices) ++begins_[static_cast<size_t>(choice.expert) + 1];
  }
  for (size_t e = 1; e < begins_.size(); ++e) begins_[e] += begins_[e - 1];
  for (int64_t i = 0; i < rows * chosen; ++i) {
    const ExpertChoice& choice = choices_[static_cast<size_t>(i)];
    int64_t& next = begins_[static_cast<size_t>(choice.expert)];
    visits_[static_cast<size_t>(next++)] = {.row = i / chosen, .weight = choice.weight};
  }
  std::copy_backward(begins_.begin(), begins_.end() - 1, begins_.end());  // each had moved to its end
  begins_.front() = 0;
}

void ExpertRows::visit(ThreadPool& pool, MatmulScratch& scratch, const DenseMlp& expert,
                       TensorView<const float, 2> x, std::span<const Visit> visits) {
  for (; !visits.empty(); visits = visits.subspan(std::min<size_t>(visits.size(), kRowsTogether))) {
    const auto rows = std::min<int64_t>(static_cast<int64_t>(visits.size()), kRowsTogether);
    const auto in = gathered_.rows(rows), products = products_.rows(rows);
    for (int64_t i = 0; i < rows; ++i)
      std::memcpy(in.row(i).data(), x.row(visits[static_cast<size_t>(i)].row).data(), in.row(i).size_bytes());
    const int64_t width = expert.gate_up.n();
    const TensorView<float, 2> gate_up(gate_up_.data(), {rows, width}, {round_up(width, kRowPadding), 1});
    gate_and_up(pool, scratch, expert, activation_, in, gate_up);
    matmul_leaves(pool, scratch, gate_up, expert.down, products);
    const int64_t grain = kFloatsWorthAThread / products.extent(1) + 1;
    pool.parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Visit& to = visits[static_cast<size_t>(i)];
        add_scaled(sums_.rows(to.row + 1).row(to.row), products.row(i), to.weight);
      }
    });
  }
}

void ExpertRows::add_shared(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp,
                            TensorView<const float, 2> x) {
  const int64_t rows = x.extent(0);
  const auto gates = logits_.rows(rows);
  matmul(pool, scratch, x, mlp.shared_gate, gates);
  for (int64_t m = 0; m < rows; ++m)
    visits_[static_cast<size_t>(m)] = {.row = m, .weight = 1 / (1 + std::exp(-gates.row(m)[0]))};
  visit(pool, scratch, *mlp.shared, x, std::span(visits_).first(static_cast<size_t>(rows)));
}

// In one balanced tree, as matmul adds leaves.
void ExpertRows::sum_leaves(ThreadPool& pool, TensorView<float, 2> out) {
  const int64_t rows = out.extent(0), hidden = out.extent(1);
  const auto sums = sums_.rows(rows);
  pool.parallel_for(rows, kFloatsWorthAThread / sums.extent(1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const auto leaf = [&](int64_t i) {
        return TensorView<float, 2>(sums.row(m).data() + i * hidden, {1, hidden}, {hidden, 1});
      };
      for (int64_t step = 1; step < leaves_; step *= 2)
        for (int64_t i = 0; i < leaves_; i += 2 * step) add_rows(leaf(i), leaf(i + step));
      std::memcpy(out.row(m).data(), leaf(0).data(), out.row(m).size_bytes());
    }
  });
}

}  // namespace outrider
