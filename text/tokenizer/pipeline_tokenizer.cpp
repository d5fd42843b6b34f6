#include "text/tokenizer/pipeline_tokenizer.h"

#include <utility>

#include "base/utf8.h"

namespace outrider {
namespace {

// Symbols are indexed with 32 bits; callers bound their texts far below this.
constexpr size_t kMaxTextBytes = 256u << 20;

class PipelineTokenizer : public Tokenizer {
 public:
  // `bytes`: by id.
  PipelineTokenizer(TokenizerParts parts, std::vector<std::string> bytes)
      : parts_(std::move(parts)), bytes_(std::move(bytes)) {
    for (const AddedToken& token : parts_.added_tokens)
      (token.normalized ? in_normalized_ : in_text_).add(token);
    fingerprint_ = parts_.vocabulary.fingerprint();
  }

  Result<std::vector<TokenId>> encode(std::string_view text, SpecialTokens special) const override {
    if (const auto offset = find_invalid_utf8(text))
      return invalid_argument(fmt::format("the text is not valid UTF-8 at byte {}", *offset));
    if (text.size() > kMaxTextBytes) return invalid_argument(fmt::format("a text of {} bytes", text.size()));
    std::vector<TokenId> ids;
    if (special == SpecialTokens::kAdd) ids = parts_.prefix;
    MergeList scratch;
    for (const Segment& segment : in_text_.split(text)) {
      if (segment.token)
        ids.push_back(*segment.token);
      else
        RETURN_IF_ERROR(encode_between(text.substr(segment.begin, segment.end - segment.begin),
                                       /*begins_input=*/segment.begin == 0, scratch, ids));
    }
    if (special == SpecialTokens::kAdd) ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
    return ids;
  }

  std::string decode(std::span<const TokenId> ids) const override {
    StreamDecoder decoder(*this);
    std::string text;
    for (const TokenId id : ids) text += decoder.append(id);
    return text + decoder.flush();
  }

  int32_t vocab_size() const override { return parts_.vocabulary.size(); }
  std::string_view token(TokenId id) const override { return parts_.vocabulary.token(id); }
  std::string token_bytes(TokenId id) const override {
    return id.value() >= 0 && id.value() < vocab_size() ? bytes_[id.value()] : std::string();
  }
  bool is_special(TokenId id) const override { return parts_.vocabulary.is_special(id); }
  std::optional<TokenId> find(std::string_view token) const override { return parts_.vocabulary.find(token); }
  std::optional<TokenId> bos() const override {
    if (parts_.prefix.empty()) return std::nullopt;
    return parts_.prefix.front();
  }
  uint64_t fingerprint() const override { return fingerprint_; }
  bool strips_leading_space() const override { return parts_.decoder.strip_leading_space; }

 private:
  // Text that holds no added token as given; it may hold one once it is normalised.
  Status encode_between(std::string_view text, bool begins_input, MergeList& scratch,
                        std::vector<TokenId>& ids) const {
    ASSIGN_OR_RETURN(const std::string normalized, parts_.normalizer.apply(std::string(text)));
    for (const Segment& segment : in_normalized_.split(normalized)) {
      if (segment.token) {
        ids.push_back(*segment.token);
        continue;
      }
      Words words;
      words.begins_input = begins_input && segment.begin == 0;
      words.append(std::string_view(normalized).substr(segment.begin, segment.end - segment.begin));
      RETURN_IF_ERROR(parts_.pre_tokenizer.split(words));
      words.for_each([&](std::string_view word) { parts_.model->encode(word, scratch, ids); });
    }
    return {};
  }

  TokenizerParts parts_;
  AddedTokenFinder in_text_, in_normalized_;
  const std::vector<std::string> bytes_;  // by id
  uint64_t fingerprint_ = 0;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_pipeline_tokenizer(TokenizerParts parts) {
  std::vector<std::string> bytes(static_cast<size_t>(parts.vocabulary.size()));
  for (int32_t id = 0; id < parts.vocabulary.size(); ++id) {
    if (parts.vocabulary.is_special(TokenId(id))) continue;
    ASSIGN_OR_RETURN(bytes[static_cast<size_t>(id)],
                     parts.decoder.bytes(parts.vocabulary.token(TokenId(id))));
  }
  return std::unique_ptr<Tokenizer>(std::make_unique<PipelineTokenizer>(std::move(parts), std::move(bytes)));
}

}  // namespace outrider
