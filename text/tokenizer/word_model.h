// The part of a tokenizer that turns one word of prepared text into ids.
#pragma once

#include <string_view>
#include <vector>

#include "base/types.h"
#include "text/tokenizer/merge_list.h"

namespace outrider {

class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the word's ids. `scratch` belongs to the caller, so that models stay constant and shareable.
  virtual void encode(std::string_view word, MergeList& scratch, std::vector<TokenId>& ids) const = 0;
};

}  // namespace outrider
