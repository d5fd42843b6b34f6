// How much the inputs of each matrix weigh: the mean square of every column's input over a text, as
// llama.cpp's llama-imatrix writes it. Both of its formats are read:
//   GGUF: F32 tensors NAME.in_sum2 [matrices, columns], sums of squares, and NAME.counts [matrices, 1]
//   legacy (.dat), little endian: i32 entries; each i32 length, name, i32 calls, i32 n, n floats, which are
//   the mean times the calls. What may follow is not needed
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

class ImportanceMatrix {
 public:
  // Errors name the file. Not trusted.
  static Result<ImportanceMatrix> open(const std::filesystem::path& path);

  // The importance for a matrix, by its name in a GGUF file, column by column; of all experts, one expert
  // behind the other. An expert that no token chose has ones. Empty: the file has no such matrix.
  std::span<const float> of(std::string_view name) const;
  size_t size() const { return by_name_.size(); }

 private:
  std::map<std::string, std::vector<float>, std::less<>> by_name_;
};

}  // namespace outrider
