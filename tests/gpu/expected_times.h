// Expected time of a kernel: the slowest of its necessary operations at the device's rates, plus the fixed
// cost of a kernel. Comparing it with a measured time shows which kernels are slow. Rates come from data
// sheets and published measurements, named in expected_times.cpp; none was measured here. Times of kernels
// that do several things one after the other are lower bounds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/cuda.h"
#include "model/cuda/weights.h"
#include "model_files/model_config.h"

namespace outrider::gpu {

struct Rates {
  std::string of;                  // the device
  double read_bytes = 0;           // per second, of its memory
  double l2_bytes = 0;             // of its L2 cache
  double shared_bytes = 0;         // of all shared memories
  double matrix_flops = 0;         // of mma.sync in bf16
  double instructions = 0;         // of all schedulers, each for a warp
  double doubles = 0;              // operations on fp64 numbers, none fused
  double kernel_s = 0;             // that a kernel costs which has little to do, in a graph, in turn
  double overlapped_kernel_s = 0;  // the same where the next one starts early
  double meeting_s = 0;            // of blocks that meet in memory behind a product
  double link_bytes = 0;           // that a device reads of others
  double ranks_meet_s = 0;         // of blocks of ranks that tell each other what is there
  int multiprocessors = 132;
};
Rates h100(), h200();
// Those of an H100 or H200 by name; of others an H100's, for as many multiprocessors as they have.
Rates rates_of(const cuda::DeviceInfo& device);

struct ExpectedProduct {
  double seconds = 0;
  const char* bound =
      "";  // what it waits for: "memory", "L2", "shared memory", "matrix units", "instructions"
  double tflops = 0;
  std::string form;  // how the product is cut
};
ExpectedProduct expected_product(const Rates& rates, WeightType type, int64_t rows, int64_t n, int64_t k,
                                 bool overlaps = true);

// The same for quantized weights of a published checkpoint.
ExpectedProduct expected_product(const Rates& rates, const cuda::CodeForm& form, int64_t rows, int64_t n,
                                 int64_t k, bool overlaps = true);

// The kernels of a decode step of one sequence that has `context` tokens.
struct ExpectedKernel {
  std::string name;
  int64_t count = 0;   // in a step
  double seconds = 0;  // of one
};
std::vector<ExpectedKernel> expected_step(const Rates& rates, const ModelConfig& config,
                                          const cuda::DeviceWeightTypes& types, int64_t rows, int64_t context,
                                          bool overlaps = true);
// The kernels of latent attention except its large products, for the heads of one rank.
std::vector<ExpectedKernel> expected_latents(const Rates& rates, const ModelConfig& config, int64_t rows,
                                             int64_t context, bool overlaps = true);
// The kernels of a gated delta net except its products, for one sequence: `rows` tokens and one more that its
// state takes in.
std::vector<ExpectedKernel> expected_delta_net(const Rates& rates, const DeltaNetConfig& config, int64_t rows,
                                               bool overlaps = true);
// The kernels that draw a token from each of `rows` rows of logits: `cuts` counts top-k and top-p filters. A
// compact row of q is included if requested.
struct DrawKind {
  int64_t cuts = 0;
  bool has_dense_q = false, has_compact_q = false;
};
std::vector<ExpectedKernel> expected_draw(const Rates& rates, int64_t vocabulary, int64_t rows,
                                          const DrawKind& kind, bool overlaps = true);
// The kernels that rank the best `most` tokens of each of `rows` rows, noise included, and copy them to the
// host.
std::vector<ExpectedKernel> expected_looks(const Rates& rates, int64_t vocabulary, int64_t rows, int64_t most,
                                           bool overlaps = true);
// Time of a sum of `bytes` bytes over ranks that read each other's memory.
enum class PeerPlace { kOneDevice, kDeviceEach };
double expected_peer_sum(const Rates& rates, int64_t bytes, int ranks, PeerPlace place);
// The kernels of a step of an EAGLE-3 head: one layer, whose input is embedding and hidden state side by
// side, an lm_head of `draft_vocab` tokens, and the draw of the next step's input. `layer.vocab_size` is the
// target's.
std::vector<ExpectedKernel> expected_head_step(const Rates& rates, const ModelConfig& layer,
                                               int64_t draft_vocab, const cuda::DeviceWeightTypes& types,
                                               int64_t context);
// The weight types of a model that has no files.
cuda::DeviceWeightTypes types_of(WeightFormat format);
double seconds_of(const std::vector<ExpectedKernel>& step);

// "as expected", or by how much it is off where that is more than a factor of `most`.
std::string judge(double measured_s, double expected_s, double most = 1.5);

}  // namespace outrider::gpu
