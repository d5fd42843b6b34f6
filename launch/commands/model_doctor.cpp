#include "launch/commands/model_doctor.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "base/kv_shape.h"
#include "base/printable.h"
#include "heads/module_weights.h"
#include "model/cuda_backend.h"
#include "model/quantized_file.h"
#include "model/weights.h"
#include "model_files/family.h"
#include "model_files/model_size.h"
#include "model_files/unused_tensors.h"
#include "model_files/weight_map.h"
#include "text/chat_template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {
namespace {

void add_line(std::string& to, std::string_view key, std::string_view value) {
  to += fmt::format("{:<22} {}\n", key, value);
}

// In decimal units, like disks and data sheets.
std::string in_bytes(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
  return bytes >= 1e6 ? fmt::format("{:.1f} MB", bytes / 1e6) : fmt::format("{:.1f} kB", bytes / 1e3);
}

int64_t weights_of(const MatrixSource& m) { return m.n() * m.k(); }

// Bits per weight of a published checkpoint, with its part of the group's scale, as held for int8 inputs.
double bits_per_weight(const CodedMatrix& matrix) {
  const QuantScheme& s = matrix.scheme();
  const double scale = s.scale == ScaleType::kNested || s.scale == ScaleType::kPowerOfTwo ? 8
                       : s.scale == ScaleType::kFloat32                                   ? 32
                                                                                          : 16;
  const double zero = s.zero_type == ZeroType::kConstant                                   ? 0
                      : s.zero_type == ZeroType::kMinimum && s.scale != ScaleType::kNested ? 16
                                                                                           : 8;
  const double outer = s.scale != ScaleType::kNested ? 0 : s.zero_type == ZeroType::kMinimum ? 32 : 16;
  const auto group = static_cast<double>(s.group);
  const int64_t code = matrix.bits() == 5 || matrix.bits() == 6 ? matrix.bits() : code_bits(s.code);
  return static_cast<double>(code) + (scale + zero) / group +
         outer / (group * static_cast<double>(s.groups_together));
}

// Memory of a matrix: its weights, and a bf16 scale for each group if there are groups.
double held_bytes(const MatrixSource& matrix, WeightType type) {
  if (type == WeightType::kCodes) {
    double bytes = 0;
    for (const TensorPart& part : matrix.parts)
      bytes += static_cast<double>(part.rows.size() * part.columns.size()) / 8 *
               (part.coded                          ? bits_per_weight(*part.coded)
                : part.tensor->dtype == Dtype::kF32 ? 32.0
                                                    : 16.0);
    return bytes;
  }
  const double bits = static_cast<double>(weight_bits(type)) +
                      (is_quantized(type) ? 16.0 / static_cast<double>(group_columns(type)) : 0.0);
  return static_cast<double>(weights_of(matrix)) * bits / 8;
}

// One tp_rank's matrices, by purpose.
struct HeldParts {
  double embedding = 0, inputs = 0, attention = 0, mlp = 0, experts = 0, router = 0, head = 0;
  double all() const { return embedding + inputs + attention + mlp + experts + router + head; }
};

Result<HeldParts> held_parts(const WeightMap& map, WeightFormat format) {
  const WeightType numbers = map.all_bf16 ? WeightType::kBFloat16 : WeightType::kFloat32;
  HeldParts parts;
  const auto add = [&](const MatrixSource& matrix, MatrixKind kind, double& to) -> Status {
    ASSIGN_OR_RETURN(const WeightType type, cpu_weight_type(matrix, format, kind, numbers));
    to += held_bytes(matrix, type);
    return {};
  };
  if (map.embedding) RETURN_IF_ERROR(add(*map.embedding, MatrixKind::kVocabulary, parts.embedding));
  RETURN_IF_ERROR(add(map.head, MatrixKind::kVocabulary, parts.head));
  // The table beside the projection stays in its file.
  if (map.inputs) RETURN_IF_ERROR(add(map.inputs->projection, MatrixKind::kLayer, parts.inputs));
  for (const LayerSources& layer : map.layers) {
    if (layer.input)
      for (const MatrixSource* matrix : {&layer.input->gate, &layer.input->out})
        RETURN_IF_ERROR(add(*matrix, MatrixKind::kLayer, parts.inputs));
    for (const MatrixSource* matrix : layer.attention_matrices())
      RETURN_IF_ERROR(add(*matrix, MatrixKind::kLayer, parts.attention));
    const auto add_mlp = [&](const MlpSources& mlp, double& to) -> Status {
      RETURN_IF_ERROR(add(mlp.gate_up, MatrixKind::kLayer, to));
      return add(mlp.down, MatrixKind::kLayer, to);
    };
    const ExpertSources* mixture = layer.mixture();
    if (mixture == nullptr) {
      RETURN_IF_ERROR(add_mlp(layer.dense(), parts.mlp));
      continue;
    }
    for (const MlpSources& expert : mixture->experts) RETURN_IF_ERROR(add_mlp(expert, parts.experts));
    if (mixture->shared) RETURN_IF_ERROR(add_mlp(*mixture->shared, parts.mlp));
    if (mixture->beside) RETURN_IF_ERROR(add_mlp(mixture->beside->mlp, parts.mlp));
    parts.router += held_bytes(mixture->router, WeightType::kFloat32);
  }
  return parts;
}

int64_t parameters(const WeightMap& map) {
  int64_t count = 0;
  for (const MatrixSource* matrix : map.vocabulary_matrices()) count += weights_of(*matrix);
  for (const MatrixSource* matrix : map.layer_matrices()) count += weights_of(*matrix);
  for (const LayerSources& layer : map.layers) {
    if (const ExpertSources* mixture = layer.mixture()) count += weights_of(mixture->router);
  }
  return count;
}

std::string stored_as(const TensorFiles& files, const WeightMap& map) {
  std::set<std::string> names;
  const auto add = [&](const MatrixSource& matrix) {
    for (const TensorPart& part : matrix.parts) {
      const auto codes = stored_type(part.tensor->dtype);
      names.insert(part.coded ? part.coded->name()
                   : codes    ? weight_type_name(*codes)
                              : std::string(dtype_name(part.tensor->dtype)));
    }
  };
  for (const MatrixSource* matrix : map.vocabulary_matrices()) add(*matrix);
  for (const MatrixSource* matrix : map.layer_matrices()) add(*matrix);
  return fmt::format("{:.4g} million parameters, stored as {}, {}",
                     static_cast<double>(parameters(map)) / 1e6, fmt::join(names, " and "),
                     in_bytes(static_cast<double>(files.total_bytes())));
}

std::string describe_experts(const ModelConfig& c) {
  int64_t layers = 0;
  for (const LayerKind& layer : c.layers) layers += layer.has_experts;
  return fmt::format("{} in each of {} layers, {} for a token, MLP {}{}", c.experts->count, layers,
                     c.experts->chosen, c.experts->intermediate_size,
                     c.experts->shared_intermediate_size > 0
                         ? fmt::format(", and a shared one of {}", c.experts->shared_intermediate_size)
                         : "");
}

// Heads that differ by layer, keys that layers share, and inputs of layers.
void add_varied_layers(const ModelConfig& c, std::string& out) {
  int64_t wider = 0, shared = 0;
  ModelConfig sized = c;
  for (const LayerKind& layer : c.layers) {
    shared += layer.kv_of >= 0;
    if (layer.head_dim == 0) continue;
    ++wider;
    sized = c.sized_for(layer);
  }
  if (wider > 0)
    add_line(out, "heads by layer",
             fmt::format("{} layers have {} KV heads of {}", wider, sized.num_kv_heads, sized.head_dim));
  if (shared > 0)
    add_line(out, "shared keys",
             fmt::format("the last {} layers read keys and values of earlier ones, and cache none", shared));
  if (c.layer_input_size > 0)
    add_line(out, "inputs of layers", fmt::format("{} numbers of every token in each", c.layer_input_size));
}

void add_sizes(const ModelConfig& c, std::string& out) {
  add_line(out, "model",
           fmt::format("{} ({}): {} layers, hidden {}, {} query and {} KV heads of {}, MLP {}",
                       architecture_name(c.family), traits_of(c.family).title, c.num_layers, c.hidden_size,
                       c.num_heads, c.num_kv_heads, c.head_dim, c.intermediate_size));
  if (c.latent)
    add_line(out, "latent attention",
             fmt::format("{} numbers of every token and {} that turn are cached, on the CPU twice: in the "
                         "order of keys and in that "
                         "of values; queries of {}, values of {}",
                         c.latent->kv_rank, c.latent->rope_dim, c.latent->query_dim(), c.latent->value_dim));
  add_varied_layers(c, out);
  if (c.experts) add_line(out, "experts", describe_experts(c));
  if (c.conv_taps > 0)
    add_line(out, "short convolutions",
             fmt::format("in {} layers, over {} tokens; {} numbers of every token are cached in each",
                         std::count_if(c.layers.begin(), c.layers.end(),
                                       [](const LayerKind& l) { return l.mixer == Mixer::kShortConv; }),
                         c.conv_taps, c.hidden_size));
  if (c.delta_net)
    add_line(out, "gated delta nets",
             fmt::format(
                 "in {} layers, {} key heads of {} and {} value heads of {}; {} numbers of every token are "
                 "cached in each",
                 std::count_if(c.layers.begin(), c.layers.end(),
                               [](const LayerKind& l) { return l.mixer == Mixer::kDeltaNet; }),
                 c.delta_net->key_heads, c.delta_net->key_dim, c.delta_net->value_heads,
                 c.delta_net->value_dim, c.delta_net->row_size()));
  add_line(
      out, "vocabulary",
      fmt::format("{} rows{}", c.vocab_size, c.tie_word_embeddings ? ", the head is the embedding" : ""));
}

// Formats that the files allow; codes allow only their own.
void add_memory(const WeightMap& map, std::string& out) {
  for (const WeightFormat format :
       {WeightFormat::kAuto, WeightFormat::kBFloat16, WeightFormat::kInt8, WeightFormat::kInt4}) {
    const auto parts = held_parts(map, format);
    if (!parts.ok()) continue;
    add_line(out, format == WeightFormat::kAuto ? "memory of weights" : "",
             fmt::format("--weight-format {:<5} {} (attention {}, MLP {}{}, head {}{})",
                         weight_format_name(format), in_bytes(parts->all()), in_bytes(parts->attention),
                         in_bytes(parts->mlp),
                         parts->experts > 0 ? fmt::format(", experts {}, routers {}",
                                                          in_bytes(parts->experts), in_bytes(parts->router))
                                            : "",
                         in_bytes(parts->head),
                         (map.embedding ? ", embedding " + in_bytes(parts->embedding) : "") +
                             (map.inputs ? ", inputs of layers " + in_bytes(parts->inputs) : "")));
  }
}

// Adds the memory on a CUDA device, if this build has CUDA; no device is queried.
void add_devices(const WeightMap& map, const ModelConfig& config, std::string& out) {
  const auto bytes = cuda_weight_bytes(map, config, {});
  if (!bytes.ok() && bytes.status().code() == StatusCode::kUnavailable) return;
  add_line(out, "on a CUDA device",
           bytes.ok() ? fmt::format("--weight-format auto  {}", in_bytes(static_cast<double>(*bytes)))
                      : "not as it is stored: " + printable(bytes.status().message()));
  if (const int64_t states = cuda_state_bytes(config, {}); bytes.ok() && states > 0)
    add_line(out, "",
             fmt::format("recurrent states      {} for each text of --max-num-seqs, taken at the start",
                         in_bytes(static_cast<double>(states))));
}

void add_kv(const ModelConfig& c, const WeightMap& map, std::string& out) {
  const KvType own = map.all_bf16 ? KvType::kBFloat16 : KvType::kFloat32;
  const ModelSize size = size_of(c);  // a latent is cached twice
  const double token = static_cast<double>(size.kv_numbers * (size.shares_kv ? 2 : 1) * element_bytes(own));
  add_line(out, "KV cache",
           fmt::format("{} a token in {}, {} for a text of {}, the longest", in_bytes(token),
                       own == KvType::kBFloat16 ? "bf16" : "fp32",
                       in_bytes(token * static_cast<double>(c.max_position_embeddings)),
                       c.max_position_embeddings));
  if (size.state_numbers > 0)
    add_line(out, "recurrent states",
             fmt::format("{} a text in fp32, beside the KV cache",
                         in_bytes(static_cast<double>(size.state_numbers) * sizeof(float))));
}

Status add_ranks(const TensorFiles& files, const ModelConfig& config, int tp_size, std::string& out) {
  for (int r = 0; r < tp_size; ++r) {
    const ShardPlan plan(config, {r, tp_size});
    ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, config, plan));
    ASSIGN_OR_RETURN(const HeldParts parts, held_parts(map, WeightFormat::kAuto));
    add_line(
        out, fmt::format("target rank {}", r),
        fmt::format("query heads [{}, {}), KV heads [{}, {}), MLP columns [{}, {}), vocabulary [{}, {}), {}",
                    plan.query_heads.begin, plan.query_heads.end, plan.kv_heads.begin, plan.kv_heads.end,
                    plan.mlp_columns.begin, plan.mlp_columns.end, plan.vocab.begin, plan.vocab.end,
                    in_bytes(parts.all())));
  }
  return {};
}

}  // namespace

