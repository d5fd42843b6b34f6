#include "heads/hydra_head.h"

#include <algorithm>

#include "model_files/weight_map.h"

namespace outrider {
namespace {

int64_t most_rows(const HeadOptions& options) { return std::max(options.max_sequences, options.tree_rows()); }

// Names as they are published. With a layer for states a dropout stands in front of every module, and takes a
// number.
struct Names {
  bool has_dropout = false;
  std::string layer(int64_t branch, int64_t i, const char* what) const {
    return fmt::format("hydra_mlp.{}.{}.{}", branch, has_dropout ? 2 * i + 1 : i, what);
  }
  std::string head(int64_t branch, const char* what) const {
    return has_dropout ? fmt::format("hydra_lm_head.{}.1.{}", branch, what)
                       : fmt::format("hydra_lm_head.{}.{}", branch, what);
  }
};

constexpr std::array<std::string_view, 1> kPrefixTensors{"prefix_embeding_layer."};

}  // namespace

HydraHead::HydraHead(HeadConfig config, const HeadOptions& options, Parts parts)
    : Head(std::move(config), options, {.norm = parts.final_norm}), parts_(std::move(parts)) {
  for (const Branch& branch : parts_.branches) {
    bytes_ += branch.head.bytes;
    for (const Layer& layer : branch.layers)
      bytes_ += layer.linear.weight.bytes + (layer.residual ? layer.residual->weight.bytes : 0);
  }
  const int64_t rows = most_rows(options);
  compute().settle(weight_bytes(), rows);
  state_ = compute().rows(rows, hidden_size());
  inner_ = compute().rows(rows, hidden_size());
  logits_ = compute().rows(rows, own_vocab());
  inputs_ = compute().operands(rows, input_width(heads() - 1));
}

Result<std::vector<HydraHead::Branch>> HydraHead::load_branches(HeadTensors& tensors,
                                                                const HeadConfig& config) {
  const Names names{.has_dropout = config.has_prefix};
  const int64_t hidden = config.layer.hidden_size;
  const auto linear = [&](const std::string& name, int64_t width) -> Result<Linear> {
    Linear out;
    ASSIGN_OR_RETURN(out.weight, tensors.matrix({name + ".weight"}, {hidden}, width, MatrixKind::kLayer));
    ASSIGN_OR_RETURN(out.bias, tensors.vector(name + ".bias", hidden));
    return out;
  };
  std::vector<Branch> branches;
  for (int64_t i = 0; i < config.branches; ++i) {
    Branch& branch = branches.emplace_back();
    for (int64_t l = 0; l < config.branch_layers; ++l) {
      const bool widens = l == 0 && config.grounded;
      const int64_t width = hidden * (widens ? i + 2 : 1);
      Layer& layer = branch.layers.emplace_back();
      ASSIGN_OR_RETURN(layer.linear, linear(names.layer(i, l, "linear"), width));
      if (!widens) continue;
      ASSIGN_OR_RETURN(layer.residual, linear(names.layer(i, l, "res_connection"), width));
    }
    const int64_t vocab = config.layer.vocab_size;
    ASSIGN_OR_RETURN(branch.head,
                     tensors.matrix({names.head(i, "weight")}, {vocab}, hidden, MatrixKind::kVocabulary));
    ASSIGN_OR_RETURN(branch.head_bias, tensors.vector(names.head(i, "bias"), vocab));
  }
  return branches;
}

Result<std::unique_ptr<HydraHead>> HydraHead::load(const std::filesystem::path& directory,
                                                   const std::filesystem::path& target_directory,
                                                   const HeadOptions& asked) {
  ASSIGN_OR_RETURN(const ModelConfig target, read_model_config(target_directory));
  ASSIGN_OR_RETURN(HeadConfig config, read_head_config(directory, asked.kind, target));
  ASSIGN_OR_RETURN(TensorFiles files, TensorFiles::open(directory));
  ASSIGN_OR_RETURN(TensorFiles target_files, TensorFiles::open(target_directory));
  ASSIGN_OR_RETURN(const WeightMap target_map, map_weights(target_files, target, ShardPlan(target, {})));
  const HeadOptions options = complete(asked, target);
  Parts parts;
  parts.final_norm = load_final_norm(target_map, target, *options.compute);
  {
    HeadTensors tensors(files, config.kind, directory.string(), options.weight_format, *options.compute);
    auto branches = load_branches(tensors, config);
    if (!branches.ok()) return branches.status().in(directory.string());
    parts.branches = std::move(branches).value();
    const TensorInfo* const embedding = tensors.find("input_embed_fn.weight");
    std::optional<TensorPart> rows;
    if (embedding) {
      ASSIGN_OR_RETURN(rows, tensors.part("input_embed_fn.weight", {target.vocab_size, target.hidden_size}));
    }
    RETURN_IF_ERROR(tensors.check_all_used(config.has_prefix
                                               ? std::span<const std::string_view>(kPrefixTensors)
                                               : std::span<const std::string_view>()));
    if (rows) parts.tokens.emplace(std::move(files), *rows);
  }
  if (!parts.tokens) {
    ASSIGN_OR_RETURN(parts.tokens, target_embedding(std::move(target_files), target_map, directory.string(),
                                                    target_directory.string(), target.hidden_size));
  }
  if (config.grounded) RETURN_IF_ERROR(parts.tokens->keep_at(*options.compute));
  if (config.has_prefix) {
    ASSIGN_OR_RETURN(parts.prefix, PairHead::load(directory, target_directory, options));
  }
  return std::unique_ptr<HydraHead>(new HydraHead(std::move(config), options, std::move(parts)));
}

FloatRows HydraHead::logits(int64_t branch, FloatRows inputs) {
  HeadCompute& on = compute();
  const Branch& of = parts_.branches[static_cast<size_t>(branch)];
  const int64_t rows = inputs.extent(0);
  const FloatRows state = state_.rows(rows), inner = inner_.rows(rows), out = logits_.rows(rows);
  FloatRows read(inputs.data(), {rows, input_width(branch)}, {inputs.stride(0), 1});
  Operand x = inputs_.rows(rows).slice(0, input_width(branch));
  for (const Layer& layer : of.layers) {
    on.normalise(read, {}, 0, x);
    on.multiply(x, layer.linear.weight, inner);
    if (layer.residual) {
      on.multiply(x, layer.residual->weight, state);
      on.add_bias(state, layer.residual->bias);
    } else if (read.data() != state.data()) {
      on.copy(read, state);
    }
    on.add_silu(state, inner, layer.linear.bias);
    read = state;
    x = x.slice(0, hidden_size());
  }
  on.normalise(read, {}, 0, x);
  on.multiply(x, of.head, out);
  on.add_bias(out, of.head_bias);
  return out;
}

}  // namespace outrider
