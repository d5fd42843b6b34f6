// The part of a SentencePiece model file (protobuf, sentencepiece_model.proto) that BPE needs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace outrider {

struct SentencePieceModel {
  // Numbers of the format.
  enum class Type : uint8_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };
  std::vector<Piece> pieces;  // by id; an unused one without text stands for no token
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  // User-defined pieces are sought in the text as given, like special ones, and not once spaces are "▁".
  bool user_defined_in_text = false;
};

// Refuses by name what is not BPE: unigram, word and char models, character maps, whitespace as suffix.
Result<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes);

}  // namespace outrider
