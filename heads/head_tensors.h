// The tensors of one head's file: found under their published names, checked, and loaded where the head
// computes. A tensor that is not used is refused, since it would be ignored silently.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "heads/head_compute.h"
#include "heads/head_config.h"
#include "model/weights.h"

namespace outrider {

// Rows of an embedding, read where the file is mapped.
class TokenTable {
 public:
  // `rows`: [tokens, width] of `files`.
  TokenTable(TensorFiles files, TensorPart rows, TableOf of = TableOf::kHead)
      : files_(std::move(files)), rows_(rows), of_(of) {}
  void read(TokenId id, std::span<float> to) const;
  // From then on also where the head computes.
  Status keep_at(HeadCompute& compute);
  const HeadTable& there() const { return there_; }

 private:
  TensorFiles files_;
  TensorPart rows_;
  TableOf of_;
  HeadTable there_;
};

// Views the files. Errors name `name`, mostly the directory, or the tensor.
class HeadTensors {
 public:
  HeadTensors(const TensorFiles& files, HeadKind kind, std::string name, WeightFormat format,
              HeadCompute& compute);

  // Names of the head's only layer: published as midlayer, and renamed to layers.0 by others; and names
  // outside of it.
  std::string layer(const std::string& tail) const;
  std::string own(const std::string& tail) const;

  const TensorInfo* find(const std::string& name);  // null if absent
  Result<TensorPart> part(const std::string& name, const std::vector<int64_t>& shape);
  Result<HeadVector> vector(const std::string& name, int64_t size) { return vectors({name}, {size}); }
  // One behind the other.
  Result<HeadVector> vectors(const std::vector<std::string>& names, const std::vector<int64_t>& sizes);
  // Consecutive numbers of a tensor of any shape.
  Result<HeadVector> numbers(const std::string& name, const std::vector<int64_t>& shape, int64_t first,
                             int64_t count);
  // Matrices of `columns` columns, one below the other.
  Result<HeadMatrix> matrix(const std::vector<std::string>& names, const std::vector<int64_t>& rows,
                            int64_t columns, MatrixKind kind);
  // The target's tokens of the rows of an output head: from "d2t", or, of Medusa, "token_map". Empty: they
  // are the target's, in order.
  Result<std::vector<TokenId>> target_ids(int64_t rows, int64_t vocab_size);

  // `of_others`: prefixes of names that other code reads.
  Status check_all_used(std::span<const std::string_view> of_others = {}) const;

 private:
  const TensorFiles& files_;
  const HeadKind kind_;
  const std::string name_;
  const WeightFormat format_;
  HeadCompute& compute_;
  bool all_bf16_ = true;
  std::set<std::string_view> used_;
};

// Rows of the target's embedding for a head of `width` that brings none; takes the files along.
Result<TokenTable> target_embedding(TensorFiles files, const WeightMap& map, const std::string& head,
                                    const std::string& target, int64_t width);
// The target's own output head, in the format that is asked for.
Result<HeadMatrix> target_head(const WeightMap& map, WeightFormat format, HeadCompute& compute);

}  // namespace outrider
