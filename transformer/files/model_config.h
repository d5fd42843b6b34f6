// Sizes and hyper-parameters of a model, read from config.json and generation_config.json of a Hugging Face
// directory. What would make us compute a different function than Hugging Face does is refused by name, never
// ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "transformer/files/dtype.h"

namespace outrider {

enum class ModelFamily : uint8_t { kLlama, kMistral, kQwen2, kQwen3 };
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

struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;     // of queries
  int64_t num_kv_heads = 0;  // divides num_heads
  int64_t head_dim = 0;      // even; num_heads * head_dim need not be hidden_size
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;  // rows of the embedding and the head, padding included
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<Llama3RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;  // the head is the embedding; there is no lm_head.weight
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;     // of gate, up and down
  bool qk_norm = false;      // RMS norm over head_dim of every q and k head, before the rotation
  std::vector<TokenId> eos;  // any of them ends a text; config.json's first, no repeats, may be empty
  std::optional<TokenId> bos;
  std::optional<Dtype> torch_dtype;  // as declared; what the tensors are is in their file

  int64_t q_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  int64_t heads_per_kv_head() const { return num_heads / num_kv_heads; }
};

// Errors name the file, the key and what to do about it.
Result<ModelConfig> read_model_config(const std::filesystem::path& model_directory);

}  // namespace outrider
