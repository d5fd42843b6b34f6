#include "model_files/published_codes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model_files/weight_sources.h"

namespace outrider {
namespace {

constexpr std::initializer_list<Dtype> kScaleTypes{Dtype::kF16, Dtype::kBF16, Dtype::kF32};

uint32_t word_at(const TensorInfo& tensor, int64_t index) {
  uint32_t word;
  std::memcpy(&word, tensor.data.data() + index * 4, sizeof word);
  return word;
}

uint8_t byte_at(const TensorInfo& tensor, int64_t index) {
  return static_cast<uint8_t>(tensor.data[static_cast<size_t>(index)]);
}

ScaleType scale_type_of(const TensorInfo& scales) {
  return scales.dtype == Dtype::kF16    ? ScaleType::kFloat16
         : scales.dtype == Dtype::kBF16 ? ScaleType::kBFloat16
                                        : ScaleType::kFloat32;
}

// The group of every column, where columns are not grouped with their neighbours; else nothing.
Result<std::vector<int32_t>> read_order(const TensorFiles& files, const TensorInfo& order, int64_t group,
                                        int64_t groups) {
  std::vector<int32_t> out(order.data.size() / 4);
  std::memcpy(out.data(), order.data.data(), order.data.size());
  bool is_plain = true, is_unset = true;
  for (size_t i = 0; i < out.size(); ++i) {
    is_plain &= out[i] == static_cast<int64_t>(i) / group;
    is_unset &= out[i] == -1;  // as compressed-tensors writes it where there is no order
  }
  if (is_plain || is_unset) return std::vector<int32_t>();
  for (const int32_t g : out)
    if (g < 0 || g >= groups)
      return malformed(fmt::format("{}: {} names group {}, but there are {}", files.file_of(order.name),
                                   order.name, g, groups));
  return out;
}

// Codes and zeros in 32-bit words, as GPTQ and AWQ have them: both along the outputs, or codes along the
// inputs.
class WordCodes final : public CodedMatrix {
 public:
  struct Tensors {
    const TensorInfo *codes, *zeros, *scales;
  };
  enum class Words { kGptq, kGptqLessOne, kAwq };

  WordCodes(std::string name, QuantScheme scheme, int64_t n, int64_t k, Tensors t, Words words,
            const TensorInfo* order_tensor, std::vector<int32_t> order)
      : CodedMatrix(std::move(name), scheme, n, k, tensors_of(t, order_tensor)),
        t_(t),
        words_(words),
        bits_(static_cast<int>(code_bits(scheme.code))),
        per_word_(32 / bits_) {
    order_ = std::move(order);
  }

  void read_codes(int64_t row, int64_t begin, std::span<uint8_t> to) const override {
    const auto mask = (1u << bits_) - 1;
    if (words_ == Words::kAwq) {
      const int shift = shift_of(row);
      for (size_t i = 0; i < to.size(); ++i)
        to[i] = static_cast<uint8_t>(
            word_at(*t_.codes, (begin + static_cast<int64_t>(i)) * (n_ / per_word_) + row / per_word_) >>
                shift &
            mask);
      return;
    }
    for (size_t i = 0; i < to.size();) {
      const int64_t column = begin + static_cast<int64_t>(i);
      uint32_t word = word_at(*t_.codes, column / per_word_ * n_ + row) >> column % per_word_ * bits_;
      const size_t end = std::min(to.size(), i + static_cast<size_t>(per_word_ - column % per_word_));
      for (; i < end; ++i, word >>= bits_) to[i] = static_cast<uint8_t>(word & mask);
    }
  }

  GroupNumbers group(int64_t row, int64_t group) const override {
    uint32_t zeros = word_at(*t_.zeros, group * (n_ / per_word_) + row / per_word_);
    // Whole words, as current writers take one away: a zero of 0 borrows from its neighbour.
    if (words_ == Words::kGptqLessOne) zeros += bits_ == 4 ? 0x11111111u : 0x01010101u;
    return {.scale = tensor_element(*t_.scales, group * n_ + row),
            .zero = static_cast<int32_t>(zeros >> shift_of(row) & ((1u << bits_) - 1))};
  }

 private:
  static std::vector<const TensorInfo*> tensors_of(const Tensors& t, const TensorInfo* order) {
    std::vector<const TensorInfo*> all{t.codes, t.zeros, t.scales};
    if (order) all.push_back(order);
    return all;
  }
  // Bit offset of an output's code within its packed word.
  int shift_of(int64_t row) const {
    constexpr int kPlace[]{0, 4, 1, 5, 2, 6, 3, 7};  // the inverse of 0 2 4 6 1 3 5 7
    const auto at = static_cast<int>(row % per_word_);
    return (words_ == Words::kAwq ? kPlace[at] : at) * bits_;
  }

