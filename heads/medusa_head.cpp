#include "heads/medusa_head.h"

#include "heads/head_tensors.h"
#include "model_files/weight_map.h"

namespace outrider {
namespace {

constexpr int64_t kMaxBranches = 64, kMostLayers = 8;

// Tensors of branch i, as the authors name them, or as vLLM does.
struct Names {
  bool renamed = false;
  std::string layer(int64_t branch, int64_t i, const char* what) const {
    return renamed ? fmt::format("blocks.{}.layers.{}.{}", branch, i, what)
                   : fmt::format("{}.{}.linear.{}", branch, i, what);
  }
  std::string head(int64_t branch, int64_t layers) const {
    return renamed ? fmt::format("lm_heads.{}.weight", branch) : fmt::format("{}.{}.weight", branch, layers);
  }
};

// Configs count wrongly; the file knows how many branches and layers there are.
int64_t count_layers(const TensorFiles& files, const Names& names) {
  int64_t layers = 0;
  while (layers < kMostLayers && files.find(names.layer(0, layers, "weight"))) ++layers;
  return layers;
}

}  // namespace

MedusaHead::MedusaHead(HeadConfig config, const HeadOptions& options, Parts parts, HeadVector final_norm)
    : Head(std::move(config), options, {.norm = std::move(final_norm)}), parts_(std::move(parts)) {
  for (int64_t i = 0; i < heads(); ++i) {
    bytes_ += parts_.heads[parts_.heads.size() == 1 ? 0 : static_cast<size_t>(i)].bytes;
    for (const Layer& layer : parts_.branches[static_cast<size_t>(i)]) bytes_ += layer.weight.bytes;
  }
  const int64_t rows = options.max_sequences;
  compute().settle(weight_bytes(), rows);
  state_ = compute().rows(rows, hidden_size());
  inner_ = compute().rows(rows, hidden_size());
  logits_ = compute().rows(rows, own_vocab());
  inputs_ = compute().operands(rows, hidden_size());
}

Result<std::unique_ptr<MedusaHead>> MedusaHead::load(const std::filesystem::path& directory,
                                                     const std::filesystem::path& target_directory,
                                                     const HeadOptions& asked) {
  ASSIGN_OR_RETURN(const ModelConfig target, read_model_config(target_directory));
  ASSIGN_OR_RETURN(HeadConfig config, read_head_config(directory, asked.kind, target));
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
  ASSIGN_OR_RETURN(const TensorFiles target_files, TensorFiles::open(target_directory));
  ASSIGN_OR_RETURN(const WeightMap target_map, map_weights(target_files, target, ShardPlan(target, {})));
  const HeadOptions options = complete(asked, target);
  HeadTensors tensors(files, config.kind, directory.string(), options.weight_format, *options.compute);
  const Names names{.renamed = files.find("blocks.0.layers.0.weight") || files.find("lm_heads.0.weight")};
  const int64_t layers = count_layers(files, names), hidden = target.hidden_size;
  const int64_t known = config.draft_vocab_size > 0 ? config.draft_vocab_size : target.vocab_size;
  const auto load_branch = [&](int64_t i) -> Result<Branch> {
    Branch branch;
    for (int64_t l = 0; l < layers; ++l) {
      Layer& layer = branch.emplace_back();
      ASSIGN_OR_RETURN(layer.weight,
                       tensors.matrix({names.layer(i, l, "weight")}, {hidden}, hidden, MatrixKind::kLayer));
      if (files.find(names.layer(i, l, "bias"))) {
        ASSIGN_OR_RETURN(layer.bias, tensors.vector(names.layer(i, l, "bias"), hidden));
      }
    }
    return branch;
  };
  const auto has_branch = [&](int64_t i) {
    return files.find(config.shared_head ? names.layer(i, 0, "weight") : names.head(i, layers)) != nullptr;
  };
  const auto load_parts = [&]() -> Result<Parts> {
    Parts parts;
    for (int64_t i = 0; i < kMaxBranches && (i == 0 || has_branch(i)); ++i) {
      ASSIGN_OR_RETURN(Branch branch, load_branch(i));
      parts.branches.push_back(std::move(branch));
      if (config.shared_head && i > 0) continue;
      const bool is_alone = config.shared_head && files.find("lm_head.weight");
      ASSIGN_OR_RETURN(HeadMatrix head, tensors.matrix({is_alone ? "lm_head.weight" : names.head(i, layers)},
                                                       {known}, hidden, MatrixKind::kVocabulary));
      parts.heads.push_back(std::move(head));
    }
    ASSIGN_OR_RETURN(parts.target_ids, tensors.target_ids(known, target.vocab_size));
    RETURN_IF_ERROR(tensors.check_all_used());
    return parts;
  };
  auto parts = load_parts();
  if (!parts.ok()) return parts.status().in(directory.string());
  return std::unique_ptr<MedusaHead>(new MedusaHead(std::move(config), options, std::move(parts).value(),
                                                    load_final_norm(target_map, target, *options.compute)));
}

FloatRows MedusaHead::logits(int64_t branch, FloatRows hidden_states) {
  HeadCompute& on = compute();
  const auto at = static_cast<size_t>(branch);
  const int64_t rows = hidden_states.extent(0);
  const FloatRows state = state_.rows(rows), inner = inner_.rows(rows), out = logits_.rows(rows);
  const Operand inputs = inputs_.rows(rows);
  on.copy(hidden_states, state);
  on.normalise(state, {}, 0, inputs);
  for (const Layer& layer : parts_.branches[at]) {
    on.multiply(inputs, layer.weight, inner);
    on.add_silu(state, inner, layer.bias);
    on.normalise(state, {}, 0, inputs);
  }
  on.multiply(inputs, parts_.heads[parts_.heads.size() == 1 ? 0 : at], out);
  return out;
}

}  // namespace outrider
