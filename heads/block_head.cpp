#include "heads/block_head.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr int64_t kRowsOfBlocks = 64;  // of one pass, unless one block has more

}  // namespace

BlockHead::BlockHead(HeadConfig config, const HeadOptions& options, BlockWeights weights, int64_t kv_blocks,
                     int64_t max_blocks)
    : Head(std::move(config), options, std::move(weights.projection)),
      weights_(std::move(weights)),
      max_blocks_(max_blocks) {
  const ModelConfig& c = config_.layer;
  HeadCompute& on = compute();
  const int64_t rows = options.max_rows, of_blocks = max_blocks * block_rows();
  const int64_t wanted = max_blocks * block_tokens(), hidden = hidden_size();
  on.settle(weights_.bytes, rows);
  attention_ = on.attention({.config = c,
                             .kv_blocks = kv_blocks,
                             .max_rows = rows,
                             .max_positions = options.max_positions + block_rows() + 1,
                             .bf16 = weights_.layers.front().q.type != WeightType::kFloat32,
                             .causal_layers = config_.causal_layers});
  places_.reserve(static_cast<size_t>(rows));
  hidden_states_ = on.rows(rows, hidden);
  inputs_ = on.operands(rows, hidden);
  kv_rows_ = on.rows(rows, 2 * c.kv_size());
  residual_ = on.rows(of_blocks, hidden);
  q_ = on.rows(of_blocks, c.q_size());
  partial_ = on.rows(of_blocks, hidden);
  gate_up_ = on.rows(of_blocks, 2 * c.intermediate_size);
  attended_ = on.operands(of_blocks, c.q_size());
  normed_ = on.operands(of_blocks, hidden);
  gated_ = on.operands(of_blocks, c.intermediate_size);
  last_ = on.rows(wanted, hidden);
  last_inputs_ = on.operands(wanted, hidden);
  logits_ = on.rows(wanted, weights_.head.n);
  if (config_.conv_taps > 0) {
    conv_inputs_ = on.rows(of_blocks, hidden);
    conv_outputs_ = on.rows(of_blocks, hidden);
    coefficients_ = on.rows(of_blocks, weights_.layers.front().mlp_conv.coefficients.n);
  }
  const int64_t known = std::max(max_blocks, options.tree_rows());  // tokens that stand before a row
  if (config_.selector_rank > 0) {
    selector_.emplace(on, weights_.selector, weights_.head.n, wanted);
    behind_ = on.rows(known, weights_.head.n);
  }
  if (config_.markov_rank == 0) return;
  transition_from_ = on.rows(known, config_.markov_rank);
  transition_inputs_ = on.operands(known, config_.markov_rank);
  transition_ = on.rows(known, weights_.head.n);
  behind_ = on.rows(known, weights_.head.n);
}

Result<std::unique_ptr<BlockHead>> BlockHead::load(const std::filesystem::path& directory,
                                                   const std::filesystem::path& target_directory,
                                                   const HeadOptions& asked) {
  ASSIGN_OR_RETURN(const ModelConfig target, read_model_config(target_directory));
  ASSIGN_OR_RETURN(HeadConfig config, read_head_config(directory, asked.kind, target));
  HeadOptions options = complete(asked, target);
  const bool is_scaled = config.logit_factor != 1 || config.logit_cap > 0;
  if ((config.conv_taps > 0 || is_scaled) && !options.compute->has_convolutions())
    return unsupported(
        fmt::format("{}: convolutions and factors of DFlash 2 have no CUDA kernels; run with --device cpu",
                    directory.string()));
  const int64_t max_blocks = std::clamp<int64_t>(kRowsOfBlocks / config.block_size, 1, options.max_sequences);
  options.max_rows = std::max(options.max_rows, max_blocks * config.block_size);
  ASSIGN_OR_RETURN(BlockWeights weights, load_block_weights(directory, config, target_directory, target,
                                                            options.weight_format, *options.compute));
  const int64_t kv_blocks =
      kv_blocks_for(options.kv_tokens) + options.max_sequences * (kv_blocks_for(config.block_size) + 1);
  return std::unique_ptr<BlockHead>(
      new BlockHead(std::move(config), options, std::move(weights), kv_blocks, max_blocks));
}

FloatRows BlockHead::forward(std::span<const BlockSlice> batch) {
  const Rows rows = append(batch);
  read(batch, rows);
  for (int64_t layer = 0; layer < config_.layer.num_layers; ++layer) {
    attend(layer, rows);
    if (rows.blocks > 0) mlp(weights_.layers[static_cast<size_t>(layer)], rows);
  }
  for (const BlockSlice& slice : batch)
    if (slice.last) kv().truncate(slice.sequence, kv().length(slice.sequence) - block_rows());
  return logits(batch);
}

