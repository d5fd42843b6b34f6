// Cuts normalised text into the words that BPE may not merge across.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace outrider {

class JsonView;
class Regex;

// Consecutive words in one buffer; word i is text[ends[i-1], ends[i]).
struct Words {
  std::string text;
  std::vector<size_t> ends;
  bool begins_input = false;     // the first word starts at byte 0 of what the caller gave to encode()
  size_t most_bytes = SIZE_MAX;  // that it may get

  // Empty, with the same limits.
  Words like() const {
    Words words;
    words.begins_input = begins_input;
    words.most_bytes = most_bytes;
    return words;
  }

  void append(std::string_view word) {
    if (word.empty()) return;
    text += word;
    ends.push_back(text.size());
  }
  template <class Visit>
  void for_each(Visit visit) const {
    size_t begin = 0;
    for (const size_t end : ends) {
      visit(std::string_view(text).substr(begin, end - begin));
      begin = end;
    }
  }
};

// The regular expressions of the families; GPT-2's is also what ByteLevel with use_regex means.
extern const char* const kGpt2Pattern;
extern const char* const kQwen2Pattern;

class PreTokenizer {
 public:
  using Step = std::function<Status(Words&)>;
  // From the "pre_tokenizer" of a tokenizer.json. Unknown types are refused by name.
  static Result<PreTokenizer> from_json(const JsonView& json);
  // Words of `pattern`, then bytes.
  static PreTokenizer byte_level(const char* pattern);

  Status split(Words& words) const;
  bool is_byte_level() const { return byte_level_; }  // the model's symbols are bytes

 private:
  Status add_from_json(const JsonView& json);
  Status add_byte_level(const JsonView& json);
  Status add_split(const JsonView& json);
  Status add_metaspace(const JsonView& json);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace outrider
