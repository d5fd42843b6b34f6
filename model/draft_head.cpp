#include "model/draft_head.h"
#include "model_files/weight_map.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>

#include "base/bfloat16.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/integer_dots.h"
#include "kernels/cpu/pack.h"
#include "model/quantized_file.h"
#include "model/weights.h"
#include "model_files/model_config.h"

namespace outrider {
namespace {

constexpr uint64_t kVersion = 1;  // of the arithmetic here
constexpr int64_t kLargestBlock = 256;

// Steps of the best uniform quantiser of 2^bits levels for a normal distribution, in its deviations (Max
// 1960, table 2; 6 and 7 bits by the same condition).
constexpr std::array<double, 5> kSteps{0.5860, 0.3352, 0.1881, 0.1041, 0.0569};

uint64_t hash_of(const TensorInfo& tensor, uint64_t seed) {
  for (const int64_t extent : tensor.shape) seed = hash_combine(seed, static_cast<uint64_t>(extent));
  seed = hash_combine(seed, static_cast<uint64_t>(tensor.dtype));
  return XXH64(tensor.data.data(), tensor.data.size(), seed);
}

// The rows of one tile as numbers, [rows, hidden].
void read_tile(const TensorPart& part, int64_t first, int64_t rows, std::span<float> to) {
  const auto stored = part.coded ? std::nullopt : stored_type(part.tensor->dtype);
  const int64_t k = part.columns.size();
  const auto row_of = [&](int64_t i) {
    return to.subspan(static_cast<size_t>(i * k), static_cast<size_t>(k));
  };
  if (!stored) {
    for (int64_t i = 0; i < rows; ++i) read_floats(source_row(part, first + i), 0, row_of(i));
    return;
  }
  PackedMatrix tile(*stored, kTileColumns, k, {k});
  std::array<SourceRow, kTileColumns> sources;
  for (int64_t i = 0; i < rows; ++i) sources[static_cast<size_t>(i)] = source_row(part, first + i);
  pack_tile(tile, 0, sources);
  for (int64_t i = 0; i < rows; ++i) tile.copy_row(i, row_of(i));
}

// Scale and codes of one rotated row; a code of column c is put at to[c / 4 * 64 + c % 4]. Empty: not finite.
std::optional<float> quantize_row(std::span<const float> row, uint8_t* to) {
  float largest = 0;
  for (const float x : row) {
    if (!std::isfinite(x)) return std::nullopt;
    largest = std::max(largest, std::abs(x));
  }
  const float scale = largest / 127, per_scale = 127 / largest;
  const bool is_zero = !std::isnormal(scale);  // or too small to divide by
  for (size_t c = 0; c < row.size(); ++c)
    to[c / 4 * 64 + c % 4] =
        static_cast<uint8_t>(128 + (is_zero ? 0 : static_cast<int>(std::nearbyint(row[c] * per_scale))));
  return is_zero ? 0 : scale;
}

// The states' words as the kernels read them, and the dots they start from.
void lay_out(std::span<const HiddenRow> rows, int64_t quads, uint32_t* words, int32_t* start) {
  const size_t n = rows.size();
  for (size_t s = 0; s < n; ++s) {
    const auto& codes = rows[s].codes;
    const auto at = [&](size_t c) { return static_cast<uint16_t>(c < codes.size() ? codes[c] : 0); };
    for (size_t q = 0; q < static_cast<size_t>(quads); ++q)
      for (size_t odd = 0; odd < 2; ++odd)
        words[(2 * q + odd) * n + s] = at(4 * q + odd) | static_cast<uint32_t>(at(4 * q + 2 + odd)) << 16;
    int32_t sum = 0;
    for (const int8_t code : codes) sum += code;
    start[s] = -128 * sum;
  }
}

}  // namespace

int64_t rotation_block(int64_t hidden_size) { return std::min(kLargestBlock, hidden_size & -hidden_size); }

void rotate_blocks(std::span<float> row, int64_t block) {
  const auto norm = 1 / std::sqrt(static_cast<float>(block));
  for (float* at = row.data(); at + block <= row.data() + row.size(); at += block) {
    for (int64_t half = 1; half < block; half *= 2)
      for (int64_t i = 0; i < block; i += 2 * half)
        for (int64_t j = i; j < i + half; ++j) {
          const float a = at[j], b = at[j + half];
          at[j] = a + b;
          at[j + half] = a - b;
        }
    for (int64_t i = 0; i < block; ++i) at[i] *= norm;
  }
}

DraftHead::DraftHead(IndexRange ids, int64_t hidden_size)
    : ids_(ids),
      hidden_size_(hidden_size),
      quads_((hidden_size + kQuadColumns - 1) / kQuadColumns),
      codes_(round_up(ids.size(), kDotLanes) * quads_ * kQuadColumns),
      scales_(round_up(ids.size(), kDotLanes)) {}

Result<DraftHead> DraftHead::load(const std::filesystem::path& directory, IndexRange ids, int threads) {
  ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(directory));
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::open(directory));
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, config, ShardPlan(config, {})));
  const TensorPart& part = map.head.parts.front();
  if ((!part.coded && part.tensor->dtype == Dtype::kF8E4M3) || config.hidden_size > kMaxDotColumns)
    return unsupported(
        fmt::format("{} is {} of {} columns; hidden states need another format than fp8, and at most {}",
                    part.tensor->name, dtype_name(part.tensor->dtype), config.hidden_size, kMaxDotColumns));
  if (config.scales.logit_cap > 0)
    return unsupported(
        fmt::format("{} caps its logits, which no two kinds of machine do with the same bits; "
                    "send probabilities in place of hidden states",
                    architecture_name(config.family)));
  const auto divisor = static_cast<float>(config.scales.logit_divisor);
  ids.end = std::min(ids.end, config.vocab_size);
  ids.begin = std::min(ids.begin, ids.end);
  DraftHead head(ids, config.hidden_size);
  head.fingerprint_ = hash_of(*part.tensor, kVersion);
  if (divisor != 1) head.fingerprint_ ^= std::bit_cast<uint32_t>(divisor);
  if (part.coded)
    for (const TensorInfo* tensor : part.coded->tensors())
      head.fingerprint_ = hash_of(*tensor, head.fingerprint_);
  if (part.scales) head.fingerprint_ = hash_of(*part.scales, head.fingerprint_);
  const int64_t k = config.hidden_size, block = rotation_block(k);
  const int64_t tile_bytes = kDotLanes * head.quads_ * kQuadColumns;
  std::atomic<bool> finite = true;
  ThreadPool pool(threads);
  pool.parallel_for(round_up(ids.size(), kDotLanes) / kDotLanes, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> numbers(static_cast<size_t>(kDotLanes * k));
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kDotLanes, rows = std::min(kDotLanes, ids.size() - first);
      read_tile(part, ids.begin + first, rows, numbers);
      for (int64_t lane = 0; lane < rows; ++lane) {
        const auto row = std::span(numbers).subspan(static_cast<size_t>(lane * k), static_cast<size_t>(k));
        rotate_blocks(row, block);
        const auto scale = quantize_row(row, head.codes_.data() + tile * tile_bytes + lane * kQuadColumns);
        if (!scale) finite = false;
        head.scales_[first + lane] = scale.value_or(0) / divisor;
      }
    }
  });
  release_pages(part.tensor->data);
  RETURN_IF_ERROR(files.check_unchanged());
  if (!finite) return malformed(fmt::format("{} holds numbers that are not finite", part.tensor->name));
  return head;
}