BlockHead::Rows BlockHead::append(std::span<const BlockSlice> batch) {
  Rows rows;
  places_.clear();
  for (const BlockSlice& slice : batch) {
    const int64_t first = kv().length(slice.sequence), count = slice.hidden_states.extent(0);
    CHECK(first + count <= options_.max_positions, "{} states behind {} of {}", count, first,
          options_.max_positions);
    const Status room = kv().append(slice.sequence, count + (slice.last ? block_rows() : 0));
    CHECK(room.ok(), "head: {}", room.message());
    for (int64_t p = first; p < first + count; ++p) places_.push_back({slice.sequence, p, p});
    rows.hidden_states += count;
  }
  for (const BlockSlice& slice : batch) {
    if (!slice.last) continue;
    const int64_t end = kv().length(slice.sequence), first = end - block_rows();
    for (int64_t p = first; p < end; ++p) places_.push_back({slice.sequence, p, end - 1});
    rows.blocks += block_rows();
  }
  CHECK(rows.hidden_states + rows.blocks <= options_.max_rows && rows.blocks <= max_blocks_ * block_rows(),
        "{} states and {} rows of blocks", rows.hidden_states, rows.blocks);
  attention_->begin(places_, rows.hidden_states);
  return rows;
}

// States as every layer reads them, and where the residual stream of the blocks begins.
void BlockHead::read(std::span<const BlockSlice> batch, Rows rows) {
  int64_t state = 0, row = 0;
  for (const BlockSlice& slice : batch) {
    const int64_t count = slice.hidden_states.extent(0);
    if (count > 0) compute().copy(slice.hidden_states, hidden_states_.from(state, count));
    state += count;
  }
  compute().normalise(hidden_states_.rows(rows.hidden_states), {}, 0, inputs_.rows(rows.hidden_states));
  if (rows.blocks == 0) return;
  const FloatRows residual = residual_.rows(rows.blocks), written = compute().open(residual);
  for (const BlockSlice& slice : batch) {
    if (!slice.last) continue;
    weights_.tokens->read(*slice.last, written.row(row++));
    for (int64_t i = 1; i < block_rows(); ++i) weights_.tokens->read(config_.mask_token, written.row(row++));
  }
  if (config_.embedding_scale != 1)
    for (int64_t i = 0; i < rows.blocks; ++i)
      for (float& number : written.row(i)) number *= static_cast<float>(config_.embedding_scale);
  compute().close(residual);
}

void BlockHead::attend(int64_t layer, Rows rows) {
  HeadCompute& on = compute();
  const ModelConfig& c = config_.layer;
  const BlockLayer& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t count = rows.hidden_states + rows.blocks;
  const Operand inputs = inputs_.rows(count), normed = inputs.from_row(rows.hidden_states, rows.blocks);
  const FloatRows partial = partial_.rows(rows.blocks);
  const FloatRows kv_rows = kv_rows_.rows(count), q = q_.rows(rows.blocks);
  if (rows.blocks > 0) convolve_inputs(w.attention_conv, w.attention_norm, normed);
  on.multiply(inputs, w.kv, kv_rows);
  attention_->prepare(layer,
                      {.numbers = kv_rows, .keys = c.num_kv_heads, .bias = &w.kv_bias, .k_norm = &w.k_norm});
  if (rows.blocks == 0) return;
  on.multiply(normed, w.q, q);
  attention_->prepare(layer, {.numbers = q,
                              .first_row = rows.hidden_states,
                              .queries = c.num_heads,
                              .bias = &w.q_bias,
                              .q_norm = &w.q_norm});
  const Operand attended = attended_.rows(rows.blocks);
  attention_->attend(layer, q, attended);
  on.multiply(attended, w.o, partial);
  add_output(partial, w.attention_conv, w.o_bias);
}

void BlockHead::convolve(FloatRows x, const HeadVector& base, bool is_behind, FloatRows to) {
  const int64_t half = coefficients_.columns / 2;
  compute().convolve(x,
                     {.coefficients = coefficients_.slice(x.extent(0), is_behind ? half : 0, half),
                      .base = &base,
                      .block = block_rows(),
                      .group = config_.conv_group},
                     to);
}

// The residual stream as attention or an MLP reads it: normed, and of DFlash 2 convolved.
void BlockHead::convolve_inputs(const BlockConvolutions& w, const HeadVector& norm, Operand to) {
  HeadCompute& on = compute();
  const FloatRows residual = residual_.rows(to.rows);
  on.normalise(residual, norm, epsilon(), to);
  if (w.coefficients.n == 0) return;
  const FloatRows inputs = conv_inputs_.rows(to.rows), outputs = conv_outputs_.rows(to.rows);
  on.normalise(residual, norm, epsilon(), inputs);
  on.multiply(to, w.coefficients, coefficients_.rows(to.rows));
  convolve(inputs, w.before, false, outputs);
  on.normalise(outputs, {}, 0, to);
}

