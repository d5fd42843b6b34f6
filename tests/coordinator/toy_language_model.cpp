#include "toy_language_model.h"

#include <algorithm>
#include <array>
#include <vector>

#include "toy_model.h"

namespace outrider {
namespace {

using Cells = std::vector<std::array<TokenId, kBlockTokens>>;

class ToyKvStorage final : public KvStorage {
 public:
  explicit ToyKvStorage(Cells& cells) : cells_(cells) {}
  void copy_block(int32_t from, int32_t to) override {
    cells_[static_cast<size_t>(to)] = cells_[static_cast<size_t>(from)];
  }
  void copy_slots(std::span<const KvMove> moves) override {
    const auto at = [&](const KvSlot& slot) -> TokenId& {
      return cells_[static_cast<size_t>(slot.block)][static_cast<size_t>(slot.slot)];
    };
    for (const KvMove& move : moves) at(move.to) = at(move.from);
  }
  uint64_t content_hash(std::span<const int32_t> blocks, int64_t length) const override {
    uint64_t hash = kEmptyPrefixHash;
    for (int64_t i = 0; i < length; ++i)
      hash =
          extend_prefix_hash(hash, cells_[static_cast<size_t>(blocks[static_cast<size_t>(i / kBlockTokens)])]
                                         [static_cast<size_t>(i % kBlockTokens)]);
    return hash;
  }

 private:
  Cells& cells_;
};

class ToyLanguageModel final : public Model {
 public:
  explicit ToyLanguageModel(const ToyLanguageModelOptions& options)
      : options_(options),
        cells_(static_cast<size_t>(options.kv_blocks)),
        kv_(std::make_unique<ToyKvStorage>(cells_), options.kv_blocks) {
    config_.vocab_size = kToyVocab;
    config_.max_position_embeddings = options.max_positions;
    prefix_.reserve(static_cast<size_t>(options.max_positions));
  }

  Result<LogitsShard> forward(std::span<const BatchSlice> batch) override {
    RETURN_IF_ERROR(append_batch(kv_, batch, options_.max_positions));
    logits_.clear();
    for (const BatchSlice& slice : batch) {
      const auto count = static_cast<int64_t>(slice.tokens.size());
      const int64_t first = kv_.length(slice.sequence) - count;
      for (int64_t i = 0; i < count; ++i)
        cell(slice.sequence, first + i) = slice.tokens[static_cast<size_t>(i)];
      const SlicePlace place = place_of(slice, kv_);
      for (int64_t row = count - slice.logit_rows; row < count; ++row)
        predict(slice.sequence, place, first + row);
    }
    const auto rows = static_cast<int64_t>(logits_.size()) / kToyVocab;
    return LogitsShard{.logits = TensorView<float, 2>(logits_.data(), {rows, kToyVocab}),
                       .vocab_range = {0, kToyVocab},
                       .vocab_size = kToyVocab};
  }

  KvCache& kv() override { return kv_; }
  const ModelConfig& config() const override { return config_; }
  int64_t max_positions() const override { return options_.max_positions; }
  int64_t max_rows() const override { return 24; }
  int64_t max_logit_rows() const override { return 12; }
  int64_t weight_bytes() const override { return 0; }
  std::string isa() const override { return "toy"; }

 private:
  TokenId& cell(KvHandle sequence, int64_t position) {
    const KvSlot at = kv_.slot(sequence, position);
    return cells_[static_cast<size_t>(at.block)][static_cast<size_t>(at.slot)];
  }

  // The truth is the best or the second-best token, as it is with a draft model.
  void predict(KvHandle sequence, const SlicePlace& place, int64_t slot) {
    path_.resize(static_cast<size_t>(place.depth(slot)));
    place.write_path(slot, path_.data());
    prefix_.clear();
    for (int64_t i = 0; i <= std::min(slot, place.tree_begin - 1); ++i) prefix_.push_back(cell(sequence, i));
    for (const int32_t at : path_) prefix_.push_back(cell(sequence, at));
    const uint64_t luck = mix64(prefix_hash(prefix_) + 1);
    const auto at = static_cast<ptrdiff_t>(logits_.size());
    logits_.resize(logits_.size() + kToyVocab, 0.0f);
    float* const row = logits_.data() + at;
    row[luck / 1000 % kToyVocab] = 8;
    row[toy_next(prefix_).value()] = static_cast<double>(luck % 1000) < options_.accuracy * 1000 ? 10 : 6;
  }

  ToyLanguageModelOptions options_;
  Cells cells_;
  KvCache kv_;
  ModelConfig config_;
  std::vector<TokenId> prefix_;
  std::vector<int32_t> path_;
  std::vector<float> logits_;
};

}  // namespace

std::unique_ptr<Model> make_toy_language_model(const ToyLanguageModelOptions& options) {
  return std::make_unique<ToyLanguageModel>(options);
}

}  // namespace outrider
