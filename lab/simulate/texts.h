// Runs given texts through drafters that use only the text: the drafts, and the number of target passes that
// would have written the text. Such a draft depends only on the text before it, so under a match rule this
// equals a run of the model that wrote the text, at the same lengths.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "draft_worker/text/text_drafter.h"
#include "lab/simulate/row_costs.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

struct WrittenText {
  std::vector<TokenId> prompt, output;
};

// JSON lines, each with a prompt and what followed it: {"prompt", "output"}, {"prompt", "completion"},
// HumanEval's
// {"prompt", "canonical_solution"} or GSM8K's {"question", "answer"}; other keys are passed over. At most
// `limit` lines, `max_tokens` tokens of each output. An error names file and line.
Result<std::vector<WrittenText>> read_written_texts(const std::string& file, const Tokenizer& tokenizer,
                                                    int64_t limit, int64_t max_tokens);

struct TextDraftShape {
  int32_t gamma = 4;     // tokens of a path
  int32_t nodes = 0;     // of a tree; 0: chains
  bool by_cost = false;  // a chain ends where its rows stop paying, as the default policy lets suffixes do
};

// Sums over all passes except the prefill, which yields each output's first token.
struct TextDraftFigures {
  int64_t tokens = 0, passes = 0, drafted = 0, accepted = 0;
  double cost = 0;  // in passes of one row

  double acceptance() const {
    return drafted > 0 ? static_cast<double>(accepted) / static_cast<double>(drafted) : 0;
  }
  double tokens_per_round() const {
    return passes > 0 ? static_cast<double>(tokens) / static_cast<double>(passes) : 0;
  }
  double drafted_per_pass() const {
    return passes > 0 ? static_cast<double>(drafted) / static_cast<double>(passes) : 0;
  }
  double speedup() const { return cost > 0 ? static_cast<double>(tokens) / cost : 0; }
};

// The texts one after the other, so that a guesser which remembers may use those in front.
TextDraftFigures replay_texts(TextGuesser& guesser, std::span<const WrittenText> texts,
                              const TextDraftShape& shape, const RowCosts& costs);

}  // namespace outrider
