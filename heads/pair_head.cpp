#include "heads/pair_head.h"

#include <algorithm>

namespace outrider {
namespace {

int64_t most_logit_rows(const HeadOptions& options) {
  return std::max(options.max_sequences, options.tree_rows());
}

}  // namespace

PairHead::PairHead(HeadConfig config, const HeadOptions& options, HeadWeights weights)
    : Head(std::move(config), options, std::move(weights.projection)), weights_(std::move(weights)) {
  const ModelConfig& c = config_.layer;
  HeadCompute& on = compute();
  const int64_t rows = options.max_rows, logit_rows = most_logit_rows(options), hidden = hidden_size();
  on.settle(weights_.bytes, rows);
  attention_ = on.attention({.config = c,
                             .kv_blocks = kv_blocks_for(options.kv_tokens) + tree_blocks(),
                             .max_rows = rows,
                             .max_positions = options.max_positions,
                             .bf16 = weights_.o.type != WeightType::kFloat32,
                             .latent = weights_.latent});
  const bool has_mlp = !c.layer(0).has_experts;
  if (!has_mlp) mixture_ = on.mixture(weights_.experts, c, rows);
  places_.reserve(static_cast<size_t>(rows));
  lengths_.reserve(static_cast<size_t>(logit_rows));
  tokens_ = on.rows(rows, hidden);
  residual_ = on.rows(rows, hidden);
  partial_ = on.rows(rows, hidden);
  if (!c.latent) qkv_ = on.rows(rows, c.q_size() + 2 * c.kv_size());
  if (c.attention_gate) attention_gate_ = on.rows(rows, c.q_size());
  if (has_mlp) gate_up_ = on.rows(rows, 2 * c.intermediate_size);
  pairs_ = on.operands(rows, 2 * hidden);
  normed_ = on.operands(rows, hidden);
  if (!c.latent) attended_ = on.operands(rows, c.q_size());
  if (has_mlp) gated_ = on.operands(rows, c.intermediate_size);
  last_ = on.rows(logit_rows, hidden);
  last_normed_ = on.rows(logit_rows, hidden);
  last_inputs_ = on.operands(logit_rows, hidden);
  logits_ = on.rows(logit_rows, weights_.head.n);
}

Result<std::unique_ptr<PairHead>> PairHead::load(const std::filesystem::path& directory,
                                                 const std::filesystem::path& target_directory,
                                                 const HeadOptions& asked) {
  ASSIGN_OR_RETURN(const ModelConfig target, read_model_config(target_directory));
  ASSIGN_OR_RETURN(HeadConfig config, read_head_config(directory, asked.kind, target));
  HeadOptions options = complete(asked, target);
  options.max_rows = std::max(options.max_rows, most_logit_rows(options));  // one pair of each
  ASSIGN_OR_RETURN(HeadWeights weights, load_head_weights(directory, config, target_directory, target,
                                                          options.weight_format, *options.compute));
  return std::unique_ptr<PairHead>(new PairHead(std::move(config), options, std::move(weights)));
}

PairHead::Rows PairHead::forward(std::span<const PairSlice> batch) {
  const int64_t rows = append(batch);
  read_hidden_states(batch);
  if (config_.kind == HeadKind::kHydra) {
    attend(normed_hidden_states(rows), rows);
  } else {
    read_tokens(batch, tokens_.rows(rows));
    attend(joined_pairs(rows), rows);
  }
  mlp(rows);
  return outputs(last_rows(batch));
}

PairHead::Rows PairHead::outputs(FloatRows last) {
  HeadCompute& on = compute();
  const int64_t out = last.extent(0);
  const bool goes_on_normed = config_.kind == HeadKind::kMtp || config_.norm_output;
  const FloatRows normed = last_normed_.rows(out), logits = logits_.rows(out);
  if (out > 0 && goes_on_normed) on.normalise(last, weights_.output_norm, epsilon(), normed);
  const FloatRows hidden_states = goes_on_normed ? normed : last;
  if (out == 0 || weights_.head.n == 0) return {.logits = logits, .hidden_states = hidden_states};
  const Operand inputs = last_inputs_.rows(out);
  on.normalise(last, weights_.output_norm, epsilon(), inputs);
  on.multiply(inputs, weights_.head, logits);
  return {.logits = logits, .hidden_states = hidden_states};
}

bool PairHead::begin_ahead(std::span<const Ahead> sequences) {
  if (!weights_.tokens->there()) return false;
  places_.clear();
  lengths_.clear();
  for (const auto& [sequence, pairs] : sequences) {
    const int64_t length = kv().length(sequence);
    if (length + pairs > options_.max_positions || !kv().append(sequence, pairs).ok()) {
      for (size_t i = 0; i < lengths_.size(); ++i) kv().truncate(sequences[i].sequence, lengths_[i]);
      return false;
    }
    lengths_.push_back(length);
    places_.push_back({sequence, length - 1, length - 1});  // each step advances them first
  }
  attention_->begin(places_, 0);
  return true;
}

FloatRows PairHead::next_ahead(int64_t sequences, HeadSampler& drawn) {
  attention_->advance(sequences);
  drawn.read_drawn(weights_.tokens->there(), tokens_.rows(sequences));
  attend(joined_pairs(sequences), sequences);
  mlp(sequences);
  const FloatRows residual = residual_.rows(sequences);
  const Rows rows = outputs(residual);
  // By a kernel: in a graph the next one could not start early behind a copy.
  if (rows.hidden_states.data() != residual.data()) compute().normalise(rows.hidden_states, {}, 0, residual);
  return rows.logits;
}

// Returns how many rows there are.
int64_t PairHead::append(std::span<const PairSlice> batch) {
  places_.clear();
  for (const PairSlice& slice : batch) {
    const auto count = static_cast<int64_t>(slice.tokens.size());
    const int64_t first = kv().length(slice.sequence);
    CHECK(first + count <= options_.max_positions && slice.hidden_states.extent(0) == count,
          "{} pairs and {} states behind {} of {}", count, slice.hidden_states.extent(0), first,
          options_.max_positions);
    const Status room = kv().append(slice.sequence, count);
    CHECK(room.ok(), "head: {}", room.message());
    for (int64_t i = first; i < first + count; ++i) places_.push_back({slice.sequence, i, i});
  }
  const auto rows = static_cast<int64_t>(places_.size());
  CHECK(rows <= options_.max_rows, "{} pairs of {}", rows, options_.max_rows);
  attention_->begin(places_, 0);
  return rows;
}

void PairHead::read_hidden_states(std::span<const PairSlice> batch) {
  int64_t row = 0;
  for (const PairSlice& slice : batch) {
    compute().copy(slice.hidden_states, residual_.from(row, slice.hidden_states.extent(0)));
    row += slice.hidden_states.extent(0);
  }
}

// Without tokens.
Operand PairHead::normed_hidden_states(int64_t rows) {
  const Operand normed = normed_.rows(rows);
  compute().normalise(residual_.rows(rows), weights_.attention_norm, epsilon(), normed);
  return normed;
}

// Concatenates normed token embeddings and hidden states as the input of attention, and initialises the
// residual stream.
Operand PairHead::joined_pairs(int64_t rows) {
  HeadCompute& on = compute();
  const int64_t hidden = hidden_size();
  const bool hidden_state_first = weights_.hidden_state_first;
  const Operand pairs = pairs_.rows(rows);
  const FloatRows tokens = tokens_.rows(rows), residual = residual_.rows(rows);
  on.normalise(tokens, weights_.token_norm, epsilon(), pairs.slice(hidden_state_first ? hidden : 0, hidden));
  on.normalise(residual, weights_.hidden_norm, epsilon(),
               pairs.slice(hidden_state_first ? 0 : hidden, hidden));
  if (config_.kind == HeadKind::kEagle3) {
    if (config_.norm_before_residual) on.normalise(residual, weights_.hidden_norm, epsilon(), residual);
    return pairs;
  }
  on.multiply(pairs, weights_.fc, residual);
  on.add_bias(residual, weights_.fc_bias);
  return normed_hidden_states(rows);
}

void PairHead::read_tokens(std::span<const PairSlice> batch, FloatRows to) {
  const FloatRows written = compute().open(to);
  int64_t row = 0;
  for (const PairSlice& slice : batch)
    for (const TokenId token : slice.tokens) weights_.tokens->read(token, written.row(row++));
  compute().close(to);
}

void PairHead::attend(Operand inputs, int64_t rows) {
  HeadCompute& on = compute();
  const ModelConfig& c = config_.layer;
  const FloatRows partial = partial_.rows(rows);
  if (c.latent) {
    on.multiply(attention_->attend_latent(0, inputs), weights_.o, partial);
    return on.add(residual_.rows(rows), partial, weights_.o_bias);
  }
  const FloatRows qkv = qkv_.rows(rows);
  const Operand attended = attended_.rows(rows);
  on.multiply(inputs, weights_.qkv, qkv);
  attention_->prepare(0, {.numbers = qkv,
                          .queries = c.num_heads,
                          .keys = c.num_kv_heads,
                          .bias = &weights_.qkv_bias,
                          .q_norm = &weights_.q_norm,
                          .k_norm = &weights_.k_norm});
  attention_->attend(0, qkv_.slice(rows, 0, c.q_size()), attended);
  if (c.attention_gate) {
    const FloatRows gate = attention_gate_.rows(rows);
    on.multiply(inputs, weights_.attention_gate, gate);
    on.multiply_by_sigmoid(attended, gate);
  }
  on.multiply(attended, weights_.o, partial);
  on.add(residual_.rows(rows), partial, weights_.o_bias);
}

void PairHead::mlp(int64_t rows) {
  HeadCompute& on = compute();
  const HeadMlp& w = weights_.mlp;
  const FloatRows residual = residual_.rows(rows), partial = partial_.rows(rows);
  const Operand normed = normed_.rows(rows);
  on.normalise(residual, w.norm, epsilon(), normed);
  if (mixture_) {
    mixture_->forward(normed, partial);
    return on.add(residual, partial, {});
  }
  const FloatRows gate_up = gate_up_.rows(rows);
  on.multiply(normed, w.gate_up, gate_up);
  on.multiply(on.gate(gate_up, w.gate_up_bias, gated_.rows(rows)), w.down, partial);
  on.add(residual, partial, w.down_bias);
}

// The residual stream of the rows whose logits are wanted.
FloatRows PairHead::last_rows(std::span<const PairSlice> batch) {
  int64_t row = 0, out = 0;
  for (const PairSlice& slice : batch) {
    row += static_cast<int64_t>(slice.tokens.size());
    if (slice.has_logits) compute().copy(residual_.from(row - 1, 1), last_.from(out++, 1));
  }
  return last_.rows(out);
}

}  // namespace outrider
