// A golden DeepSeek model in blocks of fp8, as DeepSeek-V3 is published, and the same model with the
// dequantized values.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/bfloat16.h"
#include "base/float8.h"
#include "tests/model/tensors_to_change.h"
#include "tests/support/test_models.h"

namespace outrider::testing {

constexpr int64_t kBlockRows = 24, kBlockColumns = 16;

inline std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

inline bool stays_in_numbers(const std::string& name, size_t dimensions) {
  return dimensions != 2 || name.find("embed_tokens") != name.npos || name.find("lm_head") != name.npos ||
         name.find("mlp.gate.") != name.npos;
}

// Numbers that are kept as fp32, in bf16.
inline TensorsToChange::Tensor in_bf16(const TensorsToChange::Tensor& tensor) {
  TensorsToChange::Tensor halves{"BF16", tensor.shape, {}};
  for (size_t i = 0; i < tensor.bytes.size(); i += sizeof(float)) {
    float value;
    std::memcpy(&value, tensor.bytes.data() + i, sizeof value);
    const bf16 half = to_bf16(value);
    halves.bytes.append(reinterpret_cast<const char*>(&half), sizeof half);
  }
  return halves;
}

// The golden model with random codes in its matrices, and with the numbers that they stand for. Embedding and
// head stay in fp32, or become `halves`: bf16, as devices take them beside codes.
inline void write_fp8_pair(const std::filesystem::path& codes_to, const std::filesystem::path& numbers_to,
                           bool halves = false) {
  const auto source = golden_model("deepseek-v3");
  TensorsToChange codes(source / "model.safetensors"), numbers(source / "model.safetensors");
  std::mt19937 random(5);
  for (const auto& [name, tensor] : TensorsToChange(source / "model.safetensors").tensors) {
    if (stays_in_numbers(name, tensor.shape.size())) {
      if (halves && tensor.shape.size() == 2) codes.tensors[name] = numbers.tensors[name] = in_bf16(tensor);
      continue;
    }
    const int64_t n = tensor.shape[0], k = tensor.shape[1], columns = (k + kBlockColumns - 1) / kBlockColumns,
                  rows = (n + kBlockRows - 1) / kBlockRows;
    std::vector<float> scales, values;
    for (int64_t i = 0; i < rows * columns; ++i)
      scales.push_back(0.002f + 0.0001f * static_cast<float>(random() % 40));
    std::string bytes;
    for (int64_t r = 0; r < n; ++r)
      for (int64_t c = 0; c < k; ++c) {
        const auto code = static_cast<uint8_t>(random() % 112 + (random() % 2) * 128);  // magnitudes to 240
        bytes.push_back(static_cast<char>(code));
        values.push_back(e4m3_to_float(code) *
                         scales[static_cast<size_t>(r / kBlockRows * columns + c / kBlockColumns)]);
      }
    codes.tensors[name] = {"F8_E4M3", {n, k}, bytes};
    codes.tensors[name + "_scale_inv"] = {"F32", {rows, columns}, bytes_of(scales)};
    numbers.tensors[name] = {"F32", {n, k}, bytes_of(values)};
  }
  // A layer behind the last, for drafts, in codes as well.
  codes.tensors["model.layers.2.eh_proj.weight"] = {"F8_E4M3", {1, 1}, "x"};
  codes.tensors["model.layers.2.eh_proj.weight_scale_inv"] = {"F32", {1, 1}, bytes_of({1})};
  codes.write(codes_to / "model.safetensors");
  numbers.write(numbers_to / "model.safetensors");
  auto config = nlohmann::json::parse(std::ifstream(source / "config.json"));
  std::ofstream(numbers_to / "config.json") << config.dump();
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {kBlockRows, kBlockColumns}}};
  std::ofstream(codes_to / "config.json") << config.dump();
}

}  // namespace outrider::testing