  Tensors t_;
  Words words_;
  int bits_;
  int64_t per_word_;
};

// Codes of a row side by side, in words or bytes, with one scale for `scale_rows` rows and a group of
// columns.
class RowCodes final : public CodedMatrix {
 public:
  struct Parts {
    const TensorInfo* codes = nullptr;
    bool in_words = false;  // low bits first; else a code a byte
    uint8_t flip = 0;       // 0x80: signed bytes
    const TensorInfo* scales = nullptr;
    int64_t scale_rows = 1, scale_columns = 1;  // rows that share a scale, scales of a row
    const TensorInfo* zeros = nullptr;          // with ZeroType::kStored
    bool zeros_in_words = false;                // packed along the rows
    const TensorInfo* order = nullptr;
  };

  RowCodes(std::string name, QuantScheme scheme, int64_t n, int64_t k, const Parts& p,
           std::vector<int32_t> order)
      : CodedMatrix(std::move(name), scheme, n, k, tensors_of(p)), p_(p) {
    order_ = std::move(order);
  }

  void read_codes(int64_t row, int64_t begin, std::span<uint8_t> to) const override {
    if (!p_.in_words) {
      const int64_t first = row * k_ + begin;
      for (size_t i = 0; i < to.size(); ++i)
        to[i] = static_cast<uint8_t>(byte_at(*p_.codes, first + static_cast<int64_t>(i)) ^ p_.flip);
      return;
    }
    const int64_t bits = code_bits(scheme_.code), per_word = 32 / bits,
                  words = (k_ + per_word - 1) / per_word;
    for (size_t i = 0; i < to.size(); ++i) {
      const int64_t column = begin + static_cast<int64_t>(i);
      to[i] = static_cast<uint8_t>(word_at(*p_.codes, row * words + column / per_word) >>
                                       static_cast<uint32_t>(column % per_word * bits) &
                                   ((1u << bits) - 1));
    }
  }

  GroupNumbers group(int64_t row, int64_t group) const override {
    GroupNumbers numbers{.scale = tensor_element(*p_.scales, row / p_.scale_rows * p_.scale_columns + group),
                         .zero = scheme_.zero};
    if (p_.zeros && p_.zeros_in_words) {
      const int64_t bits = code_bits(scheme_.code), per_word = 32 / bits;
      numbers.zero = static_cast<int32_t>(word_at(*p_.zeros, row / per_word * groups_ + group) >>
                                              static_cast<uint32_t>(row % per_word * bits) &
                                          ((1u << bits) - 1));
    } else if (p_.zeros) {
      numbers.zero = byte_at(*p_.zeros, row * groups_ + group) ^ p_.flip;
    }
    return numbers;
  }

 private:
  static std::vector<const TensorInfo*> tensors_of(const Parts& p) {
    std::vector<const TensorInfo*> all{p.codes, p.scales};
    for (const TensorInfo* tensor : {p.zeros, p.order})
      if (tensor) all.push_back(tensor);
    return all;
  }

