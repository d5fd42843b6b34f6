// A decoder-only transformer, or one tensor-parallel shard of it: tokens in, logits out. It knows nothing of
// requests, drafts or epochs. One owner thread; under tensor parallelism every rank calls forward() with the
// same batch at the same time. Model::load picks the back-end.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/load_progress.h"
#include "base/shard.h"
#include "base/status.h"
#include "comm/collectives.h"
#include "model/batch.h"
#include "model/kv/kv_cache.h"
#include "model/logits.h"
#include "model_files/model_config.h"
#include "model_files/weight_format.h"

namespace outrider {

namespace cuda {
class DeviceGroup;
}

class ExitedTokens;
class TokenRunner;

struct Device {
  enum class Kind : uint8_t { kCpu, kCuda } kind = Kind::kCpu;
  int index = 0;  // of a CUDA device
  bool operator==(const Device&) const = default;
};

struct ModelOptions {
  Device device;
  Shard shard;
  int threads = 1;                              // at most
  int64_t bytes_per_thread = int64_t{2} << 20;  // a thread with fewer weights to read is not worth waking
  bool spin = false;                            // see ThreadPool
  int64_t max_rows = 256;                       // tokens in one forward
  int64_t max_logit_rows = 64;
  int64_t max_positions = 0;  // longest sequence; 0: what the model supports
  int64_t run_sequences = 0;  // for how many at a time make_runner() plans; 0: there is no runner
  // On a device: plans for passes through the first `exit_layer` layers (forward_first), and make_runner()
  // draws from those passes. 0: whole passes.
  int64_t exit_layer = 0;
  int64_t kv_tokens = 0;  // capacity of the cache in tokens, over all sequences; 0: one longest sequence
  // On a device: for how many sequences there are recurrent states; those of further ones are computed anew
  // in each pass, with the same bits. 0: as many as rows with logits.
  int64_t state_sequences = 0;
  enum class Kv : uint8_t { kAuto, kFloat32, kBFloat16 } kv = Kv::kAuto;  // auto: fp32 with fp32 weights
  WeightFormat weight_format = WeightFormat::kAuto;
  // Inputs of products with published codes, on the CPU; codes that are no whole numbers take bf16.
  ActivationFormat activations = ActivationFormat::kBFloat16;
  // The output head computes logits of ids below this one only; rounded up to a multiple of 16. On the CPU, by
  // one rank; elsewhere logits have all ids. 0: all.
  int64_t output_ids = 0;
  std::optional<TokenId> stand_in;  // EmbeddedIds: a draft's, whose target may have more tokens
  // Ascending layers whose input (the residual stream) is kept for every token beside its keys and values;
  // num_layers: the output of the last layer.
  std::vector<int64_t> aux_layers;
  bool overlap_kernels = true;  // a device starts a kernel while the one before it ends; no bit depends on it
  LoadProgress progress;
  // Receives a text that describes device memory before it is allocated.
  std::function<void(const std::string&)> notice;
};

class Model {
 public:
  static Result<std::unique_ptr<Model>> load(const std::filesystem::path& directory,
                                             const ModelOptions& options, Collectives& collectives);
  virtual ~Model() = default;

  // Appends every slice to its sequence's KV and returns the logits of the last logit_rows tokens of each
  // slice, in batch order. kResourceExhausted (no KV blocks) leaves every sequence as it was.
  virtual Result<LogitsShard> forward(std::span<const BatchSlice> batch) = 0;

  // As forward(), but logits stay where they were computed, for a verifier there. Does not wait for a device.
  virtual Result<PlacedLogits> forward_in_place(std::span<const BatchSlice> batch) {
    ASSIGN_OR_RETURN(const LogitsShard logits, forward(batch));
    return PlacedLogits(logits);
  }
  // The first `layers` layers, at least one, the final norm and the output head, as a model of their own
  // (LayerSkip, Elhoushi et al. 2024, 2404.16710); otherwise as forward(). Keys and values of these layers
  // are what a whole pass would have written. Those of later layers are not written, so the caller truncates
  // the tokens again. exited[i] gets the results for the tokens of batch[i], from which a whole pass may
  // continue (BatchSlice::exited); a model on a device leaves it empty.
  virtual Result<LogitsShard> forward_first(std::span<const BatchSlice> batch, int64_t layers,
                                            std::span<ExitedTokens* const> exited);
  // The group that connects the devices of the ranks; null where the model computes on the host.
  virtual cuda::DeviceGroup* device_group() { return nullptr; }

  // Draws tokens with ids below `vocab_size` where the logits are (token_runner.h); null where logits are on
  // the host. One runner per model, created at start-up.
  virtual std::unique_ptr<TokenRunner> make_runner(int64_t vocab_size);

  virtual KvCache& kv() = 0;
  // With ModelOptions::aux_layers: the hidden states of the token in slot `index` of a sequence, tap after
  // tap, [aux_layers * hidden_size], in bf16 if keys and values are. The same on every rank.
  virtual void read_hidden_states(KvHandle sequence, int64_t index, std::span<float> to) const;
  virtual const ModelConfig& config() const = 0;
  virtual int64_t max_positions() const = 0;
  virtual int64_t max_rows() const = 0;
  virtual int64_t max_logit_rows() const = 0;
  virtual int64_t weight_bytes() const = 0;
  virtual int threads() const { return 1; }  // that a pass keeps busy on the host
  // The kernels in use, e.g. "avx512_bf16" or "cuda sm_90". Bits are equal between runs with the same kernels
  // only.
  virtual std::string isa() const = 0;
};

// The longest sequence that these options allow for this model.
int64_t planned_positions(const ModelConfig& config, const ModelOptions& options);

}  // namespace outrider
