// One forward pass's products over the matrices of a Llama of 1.1 G parameters (hidden 2048, 22 layers, 32
// heads, 4 KV heads, ffn 5632, vocabulary 32000), for `rows` tokens, without the rest of the model.
//   bytes/s   weights read per second of a pass        share  of the read bandwidth probed before and after
//   ratio     time of a pass over the time of a pass with one row, taken in turns with it
//   floor     least milliseconds of a pass: its bytes at the probed bandwidth, or its multiply-adds at the
//             probed rate of the instruction set (int8 inputs only), whichever takes longer
// Codes of published checkpoints are in groups of 128, with fp16 scales; act-order groups any columns. The
// types of GGUF take int8 inputs.
// OUTRIDER_BENCH_ISA pins an instruction set. Correctness first: a matrix of the same shape against plain
// loops, and equal rows for every row count.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/pack.h"
#include "model_files/coded_matrix.h"
#include "tests/bench/isa_of_environment.h"
#include "tests/bench/multiply_probe.h"
#include "tests/bench/read_bandwidth.h"

namespace outrider::bench {
namespace {

constexpr int64_t kHidden = 2048, kQkv = 2560, kFfn = 5632, kVocab = 32000, kLayers = 22;

// Values in [-1, 1) that look random and cost nothing to make.
float pseudo(int64_t i) {
  const auto hash = static_cast<uint32_t>(i) * 2654435761u;
  return static_cast<float>(static_cast<int32_t>(hash ^ hash >> 15)) * 0x1p-31f;
}

std::vector<int64_t> eight_leaves(int64_t k) {
  std::vector<int64_t> ends;
  for (int64_t i = 1; i <= 8; ++i) ends.push_back(k * i / 8);
  return ends;
}

// The weights of a benchmarked product.
struct Form {
  WeightType type;
  QuantScheme scheme = {};  // of kCodes
  bool act_order = false;
  int64_t bits = 0;  // of a code with int8 inputs; 0: inputs in bf16
  bool operator==(const Form&) const = default;
};

class PseudoCodes final : public CodedMatrix {
 public:
  PseudoCodes(const Form& form, int64_t n, int64_t k) : CodedMatrix("pseudo", form.scheme, n, k, {}) {
    if (form.bits != 0) bits_ = form.bits;
    for (int64_t i = 0; form.act_order && i < k; ++i)
      order_.push_back(static_cast<int32_t>(i * 7919 % k / scheme_.group));
  }
  void read_codes(int64_t row, int64_t begin, std::span<uint8_t> to) const override {
    const uint32_t mask = (1u << bits_) - 1;
    for (size_t i = 0; i < to.size(); ++i) {
      const auto at = static_cast<uint32_t>(row * k_ + begin) + static_cast<uint32_t>(i);
      to[i] = static_cast<uint8_t>(at * 2654435761u >> 23 & mask);
      if (scheme_.code == CodeType::kE4m3) to[i] &= 0xb7;  // below 2
    }
  }
  GroupNumbers group(int64_t, int64_t) const override {
    if (scheme_.scale == ScaleType::kNested)
      return {.scale = 2.0f / static_cast<float>(32 << bits_),
              .scale_code = 32,
              .minimum = 1.0f / 32,
              .minimum_code = 32};
    return {.scale = scheme_.code == CodeType::kE4m3 ? 0.5f : 2.0f / static_cast<float>(1 << bits_),
            .zero = 1 << (bits_ - 1)};
  }
};

// Rows begin at different places of one pool of bf16 numbers.
PackedMatrix make_matrix(ThreadPool& pool, const Form& form, int64_t n, int64_t k,
                         const std::vector<int64_t>& leaves) {
  static const std::vector<bf16> numbers = [] {
    std::vector<bf16> values(1 << 18);
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_bf16(pseudo(static_cast<int64_t>(i)));
    return values;
  }();
  const PseudoCodes coded(
      {form.type, form.type == WeightType::kCodes ? form.scheme : QuantScheme{.group = k}, form.act_order}, n,
      k);
  const CodedColumns columns{
      .scheme = form.scheme,
      .activations = form.bits != 0 ? ActivationFormat::kInt8 : ActivationFormat::kBFloat16,
      .bits = form.bits,
      .order = coded.order(),
      .groups = coded.groups()};
  PackedMatrix matrix = form.type == WeightType::kCodes ? PackedMatrix(columns, n, k, leaves)
                                                        : PackedMatrix(form.type, n, k, leaves);
  pool.parallel_for(matrix.tiles(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      std::array<SourceRow, kTileColumns> rows;
      for (int64_t lane = 0; lane < kTileColumns; ++lane) {
        const auto first = static_cast<size_t>((tile * kTileColumns + lane) * 7919 % (1 << 17));
        if (form.type == WeightType::kCodes)
          rows[static_cast<size_t>(lane)] = {.coded = &coded, .row = tile * kTileColumns + lane};
        else
          rows[static_cast<size_t>(lane)] = {
              // as fp16 these bits are numbers below 2
              .data = reinterpret_cast<const std::byte*>(&numbers[first]),
              .dtype = form.type == WeightType::kFloat16 ? Dtype::kF16 : Dtype::kBF16};
      }
      pack_tile(matrix, tile, rows);
    }
  });
  return matrix;
}

// The matrices of one forward, in order.
struct Stack {
  explicit Stack(const Form& of) : form(of) {
    ThreadPool pool(2);
    for (int64_t i = 0; i < kLayers; ++i) {
      matrices.push_back(make_matrix(pool, form, kQkv, kHidden, {kHidden}));
      matrices.push_back(make_matrix(pool, form, kHidden, kHidden, eight_leaves(kHidden)));
      matrices.push_back(make_matrix(pool, form, 2 * kFfn, kHidden, {kHidden}));
      matrices.push_back(make_matrix(pool, form, kHidden, kFfn, eight_leaves(kFfn)));
    }
    matrices.push_back(make_matrix(pool, form, kVocab, kHidden, {kHidden}));
    for (const PackedMatrix& m : matrices) {
      bytes += static_cast<int64_t>(m.bytes());
      weights += m.n() * m.k();
    }
  }
  bool takes_int8() const { return form.bits != 0 || is_quantized(form.type); }
  Form form;
  std::vector<PackedMatrix> matrices;
  int64_t bytes = 0, weights = 0;
};

struct Rows {
  Rows(int64_t rows, int64_t columns) : extent{rows, columns}, data(rows * columns) {
    for (int64_t i = 0; i < data.size(); ++i) data[i] = pseudo(i * 7 + 1);
  }
  TensorView<float, 2> first(int64_t rows, int64_t columns) {
    return {data.data(), {rows, columns}, {extent[1], 1}};
  }
  std::array<int64_t, 2> extent;
  Buffer<float> data;
};

// Only one stack is kept at a time: all forms together would not fit small machines.
Stack& stack_of(const Form& form) {
  static std::unique_ptr<Stack> stack;
  if (!stack || stack->form != form) {
    stack.reset();
    stack = std::make_unique<Stack>(form);
  }
  return *stack;
}

ReadProbe& probe() {
  static ReadProbe probe;
  return probe;
}

double pass_seconds(ThreadPool& pool, MatmulScratch& scratch, const Stack& stack, Rows& x, Rows& out,
                    int64_t rows) {
  const double start = seconds_now();
  for (const PackedMatrix& m : stack.matrices)
    matmul(pool, scratch, x.first(rows, m.k()), m, out.first(rows, m.n()));
  return seconds_now() - start;
}

void BM_Pass(benchmark::State& state, const Form& form) {
  const auto threads = static_cast<int>(state.range(0));
  const int64_t rows = state.range(1);
  ThreadPool pool(threads, true);
  MatmulScratch scratch;
  const Stack& stack = stack_of(form);
  Rows x(rows, kFfn), out(rows, kVocab);
  double before = probe().bytes_per_second(pool), one = 0, many = 0;
  pass_seconds(pool, scratch, stack, x, out, rows);
  for (auto _ : state) {
    one += pass_seconds(pool, scratch, stack, x, out, 1);
    const double seconds = pass_seconds(pool, scratch, stack, x, out, rows);
    many += seconds;
    state.SetIterationTime(seconds);
  }
  before = (before + probe().bytes_per_second(pool)) / 2;
  const double rate = static_cast<double>(stack.bytes * state.iterations()) / many;
  state.counters["GB/s"] = rate * 1e-9;
  state.counters["probe"] = before * 1e-9;
  state.counters["share"] = rate / before;
  state.counters["ratio"] = many / one;
  double floor = static_cast<double>(stack.bytes) / before;
  if (const double peak = stack.takes_int8() ? int8_multiply_adds_per_second(pool) : 0; peak > 0)
    floor = std::max(floor, static_cast<double>(stack.weights * rows) / peak);
  state.counters["floor"] = floor * 1e3;
}

bool equals_plain_loops(const Form& form) {
  ThreadPool pool(1);
  MatmulScratch scratch;
  const int64_t n = 320, k = kHidden;
  const PackedMatrix weight = make_matrix(pool, form, n, k, eight_leaves(k));
  Rows x(16, k), together(16, n), alone(1, n);
  std::vector<std::vector<float>> numbers(static_cast<size_t>(n), std::vector<float>(static_cast<size_t>(k)));
  for (int64_t i = 0; i < n; ++i) weight.copy_row(i, numbers[static_cast<size_t>(i)]);
  matmul(pool, scratch, x.first(16, k), weight, together.first(16, n));
  for (int64_t m = 0; m < 16; ++m) {
    const TensorView<const float, 2> row(x.data.data() + m * k, {1, k});
    matmul(pool, scratch, row, weight, alone.first(1, n));
    if (std::memcmp(alone.data.data(), together.data.data() + m * n, n * sizeof(float)) != 0) return false;
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < k; ++j)
        sum += static_cast<double>(row(0, j)) *
               static_cast<double>(numbers[static_cast<size_t>(i)][static_cast<size_t>(j)]);
      // Inputs are rounded to 8 bits or so; the rest is far below.
      if (std::abs(sum - static_cast<double>(alone.data[i])) > 0x1p-8 * std::sqrt(static_cast<double>(k)))
        return false;
    }
  }
  return true;
}

