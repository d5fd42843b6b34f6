#include "transformer/ops/packed_matrix.h"

#include "base/log.h"

namespace outrider {

PackedMatrix::PackedMatrix(WeightType type, int64_t n, int64_t k, std::vector<int64_t> leaf_ends)
    : type_(type), n_(n), k_(k), leaf_ends_(std::move(leaf_ends)), data_(tiles() * tile_bytes()) {
  CHECK(!leaf_ends_.empty() && leaf_ends_.back() == k, "leaves must end at k={}", k);
  for (int64_t end : leaf_ends_) CHECK(end == k || end % 2 == 0, "a leaf ends at an odd column {}", end);
}

}  // namespace outrider