void BlockHead::add_output(FloatRows partial, const BlockConvolutions& w, const HeadVector& bias) {
  HeadCompute& on = compute();
  const FloatRows residual = residual_.rows(partial.extent(0));
  if (w.coefficients.n == 0) return on.add(residual, partial, bias);
  const FloatRows outputs = conv_outputs_.rows(partial.extent(0));
  on.add_bias(partial, bias);
  convolve(partial, w.behind, true, outputs);
  on.add(residual, outputs, {});
}

void BlockHead::mlp(const BlockLayer& layer, Rows rows) {
  HeadCompute& on = compute();
  const HeadMlp& w = layer.mlp;
  const FloatRows partial = partial_.rows(rows.blocks);
  const FloatRows gate_up = gate_up_.rows(rows.blocks);
  const Operand normed = normed_.rows(rows.blocks);
  convolve_inputs(layer.mlp_conv, w.norm, normed);
  on.multiply(normed, w.gate_up, gate_up);
  on.multiply(on.gate(gate_up, w.gate_up_bias, gated_.rows(rows.blocks)), w.down, partial);
  add_output(partial, layer.mlp_conv, w.down_bias);
}

FloatRows BlockHead::logits(std::span<const BlockSlice> batch) {
  HeadCompute& on = compute();
  const int64_t first = config_.from_anchor ? 0 : 1;
  int64_t block = 0, out = 0;
  for (const BlockSlice& slice : batch) {
    if (!slice.last) continue;
    if (slice.tokens > 0)
      on.copy(residual_.from(block * block_rows() + first, slice.tokens), last_.from(out, slice.tokens));
    out += slice.tokens;
    ++block;
  }
  const FloatRows logits = logits_.rows(out);
  if (out == 0) return logits;
  const Operand inputs = last_inputs_.rows(out);
  on.normalise(last_.rows(out), weights_.output_norm, epsilon(), inputs);
  on.multiply(inputs, weights_.head, logits);
  if (config_.logit_factor != 1 || config_.logit_cap > 0)
    on.scale(logits, static_cast<float>(config_.logit_factor), static_cast<float>(config_.logit_cap));
  if (selector_) selector_->begin(logits, inputs);
  return logits;
}

void BlockHead::read_transitions(std::span<const TokenId> tokens) {
  const FloatRows from = transition_from_.rows(static_cast<int64_t>(tokens.size()));
  const FloatRows written = compute().open(from);
  for (size_t i = 0; i < tokens.size(); ++i)
    weights_.markov_of->read(tokens[i], written.row(static_cast<int64_t>(i)));
  compute().close(from);
}

// DSpark's transition logits behind the tokens whose rows were read.
FloatRows BlockHead::transitions(int64_t count) {
  const FloatRows to = transition_.rows(count);
  const Operand inputs = transition_inputs_.rows(count);
  compute().normalise(transition_from_.rows(count), {}, 0, inputs);
  compute().multiply(inputs, weights_.markov_to, to);
  return to;
}

void BlockHead::add_transitions(FloatRows logits, std::span<const int64_t> rows) {
  transitions(static_cast<int64_t>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) {
    const FloatRows row(logits.data() + rows[i] * logits.stride(0), {1, logits.extent(1)},
                        {logits.stride(0), 1});
    compute().add(row, transition_.from(static_cast<int64_t>(i), 1), {});
  }
}

void BlockHead::add_behind(std::span<const TokenId> tokens, FloatRows logits, std::span<const int64_t> rows) {
  if (selector_)
    for (size_t i = 0; i < rows.size(); ++i) selector_->behind(rows[i], tokens[i], logits.row(rows[i]));
  if (!weights_.markov_of) return;
  read_transitions(tokens);
  add_transitions(logits, rows);
}

void BlockHead::add_behind(HeadSampler& drawn, FloatRows logits, std::span<const int64_t> rows) {
  if (!weights_.markov_of) return;
  drawn.read_drawn(weights_.markov_of->there(), transition_from_.rows(static_cast<int64_t>(rows.size())));
  add_transitions(logits, rows);
}

FloatRows BlockHead::behind(std::span<const TokenId> tokens, FloatRows logits,
                            std::span<const int64_t> rows) {
  const auto count = static_cast<int64_t>(tokens.size());
  CHECK(count <= behind_.capacity, "{} nodes of {}", count, behind_.capacity);
  if (selector_) {
    const FloatRows candidates = behind_.rows(count);
    for (size_t i = 0; i < tokens.size(); ++i)
      selector_->behind(rows[i], tokens[i], candidates.row(static_cast<int64_t>(i)));
    return candidates;
  }
  read_transitions(tokens);
  const FloatRows to = behind_.rows(count), added = transitions(count);
  for (int64_t i = 0; i < count; ++i)
    compute().copy({logits.data() + rows[static_cast<size_t>(i)] * logits.stride(0),
                    {1, logits.extent(1)},
                    {logits.stride(0), 1}},
                   behind_.from(i, 1));
  compute().add(to, added, {});
  return to;
}

}  // namespace outrider
