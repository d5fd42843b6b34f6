#include "heads/medusa_head.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "transformer/files/weight_map.h"

namespace outrider {
namespace {

constexpr int64_t kMostBranches = 64, kMostLayers = 8;

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

int64_t bytes_of(const PackedMatrix& matrix) { return static_cast<int64_t>(matrix.bytes()); }

class MedusaLoader {
 public:
  MedusaLoader(const TensorFiles& files, const ModelConfig& target, WeightFormat format, ThreadPool& pool)
      : files_(files), target_(target), format_(format), pool_(pool) {
    names_.renamed = files.find("lm_heads.0.weight") != nullptr;
    for (const std::string_view name : files.names()) {
      const TensorInfo& info = *files.find(name);
      all_bf16_ &= info.shape.size() != 2 || info.dtype == Dtype::kBF16;
    }
  }

  // Configs count wrongly; the file knows how many there are.
  int64_t count_layers() const {
    int64_t layers = 0;
    while (layers < kMostLayers && files_.find(names_.layer(0, layers, "weight"))) ++layers;
    return layers;
  }
  bool has(int64_t branch, int64_t layers) const {
    return files_.find(names_.head(branch, layers)) != nullptr;
  }

  Result<PackedMatrix> matrix(const std::string& name, int64_t rows, MatrixKind kind) {
    ASSIGN_OR_RETURN(const TensorPart part, this->part(name, {rows, target_.hidden_size}));
    const MatrixSource source{{part}, {}};
    ASSIGN_OR_RETURN(
        const WeightType type,
        weight_type(source, format_, kind, all_bf16_ ? WeightType::kBFloat16 : WeightType::kFloat32));
    if (type == WeightType::kFloat8)
      return unsupported("--draft-weight-format fp8: heads run on the CPU; use int8");
    return pack_matrix(source, type, pool_);
  }
  Result<std::vector<float>> vector(const std::string& name) {
    ASSIGN_OR_RETURN(const TensorPart part, this->part(name, {target_.hidden_size}));
    return read_vector({part});
  }
  const Names& names() const { return names_; }
  Status check_all_used() const {
    for (const std::string_view name : files_.names())
      if (!used_.contains(name))
        return invalid_argument(
            fmt::format("tensor {} belongs to no medusa head; is it another --drafter's?", name));
    return {};
  }

 private:
  Result<TensorPart> part(const std::string& name, const std::vector<int64_t>& shape) {
    ASSIGN_OR_RETURN(const TensorInfo* info, files_.require(name, shape));
    if (!is_weight_dtype(info->dtype))
      return unsupported(fmt::format("tensor {} is {}; a head's weights must be F32, BF16 or F16", name,
                                     dtype_name(info->dtype)));
    used_.insert(info->name);
    const bool is_vector = shape.size() == 1;
    return TensorPart{.tensor = info, .rows = {0, is_vector ? 1 : shape[0]}, .columns = {0, shape.back()}};
  }

  const TensorFiles& files_;
  const ModelConfig& target_;
  WeightFormat format_;
  ThreadPool& pool_;
  Names names_;
  bool all_bf16_ = true;
  std::set<std::string_view> used_;
};

}  // namespace

MedusaHead::MedusaHead(HeadConfig config, const HeadOptions& options, std::vector<Branch> branches,
                       std::vector<float> final_norm)
    : Head(std::move(config), options, {.norm = std::move(final_norm), .fc = {}}),
      branches_(std::move(branches)),
      bytes_([this] {
        int64_t bytes = 0;
        for (const Branch& branch : branches_) {
          bytes += bytes_of(branch.head);
          for (const Layer& layer : branch.layers) bytes += bytes_of(layer.weight);
        }
        return bytes;
      }()),
      pool_(threads_worth(weight_bytes(), options.bytes_per_thread, options.threads)),
      state_(options.max_sequences, hidden_size()),
      inner_(options.max_sequences, hidden_size()),
      ones_(options.max_sequences, hidden_size()),
      logits_(options.max_sequences, vocab_size()) {
  std::fill_n(ones_.data.data(), ones_.data.size(), 1.0f);
}

Result<std::unique_ptr<MedusaHead>> MedusaHead::load(const std::filesystem::path& directory,
                                                     const std::filesystem::path& target_directory,
                                                     const HeadOptions& asked) {
  ASSIGN_OR_RETURN(const ModelConfig target, read_model_config(target_directory));
  ASSIGN_OR_RETURN(HeadConfig config, read_head_config(directory, asked.kind, target));
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
  ASSIGN_OR_RETURN(const TensorFiles target_files, TensorFiles::open(target_directory));
  ASSIGN_OR_RETURN(const WeightMap target_map, map_weights(target_files, target, ShardPlan(target, {})));
  HeadOptions options = asked;
  if (options.max_positions == 0) options.max_positions = target.max_position_embeddings;
  ThreadPool loaders(options.threads);
  MedusaLoader loader(files, target, options.weight_format, loaders);
  const auto load_branches = [&]() -> Result<std::vector<Branch>> {
    const int64_t layers = loader.count_layers();
    std::vector<Branch> branches;
    while (static_cast<int64_t>(branches.size()) < kMostBranches &&
           (branches.empty() || loader.has(static_cast<int64_t>(branches.size()), layers))) {
      const auto i = static_cast<int64_t>(branches.size());
      Branch& branch = branches.emplace_back();
      for (int64_t l = 0; l < layers; ++l) {
        Layer& layer = branch.layers.emplace_back();
        ASSIGN_OR_RETURN(layer.weight, loader.matrix(loader.names().layer(i, l, "weight"), target.hidden_size,
                                                     MatrixKind::kLayer));
        if (files.find(loader.names().layer(i, l, "bias"))) {
          ASSIGN_OR_RETURN(layer.bias, loader.vector(loader.names().layer(i, l, "bias")));
        }
      }
      ASSIGN_OR_RETURN(branch.head, loader.matrix(loader.names().head(i, layers), target.vocab_size,
                                                  MatrixKind::kVocabulary));
    }
    RETURN_IF_ERROR(loader.check_all_used());
    return branches;
  };
  auto branches = load_branches();
  if (!branches.ok()) return branches.status().in(directory.string());
  return std::unique_ptr<MedusaHead>(new MedusaHead(std::move(config), options, std::move(branches).value(),
                                                    read_vector(target_map.final_norm)));
}

TensorView<float, 2> MedusaHead::logits(int64_t branch, TensorView<const float, 2> states) {
  const Branch& b = branches_[static_cast<size_t>(branch)];
  const int64_t rows = states.extent(0);
  const auto state = state_.rows(rows), inner = inner_.rows(rows), out = logits_.rows(rows);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(state.row(r).data(), states.row(r).data(), states.row(r).size_bytes());
  for (const Layer& layer : b.layers) {
    matmul(pool_, scratch_, state, layer.weight, inner);
    add_bias(inner, layer.bias);
    silu_mul(pool_, inner, ones_.rows(rows), hidden_size());
    add_rows(state, inner);
  }
  matmul(pool_, scratch_, state, b.head, out);
  return out;
}

}  // namespace outrider
