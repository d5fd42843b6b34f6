#include "model/expert_rows.h"

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/cpu_ops.h"

namespace outrider {
namespace {

constexpr int64_t kFloatsWorthAThread = 64 << 10;

int64_t most_columns(const ExpertConfig& config, Shard shard) {
  return std::max(MlpCut(config.intermediate_size, shard).columns.size(),
                  MlpCut(config.shared_intermediate_size, shard).columns.size());
}

}  // namespace

void gate_and_up(ThreadPool& pool, MatmulScratch& scratch, const DenseMlp& mlp, const GateRule& rule,
                 TensorView<const float, 2> x, TensorView<float, 2> gate_up) {
  matmul(pool, scratch, x, mlp.gate_up, gate_up);
  add_bias(gate_up, mlp.gate_up_bias);
  const int64_t columns = mlp.gate_up.n() / 2;
  const TensorView<float, 2> up(gate_up.data() + columns, {gate_up.extent(0), columns},
                                {gate_up.stride(0), 1});
  if (rule.activation == Activation::kClampedSwish)
    clamped_swish_mul(pool, gate_up, up, columns, rule.factor, rule.limit);
  else if (rule.activation == Activation::kGeluTanh)
    gelu_tanh_mul(pool, gate_up, up, columns);
  else
    silu_mul(pool, gate_up, up, columns);
}

namespace {

constexpr size_t kMaxGroups = 4096;

// The best of the groups, ties to the lowest; score(e): of an expert.
template <class Score>
std::bitset<kMaxGroups> best_groups(const RoutingRule& rule, int64_t experts, bool by_two,
                                    const Score& score) {
  std::bitset<kMaxGroups> chosen;
  const int64_t each = experts / rule.groups;
  const auto value = [&](int64_t group) {
    float best = -std::numeric_limits<float>::infinity(), second = best;
    for (int64_t e = group * each; e < (group + 1) * each; ++e) {
      const float s = score(e);
      if (s > best)
        second = best, best = s;
      else if (s > second)
        second = s;
    }
    return by_two ? best + second : best;
  };
  for (int64_t n = 0; n < rule.groups_chosen; ++n) {
    int64_t best = -1;
    float best_value = 0;
    for (int64_t g = 0; g < rule.groups; ++g) {
      if (chosen[static_cast<size_t>(g)]) continue;
      const float of_group = value(g);
      if (best < 0 || of_group > best_value) best = g, best_value = of_group;
    }
    chosen[static_cast<size_t>(best)] = true;
  }
  return chosen;
}

// The softmax.
void become_shares(std::span<float> logits) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  float sum = 0;
  for (float& logit : logits) {
    logit = std::exp(logit - largest);
    sum += logit;
  }
  for (float& logit : logits) logit /= sum;
}

void weigh_shares(std::span<float> logits, float largest, std::span<ExpertChoice> choices) {
  float sum = 0;
  for (float& logit : logits) {
    logit = std::exp(logit - largest);
    sum += logit;
  }
  for (ExpertChoice& choice : choices) choice.weight = logits[static_cast<size_t>(choice.expert)] / sum;
}

}  // namespace

