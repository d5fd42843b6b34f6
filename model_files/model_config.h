// Sizes and hyper-parameters of a model, read from config.json and generation_config.json of a Hugging Face
// directory. What would make us compute a different function than Hugging Face does is refused by name, never
// ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "model_files/dtype.h"

namespace outrider {

struct QuantizationConfig;  // quantization_config.h

enum class ModelFamily : uint8_t {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kGemma2,
  kGemma3,
  kPhi3,
  kOlmo2,
  kGranite,
  kSmolLm3,
  kMixtral,
  kQwen2Moe,
  kQwen3Moe,
  kGptOss,
  kDeepseekV2,
  kDeepseekV3,
  kOlmo3,
  kSeedOss,
  kGlm4Moe,
  kMinimaxM2,
  kErnie45,
  kErnie45Moe,
  kHunyuanDense,
  kLfm2,
  kLfm2Moe,
  kQwen3Next,
  kQwen35,
  kQwen35Moe,
  kGemma4
};
std::string_view family_name(ModelFamily family);        // "llama"
std::string_view architecture_name(ModelFamily family);  // "LlamaForCausalLM"

// Llama 3.1 stretches the slow rotations: wavelengths above original_max / low_freq_factor are slowed by
// `factor`, those below original_max / high_freq_factor are kept, the ones between are blended.
struct Llama3RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
  bool operator==(const Llama3RopeScaling&) const = default;
};

// Every rotation is slowed by `factor` (position interpolation, Chen et al. 2023).
struct LinearRopeScaling {
  double factor = 1;
  bool operator==(const LinearRopeScaling&) const = default;
};

// YaRN (Peng et al. 2023): pairs that turn more than beta_fast times within the trained length are kept,
// those that turn less than beta_slow times are slowed by `factor`, the ones between are blended.
struct YarnRopeScaling {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // the borders are whole pairs
  int64_t original_max_position_embeddings = 8192;
  bool operator==(const YarnRopeScaling&) const = default;
};

// LongRoPE (Ding et al. 2024) within the trained length: pair i is slowed by factors[i].
struct LongRopeScaling {
  std::vector<double> factors;
  bool operator==(const LongRopeScaling&) const = default;
};

// Hunyuan: theta is multiplied by alpha^(d / (d - 2)), d being the number of rotated dimensions.
struct NtkAlphaRopeScaling {
  double alpha = 1;
  bool operator==(const NtkAlphaRopeScaling&) const = default;
};

// Gemma 4: the first `share` of a head's pairs turn, as they do where all pairs turn; the others stand still.
struct ProportionalRopeScaling {
  double share = 1;
  double factor = 1;  // every rotation is slowed by it
  bool operator==(const ProportionalRopeScaling&) const = default;
};

using RopeScaling = std::variant<std::monostate, Llama3RopeScaling, LinearRopeScaling, YarnRopeScaling,
                                 LongRopeScaling, NtkAlphaRopeScaling, ProportionalRopeScaling>;

struct RopeConfig {
  double theta = 10000;
  int64_t dims = 0;          // the first `dims` dimensions of a head are rotated; even; 0: all
  bool interleaved = false;  // neighbours turn together, else halves
  double amplitude = 1;      // of cosine and sine
  double of_scores = 1;      // a factor of scores that YaRN brings; with latent attention only
  RopeScaling scaling;
  bool operator==(const RopeConfig&) const = default;
};

enum class LayerRope : uint8_t { kMain, kLocal, kNone };

// The part of a layer in front of its MLP. kShortConv: in_proj makes B, C and x of a row; the layer yields
// out_proj of C * conv(B * x), where conv is causal and runs over the last few rows of each channel by itself
// (LFM2). kDeltaNet: DeltaNetConfig.
enum class Mixer : uint8_t { kAttention, kShortConv, kDeltaNet };

