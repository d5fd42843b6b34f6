// Tokens of numbers, for tests of drafters.
#pragma once

#include <initializer_list>
#include <vector>

#include "base/types.h"

namespace outrider {

inline std::vector<TokenId> ids_of(std::initializer_list<int> values) {
  std::vector<TokenId> ids;
  for (int v : values) ids.emplace_back(v);
  return ids;
}

}  // namespace outrider
