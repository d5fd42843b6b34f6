// Shared by the parts of gpu_bench: settings, the device and its stream, and the report. Each part prints its
// own lines of the table.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/cuda.h"
#include "model/cuda_backend.h"
#include "model/weights.h"
#include "model_files/model_config.h"
#include "tests/gpu/expected_times.h"

namespace outrider::gpu {

struct Settings {
  std::string json_file;
  std::string only;      // a regular expression for the names of parts
  double seconds = 240;  // for everything; what does not fit is left out, and said
  bool tiny = false;     // shapes that the emulation can run
};

struct Bench {
  // Prints and notes what does not run.
  bool time_is_up(const std::string& what);
  // Runs `part`. Prints and records its exception, so that a failing part does not prevent the others.
  void attempt(const std::string& what, const std::function<void()>& part);
  void write() const;

  const Settings settings;
  const cuda::DeviceInfo device = cuda::describe_device(0);
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  const cuda::Stream stream{cuda::KernelOrder::kOverlapping};
  const Rates rates = rates_of(device);
  // Puts what was expected, and what to think of it, beside what was measured; returns text where it is off.
  std::string compare(nlohmann::json& line, double measured_s, double expected_s);
  double read_bandwidth = 1;  // bytes per second; of measure_bandwidth, and what shares are of
  nlohmann::json report;
};

// memory_timings.cpp
void measure_bandwidth(Bench& bench);
void measure_launches(Bench& bench);
// peer_timings.cpp
void measure_peer_sums(Bench& bench);
// kernel_timings.cpp: those of a layer that are no products; those of latent attention, and of gated delta
// nets.
void measure_small_kernels(Bench& bench, const std::string& name, const ModelConfig& config);
void measure_latent_kernels(Bench& bench, const std::string& name, const ModelConfig& config);
void measure_delta_kernels(Bench& bench, const std::string& name, const DeltaNetConfig& config);
// product_timings.cpp
void measure_products(Bench& bench, const std::string& name, int64_t n, int64_t k, WeightType type);
// Measures products with the quantized weights of a published checkpoint.
void measure_products(Bench& bench, const std::string& name, int64_t n, int64_t k,
                      const cuda::CodeForm& form);
// model_timings.cpp
void measure_steps(Bench& bench, const std::string& name, const ModelConfig& config, WeightFormat format,
                   const std::vector<int64_t>& contexts, bool overlap = true);
// Drafts, and depths of trees.
void measure_drafts(Bench& bench, const std::string& name, const ModelConfig& config, WeightFormat format);

}  // namespace outrider::gpu
