// Safetensors files that tests modify or write anew.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace outrider::testing {

// A safetensors file that can be changed and written again.
struct TensorsToChange {
  explicit TensorsToChange(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    const nlohmann::json header = nlohmann::json::parse(bytes.substr(sizeof length, length));
    for (const auto& [name, info] : header.items()) {
      if (name == "__metadata__") continue;
      const size_t begin = info["data_offsets"][0], end = info["data_offsets"][1];
      tensors[name] = {info["dtype"], info["shape"],
                       bytes.substr(sizeof length + length + begin, end - begin)};
    }
  }
  void write(const std::filesystem::path& path) const { write_tensors(tensors, path); }
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  static void write_tensors(const std::map<std::string, Tensor>& tensors, const std::filesystem::path& path) {
    nlohmann::json header;
    std::string data;
    for (const auto& [name, t] : tensors) {
      header[name] = {{"dtype", t.dtype},
                      {"shape", t.shape},
                      {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
      data += t.bytes;
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::ofstream(path, std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), sizeof length) << text << data;
  }
  std::map<std::string, Tensor> tensors;
};

}  // namespace outrider::testing
