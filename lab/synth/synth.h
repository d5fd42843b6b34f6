// `outrider synth`: makes a target and a draft of any Llama, Mixtral, gpt-oss or DeepSeek shape with random
// weights, with the requested acceptance and entropy. Speed depends on shapes, acceptance and entropy, not on
// trained weights, so such a pair gives honest figures at any scale, without a download.
#pragma once

#include <optional>
#include <string>

#include "lab/synth/shape.h"
#include "start/settings.h"

namespace CLI {
class App;
}

namespace outrider {

struct SynthOptions {
  std::string output;
  std::string shape = "1.1b";
  // Differences from the preset.
  std::optional<int64_t> hidden, layers, heads, kv_heads, head_dim, ffn, experts, experts_per_token, kv_rank,
      q_rank, dense_layers, vocab, max_positions;
  bool tied = false;

  int64_t draft_layers = 1;
  std::string head = "none";           // or eagle3, mtp, dflash, medusa, hydra
  std::optional<int64_t> draft_vocab;  // of the head
  int64_t head_layers = 5;             // of dflash
  int64_t block_size = 16;             // of dflash
  int64_t head_branches = 4;           // of medusa and hydra
  double acceptance = 0.8;
  double temperature = 1;
  double entropy = 2.5;
  uint64_t seed = 0;
  int threads = 0;  // 0: one per core
  DeviceSetting device = "cpu";
  bool force = false;
  bool quiet = false;
};

void add_synth_options(CLI::App& app, SynthOptions& options);
// The shape after flags; makes all checks that are possible before anything is written.
Result<SynthShape> check_synth_options(const SynthOptions& options);

// Returns the exit code; errors were printed.
int run_synth(const SynthOptions& options);

}  // namespace outrider
