#include "text/tokenizer/pretokenizer.h"

#include "base/regex.h"
#include "base/utf8.h"
#include "text/tokenizer/json_view.h"
#include "text/tokenizer/normalizer.h"

namespace outrider {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// How the delimiters at which a word is split are kept.
enum class Delimiter { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

struct Part {
  TextRange range;
  bool is_delimiter;
};
using FindDelimiters = std::function<Result<std::vector<TextRange>>(std::string_view)>;

std::vector<Part> cover(size_t size, const std::vector<TextRange>& delimiters, bool invert) {
  std::vector<Part> parts;
  size_t at = 0;
  for (const TextRange delimiter : delimiters) {
    if (delimiter.begin > at) parts.push_back({{at, delimiter.begin}, invert});
    parts.push_back({delimiter, !invert});
    at = delimiter.end;
  }
  if (at < size) parts.push_back({{at, size}, invert});
  return parts;
}

// Whether part i starts a new word rather than continuing that of part i - 1.
bool starts_word(const std::vector<Part>& parts, size_t i, Delimiter behavior) {
  if (i == 0) return true;
  const bool is = parts[i].is_delimiter, was = parts[i - 1].is_delimiter;
  switch (behavior) {
    case Delimiter::kContiguous:
      return is != was;
    case Delimiter::kMergedWithPrevious:
      return !(is && !was);
    case Delimiter::kMergedWithNext:
      return !(was && !is);
    default:
      return true;
  }
}

void append_parts(std::string_view word, const std::vector<Part>& parts, Delimiter behavior, Words& out) {
  TextRange current;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (behavior == Delimiter::kRemoved && parts[i].is_delimiter) continue;
    if (starts_word(parts, i, behavior)) {
      out.append(word.substr(current.begin, current.end - current.begin));
      current.begin = parts[i].range.begin;
    }
    current.end = parts[i].range.end;
  }
  out.append(word.substr(current.begin, current.end - current.begin));
}

PreTokenizer::Step split_step(FindDelimiters find, Delimiter behavior, bool invert) {
  return [=](Words& words) -> Status {
    Words out = words.like();
    out.text.reserve(words.text.size());
    Status status;
    words.for_each([&](std::string_view word) {
      if (!status.ok()) return;
      const auto delimiters = find(word);
      if (!delimiters.ok())
        status = delimiters.status();
      else
        append_parts(word, cover(word.size(), *delimiters, invert), behavior, out);
    });
    words = std::move(out);
    return status;
  };
}

FindDelimiters find_literal(std::string literal) {
  return [literal = std::move(literal)](std::string_view text) -> Result<std::vector<TextRange>> {
    std::vector<TextRange> hits;
    for (size_t at = 0; (at = text.find(literal, at)) != std::string_view::npos; at += literal.size())
      hits.push_back({at, at + literal.size()});
    return hits;
  };
}

FindDelimiters find_regex(Regex regex) {
  return [regex = std::move(regex)](std::string_view text) { return regex.find_all(text); };
}

FindDelimiters find_numerals() {
  return [](std::string_view text) -> Result<std::vector<TextRange>> {
    std::vector<TextRange> hits;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      if (is_numeric(next_codepoint(text, at))) hits.push_back({begin, at});
    }
    return hits;
  };
}

PreTokenizer::Step regex_step(const char* known_pattern) {
  auto regex = Regex::compile(known_pattern);
  CHECK(regex.ok(), "{}", regex.status().message());
  return split_step(find_regex(std::move(*regex)), Delimiter::kIsolated, /*invert=*/false);
}

// Puts `prefix` before every word, or only before a word that begins the input.
PreTokenizer::Step prefix_step(std::string prefix, bool only_at_input) {
  return [=](Words& words) -> Status {
    Words out = words.like();
    bool is_first = true;
    words.for_each([&](std::string_view word) {
      const bool applies = !only_at_input || (is_first && words.begins_input);
      is_first = false;
      if (out.text.size() > words.most_bytes) return;
      out.append(applies && !word.starts_with(prefix) ? prefix + std::string(word) : std::string(word));
    });
    words = std::move(out);
    return {};
  };
}

PreTokenizer::Step replace_spaces_step(std::string replacement) {
  return [=](Words& words) -> Status {
    Words out = words.like();
    Status status;
    words.for_each([&](std::string_view word) {
      if (!status.ok()) return;
      const auto replaced = replace_all(word, " ", replacement, words.most_bytes - out.text.size());
      replaced.ok() ? out.append(*replaced) : void(status = replaced.status());
    });
    words = std::move(out);
    return status;
  };
}

