// Writes a target with an MTP module in its own files, as DeepSeek-V3 is published, and writes the module
// alone.
#pragma once

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/model/tensors_to_change.h"
#include "tests/support/test_models.h"

namespace outrider::testing {

// Adds F32 tensors of random numbers.
class RandomTensors {
 public:
  explicit RandomTensors(TensorsToChange& to) : to_(to) {}
  void add(const std::string& name, std::vector<int64_t> shape, float middle, float width) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      const float number = middle + width * (static_cast<float>(random_() % 2001) / 1000 - 1);
      bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    }
    to_.tensors[name] = {"F32", std::move(shape), bytes};
  }

 private:
  TensorsToChange& to_;
  std::mt19937 random_{11};
};

// Tensor prefix of the module in the golden model deepseek-v3, whose last layer is layer 1.
constexpr const char* kOwnModule = "model.layers.2.";

// `from`: that model, in any format. Adds the module as layer 2: a layer like layer 1, and random numbers;
// embedding and output head are the target's once more, as in the published files.
inline void write_target_with_module(const std::filesystem::path& from, const std::filesystem::path& to) {
  TensorsToChange file(from / "model.safetensors");
  const auto with_layer_1 = file.tensors;
  const std::string last = "model.layers.1.", module = kOwnModule;
  std::erase_if(file.tensors, [&](const auto& entry) { return entry.first.starts_with(module); });
  for (const auto& [name, tensor] : with_layer_1)
    if (name.starts_with(last)) file.tensors[module + name.substr(last.size())] = tensor;
  RandomTensors random(file);
  const int64_t hidden = with_layer_1.at("model.norm.weight").shape[0];
  random.add(module + "eh_proj.weight", {hidden, 2 * hidden}, 0, 0.3f);
  for (const char* norm : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"})
    random.add(module + norm, {hidden}, 1, 0.5f);
  file.tensors[module + "embed_tokens.weight"] = with_layer_1.at("model.embed_tokens.weight");
  file.tensors[module + "shared_head.head.weight"] = with_layer_1.at("lm_head.weight");
  file.write(to / "model.safetensors");
  std::filesystem::copy_file(from / "config.json", to / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
}

// The golden models with gated delta nets.
inline const std::vector<std::string> kDeltaNetModels{"qwen3-next", "qwen3.5", "qwen3.5-moe"};

// Adds a module to such a model under Qwen's names. Its layer is the model's last layer with attention. Its
// norms are of 1 + weight. The embedding and the output head are the target's.
inline void write_target_with_qwen_module(const std::filesystem::path& from,
                                          const std::filesystem::path& to) {
  TensorsToChange file(from / "model.safetensors");
  auto config = nlohmann::json::parse(std::ifstream(from / "config.json"));
  const auto& types = config["layer_types"];
  const auto last = std::find(types.rbegin(), types.rend(), "full_attention");
  const std::string layer = "model.layers." + std::to_string(types.rend() - last - 1) + ".";
  const auto tensors = file.tensors;
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with(layer)) file.tensors["mtp.layers.0." + name.substr(layer.size())] = tensor;
  RandomTensors random(file);
  const int64_t hidden = tensors.at("model.norm.weight").shape[0];
  random.add("mtp.fc.weight", {hidden, 2 * hidden}, 0, 0.3f);
  for (const char* norm : {"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"})
    random.add(std::string("mtp.") + norm + ".weight", {hidden}, 0, 0.5f);
  file.write(to / "model.safetensors");
  config["mtp_num_hidden_layers"] = 1;
  std::ofstream(to / "config.json") << config.dump();
}

// Writes the module in the form of programs that expect it as a model of its own: one layer, called layer 0,
// without the tensors that belong to the target.
inline void write_module_alone(const std::filesystem::path& from, const std::filesystem::path& to) {
  TensorsToChange file(from / "model.safetensors");
  const auto whole = std::exchange(file.tensors, {});
  for (const auto& [name, tensor] : whole)
    if (name.starts_with(kOwnModule) && name.find("embed_tokens") == name.npos &&
        name.find("shared_head.head") == name.npos)
      file.tensors["model.layers.0." + name.substr(std::string(kOwnModule).size())] = tensor;
  file.write(to / "model.safetensors");
  auto config = nlohmann::json::parse(std::ifstream(from / "config.json"));
  config["num_hidden_layers"] = 1;
  config["architectures"] = {"DeepseekV3ForCausalLMNextN"};
  std::ofstream(to / "config.json") << config.dump();
}

}  // namespace outrider::testing