// A type of GGUF as model_files/gguf_codes.cpp states it.
constexpr Form nested(int64_t bits, ZeroType zero_type, int64_t group) {
  return {WeightType::kCodes,
          {.code = bits == 4 ? CodeType::kUnsigned4 : CodeType::kUnsigned8,
           .zero_type = zero_type,
           .scale = ScaleType::kNested,
           .zero = zero_type == ZeroType::kConstant ? 1 << (bits - 1) : 0,
           .group = group,
           .groups_together = 256 / group},
          false,
          bits};
}
constexpr Form simple(int64_t bits) {
  return {WeightType::kCodes,
          {.code = bits == 4 ? CodeType::kUnsigned4 : CodeType::kUnsigned8,
           .scale = ScaleType::kFloat16,
           .zero = 1 << (bits - 1),
           .group = 32},
          false,
          bits};
}

constexpr Form codes(CodeType code, bool act_order = false) {
  const bool is_float = code == CodeType::kE4m3;
  return {WeightType::kCodes,
          {.code = code,
           .zero_type = is_float ? ZeroType::kConstant : ZeroType::kStored,
           .scale = is_float ? ScaleType::kFloat32 : ScaleType::kFloat16,
           .group = 128},
          act_order};
}

const std::pair<const char*, Form> kForms[]{{"fp32", {WeightType::kFloat32}},
                                            {"fp16", {WeightType::kFloat16}},
                                            {"bf16", {WeightType::kBFloat16}},
                                            {"int8", {WeightType::kInt8}},
                                            {"int4", {WeightType::kInt4}},
                                            {"gptq4", codes(CodeType::kUnsigned4)},
                                            {"gptq4-act-order", codes(CodeType::kUnsigned4, true)},
                                            {"gptq8", codes(CodeType::kUnsigned8)},
                                            {"fp8", codes(CodeType::kE4m3)},
                                            {"q4_0", simple(4)},
                                            {"q4_k", nested(4, ZeroType::kMinimum, 32)},
                                            {"q5_0", simple(5)},
                                            {"q5_k", nested(5, ZeroType::kMinimum, 32)},
                                            {"q6_k", nested(6, ZeroType::kConstant, 16)},
                                            {"q8_0", simple(8)}};

}  // namespace
}  // namespace outrider::bench

int main(int argc, char** argv) {
  using namespace outrider::bench;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  if (!pin_isa_of_environment()) return 1;
  for (const auto& [name, form] : kForms) {
    if (!equals_plain_loops(form)) {
      std::fprintf(stderr, "matmul_bench: %s differs from plain loops or between row counts\n", name);
      return 1;
    }
    benchmark::RegisterBenchmark((std::string("pass/") + name).c_str(),
                                 [f = form](benchmark::State& state) { BM_Pass(state, f); })
        ->ArgNames({"threads", "rows"})
        ->ArgsProduct({{1, 2}, {1, 2, 4, 8, 16, 64}})
        ->UseManualTime()
        ->Iterations(5)
        ->Unit(benchmark::kMillisecond);
  }
  std::printf("instruction set: %s\n", outrider::isa_name().c_str());
  benchmark::RunSpecifiedBenchmarks();
}
