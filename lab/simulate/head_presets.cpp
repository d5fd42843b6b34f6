#include "lab/simulate/head_presets.h"

#include <algorithm>
#include <array>

#include "base/nearest.h"
#include "coordinator/gamma/gamma_policy.h"

namespace outrider {
namespace {

constexpr double kBytesPerNumber = 2;        // bf16
constexpr double kEagle3Vocabulary = 32000;  // rows of the output heads that are published

struct HeadSize {
  double parameters = 0, of_experts = 0;  // all, and those of experts of which a token is sent to some
  double kv_numbers = 0;                  // cached of a token
  int32_t block_rows = 0;                 // ForwardCost::block_rows
};

// The published DFlash and DSpark heads for Qwen3 and gpt-oss have five layers of the target's width.
constexpr double kBlockLayers = 5;

constexpr std::array<HeadPreset, 7> kHeads = {{
    {"eagle3", "rates:0.8", "2503.01840: no lower than EAGLE's at any step; EAGLE's of 2401.15077"},
    {"eagle", "rates:0.8", "2401.15077: about 0.8 of its tokens are right"},
    {"mtp", "rates:0.85", "2412.19437: 0.85 to 0.90 of the second tokens are accepted; those behind as well"},
    {"medusa", "rates:0.6", "2401.15077: about 0.6 of its tokens are right"},
    {"hydra", "rates:0.7", "between Medusa's and EAGLE's, as the speed-ups of 2402.05109 are"},
    {"dflash", "rates:0.74", "a sixth fewer accepted tokens than DSpark, as 2607.05147 reports"},
    {"dspark", "rates:0.78",
     "0.74 to 0.79 of the tokens whose predecessors were accepted, on code and mathematics: model card of "
     "inference-optimization/dspark-inkling-small"},
}};

// Parameters of a layer like Llama's over `inputs` vectors of the target's width.
double layer_parameters(const ModelConfig& m, double inputs) {
  const auto hidden = static_cast<double>(m.hidden_size);
  return hidden * inputs * (hidden + 2.0 * static_cast<double>(m.kv_size())) + hidden * hidden +
         3.0 * hidden * static_cast<double>(m.intermediate_size);
}

// The projection of EAGLE-3's aux layers is applied to committed tokens alone, at the target. A module's
// layer is the target's, with a mixture where that has any.
HeadSize size_of_head(std::string_view head, const ModelConfig& m) {
  const auto hidden = static_cast<double>(m.hidden_size), vocabulary = static_cast<double>(m.vocab_size);
  const double square = hidden * hidden, output = vocabulary * hidden;
  const double kv = 2.0 * static_cast<double>(m.kv_size());
  if (head == "eagle3")
    return {.parameters = layer_parameters(m, 2) + std::min(kEagle3Vocabulary, vocabulary) * hidden,
            .kv_numbers = kv};
  if (head == "eagle") return {.parameters = 2 * square + layer_parameters(m, 1) + output, .kv_numbers = kv};
  if (head == "mtp") {
    const ModelSize layer = size_of_layer(m, {.has_experts = m.experts.has_value()});
    return {.parameters = 2 * square + static_cast<double>(layer.parameters) + output,
            .of_experts = static_cast<double>(layer.of_experts),
            .kv_numbers = static_cast<double>(layer.kv_numbers)};
  }
  if (head == "dflash" || head == "dspark")  // DSpark's transition is small beside the output head
    return {.parameters = kBlockLayers * layer_parameters(m, 1) + output,
            .kv_numbers = kBlockLayers * kv,
            .block_rows = kDefaultGammaMax};
  if (head == "medusa") return {.parameters = square + output};
  return {.parameters =
              2 * 3 * square + output};  // hydra: branches read 2, 3, 4, ... vectors, through two matrices
}

}  // namespace

Result<HeadPreset> head_preset(std::string_view name) {
  const auto at = std::find_if(kHeads.begin(), kHeads.end(), [&](const auto& h) { return h.name == name; });
  if (at != kHeads.end()) return *at;
  return invalid_argument(fmt::format("--draft-head '{}': choose {}", name, head_preset_names()));
}

std::string head_preset_names() {
  std::string out;
  for (size_t i = 0; i < kHeads.size(); ++i)
    out += fmt::format("{}{}", i == 0 ? "" : i + 1 == kHeads.size() ? " or " : ", ", kHeads[i].name);
  return out;
}

// A device reads as fast as one of the target's, and needs no all-reduce.
HeadCost head_cost(const HeadPreset& head, const HardwareCost& target) {
  const HeadSize size = size_of_head(head.name, target.model.config);
  const double chosen = target.pass.share_of_row, active = size.parameters - (1 - chosen) * size.of_experts;
  const auto reading = [&](double numbers) { return numbers * kBytesPerNumber / target.bytes_per_second; };
  return {.pass = {.base = reading(size.parameters - size.of_experts),
                   .per_context = reading(size.kv_numbers),
                   .compute_per_row = 2 * (size.of_experts > 0 ? active : size.parameters) / target.flops,
                   .overhead = kLayerSeconds,
                   .all_experts = reading(size.of_experts),
                   .share_of_row = chosen,
                   .block_rows = size.block_rows},
          .parameters = size.parameters,
          .active = size.of_experts > 0 ? active : size.parameters,
          .kv_token_bytes = size.kv_numbers * kBytesPerNumber,
          .row_bytes = static_cast<double>(target.model.config.hidden_size) * kBytesPerNumber};
}

}  // namespace outrider