bool DraftHead::quantize(std::span<float> hidden, int bits, HiddenRow& row) const {
  CHECK(static_cast<int64_t>(hidden.size()) == hidden_size_, "a state of {}, not {}", hidden.size(),
        hidden_size_);
  CHECK(bits >= kMinHiddenBits && bits <= kMaxHiddenBits, "{} bits", bits);
  rotate_blocks(hidden, rotation_block(hidden_size_));
  double squares = 0;
  for (const float x : hidden) squares += static_cast<double>(x) * static_cast<double>(x);
  const double step = kSteps[static_cast<size_t>(bits - kMinHiddenBits)] *
                      std::sqrt(squares / static_cast<double>(hidden.size()));
  row.scale = to_float(to_bf16(static_cast<float>(step / 2)));
  if (!std::isnormal(row.scale)) return false;
  const float per_step = 1 / (2 * row.scale), levels = static_cast<float>(1 << (bits - 1));
  row.codes.resize(hidden.size());
  for (size_t i = 0; i < hidden.size(); ++i)
    row.codes[i] = static_cast<int8_t>(
        2 * static_cast<int>(std::clamp(std::floor(hidden[i] * per_step), -levels, levels - 1)) + 1);
  return true;
}

void DraftHead::logits(std::span<const HiddenRow> rows, IndexRange ids, TensorView<float, 2> logits,
                       Scratch& scratch) const {
  CHECK(ids.begin >= ids_.begin && ids.end <= ids_.end, "ids [{}, {}) of a head of [{}, {})", ids.begin,
        ids.end, ids_.begin, ids_.end);
  const IndexRange local{ids.begin - ids_.begin, ids.end - ids_.begin};
  const int64_t tile_bytes = kDotLanes * quads_ * kQuadColumns;
  scratch.states.resize(static_cast<size_t>(quads_ * 2 * kMaxDotStates));
  int64_t first = 0;
  // As many states as fit share one reading of the head.
  for (int64_t left = static_cast<int64_t>(rows.size()), n = 0; left > 0; left -= n, first += n) {
    n = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    const auto some = rows.subspan(static_cast<size_t>(first), static_cast<size_t>(n));
    const DotKernel kernel = dot_kernel(static_cast<int>(n));
    int32_t start[kMaxDotStates], dots[kMaxDotStates * kDotLanes];
    lay_out(some, quads_, scratch.states.data(), start);
    for (int64_t tile = local.begin / kDotLanes; tile * kDotLanes < local.end; ++tile) {
      for (int64_t s = 0; s < n; ++s) std::fill_n(dots + s * kDotLanes, kDotLanes, start[s]);
      kernel(codes_.data() + tile * tile_bytes, quads_, scratch.states.data(), dots);
      const int64_t begin = std::max(local.begin, tile * kDotLanes),
                    end = std::min(local.end, (tile + 1) * kDotLanes);
      for (int64_t s = 0; s < n; ++s) {
        const float scale = some[static_cast<size_t>(s)].scale;
        const int32_t* const dot = dots + s * kDotLanes;
        const auto out = logits.row(first + s);
        for (int64_t i = begin; i < end; ++i)
          out[static_cast<size_t>(i - local.begin)] =
              static_cast<float>(dot[i - tile * kDotLanes]) * scales_[i] * scale;
      }
    }
  }
}

}  // namespace outrider
