#include "model_files/mxfp4_codes.h"

#include <fmt/format.h>

namespace outrider {
namespace {

constexpr int64_t kBlock = 32;  // columns that share a scale

class Mxfp4Codes final : public CodedMatrix {
 public:
  Mxfp4Codes(const TensorInfo& blocks, const TensorInfo& scales, const RowsOfExpert& of, int64_t k)
      : CodedMatrix("MXFP4", {.code = CodeType::kE2m1, .scale = ScaleType::kPowerOfTwo, .group = kBlock},
                    of.rows / of.step, k, {&blocks, &scales}),
        blocks_(blocks),
        scales_(scales),
        of_(of) {
    code_bytes_ = n_ * k / 2;  // the tensor has those of other experts too
  }

  void read_codes(int64_t row, int64_t begin, std::span<uint8_t> to) const override {
    const int64_t first = stored_row(row) * k_ + begin;
    for (size_t i = 0; i < to.size(); ++i) {
      const int64_t at = first + static_cast<int64_t>(i);
      const auto pair = static_cast<uint8_t>(blocks_.data[static_cast<size_t>(at / 2)]);
      to[i] = static_cast<uint8_t>(at % 2 == 0 ? pair & 15 : pair >> 4);
    }
  }

  GroupNumbers group(int64_t row, int64_t group) const override {
    const auto at = static_cast<size_t>(stored_row(row) * groups_ + group);
    return {.scale = power_of_code(static_cast<uint8_t>(scales_.data[at]))};
  }

 private:
  int64_t stored_row(int64_t row) const { return of_.expert * of_.rows + of_.first + row * of_.step; }

  const TensorInfo &blocks_, &scales_;
  const RowsOfExpert of_;
};

}  // namespace

Result<std::shared_ptr<const CodedMatrix>> find_mxfp4(const TensorFiles& files,
                                                      const QuantizationConfig& config,
                                                      const std::string& name, const RowsOfExpert& of,
                                                      int64_t k) {
  const std::string blocks_name = name + kMxfp4Blocks, scales_name = name + "_scales";
  if (config.method != QuantMethod::kMxfp4)
    return invalid_argument(
        fmt::format("{}: {} is MXFP4, but \"quantization_config\" of config.json names {}",
                    files.file_of(blocks_name), blocks_name, config.name()));
  if (k % kBlock != 0)
    return unsupported(
        fmt::format("{}: {} has blocks of {}, of which config.json's {} columns are no multiple",
                    files.file_of(blocks_name), blocks_name, kBlock, k));
  ASSIGN_OR_RETURN(const TensorInfo* blocks,
                   files.require(blocks_name, {of.experts, of.rows, k / kBlock, kBlock / 2}, {Dtype::kU8}));
  ASSIGN_OR_RETURN(const TensorInfo* scales, files.require(scales_name, {of.experts, of.rows, k / kBlock},
                                                           {Dtype::kU8, Dtype::kF8E8M0}));
  return std::shared_ptr<const CodedMatrix>(std::make_shared<Mxfp4Codes>(*blocks, *scales, of, k));
}

}  // namespace outrider
