#include "lab/synth/probe.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "base/philox.h"
#include "kernels/sampling/gumbel.h"
#include "kernels/sampling/shard_row.h"
#include "lab/synth/vocabulary.h"

namespace outrider {
namespace {

constexpr double kEntropyTemperature = 1;

double text_temperature(const ProbeOptions& o) {
  return o.temperature > 0 ? o.temperature : kEntropyTemperature;
}

// A sequence in the model's cache, released at the end.
class CachedSequence {
 public:
  explicit CachedSequence(Model& model) : model_(&model), handle_(model.kv().create()) {}
  CachedSequence(CachedSequence&& other) noexcept
      : model_(std::exchange(other.model_, nullptr)), handle_(other.handle_) {}
  CachedSequence& operator=(CachedSequence&&) = delete;
  ~CachedSequence() {
    if (model_) model_->kv().release(handle_);
  }
  KvHandle handle() const { return handle_; }

 private:
  Model* model_;
  KvHandle handle_;
};

// One row of logits, scaled in place, ready for choices.
struct ScaledRow {
  ScaledRow(std::span<float> logits, double temperature, std::vector<float>& chunk_max)
      : values(logits), chunks{{0, static_cast<int64_t>(logits.size())}} {
    chunk_max.resize(static_cast<size_t>(chunks.count()));
    maxima = chunk_max;
    nan = scale_and_scan(values, chunks, static_cast<float>(1 / temperature), maxima);
  }
  TokenId best() const {
    return best_logit({.logits = values, .chunks = chunks, .chunk_max = maxima}, nan).id();
  }
  TokenId draw(Seed seed, int64_t position) const {
    return gumbel_argmax(values, chunks, maxima, seed, Position(static_cast<int32_t>(position))).id();
  }

  std::span<float> values;
  Chunks chunks;
  std::span<float> maxima;
  bool nan = false;
};

// The entropy of softmax(factor * row), in nats.
double entropy_of(std::span<const float> row, double factor) {
  const double max = factor * *std::max_element(row.begin(), row.end());
  double total = 0, weighted = 0;
  for (const float logit : row) {
    const double l = factor * logit - max, weight = std::exp(l);
    total += weight;
    weighted += weight * l;
  }
  return std::log(total) - weighted / total;
}

// Calls use(row, sequence, position) for the logits at every tested position.
template <class Use>
Status for_each_row(Model& model, const ProbeText& text, const ProbeOptions& options, Use use) {
  for (size_t s = 0; s < text.size(); ++s) {
    const CachedSequence sequence(model);
    const std::span<const TokenId> ids(text[s]);
    const auto from = static_cast<size_t>(options.tested_from);
    const BatchSlice parts[] = {{.sequence = sequence.handle(), .tokens = ids.first(from), .logit_rows = 0},
                                {.sequence = sequence.handle(),
                                 .tokens = ids.subspan(from),
                                 .logit_rows = static_cast<int64_t>(ids.size() - from)}};
    RETURN_IF_ERROR(model.forward({&parts[0], 1}).status());
    ASSIGN_OR_RETURN(const LogitsShard logits, model.forward({&parts[1], 1}));
    for (int64_t row = 0; row < parts[1].logit_rows; ++row)
      use(logits.logits.row(row), static_cast<int64_t>(s), options.tested_from + row);
  }
  return {};
}

}  // namespace

ModelOptions probe_model_options(const ProbeOptions& options, int threads) {
  return {.threads = threads,
          .max_rows = std::max(options.length, kProbePrompt * options.sequences),
          .max_logit_rows = std::max(options.length, options.sequences),
          .max_positions = options.length,
          .kv_tokens = options.sequences * (options.length + kBlockTokens)};
}

Result<ProbeText> sample_text(Model& model, const ProbeOptions& options) {
  const int64_t vocab = model.config().vocab_size;
  ProbeText text;
  std::vector<CachedSequence> cached;
  for (int64_t s = 0; s < options.sequences; ++s) {
    cached.emplace_back(model);
    const uint64_t random =
        draw_u64(options.seed, Purpose::kSynth, Position(-1), Round(0), static_cast<uint32_t>(s));
    text.push_back({TokenId(kSynthBos),
                    TokenId(static_cast<int32_t>(multiply_high(random, static_cast<uint64_t>(vocab))))});
  }
  std::vector<float> chunk_max;
  for (int64_t length = kProbePrompt; length < options.length; ++length) {
    std::vector<BatchSlice> batch;
    for (size_t s = 0; s < text.size(); ++s) {
      const size_t unread = length == kProbePrompt ? kProbePrompt : 1;
      batch.push_back(
          {.sequence = cached[s].handle(), .tokens = std::span(text[s]).last(unread), .logit_rows = 1});
    }
    ASSIGN_OR_RETURN(const LogitsShard logits, model.forward(batch));
    for (size_t s = 0; s < text.size(); ++s) {
      const ScaledRow row(logits.logits.row(static_cast<int64_t>(s)), text_temperature(options), chunk_max);
      text[s].push_back(row.draw({options.seed.value + s + 1}, length));
    }
  }
  return text;
}

Result<ProbeChoices> choose_along(Model& model, const ProbeText& text, const ProbeOptions& options) {
  ProbeChoices choices;
  std::vector<float> chunk_max;
  double entropies = 0;
  int64_t rows = 0;
  RETURN_IF_ERROR(
      for_each_row(model, text, options, [&](std::span<float> logits, int64_t s, int64_t position) {
        const ScaledRow row(logits, text_temperature(options), chunk_max);
        entropies += entropy_of(row.values, 1);
        ++rows;
        if (options.temperature == 0) return choices.tokens.push_back(row.best());
        for (int d = 0; d < options.draws; ++d)
          choices.tokens.push_back(
              row.draw({options.seed.value + static_cast<uint64_t>(s)}, position * options.draws + d));
      }));
  choices.entropy = entropies / static_cast<double>(rows);
  return choices;
}

double agreement(const ProbeChoices& a, const ProbeChoices& b) {
  CHECK(a.tokens.size() == b.tokens.size() && !a.tokens.empty(), "{} and {} choices", a.tokens.size(),
        b.tokens.size());
  size_t same = 0;
  for (size_t i = 0; i < a.tokens.size(); ++i) same += a.tokens[i] == b.tokens[i];
  return static_cast<double>(same) / static_cast<double>(a.tokens.size());
}

Result<double> factor_for_entropy(Model& model, const ProbeText& text, double entropy,
                                  const ProbeOptions& options) {
  constexpr int64_t kEvery = 6;  // a sixth of the positions is enough for a mean
  std::vector<std::vector<float>> rows;
  RETURN_IF_ERROR(for_each_row(model, text, options, [&](std::span<float> logits, int64_t, int64_t position) {
    if (position % kEvery == 0) rows.emplace_back(logits.begin(), logits.end());
  }));
  const double scale = 1 / text_temperature(options);
  double low = 1.0 / 64, high = 64;  // entropy falls as the factor rises
  for (int step = 0; step < 16; ++step) {
    const double middle = std::sqrt(low * high);
    double sum = 0;
    for (const auto& row : rows) sum += entropy_of(row, middle * scale);
    (sum / static_cast<double>(rows.size()) > entropy ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

}  // namespace outrider
