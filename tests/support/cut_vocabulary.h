// A copy of a model that knows the first tokens of its vocabulary only: embedding and head have fewer rows,
// the tokenizer, where there is one, is whole. As in families whose small models have less padding. Removed
// with its owner.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/support/temporary_directory.h"

namespace outrider::testing {

class CutVocabulary {
 public:
  // `model`: a directory with one safetensors file. `rows`: how many tokens are left.
  CutVocabulary(const std::filesystem::path& model, int64_t rows);
  std::string path() const { return path_.string(); }

 private:
  const TemporaryDirectory directory_;
  const std::filesystem::path path_;
};

}  // namespace outrider::testing
