#include "tests/gpu/expected_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "comm/cuda/peer_kernels.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/product_rule.h"
#include "model/weights.h"

namespace outrider::gpu {
namespace {

constexpr double kClock = 1.755e9;                // of an H100 or H200 SXM under load, at most
constexpr double kReadable = 0.92;                // of the data sheet's bandwidth: what reading alone reaches
constexpr double kReadOfOne = 0.7 * 64 * kClock;  // that one multiprocessor reads of L2, however few work
constexpr int kWarpsOfWideBlock = 8;
constexpr double kOfStage = 150;  // instructions of a warp of theirs, for 64 columns, in machine code for
                                  // sm_90: barrier, places of what is fetched next, the end of loops
// Instructions of a warp that keeps copies of weights in flight (mma_ring.h), for a step of 16 columns and of
// 64 columns of codes, beside those that HeldWeights counts: copies, the wait for them, the end of the loop.
// Counted in machine code for sm_90.
constexpr double kOfRingStep = 31, kOfCodeRingStep = 50;
constexpr int64_t kSharedBytes = int64_t{227} << 10;  // that a block may have

// H100 and H200 have the same multiprocessors and caches.
Rates hopper(const char* name, double memory_bytes) {
  return {
      .of = name,
      .read_bytes = kReadable * memory_bytes,
      .l2_bytes = 5.5e12,  // about 32 bytes a cycle and multiprocessor, as microbenchmarks find it
      .shared_bytes = 132 * 128 * kClock,
      .matrix_flops = 0.62 * 989e12,  // mma.sync reaches so much of the data sheet's rate, which is wgmma's
      .instructions = 132 * 4 * kClock,
      .doubles = 132 * 64 * kClock,
      .kernel_s = 1.8e-6,
      .overlapped_kernel_s = 1.0e-6,
      .meeting_s = 1.75e-6,
      .link_bytes = 0.8 * 450e9,
      .ranks_meet_s = 3e-6};
}

// Costs of a product that depend on its weight format. `bytes`: of one weight, with its share of the group's
// scale and zero. `bits`: of one weight alone. The other counts are for a tile of 16 rows and 64 columns.
// `products`: matrix instructions for 8 tokens. `to_widen`: a warp's instructions that convert weights to
// bf16. `to_scale`: a warp's instructions that scale the sums of each group, in part once for every 8 tokens.
struct HeldWeights {
  double bytes = 0;
  int bits = 16;
  double products = 4;
  double to_widen = 0, to_scale = 0;
  bool is_widened = false, is_codes = false;
  double input_products = 0;  // for 8 tokens, of no rows of weights: minima want sums of activations
  double loads = 4;           // of 8 tokens' activations
};

HeldWeights held(WeightType type) {
  const int bits = static_cast<int>(weight_bits(type));
  const double bytes = bits / 8.0;
  switch (type) {
    case WeightType::kInt8:
      return {bytes + 2.0 / 64, bits, 4, 8 * 5, 4, true, true, 0, 2};
    case WeightType::kFloat8:
      return {bytes + 2.0 / 64, bits, 4, 8 * 8, 4, true, true, 0, 2};
    case WeightType::kInt4:
      return {bytes + 2.0 / 32, bits, 4, 4 * 9, 8, true, true, 0, 2};
    case WeightType::kFloat16:  // two numbers of bf16
      return {bytes, bits, 8, 16 * 9, 0, true, false};
    default:
      return {bytes, bits};
  }
}

// As our own codes, with the words of two rows taken apart for every unit, which is counted in machine code.
// Most instructions ask for the kind of scales and zeros.
HeldWeights held(const cuda::CodeForm& form) {
  const double of_zeros = form.zero_type == ZeroType::kStored ? 23.0 * form.units() : 0;
  const bool is_whole = form.code == CodeType::kUnsigned4 || form.code == CodeType::kUnsigned8;
  const double of_words = (form.units() == 1 ? (is_whole ? 57 : 38) : is_whole ? 130 : 64) + of_zeros;
  const double scaled = 4.0 * form.units();
  const double widened = form.code == CodeType::kUnsigned8 ? 8 * 5
                         : form.code == CodeType::kE4m3    ? 8 * 8
                         : form.code == CodeType::kE2m1    ? 4 * 18
                                                           : 4 * 9;
  const int bits = static_cast<int>(code_bits(form.code));
  const bool has_minimum = form.zero_type == ZeroType::kMinimum;
  return {.bytes = bits / 8.0 + 2.0 * form.words / 64,
          .bits = bits,
          .to_widen = widened + of_words,
          .to_scale = has_minimum ? 2 * scaled + 3 : scaled,
          .is_widened = true,
          .is_codes = true,
          .input_products = has_minimum ? 4.0 : 0,
          .loads = form.unit == 16 ? 4.0 : 2};
}

struct Bound {
  double seconds = 0;
  const char* name = "";
};
Bound slowest(std::initializer_list<Bound> bounds) {
  return *std::max_element(bounds.begin(), bounds.end(),
                           [](const Bound& a, const Bound& b) { return a.seconds < b.seconds; });
}

// Multiprocessors that have something to do, on average over the waves of blocks.
double share_at_work(int64_t blocks, int64_t places) {
  const double waves = std::ceil(static_cast<double>(blocks) / static_cast<double>(places));
  return static_cast<double>(blocks) / (waves * static_cast<double>(places));
}

// One pass of blocks of 8 warps. Each warp has `tiles` tiles of rows and `columns` tiles of 8 tokens.
struct Cut {
  int tiles = 0, columns = 0;         // of a warp
  int64_t rows = 0, weight_rows = 0;  // of a block
  int64_t blocks = 0;
  double columns_of_warp = 0;  // of the contraction
  double columns_read = 0;     // by a block
  int blocks_each = 1;         // of a multiprocessor
  bool streams = false;        // few rows: a multiprocessor with any block reads as fast as it can
  double input_share = 1;      // of the sums of activations that a warp makes itself
  double of_stage = 0;         // instructions
  bool counts_copies = false;  // of weights, among those of_stage
};

Bound bound_of(const Rates& r, const HeldWeights& weights, double weight_bytes, const Cut& cut) {
  const double weight = weights.bytes, blocks = static_cast<double>(cut.blocks);
  // As few as one block a multiprocessor use all of it, where the ring has enough under way.
  const double at_work = cut.streams ? 1
                         : cut.blocks <= r.multiprocessors
                             ? static_cast<double>(cut.blocks) / r.multiprocessors
                             : share_at_work(cut.blocks, int64_t{cut.blocks_each} * r.multiprocessors);
  const double steps = blocks * kWarpsOfWideBlock * cut.columns_of_warp / 64;  // of a warp, of 64 columns
  const double products =
      (weights.products * cut.tiles + weights.input_products * cut.input_share) * cut.columns;
  const double shared = 64 * (16 * cut.tiles * weight + 8 * cut.columns * 2.0);
  const double loads = cut.tiles * 64 * 16 * weight / 512 + cut.columns * weights.loads;
  const double copies = 64 *
                        ((cut.counts_copies ? 0 : static_cast<double>(cut.weight_rows) * weight) +
                         static_cast<double>(cut.rows) * 2) /
                        (512 * kWarpsOfWideBlock);
  const double others =
      cut.of_stage + 10 * copies + cut.tiles * (weights.to_widen + weights.to_scale * cut.columns);
  const double of_block =
      cut.columns_read * (static_cast<double>(cut.weight_rows) * weight + static_cast<double>(cut.rows) * 2);
  const double l2 = blocks * of_block, most_blocks = std::ceil(blocks / r.multiprocessors);
  return slowest({{weight_bytes / r.read_bytes, "memory"},
                  {l2 / r.l2_bytes / at_work, "L2"},
                  {cut.streams ? most_blocks * of_block / kReadOfOne : 0, "L2"},
                  {steps * shared / r.shared_bytes / at_work, "shared memory"},
                  {steps * products * 4096 / r.matrix_flops / at_work, "matrix units"},
                  {steps * (products + loads + others) / r.instructions / at_work, "instructions"}});
}

}  // namespace

Rates h100() { return hopper("H100", 3.35e12); }
Rates h200() { return hopper("H200", 4.8e12); }

Rates rates_of(const cuda::DeviceInfo& device) {
  if (device.name.find("H200") != std::string::npos) return h200();
  Rates rates = h100();
  if (device.name.find("H100") != std::string::npos || device.multiprocessors == 0) return rates;
  const double share = static_cast<double>(device.multiprocessors) / rates.multiprocessors;
  rates.of = fmt::format("an H100 with {} multiprocessors", device.multiprocessors);
  for (double* rate : {&rates.shared_bytes, &rates.matrix_flops, &rates.instructions, &rates.doubles})
    *rate *= share;
  rates.multiprocessors = device.multiprocessors;
  return rates;
}

namespace {

// is_staged: a block has room for the activations of 9 to 16 rows.
ExpectedProduct expected_of(const Rates& rates, const HeldWeights& weights, int64_t rows, int64_t n,
                            int64_t k, bool overlaps, bool is_staged) {
  const double weight_bytes = static_cast<double>(n * k) * weights.bytes;
  const int64_t tiles = (n + cuda::kTileRows - 1) / cuda::kTileRows;
  const bool is_split = tiles <= cuda::kSplitTiles;
  Cut cut;
  bool meets = false;
  std::string form;
  const double whole = static_cast<double>(k), slice = whole / cuda::kMaxSlices;
  if (rows <= 8 || (rows <= cuda::kFewRows && (is_split || is_staged))) {
    meets = is_split;
    cut = {.tiles = 1,
           .columns = rows <= 8 ? 1 : 2,
           .rows = rows <= 8 ? 8 : 16,
           .weight_rows = 128,
           .blocks = std::max<int64_t>(1, tiles / 8) * cuda::kMaxSlices,
           .columns_of_warp = slice,
           .columns_read = slice,
           .blocks_each = 2,
           .streams = true,
           .of_stage = weights.is_codes ? kOfCodeRingStep : 4 * kOfRingStep,
           .counts_copies = true};
    form = is_split ? "a slice in a block" : "a slice in a warp";
  } else {
    const cuda::WideProduct wide = cuda::choose_wide_product(
        rows, n, cuda::kMaxSlices, rates.multiprocessors, weights.bits, is_split && rows <= cuda::kSplitRows);
    meets = wide.is_over_blocks;
    const bool two_fit = wide.rows <= 32 || (meets && !weights.is_codes);
    const bool has_all = weights.is_widened || wide.rows <= 32;  // a warp has one tile, and all rows
    cut = {.tiles = has_all ? 1 : wide.rows / 32,
           .columns = has_all ? wide.rows / 8 : 4,
           .rows = wide.rows,
           .weight_rows = cuda::kWideTileRows,
           .blocks = wide.blocks,
           .columns_of_warp = meets ? slice : whole,
           .columns_read = meets ? slice : whole,
           .blocks_each = two_fit ? 2 : 1,
           .streams = wide.rows == cuda::kFewRows,
           .input_share = 1.0 / kWarpsOfWideBlock,
           .of_stage = kOfStage};
    form = fmt::format("128 x {}{}", wide.rows, meets ? ", a slice in a block" : "");
  }
  const Bound bound = bound_of(rates, weights, weight_bytes, cut);
  double seconds = bound.seconds + (overlaps ? rates.overlapped_kernel_s : rates.kernel_s);
  if (meets) seconds += rates.meeting_s;
  return {.seconds = seconds,
          .bound = bound.name,
          .tflops = 2e-12 * static_cast<double>(rows * n * k) / seconds,
          .form = form};
}

}  // namespace

ExpectedProduct expected_product(const Rates& rates, WeightType type, int64_t rows, int64_t n, int64_t k,
                                 bool overlaps) {
  return expected_of(rates, held(type), rows, n, k, overlaps, cuda::staged_bytes(type, k) <= kSharedBytes);
}

ExpectedProduct expected_product(const Rates& rates, const cuda::CodeForm& form, int64_t rows, int64_t n,
                                 int64_t k, bool overlaps) {
  return expected_of(rates, held(form), rows, n, k, overlaps,
                     cuda::staged_bytes(WeightType::kInt8, k) <= kSharedBytes);
}

std::vector<ExpectedKernel> expected_step(const Rates& rates, const ModelConfig& c,
                                          const cuda::DeviceWeightTypes& types, int64_t rows, int64_t context,
                                          bool overlaps) {
  const double kernel = overlaps ? rates.overlapped_kernel_s : rates.kernel_s;
  const auto small = [&](double bytes) { return kernel + bytes / rates.l2_bytes; };
  const auto product = [&](int64_t n, int64_t k) {
    return expected_product(rates, types.layers, rows, n, k, overlaps).seconds;
  };
  const double head =
      expected_product(rates, types.vocabulary, rows, c.vocab_size, c.hidden_size, overlaps).seconds;
  const auto m = static_cast<double>(rows);
  const auto hidden = static_cast<double>(c.hidden_size);
  const int64_t qkv = c.q_size() + 2 * c.kv_size();
  // Keys and values in bf16 once; a kernel for the splits and one that combines them.
  const double kv_bytes = static_cast<double>(context * 2 * c.kv_size()) * 2;
  const int64_t layers = c.num_layers;
  return {{"embed", 1, small(m * hidden * 6)},
          {"norm", 2 * layers + 1, small(m * hidden * 14)},
          {"qkv", layers, product(qkv, c.hidden_size)},
          {"rope", layers, small(m * static_cast<double>(qkv) * 6)},
          {"attention", layers, 2 * kernel + kv_bytes / rates.read_bytes},
          {"o", layers, product(c.hidden_size, c.q_size())},
          {"gate_up", layers, product(2 * c.intermediate_size, c.hidden_size)},
          {"down", layers, product(c.hidden_size, c.intermediate_size)},
          {"head", 1, head}};
}

std::vector<ExpectedKernel> expected_latents(const Rates& rates, const ModelConfig& c, int64_t rows,
                                             int64_t context, bool overlaps) {
  const LatentConfig& latent = *c.latent;
  const double kernel = overlaps ? rates.overlapped_kernel_s : rates.kernel_s;
  const auto m = static_cast<double>(rows), heads = static_cast<double>(c.num_heads),
             width = static_cast<double>(c.head_dim), rank = static_cast<double>(latent.kv_rank),
             tokens = static_cast<double>(context);
  const auto small = [&](double bytes) { return kernel + bytes / rates.l2_bytes; };
  const auto head_product = [&](int64_t n, int64_t k) {
    return kernel + heads * static_cast<double>(n * k) * 2 / rates.read_bytes;
  };
  // A block has a split, for 32 rows and heads; what splits leave is written, and read by who combines them.
  const int64_t splits = cuda::split_count(static_cast<int32_t>(context)),
                tiles = (rows * c.num_heads + 31) / 32;
  const double at_work = share_at_work(splits * tiles, rates.multiprocessors);
  const double left = 2 * m * heads * static_cast<double>(splits) * (rank + 2) * 4;
  const double flops = 4 * m * heads * tokens * (width + rank);  // each number of a query is two
  const Bound attention =
      slowest({{tokens * width * 2 / rates.read_bytes, "memory"},
               {static_cast<double>(tiles) * tokens * width * 2 / rates.l2_bytes / at_work, "L2"},
               {flops / rates.matrix_flops / at_work, "matrix units"}});
  return {{"latents", 1, small(m * (static_cast<double>(latent.q_rank) + width) * 6)},
          {"rope", 1, small(m * heads * static_cast<double>(latent.rope_dim) * 8)},
          {"key_up", 1, head_product(latent.kv_rank, latent.nope_dim)},
          {"attention", 1, 2 * kernel + attention.seconds + left / rates.l2_bytes},
          {"value_up", 1, head_product(latent.value_dim, latent.kv_rank)}};
}

std::vector<ExpectedKernel> expected_delta_net(const Rates& rates, const DeltaNetConfig& c, int64_t rows,
                                               bool overlaps) {
  const double kernel = overlaps ? rates.overlapped_kernel_s : rates.kernel_s;
  const auto m = static_cast<double>(rows);
  const auto small = [&](double bytes) { return kernel + bytes / rates.l2_bytes; };
  // The state is read and written. A token takes four operations on each of its numbers, and as many
  // instructions again for what surrounds them. Tokens follow each other: reads of a key and a query, two
  // sums over four threads, and barriers of each eighth token.
  const auto numbers = static_cast<double>(c.state_size());
  constexpr double kToken = 0.25e-6, kFirstToken = 1e-6;
  const Bound tokens = slowest({{(m + 1) * 8 * numbers / 32 / rates.instructions, "instructions"},
                                {kFirstToken + (m + 1) * kToken, "latency"}});
  return {{"store", 1, small(m * static_cast<double>(c.row_size()) * 6)},
          {"states", 1, kernel + 2 * 4 * numbers / rates.read_bytes + tokens.seconds},
          {"outputs", 1, small(m * static_cast<double>(c.value_size()) * 10)}};
}

std::vector<ExpectedKernel> expected_draw(const Rates& rates, int64_t vocabulary, int64_t rows,
                                          const DrawKind& kind, bool overlaps) {
  const double kernel = overlaps ? rates.overlapped_kernel_s : rates.kernel_s;
  const double logits = static_cast<double>(vocabulary * rows) * 4;
  const auto reads = [&](double times) { return kernel + times * logits / rates.l2_bytes; };
  // A block that looks at one row's compact form reads some ten thousand entries twice, by turns, and meets
  // fifty times.
  constexpr double kLook = 6e-6;
  std::vector<ExpectedKernel> draw{{"feed", 1, kernel},
                                   {"penalties", 1, kernel},
                                   {"best", 1, reads(2)},
                                   {"settle", 2, kernel},
                                   {"cut", (kind.cuts + (kind.has_compact_q ? 1 : 0)) * 6, reads(1)},
                                   {"weights", kind.has_dense_q || kind.has_compact_q ? 1 : 0, reads(1)},
                                   {"draw", 1, kernel + 2e-6}};
  if (kind.has_compact_q) {
    draw.push_back({"ranks and entries", 3, reads(1)});
    draw.push_back({"looks at units", 2, kernel + kLook});
    draw.push_back({"compact row", 1, kernel + 2 * kLook});
  }
  return draw;
}

std::vector<ExpectedKernel> expected_looks(const Rates& rates, int64_t vocabulary, int64_t rows, int64_t most,
                                           bool overlaps) {
  const double kernel = overlaps ? rates.overlapped_kernel_s : rates.kernel_s;
  const double tokens = static_cast<double>(vocabulary * rows), logits = 4 * tokens;
  const auto reads = [&](double times) { return kernel + times * logits / rates.l2_bytes; };
  // Two logarithms for the noise of a token; and for each of the best a block meets ten times.
  constexpr double kOfNoise = 110, kMeetings = 0.3e-6;
  const double picks = static_cast<double>(most) * kMeetings;
  return {{"penalties", 1, kernel},
          {"best", 1, reads(2)},
          {"settle", 2, kernel},
          {"rank", 1, std::max(reads(1), kernel + kOfNoise * tokens / rates.doubles) + picks},
          {"rank of parts", 1, kernel + picks}};
}

std::vector<ExpectedKernel> expected_head_step(const Rates& rates, const ModelConfig& c, int64_t draft_vocab,
                                               const cuda::DeviceWeightTypes& types, int64_t context) {
  const double kernel = rates.overlapped_kernel_s;
  const auto small = [&](double bytes) { return kernel + bytes / rates.l2_bytes; };
  const auto product = [&](WeightType type, int64_t n, int64_t k) {
    return expected_product(rates, type, 1, n, k).seconds;
  };
  const double hidden = static_cast<double>(c.hidden_size), wide = static_cast<double>(c.intermediate_size);
  const int64_t qkv = c.q_size() + 2 * c.kv_size();
  const double kv_bytes = static_cast<double>(context * 2 * c.kv_size()) * 2;
  std::vector<ExpectedKernel> step{
      {"positions", 1, kernel},
      {"embedding", 1, small(hidden * 6)},
      {"norm", 4, small(hidden * 14)},
      {"qkv", 1, product(types.layers, qkv, 2 * c.hidden_size)},
      {"rope", 1, small(static_cast<double>(qkv) * 6)},
      {"attention", 1, 2 * kernel + kv_bytes / rates.read_bytes},
      {"o", 1, product(types.layers, c.hidden_size, c.q_size())},
      {"add", 2, small(hidden * 12)},
      {"gate_up", 1, product(types.layers, 2 * c.intermediate_size, c.hidden_size)},
      {"silu", 1, small(wide * 10)},
      {"down", 1, product(types.layers, c.hidden_size, c.intermediate_size)},
      {"head", 1, product(types.vocabulary, draft_vocab, c.hidden_size)},
      {"spread", 1, small(static_cast<double>(c.vocab_size + draft_vocab) * 4)}};
  for (ExpectedKernel& kernel_of_draw : expected_draw(rates, c.vocab_size, 1, {}))
    step.push_back(std::move(kernel_of_draw));
  return step;
}

// Time of one rank's sum: it reads its part, keeps it for the other ranks, and reads all parts back. Blocks
// have 512 threads, each with 16 bytes of every rank in flight. The limit is these blocks, and the link or
// the L2 cache that all ranks share.
double expected_peer_sum(const Rates& rates, int64_t bytes, int ranks, PeerPlace place) {
  constexpr double kLatency = 1.5e-6, kOfBlock = 512 * 16;
  const bool is_shared = place == PeerPlace::kOneDevice;
  const auto part = static_cast<double>(bytes);
  const int most = std::max(1, cuda::most_peer_blocks(rates.multiprocessors, is_shared ? ranks : 1));
  const int blocks = static_cast<int>(std::min<double>(std::ceil(part / kOfBlock), most));
  const double turns = std::ceil(part / kOfBlock / blocks);
  const double moved =
      is_shared ? ranks * (3 + ranks) * part / rates.l2_bytes : (ranks - 1) * part / rates.link_bytes;
  return rates.kernel_s + rates.ranks_meet_s + std::max(moved, turns * kLatency);
}

cuda::DeviceWeightTypes types_of(WeightFormat format) {
  return {weight_type(format, MatrixKind::kLayer), weight_type(format, MatrixKind::kVocabulary)};
}

double seconds_of(const std::vector<ExpectedKernel>& step) {
  double seconds = 0;
  for (const ExpectedKernel& kernel : step) seconds += static_cast<double>(kernel.count) * kernel.seconds;
  return seconds;
}

std::string judge(double measured_s, double expected_s, double most) {
  const double factor = measured_s / expected_s;
  if (factor > most) return fmt::format("{:.1f} times expected", factor);
  if (factor < 1 / most) return fmt::format("only {:.2f} of expected", factor);
  return "as expected";
}

}  // namespace outrider::gpu
