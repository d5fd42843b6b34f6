// The grammar of texts that are one of a few: all ways to spell them with the vocabulary's tokens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/token_table.h"

namespace outrider {

constexpr size_t kMaxChoices = 1024;
constexpr size_t kMaxChoiceBytes = size_t{64} << 10;  // of all choices together

// An error says which choice is empty or cannot be spelled, or which limit was passed.
Result<std::shared_ptr<const Grammar>> make_choice_grammar(std::shared_ptr<const TokenTable> tokens,
                                                           std::vector<std::string> choices);

}  // namespace outrider
