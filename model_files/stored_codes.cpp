#include "model_files/stored_codes.h"

namespace outrider {

int64_t count_groups(WeightType type, const std::vector<int64_t>& leaf_ends, size_t leaves) {
  int64_t groups = 0, begin = 0;
  for (size_t i = 0; i < leaves; ++i) {
    groups += (leaf_ends[i] - begin + group_columns(type) - 1) / group_columns(type);
    begin = leaf_ends[i];
  }
  return groups;
}

}  // namespace outrider
