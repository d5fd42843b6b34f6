// Writes a model.safetensors of random weights, a few megabytes in memory at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "lab/synth/shape.h"

namespace outrider {

// A bf16 tensor, random with this standard deviation, or constant; or 64-bit integers that are all 0.
struct SynthTensor {
  std::string name;
  std::vector<int64_t> shape;
  int32_t stream = 0;  // of the generator: the same number is the same tensor
  double deviation = 0;
  float constant = 0;  // where deviation is 0
  bool is_index = false;

  int64_t count() const;
  int64_t bytes() const { return (is_index ? 8 : 2) * count(); }
};

// The first `layers` layers of the shape. See tensors.cpp for the scales.
std::vector<SynthTensor> synth_tensors(const SynthShape& shape, int64_t layers, int64_t shared_layers);
// A head for the shape, whose draft vocabulary are its first tokens.
std::vector<SynthTensor> synth_head_tensors(const SynthShape& shape, const SynthHead& head);
// Names of the norms in front of layer i: their gain is what the layer adds to the residual stream.
std::vector<std::string> synth_layer_gains(int64_t layer);
constexpr const char* kSynthFinalNorm = "model.norm.weight";

struct SynthWriteOptions {
  Seed seed;
  int threads = 1;
  std::function<void(int64_t done, int64_t total)> progress;  // bytes; called from one thread
  std::function<bool()> interrupted;                          // ends the writing with kUnavailable
};

class SynthWeightFile {
 public:
  // Reserves the space first, so that a full disk is reported at once.
  static Result<SynthWeightFile> write(const std::filesystem::path& path,
                                       const std::vector<SynthTensor>& tensors,
                                       const SynthWriteOptions& options);
  SynthWeightFile(SynthWeightFile&& other) noexcept;
  SynthWeightFile& operator=(SynthWeightFile&&) = delete;
  ~SynthWeightFile();

  // Sets every element of a tensor to `value`, rounded to bf16.
  Status set_constant(const std::string& name, float value);
  Status sync();

 private:
  struct Place {
    int64_t offset = 0;  // in the file
    int64_t count = 0;   // of elements
  };
  SynthWeightFile(std::filesystem::path path, int descriptor) : path_(std::move(path)), fd_(descriptor) {}
  Status write_tensors(const std::vector<SynthTensor>& tensors, const SynthWriteOptions& options);
  Status write_at(const void* data, size_t bytes, int64_t offset) const;
  Status error(const char* what, int number) const;

  std::filesystem::path path_;
  int fd_ = -1;
  std::unordered_map<std::string, Place> places_;
  int64_t bytes_ = 0;  // of all tensors
};

}  // namespace outrider
