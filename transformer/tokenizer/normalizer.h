// Text to text, before words are cut: Unicode normal forms, SentencePiece's "▁" for spaces.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

class JsonView;

class Normalizer {
 public:
  using Step = std::function<Result<std::string>(std::string)>;
  // From the "normalizer" of a tokenizer.json. Unknown types are refused by name.
  static Result<Normalizer> from_json(const JsonView& json);

  void add(Step step) { steps_.push_back(std::move(step)); }
  Result<std::string> apply(std::string text) const;

 private:
  Status add_from_json(const JsonView& json);
  std::vector<Step> steps_;
};

Normalizer::Step normalize_nfc();
Normalizer::Step prepend(std::string prefix);  // to texts that are not empty
Normalizer::Step replace_text(std::string from, std::string to);

std::string replace_all(const std::string& text, const std::string& from, const std::string& to);

}  // namespace outrider
