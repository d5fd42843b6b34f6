// Latent attention of DeepSeek-V2 and V3, from config.json.
#pragma once

#include "base/json_file.h"
#include "model_files/family.h"
#include "model_files/model_config.h"

namespace outrider {

// Epsilon of the norms of latents, which does not follow config.json's rms_norm_eps.
constexpr float kLatentEpsilon = 1e-6f;

// Fills in latent, and head_dim and num_kv_heads as keys are cached. Number and sizes of heads are known.
Status read_latent_config(const JsonObject& config, ModelConfig& out);

// Reads the keys that only mixtures of DeepSeek's kind have: groups, scores, shared experts.
// MiniMax-M2.
Status read_ungrouped_routing(const JsonObject& config, ExpertConfig& out);
// LFM2.
Status read_sigmoid_routing(const JsonObject& config, ExpertConfig& out);
// Ernie 4.5.
Status read_shares_routing(const JsonObject& config, ExpertConfig& out);
Status read_grouped_routing(const JsonObject& config, const ExpertNames& names, ExpertConfig& out);

}  // namespace outrider
