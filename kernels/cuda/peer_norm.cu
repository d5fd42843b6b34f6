// The sum over ranks, the residual and the norm in one kernel, over peer memory.
#include <algorithm>

#include "comm/cuda/peer_exchange.h"
#include "comm/cuda/reduce.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/norm_row.h"

namespace outrider::cuda {
namespace {

// Blocks take rows in turns, and exchange their own: what a block of one rank stores, the same block of the
// others reads.
template <class T>
__global__ void __launch_bounds__(kNormThreads)
    sum_and_norm_rows(const PeerView view, const NormArguments a) {
  const NormWeights weights(a.weight, a.hidden);
  auto* sums = shared_memory<float>();
  const auto row_of = [&](int64_t m) { return (a.rows_from ? a.rows_from[m] : m) * a.hidden; };
  const auto groups = groups_of<float>(a.hidden);
  // Rows begin at 16 bytes in slots, and in the matrices where they have a multiple of four numbers.
  exchange_block(
      view, reinterpret_cast<uint32_t*>(sums + kNormWarps),
      [&](std::byte* slot) {
        for (int64_t m = blockIdx.x; m < a.rows; m += gridDim.x)
          for (int64_t g = threadIdx.x; g < groups; g += kNormThreads) {
            ElementGroup<float> group = {};
            load_group(a.added + row_of(m), g, a.hidden, group);
            *(reinterpret_cast<uint4*>(slot) + m * groups + g) = std::bit_cast<uint4>(group);
          }
      },
      [&](int64_t parity) {
        for (int64_t m = blockIdx.x; m < a.rows; m += gridDim.x) {
          float* residual = a.residual + row_of(m);
          for (int64_t g = threadIdx.x; g < groups; g += kNormThreads) {
            const auto sum = combine_groups<Reduction::kTreeSum, float>(view, parity, m * groups + g);
            ElementGroup<float> bias = {}, group = {};
            if (a.bias) load_group(a.bias, g, a.hidden, bias);
            load_group<float>(residual, g, a.hidden, group);
            OUTRIDER_UNROLL
            for (int i = 0; i < ElementGroup<float>::kSize; ++i) {
              const float added = a.bias ? sum.values[i] + bias.values[i] : sum.values[i];
              group.values[i] = group.values[i] + added * a.factor;
            }
            store_group(residual, g, a.hidden, group);
          }
          sync_block();  // the row is whole
          norm_row(
              a.hidden, a.epsilon, weights, sums, static_cast<T*>(a.out) + m * a.hidden,
              [&](int64_t i) { return residual[i]; }, [](int64_t, float) {});
          sync_block();  // the sums are free for the next row
        }
      });
}

}  // namespace

void sum_and_norm(StreamView stream, const PeerView& view, const NormArguments& arguments) {
  const int64_t row_bytes = groups_of<float>(arguments.hidden) * 16;
  const int64_t rows_at_once = view.slot_bytes / row_bytes;
  CHECK(arguments.weight && !arguments.added_weight, "a norm of what is added is a kernel of its own");
  CHECK(rows_at_once > 0 && arguments.added, "rows of {} bytes in slots of {}", row_bytes, view.slot_bytes);
  for (int64_t first = 0; first < arguments.rows; first += rows_at_once) {
    NormArguments part = arguments;
    part.rows = std::min(rows_at_once, arguments.rows - first);
    const LaunchShape shape{.grid_x = exchange_blocks(view, part.rows),
                            .threads = kNormThreads,
                            .shared_bytes = kNormWarps * sizeof(float) + sizeof(uint32_t)};
    part.out =
        static_cast<std::byte*>(arguments.out) + first * arguments.hidden * element_bytes(arguments.type);
    if (arguments.rows_from) {
      part.rows_from = arguments.rows_from + first;
    } else {
      part.residual = arguments.residual + first * arguments.hidden;
      part.added = arguments.added + first * arguments.hidden;
    }
    if (arguments.type == WeightType::kBFloat16)
      launch(stream, shape, &sum_and_norm_rows<bf16>, view, part);
    else
      launch(stream, shape, &sum_and_norm_rows<float>, view, part);
  }
}

}  // namespace outrider::cuda
