#include "tests/support/cut_vocabulary.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace outrider::testing {
namespace {

using Json = nlohmann::ordered_json;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// The format: 8 bytes of header length, the header, data.
std::string with_rows(const std::string& file, size_t rows) {
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof size);
  const std::string all = file.substr(sizeof size + size);
  Json header = Json::parse(file.substr(sizeof size, size));
  std::string data;
  for (auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = tensor["data_offsets"][0].get<size_t>();
    size_t length = tensor["data_offsets"][1].get<size_t>() - begin;
    if (name == "model.embed_tokens.weight" || name == "lm_head.weight") {
      length = length / tensor["shape"][0].get<size_t>() * rows;
      tensor["shape"][0] = rows;
    }
    tensor["data_offsets"] = {data.size(), data.size() + length};
    data += all.substr(begin, length);
  }
  const std::string text = header.dump();
  size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + data;
}

}  // namespace

CutVocabulary::CutVocabulary(const std::filesystem::path& model, int64_t rows)
    : path_(directory_.copy(model, "model")) {
  Json config = Json::parse(read(path_ / "config.json"));
  config["vocab_size"] = rows;
  write(path_ / "config.json", config.dump());
  const auto weights = path_ / "model.safetensors";
  write(weights, with_rows(read(weights), static_cast<size_t>(rows)));
}

}  // namespace outrider::testing
