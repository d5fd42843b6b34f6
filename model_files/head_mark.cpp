#include "model_files/head_mark.h"

#include <string>
#include <utility>

namespace outrider {
namespace {

using Mark = std::pair<std::string_view, std::string_view>;  // and the drafter

// A part of a name; the longer ones first.
constexpr Mark kNames[]{{"eagle3", "eagle3"}, {"dflash", "dflash"}, {"dspark", "dflash"}, {"medusa", "medusa"},
                        {"hydra", "hydra"},   {"eagle", "eagle"},   {"mtpmodel", "mtp"}};
constexpr Mark kKeys[]{{"dflash_config", "dflash"},
                       {"medusa_num_heads", "medusa"},
                       {"hydra_num_heads", "hydra"},
                       {"draft_vocab_size", "eagle3"}};

std::string_view named(std::string name) {
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  for (const auto& [part, drafter] : kNames)
    if (name.find(part) != name.npos) return drafter;
  return {};
}

}  // namespace

std::string_view drafter_of_head(const JsonObject& config) {
  const nlohmann::json* const architectures = config.find("architectures");
  const nlohmann::json* const first =
      architectures && architectures->is_array() && !architectures->empty() ? &architectures->front() : nullptr;
  for (const nlohmann::json* name : {config.find("speculators_model_type"), first})
    if (name && name->is_string())
      if (const std::string_view drafter = named(name->get<std::string>()); !drafter.empty()) return drafter;
  for (const auto& [key, drafter] : kKeys)
    if (config.has(std::string(key))) return drafter;
  return {};
}

}  // namespace outrider
