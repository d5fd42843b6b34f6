// A matrix [n, k] that a published checkpoint holds as codes (ops/quant_scheme.h), whatever the order of its
// bits: GPTQ, AWQ, compressed-tensors, block fp8, MXFP4, GGUF. Views of mapped files; immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/quant_scheme.h"
#include "model_files/safetensors.h"

namespace outrider {

class CodedMatrix {
 public:
  virtual ~CodedMatrix() = default;

  const QuantScheme& scheme() const { return scheme_; }
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  const std::string& name() const { return name_; }  // "GPTQ 4 bit, groups of 128"
  // The group of each column, where groups are not neighbours (act-order); else empty.
  const std::vector<int32_t>& order() const { return order_; }
  int64_t group_of(int64_t column) const {
    return order_.empty() ? column / scheme_.group : order_[static_cast<size_t>(column)];
  }
  // Groups in a row. Where columns have an order (act-order), groups are numbered as in the file.
  int64_t groups() const { return groups_; }
  // Bits that hold every code: those of its type, or 5 or 6 of a byte.
  int64_t bits() const { return bits_; }
  // Bytes that the codes of all rows take in the file.
  int64_t code_bytes() const { return code_bytes_; }
  // Every tensor that the matrix reads; the tensor of codes is first.
  const std::vector<const TensorInfo*>& tensors() const { return tensors_; }

  // Codes of columns [begin, begin + to.size()) of a row.
  virtual void read_codes(int64_t row, int64_t begin, std::span<uint8_t> to) const = 0;
  virtual GroupNumbers group(int64_t row, int64_t group) const = 0;
  // Those of groups [first, first + to.size()) of a row.
  virtual void read_groups(int64_t row, int64_t first, std::span<GroupNumbers> to) const {
    for (size_t i = 0; i < to.size(); ++i) to[i] = group(row, first + static_cast<int64_t>(i));
  }

  // The weights that those codes stand for.
  void read_weights(int64_t row, int64_t begin, std::span<float> to) const;

 protected:
  CodedMatrix(std::string name, QuantScheme scheme, int64_t n, int64_t k,
              std::vector<const TensorInfo*> tensors);

  QuantScheme scheme_;
  int64_t n_, k_, groups_;
  std::vector<int32_t> order_;
  int64_t bits_;
  int64_t code_bytes_ = 0;

 private:
  std::string name_;
  std::vector<const TensorInfo*> tensors_;
};

}  // namespace outrider