void choose_experts(std::span<float> logits, const RoutingRule& rule, std::span<const float> corrections,
                    std::span<ExpertChoice> choices) {
  CHECK(choices.size() <= logits.size(), "{} of {} experts", choices.size(), logits.size());
  const auto experts = static_cast<int64_t>(logits.size());
  const bool is_sigmoid = rule.score == RouterScore::kSigmoid;
  const bool are_shares = !is_sigmoid && !corrections.empty();
  if (is_sigmoid)
    for (float& logit : logits) logit = 1 / (1 + std::exp(-logit));
  if (are_shares) become_shares(logits);
  const auto score = [&](int64_t e) {
    const auto at = static_cast<size_t>(e);
    return corrections.empty() ? logits[at] : logits[at] + corrections[at];
  };
  std::bitset<kMaxGroups> groups;
  if (rule.groups > 1) groups = best_groups(rule, experts, !corrections.empty(), score);
  const auto is_allowed = [&](int64_t e) {
    return rule.groups <= 1 || groups[static_cast<size_t>(e / (experts / rule.groups))];
  };
  for (size_t n = 0; n < choices.size(); ++n) {
    const auto taken = choices.first(n);
    int64_t best = -1;
    for (int64_t e = 0; e < experts; ++e) {
      const auto is_e = [e](const ExpertChoice& c) { return c.expert == e; };
      if (!is_allowed(e) || (best >= 0 && !(score(e) > score(best)))) continue;
      if (std::none_of(taken.begin(), taken.end(), is_e)) best = e;
    }
    CHECK(best >= 0, "{} groups hold fewer than {} experts", rule.groups_chosen, choices.size());
    choices[n] = {.expert = static_cast<int32_t>(best)};
  }
  // Softmax shares. The first choice has the largest logit overall, since its group was chosen as the best.
  const float largest = logits[static_cast<size_t>(choices.front().expert)];
  std::sort(choices.begin(), choices.end(),
            [](const ExpertChoice& a, const ExpertChoice& b) { return a.expert < b.expert; });
  if (is_sigmoid || are_shares)
    for (ExpertChoice& choice : choices) choice.weight = logits[static_cast<size_t>(choice.expert)];
  else
    weigh_shares(logits, largest, choices);
  float chosen = is_sigmoid ? rule.added : 0;
  for (const ExpertChoice& choice : choices) chosen += choice.weight;
  for (ExpertChoice& choice : choices) {
    if (rule.renormalise) choice.weight /= chosen;
    if (rule.factor != 1) choice.weight *= rule.factor;
  }
}

ExpertRows::ExpertRows(const ModelConfig& config, const ShardPlan& plan, int64_t max_rows, int threads)
    : config_(*config.experts),
      rule_(config),
      leaves_(shard_leaves(plan.shard).size()),
      logits_(max_rows, config_.count),
      sums_(max_rows, leaves_ * config.hidden_size),
      products_(kVisitsTogether, leaves_ * config.hidden_size) {
  for (int i = 0; i < threads; ++i)
    desks_.push_back(std::make_unique<Desk>(std::min(max_rows, kVisitsTogether), config.hidden_size,
                                            most_columns(config_, plan.shard)));
  choices_.resize(static_cast<size_t>(max_rows * config_.chosen));
  visits_.resize(static_cast<size_t>(max_rows * config_.chosen));
  begins_.resize(static_cast<size_t>(config_.count + 1));
  turns_.reserve(static_cast<size_t>(kVisitsTogether));
  together_.reserve(static_cast<size_t>(kVisitsTogether));
}

void ExpertRows::forward(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp,
                         TensorView<const float, 2> routed, TensorView<const float, 2> x,
                         TensorView<float, 2> out) {
  const auto rows = static_cast<size_t>(x.extent(0));
  const auto sums = sums_.flat(x.extent(0));
  std::fill(sums.begin(), sums.end(), 0.0f);
  route(pool, scratch, mlp, routed);
  for (size_t e = 0; e < mlp.experts.size(); ++e)
    queue(pool, scratch, mlp.experts[e], x,
          std::span(visits_).subspan(static_cast<size_t>(begins_[e]),
                                     static_cast<size_t>(begins_[e + 1] - begins_[e])));
  if (mlp.shared) {
    gate_shared(pool, scratch, mlp, x);
    queue(pool, scratch, *mlp.shared, x, std::span(visits_).first(rows));
  }
  flush(pool, scratch, x);
  sum_leaves(pool, out);
}