// Properties in which the layers of one model differ.
struct LayerKind {
  int64_t window = 0;  // a token attends to the last `window` positions, its own included; 0: all
  LayerRope rope = LayerRope::kMain;
  bool has_experts = false;
  Mixer mixer = Mixer::kAttention;
  // Sizes that differ from the model's (Gemma 4); 0: the model's.
  int64_t head_dim = 0, kv_heads = 0, intermediate_size = 0;
  int64_t kv_of = -1;            // an earlier layer, whose keys and values this one reads; -1: it has its own
  bool values_are_keys = false;  // values are what k_proj makes, without the norm and rotation of keys
  bool has_own_sizes() const { return head_dim != 0 || kv_heads != 0 || intermediate_size != 0; }
  bool operator==(const LayerKind&) const = default;
};

enum class NormPlace : uint8_t { kBefore, kAfter, kAround };  // attention and MLP
enum class QkNorm : uint8_t { kNone, kHead, kWhole };         // over head_dim, or over all heads at once
// kClampedSwish: gate * sigmoid(factor * gate) * (up + 1), of a gate of at most `limit` and an up within it.
enum class Activation : uint8_t { kSilu, kGeluTanh, kClampedSwish };

// Factors, and caps: cap * tanh(x / cap). 0: no cap.
struct ModelScales {
  double embedding = 1;
  double layer_inputs = 1;  // of the table of layers' inputs
  double residual = 1;   // of what attention and MLP add
  double attention = 0;  // of scores; 0: 1 / sqrt(head_dim)
  double logit_divisor = 1;
  double attention_cap = 0;
  double logit_cap = 0;
  double gate_factor = 0, gate_limit = 0;  // of kClampedSwish
  bool operator==(const ModelScales&) const = default;
};

// Latent attention (DeepSeek-AI 2024, arXiv 2405.04434): keys and values of all heads are made of one latent
// of kv_rank numbers; rope_dim more, which turn, are a part of every key.
struct LatentConfig {
  int64_t q_rank = 0;  // of the latent that queries are made of; 0: there is none
  int64_t kv_rank = 0;
  int64_t nope_dim = 0, rope_dim = 0;  // of a head's query: what does not turn, then what does
  int64_t value_dim = 0;
  bool interleaved = true;  // neighbours turn together, else halves
  int64_t query_dim() const { return nope_dim + rope_dim; }
  bool operator==(const LatentConfig&) const = default;
};

// Gated delta net (Yang et al. 2024, arXiv 2412.06464). Queries, keys and values go through a short
// convolution and silu. Every value head has a state [key_dim, value_dim], which each token updates:
//   S = decay * S;  S += k (beta (v - S^T k))^T;  output S^T q
// The output is normed, and multiplied by silu of a gate.
struct DeltaNetConfig {
  int64_t key_heads = 0;    // of queries and keys
  int64_t value_heads = 0;  // a multiple of key_heads
  int64_t key_dim = 0, value_dim = 0;
  int64_t taps = 0;  // rows that the convolution reads, its own included
  // Value heads are stored in turns, one of each key head (some GGUF files); else those of a key head are
  // neighbours.
  bool in_turns = false;
  int64_t key_of(int64_t value) const {
    return in_turns ? value % key_heads : value / (value_heads / key_heads);
  }
  int64_t key_size() const { return key_heads * key_dim; }
  int64_t value_size() const { return value_heads * value_dim; }
  int64_t channels() const { return 2 * key_size() + value_size(); }  // of the convolution
  int64_t row_size() const { return channels() + 2 * value_heads; }   // kept of a token: with b and a
  int64_t state_size() const { return value_heads * key_dim * value_dim; }
  bool operator==(const DeltaNetConfig&) const = default;
};

// Shares of all experts, or each by itself.
enum class RouterScore : uint8_t { kSoftmax, kSigmoid };

