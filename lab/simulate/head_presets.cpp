#include "lab/simulate/head_presets.h"

#include <algorithm>
#include <array>

#include "base/nearest.h"

namespace outrider {
namespace {

constexpr double kBytesPerNumber = 2;        // bf16
constexpr double kEagle3Vocabulary = 32000;  // rows of the output heads that are published

constexpr std::array<HeadPreset, 5> kHeads = {{
    {"eagle3", "rates:0.8", "2503.01840: no lower than EAGLE's at any step; EAGLE's of 2401.15077"},
    {"eagle", "rates:0.8", "2401.15077: about 0.8 of its tokens are right"},
    {"mtp", "rates:0.85", "2412.19437: 0.85 to 0.90 of the second tokens are accepted; those behind as well"},
    {"medusa", "rates:0.6", "2401.15077: about 0.6 of its tokens are right"},
    {"hydra", "rates:0.7", "between Medusa's and EAGLE's, as the speed-ups of 2402.05109 are"},
}};

double layer_parameters(const ModelPreset& m, double inputs) {
  const double heads = 2.0 * m.kv_heads * m.head_size;  // columns of keys and values
  return m.hidden * inputs * (m.hidden + heads) + double{1} * m.hidden * m.hidden +
         3.0 * m.hidden * m.intermediate;
}

// Read for a drafted token. The projection of EAGLE-3's taps is applied to committed tokens alone, at the
// target.
double parameters_of(std::string_view head, const ModelPreset& m) {
  const double square = double{1} * m.hidden * m.hidden, output = double{1} * m.vocabulary * m.hidden;
  if (head == "eagle3")
    return layer_parameters(m, 2) + std::min<double>(kEagle3Vocabulary, m.vocabulary) * m.hidden;
  if (head == "eagle" || head == "mtp") return 2 * square + layer_parameters(m, 1) + output;
  if (head == "medusa") return square + output;
  return 2 * 3 * square + output;  // hydra: branches read 2, 3, 4, ... vectors, through two matrices
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
  const ModelPreset& model = target.model;
  const double parameters = parameters_of(head.name, model);
  const double share = parameters / model.parameters * target.devices;
  const bool has_layer = head.name != "medusa" && head.name != "hydra";
  const double kv_bytes = has_layer ? 2.0 * model.kv_heads * model.head_size * kBytesPerNumber : 0;
  return {.pass = {.base = share * target.pass.base,
                   .per_context = has_layer ? target.pass.per_context * target.devices / model.layers : 0,
                   .compute_per_row = share * target.pass.compute_per_row,
                   .overhead = kLayerSeconds},
          .parameters = parameters,
          .kv_token_bytes = kv_bytes,
          .row_bytes = model.hidden * kBytesPerNumber};
}

}  // namespace outrider
