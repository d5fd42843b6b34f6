// Shapes of Llama models, and of mixtures of experts like Mixtral, gpt-oss and DeepSeek-V3, that `outrider
// synth` can write, and their config.json.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

struct SynthShape {
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // 0: hidden / heads
  int64_t ffn = 0;       // of one expert, where there are any
  int64_t experts = 0;   // 0: an MLP
  int64_t experts_per_token = 2;
  // With latent attention, layers are DeepSeek-V3's: head_dim is of values and of what does not turn of a
  // query, half as much more of a query turns, and experts are chosen by corrected sigmoids in groups.
  int64_t kv_rank = 0;       // numbers that keys and values of all heads are made of; 0: no latent attention
  int64_t q_rank = 0;        // those of queries; 0: there are none
  int64_t dense_layers = 0;  // in front, which have an MLP in place of a mixture
  int64_t dense_ffn = 0;     // of that MLP
  int64_t shared_experts = 0;             // that every token goes through, as one MLP
  int64_t groups = 1, groups_chosen = 1;  // of experts
  bool gpt_oss = false;  // with experts: sinks, windows, biases, YaRN and the clamped activation
  int64_t vocab = 0;
  int64_t max_positions = 0;
  double rope_theta = 10000;
  bool llama3_rope = false;  // the scaled rotation of Llama 3.1 and 3.2
  bool tied = false;         // the head is the embedding

  bool is_latent() const { return kv_rank > 0; }
  int64_t rope_dim() const { return head_dim / 2; }  // of latent attention
};

// Names of the presets, smallest first.
std::vector<std::string> synth_shape_names();
// An error names the nearest preset.
Result<SynthShape> synth_shape(const std::string& name);
// Errors name the flag that makes the shape impossible. Fills in head_dim.
Status check_synth_shape(SynthShape& shape);

nlohmann::json synth_config(const SynthShape& shape, int64_t layers);
// A head for the target of a shape, which has four layers or more.
struct SynthHead {
  enum class Kind { kEagle3, kMtp, kDFlash, kMedusa, kHydra } kind = Kind::kEagle3;
  int64_t draft_vocab = 0;  // tokens it knows; of MTP and branches all
  int64_t layers = 1;       // of a block, and its rows
  int64_t block_size = 0;
  int64_t branches = 0;  // of Medusa and Hydra, of one layer each

  bool is_block() const { return kind == Kind::kDFlash; }
  bool has_output(const SynthShape& shape) const {  // else the target's
    return kind == Kind::kEagle3 || draft_vocab < shape.vocab;
  }
};
// The same widths in layers like Llama's, as most heads have them.
SynthShape plain_layers(const SynthShape& shape);
nlohmann::json synth_head_config(const SynthShape& shape, const SynthHead& head);

}  // namespace outrider