Result<Delimiter> delimiter_from_json(const JsonView& json) {
  ASSIGN_OR_RETURN(const std::string name, json.string());
  if (name == "Isolated") return Delimiter::kIsolated;
  if (name == "Removed") return Delimiter::kRemoved;
  if (name == "Contiguous") return Delimiter::kContiguous;
  if (name == "MergedWithPrevious") return Delimiter::kMergedWithPrevious;
  if (name == "MergedWithNext") return Delimiter::kMergedWithNext;
  return json.unsupported(fmt::format("split behavior '{}' is not supported", name));
}

}  // namespace

PreTokenizer PreTokenizer::byte_level(const char* pattern) {
  PreTokenizer result;
  result.steps_.push_back(regex_step(pattern));
  result.byte_level_ = true;
  return result;
}

Status PreTokenizer::split(Words& words) const {
  words.most_bytes = most_bytes_of(words.text.size());
  for (const Step& step : steps_) {
    RETURN_IF_ERROR(step(words));
    if (words.text.size() > words.most_bytes) return grows_too_long("pre_tokenizer");
  }
  return {};
}

Result<PreTokenizer> PreTokenizer::from_json(const JsonView& json) {
  PreTokenizer result;
  if (json.present()) RETURN_IF_ERROR(result.add_from_json(json));
  return result;
}

Status PreTokenizer::add_from_json(const JsonView& json) {
  ASSIGN_OR_RETURN(const std::string type, json["type"].string());
  if (byte_level_) return json.unsupported(fmt::format("pre-tokenizer '{}' after ByteLevel", type));
  if (type == "Sequence") {
    RETURN_IF_ERROR(json["pretokenizers"].require_array());
    for (size_t i = 0; i < json["pretokenizers"].size(); ++i)
      RETURN_IF_ERROR(add_from_json(json["pretokenizers"].at(i)));
    return {};
  }
  if (type == "ByteLevel") return add_byte_level(json);
  if (type == "Split") return add_split(json);
  if (type == "Metaspace") return add_metaspace(json);
  if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool individual, json["individual_digits"].boolean(false));
    const Delimiter behavior = individual ? Delimiter::kIsolated : Delimiter::kContiguous;
    steps_.push_back(split_step(find_numerals(), behavior, /*invert=*/false));
    return {};
  }
  return json.unsupported(fmt::format("pre-tokenizer type '{}' is not supported", type));
}

Status PreTokenizer::add_byte_level(const JsonView& json) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, json["add_prefix_space"].boolean(true));
  ASSIGN_OR_RETURN(const bool use_regex, json["use_regex"].boolean(true));
  if (add_prefix_space) steps_.push_back(prefix_step(" ", /*only_at_input=*/false));
  if (use_regex) steps_.push_back(regex_step(kGpt2Pattern));
  byte_level_ = true;
  return {};
}

Status PreTokenizer::add_split(const JsonView& json) {
  ASSIGN_OR_RETURN(const Delimiter behavior, delimiter_from_json(json["behavior"]));
  ASSIGN_OR_RETURN(const bool invert, json["invert"].boolean(false));
  const JsonView pattern = json["pattern"];
  if (pattern["String"].present()) {
    ASSIGN_OR_RETURN(std::string literal, pattern["String"].string());
    if (literal.empty()) return pattern["String"].malformed("must not be empty");
    steps_.push_back(split_step(find_literal(std::move(literal)), behavior, invert));
    return {};
  }
  ASSIGN_OR_RETURN(const std::string source, pattern["Regex"].string());
  auto regex = Regex::compile(source);
  if (!regex.ok()) {
    const std::string message = regex.status().message();
    return regex.status().code() == StatusCode::kUnsupported ? pattern["Regex"].unsupported(message)
                                                             : pattern["Regex"].malformed(message);
  }
  steps_.push_back(split_step(find_regex(std::move(*regex)), behavior, invert));
  return {};
}

Status PreTokenizer::add_metaspace(const JsonView& json) {
  ASSIGN_OR_RETURN(const std::string replacement, json["replacement"].string());
  if (replacement.empty()) return json["replacement"].malformed("must not be empty");
  ASSIGN_OR_RETURN(const bool split, json["split"].boolean(true));
  std::string scheme = "always";
  if (json["prepend_scheme"].present()) {
    ASSIGN_OR_RETURN(scheme, json["prepend_scheme"].string());
  } else {  // files of before tokenizers 0.15
    ASSIGN_OR_RETURN(const bool add_prefix_space, json["add_prefix_space"].boolean(true));
    if (!add_prefix_space) scheme = "never";
  }
  steps_.push_back(replace_spaces_step(replacement));
  if (scheme == "always" || scheme == "first")
    steps_.push_back(prefix_step(replacement, /*only_at_input=*/scheme == "first"));
  else if (scheme != "never")
    return json["prepend_scheme"].unsupported(fmt::format("prepend scheme '{}' is not supported", scheme));
  if (split)
    steps_.push_back(split_step(find_literal(replacement), Delimiter::kMergedWithNext, /*invert=*/false));
  return {};
}

}  // namespace outrider
