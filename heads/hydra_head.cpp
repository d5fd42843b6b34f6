#include "heads/hydra_head.h"

#include <algorithm>
#include <cstring>

#include "transformer/files/weight_map.h"

namespace outrider {
namespace {

constexpr int64_t kTreeRows = 32;  // nodes that are looked behind at once, where drafts may branch

int64_t most_rows(const HeadOptions& options) {
  return options.tree_nodes > 0 ? std::max(options.max_sequences, kTreeRows) : options.max_sequences;
}

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
    : Head(std::move(config), options, {.norm = parts.final_norm, .fc = {}, .projected_norm = {}}),
      parts_(std::move(parts)),
      bytes_([this] {
        int64_t bytes = 0;
        const auto add = [&](const PackedMatrix& matrix) { bytes += static_cast<int64_t>(matrix.bytes()); };
        for (const Branch& branch : parts_.branches) {
          add(branch.head);
          for (const Layer& layer : branch.layers) {
            add(layer.linear.weight);
            if (layer.residual) add(layer.residual->weight);
          }
        }
        return bytes;
      }()),
      pool_(threads_worth(weight_bytes(), options.bytes_per_thread, options.threads)),
      state_(most_rows(options), hidden_size()),
      inner_(most_rows(options), hidden_size()),
      residual_(most_rows(options), hidden_size()),
      ones_(most_rows(options), hidden_size()),
      logits_(most_rows(options), own_vocab()) {
  std::fill_n(ones_.data.data(), ones_.data.size(), 1.0f);
}

Result<std::vector<HydraHead::Branch>> HydraHead::load_branches(HeadTensors& tensors,
                                                                const HeadConfig& config) {
  const Names names{.has_dropout = config.has_prefix};
  const int64_t hidden = config.layer.hidden_size;
  const auto linear = [&](const std::string& name, int64_t width) -> Result<Linear> {
    Linear out;
    ASSIGN_OR_RETURN(out.weight, tensors.packed({name + ".weight"}, {hidden}, width, MatrixKind::kLayer));
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
                     tensors.packed({names.head(i, "weight")}, {vocab}, hidden, MatrixKind::kVocabulary));
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
  HeadOptions options = asked;
  if (options.max_positions == 0) options.max_positions = target.max_position_embeddings;
  ThreadPool loaders(options.threads);
  Parts parts;
  parts.final_norm = read_vector(target_map.final_norm);
  {
    HeadTensors tensors(files, config.kind, directory.string(), options.weight_format, loaders);
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
  if (config.has_prefix) {
    ASSIGN_OR_RETURN(parts.prefix, PairHead::load(directory, target_directory, options));
  }
  return std::unique_ptr<HydraHead>(new HydraHead(std::move(config), options, std::move(parts)));
}

void HydraHead::apply(const Linear& linear, TensorView<const float, 2> x, TensorView<float, 2> out) {
  matmul(pool_, scratch_, x, linear.weight, out);
  add_bias(out, linear.bias);
}

TensorView<float, 2> HydraHead::logits(int64_t branch, TensorView<const float, 2> inputs) {
  const Branch& of = parts_.branches[static_cast<size_t>(branch)];
  const int64_t rows = inputs.extent(0);
  const auto state = state_.rows(rows), inner = inner_.rows(rows), residual = residual_.rows(rows),
             out = logits_.rows(rows);
  const auto add_silu = [&](TensorView<float, 2> to) {
    silu_mul(pool_, inner, ones_.rows(rows), hidden_size());
    add_rows(to, inner);
  };
  TensorView<const float, 2> x(inputs.row(0).data(), {rows, input_width(branch)}, {inputs.stride(0), 1});
  for (const Layer& layer : of.layers) {
    apply(layer.linear, x, inner);
    if (layer.residual) {
      apply(*layer.residual, x, residual);
    } else {
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(residual.row(r).data(), x.row(r).data(), residual.row(r).size_bytes());
    }
    add_silu(residual);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(state.row(r).data(), residual.row(r).data(), residual.row(r).size_bytes());
    x = state;
  }
  matmul(pool_, scratch_, x, of.head, out);
  add_bias(out, of.head_bias);
  return out;
}

}  // namespace outrider