  Parts p_;
};

using Found = Result<std::shared_ptr<const CodedMatrix>>;

std::string group_text(int64_t group, int64_t k) {
  return group == k ? std::string("a scale a row") : fmt::format("groups of {}", group);
}

// Sizes in words must come out whole.
Status check_whole_words(const TensorFiles& files, const std::string& tensor, int64_t size,
                         int64_t per_word) {
  if (size % per_word == 0) return {};
  return unsupported(
      fmt::format("{}: {} packs {} values into words of {}", files.file_of(tensor), tensor, size, per_word));
}

Found find_gptq(const TensorFiles& files, const QuantizationConfig& c, const std::string& module, int64_t n,
                int64_t k) {
  const int64_t per_word = 32 / c.bits, group = c.group > 0 ? c.group : k, groups = (k + group - 1) / group;
  RETURN_IF_ERROR(check_whole_words(files, module + ".qweight", k, per_word));
  RETURN_IF_ERROR(check_whole_words(files, module + ".qzeros", n, per_word));
  WordCodes::Tensors t;
  ASSIGN_OR_RETURN(t.codes, files.require(module + ".qweight", {k / per_word, n}, {Dtype::kI32}));
  ASSIGN_OR_RETURN(t.zeros, files.require(module + ".qzeros", {groups, n / per_word}, {Dtype::kI32}));
  ASSIGN_OR_RETURN(t.scales, files.require(module + ".scales", {groups, n}, kScaleTypes));
  const TensorInfo* order_tensor = nullptr;
  std::vector<int32_t> order;
  if (files.find(module + ".g_idx")) {
    ASSIGN_OR_RETURN(order_tensor, files.require(module + ".g_idx", {k}, {Dtype::kI32}));
    ASSIGN_OR_RETURN(order, read_order(files, *order_tensor, group, groups));
  }
  const QuantScheme scheme{.code = c.bits == 4 ? CodeType::kUnsigned4 : CodeType::kUnsigned8,
                           .zero_type = ZeroType::kStored,
                           .scale = scale_type_of(*t.scales),
                           .group = group};
  std::string name =
      fmt::format("GPTQ {} bit, {}{}", c.bits, group_text(group, k), order.empty() ? "" : ", act-order");
  return Found(std::make_shared<WordCodes>(
      std::move(name), scheme, n, k, t,
      c.zero_is_less_one ? WordCodes::Words::kGptqLessOne : WordCodes::Words::kGptq, order_tensor,
      std::move(order)));
}

Found find_awq(const TensorFiles& files, const QuantizationConfig& c, const std::string& module, int64_t n,
               int64_t k) {
  constexpr int64_t kPerWord = 8;
  const int64_t group = c.group > 0 ? c.group : k, groups = (k + group - 1) / group;
  RETURN_IF_ERROR(check_whole_words(files, module + ".qweight", n, kPerWord));
  WordCodes::Tensors t;
  ASSIGN_OR_RETURN(t.codes, files.require(module + ".qweight", {k, n / kPerWord}, {Dtype::kI32}));
  ASSIGN_OR_RETURN(t.zeros, files.require(module + ".qzeros", {groups, n / kPerWord}, {Dtype::kI32}));
  ASSIGN_OR_RETURN(t.scales, files.require(module + ".scales", {groups, n}, kScaleTypes));
  const QuantScheme scheme{.code = CodeType::kUnsigned4,
                           .zero_type = ZeroType::kStored,
                           .scale = scale_type_of(*t.scales),
                           .group = group};
  return Found(std::make_shared<WordCodes>("AWQ 4 bit, " + group_text(group, k), scheme, n, k, t,
                                           WordCodes::Words::kAwq, nullptr, std::vector<int32_t>()));
}

// Where the scales of a module lie, by strategy.
struct ScaleShape {
  int64_t group, scale_rows;
  std::vector<int64_t> shape;
};

ScaleShape scale_shape(const CompressedGroup& g, int64_t n, int64_t k) {
  const auto parts = [](int64_t size, int64_t part) { return (size + part - 1) / part; };
  switch (g.strategy) {
    case CompressedGroup::Strategy::kTensor:
      return {k, n, {1}};
    case CompressedGroup::Strategy::kChannel:
      return {k, 1, {n, 1}};
    case CompressedGroup::Strategy::kGroup:
      return {g.group, 1, {n, parts(k, g.group)}};
    case CompressedGroup::Strategy::kBlock:
      return {g.block_columns, g.block_rows, {parts(n, g.block_rows), parts(k, g.block_columns)}};
  }
  return {};
}

// A pack's declared shape, where there is one.
Status check_declared_shape(const TensorFiles& files, const std::string& name, int64_t n, int64_t k) {
  const TensorInfo* declared = files.find(name);
  if (!declared) return {};
  ASSIGN_OR_RETURN(declared, files.require(name, {2}, {Dtype::kI64, Dtype::kI32}));
  const auto at = [&](int64_t i) {
    int64_t wide = 0;
    if (declared->dtype == Dtype::kI32)
      return static_cast<int64_t>(static_cast<int32_t>(word_at(*declared, i)));
    std::memcpy(&wide, declared->data.data() + i * 8, 8);
    return wide;
  };
  if (at(0) == n && at(1) == k) return {};
  return invalid_argument(fmt::format("{}: {} says [{}, {}], but config.json asks for [{}, {}]",
                                      files.file_of(name), name, at(0), at(1), n, k));
}

// Zeros of asymmetric codes: packed like them, or a byte each.
Status find_compressed_zeros(const TensorFiles& files, const CompressedGroup& g, const std::string& module,
                             int64_t n, int64_t groups, RowCodes::Parts& p) {
  const std::string name = module + ".weight_zero_point";
  if (g.symmetric) return {};
  if (g.strategy == CompressedGroup::Strategy::kTensor || g.strategy == CompressedGroup::Strategy::kBlock)
    return unsupported(fmt::format("{}: {} belongs to asymmetric weights with scales for several rows",
                                   files.file_of(name), name));
  const int64_t per_word = 32 / g.bits;
  p.zeros_in_words = g.format == CompressedGroup::Format::kPacked;
  if (p.zeros_in_words) {
    ASSIGN_OR_RETURN(p.zeros, files.require(name, {(n + per_word - 1) / per_word, groups}, {Dtype::kI32}));
  } else {
    ASSIGN_OR_RETURN(p.zeros, files.require(name, {n, groups}, {Dtype::kI8}));
  }
  return {};
}

Found find_compressed(const TensorFiles& files, const QuantizationConfig& c, const std::string& module,
                      int64_t n, int64_t k) {
  const bool has_codes = files.find(module + ".weight_packed") || files.find(module + ".weight_scale");
  ASSIGN_OR_RETURN(const CompressedGroup* g, c.group_of(module));
  if (!has_codes) return Found(nullptr);
  if (!g)
    return invalid_argument(
        fmt::format("{}: {} is quantised, but \"quantization_config\" of config.json does not "
                    "name it",
                    files.file_of(module + ".weight_scale"), module));
  const ScaleShape shape = scale_shape(*g, n, k);
  const int64_t groups = (k + shape.group - 1) / shape.group, per_word = 32 / g->bits;
  const bool is_float = g->format == CompressedGroup::Format::kFloat8;
  RowCodes::Parts p{.in_words = g->format == CompressedGroup::Format::kPacked,
                    .flip = static_cast<uint8_t>(g->format == CompressedGroup::Format::kIntegers ? 0x80 : 0),
                    .scale_rows = shape.scale_rows,
                    .scale_columns = groups};
  if (p.in_words) {
    RETURN_IF_ERROR(check_declared_shape(files, module + ".weight_shape", n, k));
    ASSIGN_OR_RETURN(
        p.codes, files.require(module + ".weight_packed", {n, (k + per_word - 1) / per_word}, {Dtype::kI32}));
  } else {
    ASSIGN_OR_RETURN(p.codes,
                     files.require(module + ".weight", {n, k}, {is_float ? Dtype::kF8E4M3 : Dtype::kI8}));
  }
  ASSIGN_OR_RETURN(p.scales, files.require(module + ".weight_scale", shape.shape, kScaleTypes));
  RETURN_IF_ERROR(find_compressed_zeros(files, *g, module, n, groups, p));
  std::vector<int32_t> order;
  if (files.find(module + ".weight_g_idx")) {
    ASSIGN_OR_RETURN(p.order, files.require(module + ".weight_g_idx", {k}, {Dtype::kI32}));
    ASSIGN_OR_RETURN(order, read_order(files, *p.order, shape.group, groups));
  }
  const bool is_4_bit = p.in_words && g->bits == 4;
  const QuantScheme scheme{.code = is_float   ? CodeType::kE4m3
                                   : is_4_bit ? CodeType::kUnsigned4
                                              : CodeType::kUnsigned8,
                           .zero_type = p.zeros ? ZeroType::kStored : ZeroType::kConstant,
                           .scale = scale_type_of(*p.scales),
                           .zero = p.zeros || is_float ? 0
                                   : is_4_bit          ? 8
                                                       : 128,
                           .group = shape.group};
  const std::string kind = is_float ? std::string("fp8") : fmt::format("{} bit", g->bits);
  return Found(
      std::make_shared<RowCodes>(fmt::format("compressed-tensors {}, {}{}", kind, group_text(shape.group, k),
                                             order.empty() ? "" : ", act-order"),
                                 scheme, n, k, p, std::move(order)));
}

Found find_block_fp8(const TensorFiles& files, const QuantizationConfig& c, const std::string& module,
                     int64_t n, int64_t k) {
  const TensorInfo* codes = files.find(module + ".weight");
  if (!codes || codes->dtype != Dtype::kF8E4M3) return Found(nullptr);
  const int64_t groups = (k + c.block_columns - 1) / c.block_columns;
  RowCodes::Parts p{.scale_rows = c.block_rows, .scale_columns = groups};
  ASSIGN_OR_RETURN(p.codes, files.require(module + ".weight", {n, k}, {Dtype::kF8E4M3}));
  ASSIGN_OR_RETURN(p.scales, files.require(module + ".weight_scale_inv",
                                           {(n + c.block_rows - 1) / c.block_rows, groups}, kScaleTypes));
  const QuantScheme scheme{
      .code = CodeType::kE4m3, .scale = scale_type_of(*p.scales), .group = c.block_columns};
  return Found(std::make_shared<RowCodes>(fmt::format("fp8, blocks of {}x{}", c.block_rows, c.block_columns),
                                          scheme, n, k, p, std::vector<int32_t>()));
}

}  // namespace

Found find_published_codes(const TensorFiles& files, const QuantizationConfig& config,
                           const std::string& module, int64_t n, int64_t k) {
  switch (config.method) {
    case QuantMethod::kGptq:
      return files.find(module + ".qweight") ? find_gptq(files, config, module, n, k) : Found(nullptr);
    case QuantMethod::kAwq:
      return files.find(module + ".qweight") ? find_awq(files, config, module, n, k) : Found(nullptr);
    case QuantMethod::kCompressedTensors:
      return find_compressed(files, config, module, n, k);
    case QuantMethod::kBlockFp8:
      return find_block_fp8(files, config, module, n, k);
    case QuantMethod::kMxfp4:  // only of experts, which share tensors (mxfp4_codes.h)
      return Found(nullptr);
  }
  return Found(nullptr);
}

}  // namespace outrider
