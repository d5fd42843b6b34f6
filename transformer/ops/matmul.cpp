// Chooses the kernel, prepares the inputs once, and splits the tiles over the threads.
#include <hwy/targets.h>

#include <algorithm>
#include <cctype>

#include "transformer/ops/cpu_ops.h"
#include "transformer/ops/matmul_kernels.h"

namespace outrider {
namespace {

constexpr const char* kAvx512Bf16 = "avx512_bf16";

// Instruction sets are a property of the process: chosen once, before the first op.
bool& use_avx512_bf16() {
  static bool use = cpu_has_avx512_bf16();
  return use;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// The Highway targets compiled in that this processor has, best first. Pinning narrows what Highway reports
// later.
const std::vector<int64_t>& highway_targets() {
  static const std::vector<int64_t> all = [] {
    std::vector<int64_t> targets;
    for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1)
      targets.push_back(left & -left);
    return targets;
  }();
  return all;
}

int64_t& chosen_highway_target() {
  static int64_t chosen = highway_targets().front();
  return chosen;
}

void choose_highway_target(int64_t target) {
  chosen_highway_target() = target;
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().DeInit();  // the next call looks again
}

}  // namespace

std::string isa_name() {
  return use_avx512_bf16() ? kAvx512Bf16 : lower(hwy::TargetName(chosen_highway_target()));
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  if (cpu_has_avx512_bf16()) names.emplace_back(kAvx512Bf16);
  for (int64_t target : highway_targets()) names.push_back(lower(hwy::TargetName(target)));
  return names;
}

Status pin_isa(const std::string& name) {
  if (name == "auto" || name == isa_name()) return {};
  if (name == kAvx512Bf16 && cpu_has_avx512_bf16()) {
    choose_highway_target(highway_targets().front());
    use_avx512_bf16() = true;
    return {};
  }
  for (int64_t target : highway_targets()) {
    if (lower(hwy::TargetName(target)) != name) continue;
    choose_highway_target(target);
    use_avx512_bf16() = false;
    return {};
  }
  std::string offered;
  for (const std::string& isa : available_isas()) offered += (offered.empty() ? "" : ", ") + isa;
  return invalid_argument(fmt::format("--isa {}: not on this machine; it has {}", name, offered));
}

void matmul(ThreadPool& pool, MatmulScratch& scratch, TensorView<const float, 2> x,
            const PackedMatrix& weight, TensorView<float, 2> out) {
  const int64_t rows = x.extent(0), k = weight.k(), padded = weight.padded_k();
  CHECK(x.extent(1) >= k && out.extent(1) >= weight.n() && out.extent(0) >= rows,
        "x [{}, {}], weight [{}, {}]", rows, x.extent(1), weight.n(), k);
  if (rows == 0 || weight.n() == 0) return;
  if (scratch.rounded.size() < rows * padded) scratch.rounded = Buffer<uint32_t>(rows * padded);

  MatmulJob job{.weight = &weight,
                .inputs = scratch.rounded.data(),
                .input_stride = padded,
                .out = out.data(),
                .out_stride = out.stride(0),
                .rows = rows};
  const bool bf16_weights = weight.type() == WeightType::kBFloat16;
  const bool pairs = bf16_weights && use_avx512_bf16();
  if (pairs) job.input_stride = padded / 2;
  for (int64_t m = 0; m < rows; ++m) {
    const float* row = x.data() + m * x.stride(0);
    uint32_t* to = scratch.rounded.data() + m * job.input_stride;
    if (pairs) {
      auto* halves = reinterpret_cast<bf16*>(to);
      for (int64_t i = 0; i < k; ++i) halves[i] = to_bf16(row[i]);
      if (padded != k) halves[k] = {};
    } else {
      auto* floats = reinterpret_cast<float*>(to);
      for (int64_t i = 0; i < k; ++i) floats[i] = bf16_weights ? to_float(to_bf16(row[i])) : row[i];
      if (padded != k) floats[k] = 0;
    }
  }
  // A part of less than this many bytes is done before another thread has woken up.
  constexpr int64_t kMinimumBytes = 64 << 10;
  const int64_t grain = std::max<int64_t>(1, kMinimumBytes / std::max<int64_t>(1, weight.tile_bytes()));
  pool.parallel_for(weight.tiles(), grain, [&](int64_t begin, int64_t end) {
    pairs ? matmul_tiles_avx512_bf16(job, begin, end) : matmul_tiles(job, begin, end);
  });
}

}  // namespace outrider
