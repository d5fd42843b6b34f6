// Which type of GGUF's blocks each matrix of a quantised file has.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "model_files/dtype.h"
#include "model_files/model_config.h"

namespace outrider {

// Types of the matrices of the layers, and of embedding and head. Rows that are no whole blocks of 256 get
// the second.
struct BlockFormat {
  std::string_view name;
  Dtype layers, narrow_layers;
  Dtype vocabulary, narrow_vocabulary;
  uint32_t gguf_file_type;  // of enum llama_ftype
  bool is_mix = false;      // some matrices of the layers get more bits
};
// "q4_k", "q4_k_m", "q6_k" or "q8_0"; null: another name.
const BlockFormat* find_block_format(std::string_view name);

enum class Place : uint8_t { kLayer, kVocabulary };

// The types of one file. The mix is that of llama.cpp's Q4_K_M: values and the MLPs' way down have 6 bits in
// the first and last eighth of the layers and in every third between, the embedding has 4 where it is not the
// head.
class BlockTypes {
 public:
  // names: of all tensors, as in a GGUF file or as in a directory.
  BlockTypes(const BlockFormat& format, const ModelConfig& config,
             const std::vector<std::string_view>& names);
  // The type of a matrix with rows of `k` numbers. Nothing: it stays as it is.
  std::optional<Dtype> of(std::string_view name, Place place, int64_t k) const;

 private:
  Dtype mixed(std::string_view name, Place place) const;

  const BlockFormat& format_;
  const ModelConfig& config_;
  std::vector<int64_t> layers_with_values_;  // ascending
};

}  // namespace outrider
