#include "model_files/head_mark.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace outrider {
namespace {

// A part of a name, and the drafter; the longer ones first.
constexpr std::pair<std::string_view, std::string_view> kNames[]{
    {"eagle3", "eagle3"}, {"dflash", "dflash"}, {"dspark", "dflash"}, {"medusa", "medusa"},
    {"hydra", "hydra"},   {"eagle", "eagle"},   {"mtpmodel", "mtp"}};
constexpr HeadMark kKeys[]{{"dflash", "dflash_config"},
                           {"medusa", "medusa_num_heads"},
                           {"hydra", "hydra_num_heads"},
                           {"eagle3", "draft_vocab_size"}};

std::string_view named(std::string name) {
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  for (const auto& [part, drafter] : kNames)
    if (name.find(part) != name.npos) return drafter;
  return {};
}

}  // namespace

HeadMark mark_of_head(const JsonObject& config) {
  const auto named_by = [&](const char* key) -> HeadMark {
    const nlohmann::json* name = config.find(key);
    if (name && name->is_array() && !name->empty()) name = &name->front();
    return {name && name->is_string() ? named(name->get<std::string>()) : std::string_view(), key};
  };
  for (const char* key : {"speculators_model_type", "architectures"})
    if (const HeadMark mark = named_by(key); !mark.drafter.empty()) return mark;
  for (const HeadMark& mark : kKeys)
    if (config.has(mark.key)) return mark;
  return {};
}

}  // namespace outrider
