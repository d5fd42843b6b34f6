#include "text/tokenizer/sentencepiece_model.h"

#include <bit>
#include <functional>
#include <optional>

#include "base/utf8.h"
#include "text/tokenizer/vocabulary.h"

namespace outrider {
namespace {

// One field of a protobuf message (protobuf.dev/programming-guides/encoding).
struct Field {
  uint32_t number = 0;
  uint64_t scalar = 0;     // varint, fixed32 or fixed64
  std::string_view bytes;  // length-delimited
};

// Reads fields one after the other; never past the end of the message.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}
  bool done() const { return rest_.empty(); }

  Result<Field> next() {
    Field field;
    ASSIGN_OR_RETURN(const uint64_t key, varint());
    if (key >> 3 == 0 || key >> 3 > 0x1FFFFFFF) return malformed("protobuf: field number out of range");
    field.number = static_cast<uint32_t>(key >> 3);
    switch (key & 7) {
      case 0: {
        ASSIGN_OR_RETURN(field.scalar, varint());
        return field;
      }
      case 1: {
        ASSIGN_OR_RETURN(field.scalar, fixed(8));
        return field;
      }
      case 5: {
        ASSIGN_OR_RETURN(field.scalar, fixed(4));
        return field;
      }
      case 2: {
        ASSIGN_OR_RETURN(const uint64_t length, varint());
        if (length > rest_.size()) return malformed("protobuf: a field is longer than its message");
        field.bytes = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return field;
      }
      default:
        return malformed(fmt::format("protobuf: wire type {}", key & 7));
    }
  }

 private:
  Result<uint64_t> varint() {
    uint64_t value = 0;
    for (size_t i = 0; i < rest_.size() && i < 10; ++i) {
      const auto byte = static_cast<uint8_t>(rest_[i]);
      value |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);
      if (byte < 0x80) {
        rest_.remove_prefix(i + 1);
        return value;
      }
    }
    return malformed("protobuf: a number is cut short");
  }

  Result<uint64_t> fixed(size_t size) {
    if (size > rest_.size()) return malformed("protobuf: a number is cut short");
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i)
      value |= static_cast<uint64_t>(static_cast<uint8_t>(rest_[i])) << (8 * i);
    rest_.remove_prefix(size);
    return value;
  }

  std::string_view rest_;
};

Status for_each_field(std::string_view message, const std::function<Status(const Field&)>& visit) {
  for (FieldReader reader(message); !reader.done();) {
    ASSIGN_OR_RETURN(const Field field, reader.next());
    RETURN_IF_ERROR(visit(field));
  }
  return {};
}

// message SentencePiece { piece = 1; score = 2; type = 3; }
Status read_piece(std::string_view message, SentencePieceModel& model) {
  SentencePieceModel::Piece piece;
  RETURN_IF_ERROR(for_each_field(message, [&](const Field& field) -> Status {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2) piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.scalar));
    if (field.number == 3) {
      if (field.scalar < 1 || field.scalar > 6) return malformed(fmt::format("type {}", field.scalar));
      piece.type = static_cast<SentencePieceModel::Type>(field.scalar);
    }
    return {};
  }));
  if (piece.text.empty() || find_invalid_utf8(piece.text)) return malformed("the text is empty or not UTF-8");
  if (!(piece.score - piece.score == 0)) return malformed("the score is not a finite number");
  if (piece.type == SentencePieceModel::Type::kUnused) return unsupported("pieces of type UNUSED");
  model.pieces.push_back(std::move(piece));
  return {};
}

// message TrainerSpec { model_type = 3; treat_whitespace_as_suffix = 24; byte_fallback = 35; }
Status read_trainer_spec(std::string_view message, SentencePieceModel& model) {
  uint64_t model_type = 1;  // the default of the format is unigram
  RETURN_IF_ERROR(for_each_field(message, [&](const Field& field) -> Status {
    if (field.number == 3) model_type = field.scalar;
    if (field.number == 35) model.byte_fallback = field.scalar != 0;
    if (field.number == 24 && field.scalar != 0)
      return unsupported("trainer_spec.treat_whitespace_as_suffix");
    return {};
  }));
  constexpr const char* kNames[] = {"", "unigram", "bpe", "word", "char"};
  if (model_type == 2) return {};
  return unsupported(fmt::format("trainer_spec.model_type {} is not supported, only bpe",
                                 model_type <= 4 ? kNames[model_type] : std::to_string(model_type)));
}

// message NormalizerSpec { precompiled_charsmap = 2; add_dummy_prefix = 3; remove_extra_whitespaces = 4;
//                          escape_whitespaces = 5; }
Status read_normalizer_spec(std::string_view message, SentencePieceModel& model) {
  return for_each_field(message, [&](const Field& field) -> Status {
    if (field.number == 2 && !field.bytes.empty())
      return unsupported("normalizer_spec.precompiled_charsmap (only the identity normaliser is supported)");
    if (field.number == 3) model.add_dummy_prefix = field.scalar != 0;
    if (field.number == 4) model.remove_extra_whitespaces = field.scalar != 0;
    if (field.number == 5 && field.scalar == 0)
      return unsupported("normalizer_spec.escape_whitespaces = false");
    return {};
  });
}

}  // namespace

// message ModelProto { pieces = 1; trainer_spec = 2; normalizer_spec = 3; }
Result<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes) {
  SentencePieceModel model;
  bool has_trainer_spec = false;
  RETURN_IF_ERROR(for_each_field(bytes, [&](const Field& field) -> Status {
    if (field.number == 1) {
      if (model.pieces.size() > Vocabulary::kMaxId) return malformed("too many pieces");
      return read_piece(field.bytes, model).in(fmt::format("piece {}", model.pieces.size()));
    }
    if (field.number == 3) return read_normalizer_spec(field.bytes, model);
    if (field.number != 2) return {};
    has_trainer_spec = true;
    return read_trainer_spec(field.bytes, model);
  }));
  if (model.pieces.empty()) return malformed("not a SentencePiece model: it has no pieces");
  if (!has_trainer_spec) return malformed("not a SentencePiece model: it has no trainer_spec");
  return model;
}

}  // namespace outrider
