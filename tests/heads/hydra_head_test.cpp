// Hydra against logits of an independent implementation, and against itself in other batches.
#include "heads/hydra_head.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model_files/safetensors.h"
#include "tests/heads/golden_heads.h"
#include "tests/model/model_suite.h"

namespace outrider {
namespace {

// Inputs and outputs of the independent reference implementation.
struct HydraGolden {
  explicit HydraGolden(const testing::GoldenHead& head)
      : file(SafetensorsFile::open(testing::golden_head(head.name) / "golden.safetensors").value()),
        hidden_states(numbers<float>("states")),
        logits(numbers<float>("logits")) {
    for (const int32_t id : numbers<int32_t>("ids")) ids.emplace_back(id);
  }

  SafetensorsFile file;
  std::vector<float> hidden_states, logits;
  std::vector<TokenId> ids;

 private:
  template <class T>
  std::vector<T> numbers(const char* name) {
    const TensorInfo& tensor = *file.find(name);
    std::vector<T> out(tensor.data.size() / sizeof(T));
    std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
    return out;
  }
};

// A deliberate mistake in the inputs, to show that the comparison detects it.
enum class HydraMistake { kNone, kStateUnnormed, kTokensLate, kTokensReversed, kOtherState };

// Logits of every branch behind each state, each after the tokens of the golden's text; `batch` rows at a
// time.
std::vector<float> logits_of(HydraHead& head, const HydraGolden& golden, int64_t batch,
                             HydraMistake mistake = HydraMistake::kNone) {
  const int64_t hidden = head.hidden_size(),
                count = static_cast<int64_t>(golden.hidden_states.size()) / hidden;
  HeadCompute& on = head.compute();
  const RowBuffer committed = on.rows(count, hidden);
  head.committed_hidden_states(testing::RowsThere(on, golden.hidden_states, count).all(),
                               committed.rows(count));
  std::vector<float> hidden_states = testing::numbers_of(on, committed.rows(count));
  if (mistake == HydraMistake::kStateUnnormed) hidden_states = golden.hidden_states;
  if (mistake == HydraMistake::kOtherState)
    std::rotate(hidden_states.begin(), hidden_states.begin() + hidden, hidden_states.end());
  if (PairHead* const prefix = head.prefix()) {
    const KvHandle sequence = prefix->kv().create();
    const testing::RowsThere read(on, hidden_states, count);
    for (int64_t t = 0; t < count; ++t) {
      const PairSlice slice{.sequence = sequence,
                            .tokens = std::span(golden.ids).subspan(static_cast<size_t>(t), 1),
                            .hidden_states = read.from(t, 1),
                            .has_logits = true};
      const auto out = testing::numbers_of(on, prefix->forward({&slice, 1}).hidden_states);
      std::copy(out.begin(), out.end(), hidden_states.begin() + t * hidden);
    }
    prefix->kv().release(sequence);
  }
  const int64_t width = head.input_width(head.heads() - 1);
  std::vector<float> inputs(static_cast<size_t>(count * width)), out(golden.logits.size());
  for (int64_t branch = 0; branch < head.heads(); ++branch) {
    for (int64_t t = 0; t < count; ++t) {
      const auto part = [&](int64_t i) {
        return std::span(inputs).subspan(static_cast<size_t>(t * width + i * hidden),
                                         static_cast<size_t>(hidden));
      };
      std::copy_n(hidden_states.begin() + t * hidden, hidden, part(0).begin());
      if (head.input_width(branch) == hidden) continue;
      for (int64_t i = 0; i <= branch; ++i) {
        const int64_t at = mistake == HydraMistake::kTokensLate       ? t + i
                           : mistake == HydraMistake::kTokensReversed ? t + 1 + branch - i
                                                                      : t + 1 + i;
        head.embed(golden.ids[static_cast<size_t>(at)], part(i + 1));
      }
    }
    for (int64_t first = 0; first < count; first += batch) {
      const int64_t rows = std::min(batch, count - first);
      const testing::RowsThere some(
          on,
          std::span(inputs).subspan(static_cast<size_t>(first * width), static_cast<size_t>(rows * width)),
          rows);
      const FloatRows logits = on.fetch(head.logits(branch, some.all()));
      for (int64_t r = 0; r < rows; ++r)
        std::copy_n(logits.row(r).begin(), head.own_vocab(),
                    out.begin() + ((first + r) * head.heads() + branch) * head.own_vocab());
    }
  }
  return out;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

HeadOptions two_threads() { return {.threads = 2, .bytes_per_thread = 1}; }

TEST(Hydra, LogitsAreThoseOfTheEquations) {
  for (const auto& kind : testing::kHydraHeads) {
    const HydraGolden golden(kind);
    for (const std::string& isa : testing::suite_isas()) {
      ASSERT_TRUE(pin_isa(isa).ok());
      const auto head = testing::load_head_or_die<HydraHead>(kind, two_threads());
      EXPECT_EQ(head->heads(), 3);
      EXPECT_EQ(head->prefix() != nullptr, kind.name == "hydra-prefix");
      const auto logits = logits_of(*head, golden, 5);
      EXPECT_LT(largest_difference(logits, golden.logits), 2e-3f) << kind.name << ", " << isa;
      EXPECT_TRUE(testing::same_bits(logits, logits_of(*head, golden, 1))) << kind.name << ", " << isa;
    }
    ASSERT_TRUE(pin_isa(available_isas().front()).ok());
  }
}

// Mistakes that would cost acceptance and nothing else are far outside the tolerance above.
TEST(Hydra, MistakesAreSeen) {
  for (const auto& kind : testing::kHydraHeads) {
    const HydraGolden golden(kind);
    const auto head = testing::load_head_or_die<HydraHead>(kind, two_threads());
    for (const HydraMistake mistake : {HydraMistake::kStateUnnormed, HydraMistake::kOtherState,
                                       HydraMistake::kTokensLate, HydraMistake::kTokensReversed}) {
      const bool is_of_tokens =
          mistake == HydraMistake::kTokensLate || mistake == HydraMistake::kTokensReversed;
      const float difference = largest_difference(logits_of(*head, golden, 5, mistake), golden.logits);
      if (is_of_tokens && !head->config().grounded)
        EXPECT_LT(difference, 2e-3f) << kind.name;
      else
        EXPECT_GT(difference, 0.2f) << kind.name << ", mistake " << static_cast<int>(mistake);
    }
  }
}

}  // namespace
}  // namespace outrider
