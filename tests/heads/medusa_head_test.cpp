// Medusa against logits of an independent implementation, and against itself in other batches.
#include "heads/medusa_head.h"

#include <gtest/gtest.h>

#include <cstring>

#include "model_files/safetensors.h"
#include "tests/heads/golden_heads.h"
#include "tests/model/model_suite.h"

namespace outrider {
namespace {

std::vector<float> floats_of(const SafetensorsFile& file, const char* name) {
  const TensorInfo& tensor = *file.find(name);
  std::vector<float> out(tensor.data.size() / sizeof(float));
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

// Logits of every branch behind each of the states, which go through `batch` at a time.
std::vector<float> logits_of(MedusaHead& head, const std::vector<float>& raw, int64_t batch) {
  const int64_t hidden = head.hidden_size(), hidden_states = static_cast<int64_t>(raw.size()) / hidden;
  const testing::RowsThere there(head.compute(), raw, hidden_states);
  const RowBuffer g = head.compute().rows(hidden_states, hidden);
  std::vector<float> out(static_cast<size_t>(hidden_states * head.heads() * head.own_vocab()));
  for (int64_t first = 0; first < hidden_states; first += batch) {
    const int64_t rows = std::min(batch, hidden_states - first);
    const FloatRows of = g.from(first, rows);
    head.committed_hidden_states(there.from(first, rows), of);
    for (int64_t branch = 0; branch < head.heads(); ++branch) {
      const FloatRows logits = head.compute().fetch(head.logits(branch, of));
      for (int64_t r = 0; r < rows; ++r)
        std::copy_n(logits.row(r).begin(), head.own_vocab(),
                    out.begin() + ((first + r) * head.heads() + branch) * head.own_vocab());
    }
  }
  return out;
}

TEST(Medusa, LogitsAreThoseOfTheEquations) {
  for (const auto& golden : testing::kMedusaHeads) {
    const auto file = SafetensorsFile::open(testing::golden_head(golden.name) / "golden.safetensors").value();
    const auto expected = floats_of(file, "logits");
    for (const std::string& isa : testing::suite_isas()) {
      ASSERT_TRUE(pin_isa(isa).ok());
      const auto head = testing::load_head_or_die<MedusaHead>(golden, {.threads = 2, .bytes_per_thread = 1});
      EXPECT_EQ(head->heads(), 3);
      const auto logits = logits_of(*head, floats_of(file, "states"), 5);
      ASSERT_EQ(logits.size(), expected.size());
      for (size_t i = 0; i < logits.size(); ++i)
        ASSERT_NEAR(logits[i], expected[i], 2e-3) << isa << ", logit " << i;
      EXPECT_TRUE(testing::same_bits(logits, logits_of(*head, floats_of(file, "states"), 1))) << isa;
    }
    ASSERT_TRUE(pin_isa(available_isas().front()).ok());
  }
}

}  // namespace
}  // namespace outrider
