#include "model_files/coded_matrix.h"

#include <algorithm>

namespace outrider {

CodedMatrix::CodedMatrix(std::string name, QuantScheme scheme, int64_t n, int64_t k,
                         std::vector<const TensorInfo*> tensors)
    : scheme_(scheme),
      n_(n),
      k_(k),
      groups_((k + scheme.group - 1) / scheme.group),
      bits_(code_bits(scheme.code)),
      name_(std::move(name)),
      tensors_(std::move(tensors)) {
  if (!tensors_.empty()) code_bytes_ = static_cast<int64_t>(tensors_.front()->data.size());
}

void CodedMatrix::read_weights(int64_t row, int64_t begin, std::span<float> to) const {
  constexpr size_t kChunk = 256;
  uint8_t codes[kChunk];
  int64_t known = -1;
  GroupNumbers numbers;
  for (size_t done = 0; done < to.size(); done += kChunk) {
    const auto part = to.subspan(done, std::min(kChunk, to.size() - done));
    const int64_t first = begin + static_cast<int64_t>(done);
    read_codes(row, first, {codes, part.size()});
    for (size_t i = 0; i < part.size(); ++i) {
      const int64_t group = group_of(first + static_cast<int64_t>(i));
      if (group != known) numbers = this->group(row, known = group);
      part[i] = weight_of_code(scheme_, codes[i], numbers);
    }
  }
}

}  // namespace outrider
