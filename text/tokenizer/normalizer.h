// Text to text, before words are cut: Unicode normal forms, SentencePiece's "▁" for spaces.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace outrider {

class JsonView;

// Limit of a text's size after the steps of a tokenizer. A space becomes three bytes, a ligature eighteen; a
// file whose steps double the text forty times is wrong, or hostile.
constexpr size_t most_bytes_of(size_t text_bytes) { return 64 * text_bytes + (size_t{64} << 10); }
Status grows_too_long(std::string_view what);  // `what`: the place in the file

class Normalizer {
 public:
  // An error where the text would get longer than `most_bytes`.
  using Step = std::function<Result<std::string>(std::string, size_t most_bytes)>;
  // From the "normalizer" of a tokenizer.json. Unknown types are refused by name.
  static Result<Normalizer> from_json(const JsonView& json);

  void add(Step step) { steps_.push_back(std::move(step)); }
  // An error where the text gets longer than most_bytes_of().
  Result<std::string> apply(std::string text) const;

 private:
  Status add_from_json(const JsonView& json);
  std::vector<Step> steps_;
};

Normalizer::Step normalize_nfc();
Normalizer::Step prepend(std::string prefix);  // to texts that are not empty
Normalizer::Step replace_text(std::string from, std::string to);

// An error: the result has more than `most_bytes`.
Result<std::string> replace_all(std::string_view text, std::string_view from, std::string_view to,
                                size_t most_bytes);

}  // namespace outrider