// Leaves every row's choices in visits_, by expert.
void ExpertRows::route(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp,
                       TensorView<const float, 2> x) {
  const int64_t rows = x.extent(0), chosen = config_.chosen;
  const auto logits = logits_.rows(rows);
  matmul(pool, scratch, x, mlp.router, logits);
  add_bias(logits, mlp.router_bias);
  std::fill(begins_.begin(), begins_.end(), 0);
  const RoutingRule rule{.renormalise = config_.renormalise,
                         .score = config_.score,
                         .groups = config_.groups,
                         .groups_chosen = config_.groups_chosen,
                         .factor = static_cast<float>(config_.factor),
                         .added = static_cast<float>(config_.added)};
  for (int64_t m = 0; m < rows; ++m) {
    const auto choices =
        std::span(choices_).subspan(static_cast<size_t>(m * chosen), static_cast<size_t>(chosen));
    choose_experts(logits.row(m), rule, mlp.correction, choices);
    if (mlp.beside)
      for (ExpertChoice& choice : choices)
        choice.weight *= mlp.beside->expert_scales[static_cast<size_t>(choice.expert)];
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

// Every row goes through the shared expert.
void ExpertRows::gate_shared(ThreadPool& pool, MatmulScratch& scratch, const ExpertMlp& mlp,
                             TensorView<const float, 2> x) {
  if (mlp.shared_gate.n() == 0) {
    for (int64_t m = 0; m < x.extent(0); ++m) visits_[static_cast<size_t>(m)] = {.row = m, .weight = 1};
    return;
  }
  const auto gates = logits_.rows(x.extent(0));
  matmul(pool, scratch, x, mlp.shared_gate, gates);
  for (int64_t m = 0; m < x.extent(0); ++m)
    visits_[static_cast<size_t>(m)] = {.row = m, .weight = 1 / (1 + std::exp(-gates.row(m)[0]))};
}

void ExpertRows::queue(ThreadPool& pool, MatmulScratch& scratch, const DenseMlp& expert,
                       TensorView<const float, 2> x, std::span<const Visit> visits) {
  while (!visits.empty()) {
    const size_t room = static_cast<size_t>(kVisitsTogether) - together_.size();
    const size_t count = std::min(room, visits.size());
    if (count == 0) {
      flush(pool, scratch, x);
      continue;
    }
    turns_.push_back({&expert, static_cast<int64_t>(together_.size()), static_cast<int64_t>(count)});
    together_.insert(together_.end(), visits.begin(), visits.begin() + static_cast<ptrdiff_t>(count));
    visits = visits.subspan(count);
  }
}

// With at least two turns a thread, each thread takes whole turns and needs no synchronisation in between.
// Otherwise all threads share one turn after the other. The bits are the same either way.
void ExpertRows::flush(ThreadPool& pool, MatmulScratch& scratch, TensorView<const float, 2> x) {
  const auto threads = static_cast<int64_t>(desks_.size());
  if (threads > 1 && static_cast<int64_t>(turns_.size()) >= 2 * threads) {
    std::atomic<size_t> next = 0;
    pool.parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Desk& desk = *desks_[static_cast<size_t>(i)];
        for (size_t turn = next++; turn < turns_.size(); turn = next++)
          take(turns_[turn], desk.alone, desk.scratch, desk, x);
      }
    });
  } else {
    for (const Turn& turn : turns_) take(turn, pool, scratch, *desks_.front(), x);
  }
  add_products(pool);
  turns_.clear();
  together_.clear();
}

void ExpertRows::take(const Turn& turn, ThreadPool& pool, MatmulScratch& scratch, Desk& desk,
                      TensorView<const float, 2> x) {
  const auto in = desk.gathered.rows(turn.count);
  for (int64_t i = 0; i < turn.count; ++i) {
    const auto row = x.row(together_[static_cast<size_t>(turn.first + i)].row);
    std::memcpy(in.row(i).data(), row.data(), in.row(i).size_bytes());
  }
  const int64_t width = turn.expert->gate_up.n();
  const TensorView<float, 2> gate_up(desk.gate_up.data(), {turn.count, width},
                                     {round_up(width, kRowPadding), 1});
  gate_and_up(pool, scratch, *turn.expert, rule_, in, gate_up);
  const TensorView<float, 2> products(products_.data.data() + turn.first * products_.stride,
                                      {turn.count, products_.columns}, {products_.stride, 1});
  matmul_leaves(pool, scratch, gate_up, turn.expert->down, products);
  add_bias(products, turn.expert->down_bias);  // of the first leaf, which only its rank has
}

// Threads share the columns: of each, every row's visits are added in their order.
void ExpertRows::add_products(ThreadPool& pool) {
  const auto count = static_cast<int64_t>(together_.size());
  if (count == 0) return;
  constexpr int64_t kPiece = 512;  // columns
  const int64_t columns = products_.columns, pieces = (columns + kPiece - 1) / kPiece;
  pool.parallel_for(pieces, kFloatsWorthAThread / (kPiece * count) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const auto first = static_cast<size_t>(piece * kPiece);
      const auto width = static_cast<size_t>(std::min(kPiece, columns - piece * kPiece));
      for (int64_t i = 0; i < count; ++i) {
        const Visit& to = together_[static_cast<size_t>(i)];
        const auto product = products_.rows(i + 1).row(i);
        add_scaled(sums_.rows(to.row + 1).row(to.row).subspan(first, width), product.subspan(first, width),
                   to.weight);
      }
    }
  });
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