Result<std::string> describe_model(const std::string& directory, int tp_size) {
  std::string out;
  ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(directory));
  add_sizes(config, out);
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, config, ShardPlan(config, {0, 1})));
  add_line(out, "weights", stored_as(files, map));
  add_memory(map, out);
  add_devices(map, config, out);
  add_kv(config, map, out);
  RETURN_IF_ERROR(add_ranks(files, config, tp_size, out));
  ASSIGN_OR_RETURN(auto unused, unused_tensors(files, config));
  const std::string module = module_prefix(files);
  if (!module.empty() &&
      std::erase_if(unused, [&](std::string_view name) { return name.starts_with(module); }) > 0)
    add_line(out, "drafts", fmt::format("{}*, a module for --drafter mtp", printable(module)));
  if (!unused.empty())
    add_line(out, "not used",
             fmt::format("{} tensors, the first is {}", unused.size(),
                         printable(files.shown_name(unused.front()))));
  ASSIGN_OR_RETURN(const auto tokenizer, load_tokenizer(directory));
  add_line(out, "tokenizer", fmt::format("{} ids", tokenizer->vocab_size()));
  const auto chat = load_chat_template(directory);
  add_line(out, "chat template",
           chat.ok() ? "found" : "none that can be used: " + printable(chat.status().message()));
  return out;
}

}  // namespace outrider
