// The tiny committed models (tests/goldens/models), and loading them as one rank or as a group of threads.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/collectives.h"
#include "model/model.h"
#include "model_files/safetensors.h"
#include "tests/support/source_dir.h"
#include "tests/support/temporary_directory.h"

namespace outrider::testing {

inline const std::vector<std::string> kGoldenModels{
    "llama2", "llama3.1", "llama3.2",           "llama-bias", "mistral",
    "qwen2",  "qwen3",    "llama-bias-sharded", "qwen3-bf16", "qwen3-fp16"};

// Further model families, attention windows and rotary embeddings.
inline const std::vector<std::string> kFamilyModels{
    "gemma2",    "gemma3",         "phi3",         "olmo2",        "granite",          "smollm3",
    "mixtral",   "mistral-window", "qwen3-window", "llama-linear", "llama-dynamic",    "qwen2-yarn",
    "qwen2-moe", "qwen3-moe",      "gpt-oss",      "deepseek-v2",  "deepseek-v2-lite", "deepseek-v3",
    "olmo3",     "seed-oss",       "glm4-moe",     "minimax-m2",   "ernie45",          "ernie45-moe",
    "hunyuan",   "lfm2",           "lfm2-moe",     "qwen3-next",   "qwen3.5",          "qwen3.5-moe",
    "gemma4",    "gemma4-large",   "gemma4-moe"};

inline std::filesystem::path golden_model(const std::string& name) {
  return outrider::source_dir() / "tests/goldens/models" / name;
}

inline std::unique_ptr<Model> load_or_die(const std::filesystem::path& directory, const ModelOptions& options,
                                          Collectives& collectives) {
  auto model = Model::load(directory, options, collectives);
  if (!model.ok()) throw std::runtime_error(model.status().message());
  return std::move(model).value();
}

// A copy of a golden model that is somewhat off, for use as a draft: the final norm's weights are scaled by
// up to +-`amount`. Removed with its owner.
class PerturbedModel {
 public:
  PerturbedModel(const std::string& name, float amount) : path_(directory_.copy(golden_model(name), name)) {
    const auto file = path_ / "model.safetensors";
    std::ifstream in(file, std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
    const auto tensors = parse_safetensors(std::as_bytes(std::span(bytes)), name).value();
    std::mt19937 random(1);
    for (const TensorInfo& tensor : tensors) {
      const bool is_final_norm =
          tensor.name == "model.norm.weight" || tensor.name == "model.embedding_norm.weight";
      if (!is_final_norm || tensor.dtype != Dtype::kF32) continue;
      auto* at = bytes.data() + (reinterpret_cast<const char*>(tensor.data.data()) - bytes.data());
      for (size_t i = 0; i < tensor.data.size(); i += 4) {
        float value;
        std::memcpy(&value, at + i, 4);
        value *= 1 + amount * (static_cast<float>(random() % 2001) / 1000 - 1);
        std::memcpy(at + i, &value, 4);
      }
    }
    std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  std::string path() const { return path_.string(); }

 private:
  const TemporaryDirectory directory_;
  const std::filesystem::path path_;
};

// Runs `body(rank's collectives)` on tp_size threads; an exception of any rank fails the test.
inline void run_group(int tp_size, const std::function<void(Collectives&)>& body) {
  auto group = make_thread_collectives(tp_size);
  std::vector<std::thread> threads;
  std::vector<std::string> errors(static_cast<size_t>(tp_size));
  for (int r = 0; r < tp_size; ++r)
    threads.emplace_back([&, r] {
      try {
        body(*group[static_cast<size_t>(r)]);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(r)] = error.what();
        group[static_cast<size_t>(r)]->abort();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace outrider::testing