// A mixture of experts in place of an MLP.
struct ExpertConfig {
  int64_t count = 0;
  int64_t chosen = 0;  // for each token
  int64_t intermediate_size = 0;
  int64_t shared_intermediate_size = 0;  // of the MLP that every token goes through as well; 0: none
  bool renormalise = true;               // the weights of the chosen ones add up to 1
  bool biases = false;                   // of the router, and of gate, up and down of every expert
  RouterScore score = RouterScore::kSoftmax;
  bool corrected = false;                 // each expert has a number more that counts for the choice alone
  int64_t groups = 1, groups_chosen = 1;  // neighbours; only experts of the best groups are chosen
  double factor = 1;                      // of the weights
  double added = 1e-20;                   // to the sum of the chosen sigmoids, by which they are divided
  bool beside_mlp = false;  // a layer has an MLP of its own, too, and norms and scales of Gemma 4
  bool operator==(const ExpertConfig&) const = default;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;               // of queries
  int64_t num_kv_heads = 0;            // divides num_heads
  int64_t head_dim = 0;                // even; num_heads * head_dim need not be hidden_size
  std::optional<LatentConfig> latent;  // then there is one KV head, whose head_dim is kv_rank + rope_dim
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;  // rows of the embedding and the head, padding included
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  RopeConfig local_rope;          // of layers that say so
  std::vector<LayerKind> layers;  // empty: all are LayerKind{}
  std::optional<ExpertConfig> experts;
  Activation activation = Activation::kSilu;
  NormPlace norm_place = NormPlace::kBefore;
  bool norm_adds_one = false;      // a norm multiplies by 1 + weight
  QkNorm qk_norm = QkNorm::kNone;  // of q and k, before the rotation
  bool norms_rotated = false;      // they are behind it
  bool values_normed = false;      // every value head has a norm without weights
  ModelScales scales;
  bool tie_word_embeddings = false;  // the head is the embedding; there is no lm_head.weight
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;  // of gate, up and down
  // Every query head has one score more, which takes its part of the softmax and yields nothing.
  bool attention_sinks = false;
  bool attention_gate = false;  // q_proj makes a gate, too; sigmoid(gate) multiplies what o_proj reads
  int64_t conv_taps = 0;        // rows that a short convolution reads, its own included; 0: no layer has one
  std::optional<DeltaNetConfig> delta_net;  // of layers that have one
  // Numbers of every token that each layer gets beside the residual stream (Gemma 4): the sum of a row of a
  // table and of a projection of the embedding. 0: none.
  int64_t layer_input_size = 0;
  bool scales_layers = false;  // the residual stream behind a layer is multiplied by a number of the layer
  std::vector<TokenId> eos;  // every id that ends a text; config.json's first, no repeats, may be empty
  std::optional<TokenId> bos;
  std::optional<Dtype> torch_dtype;  // as declared; what the tensors are is in their file
  std::shared_ptr<const QuantizationConfig> quantization;  // of a published quantised checkpoint, else null

  LayerKind layer(int64_t i) const { return layers.empty() ? LayerKind{} : layers[static_cast<size_t>(i)]; }
  // The same model with the sizes of one layer.
  ModelConfig sized_for(const LayerKind& kind) const;
  bool is_conv(int64_t i) const { return layer(i).mixer == Mixer::kShortConv; }
  bool is_delta_net(int64_t i) const { return layer(i).mixer == Mixer::kDeltaNet; }
  // Whether some layers keep a row of every token in place of keys and values.
  bool keeps_rows() const { return conv_taps > 0 || delta_net.has_value(); }
  int64_t q_size() const { return num_heads * head_dim; }
  int64_t output_dim() const { return latent ? latent->value_dim : head_dim; }  // of a head, for o_proj
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  int64_t heads_per_kv_head() const { return num_heads / num_kv_heads; }
};

// Names what this model needs beyond the layers of Llama, Mistral, Qwen2 and Qwen3, for an implementation
// that has only those: "a mixture of experts"; empty if nothing.
std::string beyond_plain_layers(const ModelConfig& config);

// Errors name the file, the key and what to do about it.
Result<ModelConfig> read_model_config(const std::filesystem::path& model_directory);

}  // namespace outrider
