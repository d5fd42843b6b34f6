#include "text/tokenizer/normalizer.h"

#include "base/regex.h"
#include "base/utf8.h"
#include "text/tokenizer/json_view.h"

namespace outrider {
namespace {

Normalizer::Step unicode_step(NormalForm form) {
  return [form](std::string text, size_t) -> Result<std::string> { return normalize(text, form); };
}

Normalizer::Step replace_matches(Regex pattern, std::string to) {
  return [pattern = std::move(pattern), to = std::move(to)](std::string text,
                                                            size_t most_bytes) -> Result<std::string> {
    ASSIGN_OR_RETURN(const auto matches, pattern.find_all(text));
    if (!to.empty() && matches.size() > most_bytes / to.size()) return grows_too_long("normalizer");
    std::string out;
    size_t at = 0;
    for (const TextRange match : matches) {
      out.append(text, at, match.begin - at).append(to);
      at = match.end;
    }
    return out.append(text, at);
  };
}

Normalizer::Step strip(bool left, bool right) {
  return [=](std::string text, size_t) -> Result<std::string> {
    size_t begin = 0, end = text.size();
    for (size_t at = 0; left && at < text.size(); begin = at)
      if (!is_whitespace(next_codepoint(text, at))) break;
    while (right && end > begin) {
      const size_t last = previous_boundary(text, end);
      size_t at = last;
      if (!is_whitespace(next_codepoint(text, at))) break;
      end = last;
    }
    return text.substr(begin, end - begin);
  };
}

Result<Normalizer::Step> replace_from_json(const JsonView& json) {
  ASSIGN_OR_RETURN(std::string to, json["content"].string());
  const JsonView pattern = json["pattern"];
  if (pattern["String"].present()) {
    ASSIGN_OR_RETURN(std::string from, pattern["String"].string());
    if (from.empty()) return pattern["String"].malformed("must not be empty");
    return replace_text(std::move(from), std::move(to));
  }
  ASSIGN_OR_RETURN(const std::string source, pattern["Regex"].string());
  auto regex = Regex::compile(source);
  if (!regex.ok())
    return Status(regex.status().code(), pattern["Regex"].malformed(regex.status().message()).message());
  return replace_matches(std::move(*regex), std::move(to));
}

}  // namespace

Status grows_too_long(std::string_view what) {
  return unsupported(
      fmt::format("the tokenizer's {} makes a text over 64 times as long; mend its file", what));
}

Result<std::string> replace_all(std::string_view text, std::string_view from, std::string_view to,
                                size_t most_bytes) {
  std::string out;
  size_t at = 0;
  for (size_t hit; (hit = text.find(from, at)) != std::string_view::npos; at = hit + from.size()) {
    out.append(text.substr(at, hit - at)).append(to);
    if (out.size() > most_bytes) return grows_too_long("replacements");
  }
  return out.append(text.substr(at));
}

Normalizer::Step normalize_nfc() { return unicode_step(NormalForm::kNfc); }

Normalizer::Step prepend(std::string prefix) {
  return [prefix = std::move(prefix)](std::string text, size_t) -> Result<std::string> {
    return text.empty() ? text : prefix + text;
  };
}

Normalizer::Step replace_text(std::string from, std::string to) {
  return [from = std::move(from), to = std::move(to)](std::string text,
                                                      size_t most_bytes) -> Result<std::string> {
    return replace_all(text, from, to, most_bytes);
  };
}

Result<std::string> Normalizer::apply(std::string text) const {
  const size_t most_bytes = most_bytes_of(text.size());
  for (const Step& step : steps_) {
    ASSIGN_OR_RETURN(text, step(std::move(text), most_bytes));
    if (text.size() > most_bytes) return grows_too_long("normalizer");
  }
  return text;
}

Result<Normalizer> Normalizer::from_json(const JsonView& json) {
  Normalizer normalizer;
  if (json.present()) RETURN_IF_ERROR(normalizer.add_from_json(json));
  return normalizer;
}

Status Normalizer::add_from_json(const JsonView& json) {
  ASSIGN_OR_RETURN(const std::string type, json["type"].string());
  if (type == "Sequence") {
    RETURN_IF_ERROR(json["normalizers"].require_array());
    for (size_t i = 0; i < json["normalizers"].size(); ++i)
      RETURN_IF_ERROR(add_from_json(json["normalizers"].at(i)));
  } else if (type == "NFC") {
    add(unicode_step(NormalForm::kNfc));
  } else if (type == "NFD") {
    add(unicode_step(NormalForm::kNfd));
  } else if (type == "NFKC") {
    add(unicode_step(NormalForm::kNfkc));
  } else if (type == "NFKD") {
    add(unicode_step(NormalForm::kNfkd));
  } else if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string prefix, json["prepend"].string());
    add(prepend(std::move(prefix)));
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(Step step, replace_from_json(json));
    add(std::move(step));
  } else if (type == "Strip") {
    ASSIGN_OR_RETURN(const bool left, json["strip_left"].boolean(true));
    ASSIGN_OR_RETURN(const bool right, json["strip_right"].boolean(true));
    add(strip(left, right));
  } else {
    return json.unsupported(fmt::format("normalizer type '{}' is not supported", type));
  }
  return {};
}

}  // namespace outrider
