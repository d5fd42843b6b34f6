// Heads against logits of an independent implementation, and against themselves in other passes.
#include "heads/pair_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model_files/safetensors.h"
#include "tests/heads/golden_heads.h"
#include "tests/model/model_suite.h"
#include "tests/model/tensors_to_change.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

struct PairGolden {
  std::vector<TokenId> ids;          // of pairs 0, 1, ...: at positions 1, 2, ...
  std::vector<float> hidden_states;  // [committed pairs, aux_layers * hidden]
  std::vector<float> logits;         // [3, draft vocabulary]
  int64_t pairs = 0;
};

std::vector<float> floats_of(const TensorInfo& tensor) {
  std::vector<float> out(tensor.data.size() / sizeof(float));
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

std::vector<PairGolden> goldens(const std::string& name) {
  const auto file = SafetensorsFile::open(testing::golden_head(name) / "golden.safetensors").value();
  std::vector<PairGolden> out;
  for (int n = 0; n < 2; ++n) {
    PairGolden& golden = out.emplace_back();
    const auto find = [&](const char* what) -> const TensorInfo& {
      return *file.find(fmt::format("{}.{}", what, n));
    };
    const TensorInfo& ids = find("ids");
    for (size_t i = 1; i < ids.data.size() / sizeof(int32_t); ++i) {
      int32_t id = 0;
      std::memcpy(&id, ids.data.data() + i * sizeof id, sizeof id);
      golden.ids.emplace_back(id);
    }
    golden.hidden_states = floats_of(find("states"));
    golden.logits = floats_of(find("logits"));
    golden.pairs = find("states").shape[0];
  }
  return out;
}

// A deliberate mistake in the inputs, to show that the comparison detects it.
enum class Mistake { kNone, kStatesUnnormed, kStatesLate, kTokensLate };

// Rows behind the committed pairs and each of two drafted tokens, where pairs come `chunk` at a time.
std::vector<float> logits_of(PairHead& head, PairGolden golden, int64_t chunk, KvHandle sequence,
                             Mistake mistake = Mistake::kNone) {
  HeadCompute& on = head.compute();
  const auto width = static_cast<std::ptrdiff_t>(golden.hidden_states.size()) / golden.pairs;
  if (mistake == Mistake::kStatesLate)
    std::rotate(golden.hidden_states.begin(), golden.hidden_states.end() - width, golden.hidden_states.end());
  if (mistake == Mistake::kTokensLate)
    std::rotate(golden.ids.begin(), golden.ids.end() - 1, golden.ids.end());
  const testing::RowsThere raw(on, golden.hidden_states, golden.pairs);
  const RowBuffer hidden_states = on.rows(golden.pairs, head.hidden_size()),
                  next = on.rows(1, head.hidden_size());
  for (int64_t i = 0; i < golden.pairs; i += chunk) {
    const int64_t rows = std::min(chunk, golden.pairs - i);
    if (mistake == Mistake::kStatesUnnormed)
      on.copy(raw.from(i, rows), hidden_states.from(i, rows));
    else
      head.committed_hidden_states(raw.from(i, rows), hidden_states.from(i, rows));
  }
  std::vector<float> out;
  const auto take = [&](const PairHead::Rows& rows) {
    const auto row = testing::numbers_of(on, rows.logits);
    out.insert(out.end(), row.begin(), row.end());
    on.copy(rows.hidden_states, next.rows(1));
  };
  for (int64_t i = 0; i < golden.pairs; i += chunk) {
    const int64_t count = std::min(chunk, golden.pairs - i);
    const PairSlice slice{
        .sequence = sequence,
        .tokens = std::span(golden.ids).subspan(static_cast<size_t>(i), static_cast<size_t>(count)),
        .hidden_states = hidden_states.from(i, count),
        .has_logits = i + count == golden.pairs};
    const auto rows = head.forward({&slice, 1});
    if (slice.has_logits) take(rows);
  }
  for (int64_t step = 0; step < 2; ++step) {
    const PairSlice slice{
        .sequence = sequence,
        .tokens = std::span(golden.ids).subspan(static_cast<size_t>(golden.pairs + step), 1),
        .hidden_states = next.rows(1),
        .has_logits = true};
    take(head.forward({&slice, 1}));
  }
  return out;
}

std::vector<float> logits_of(PairHead& head, const PairGolden& golden, int64_t chunk) {
  const KvHandle sequence = head.kv().create();
  auto out = logits_of(head, golden, chunk, sequence);
  head.kv().release(sequence);
  return out;
}

class GoldenHeads : public ::testing::TestWithParam<testing::GoldenHead> {};

TEST_P(GoldenHeads, LogitsOfThreeStepsAreThoseOfTheEquations) {
  for (const std::string& isa : testing::suite_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    const auto head = testing::load_head_or_die<PairHead>(GetParam(), {.threads = 2, .bytes_per_thread = 1});
    for (const PairGolden& golden : goldens(GetParam().name)) {
      const auto logits = logits_of(*head, golden, 37);
      ASSERT_EQ(logits.size(), golden.logits.size());
      for (size_t i = 0; i < logits.size(); ++i)
        ASSERT_NEAR(logits[i], golden.logits[i], 2e-3)
            << isa << ", logit " << i << " behind " << golden.pairs;
    }
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

// Also behind a rollback of drafted pairs, and beside another sequence.
void expect_bits_of_the_text(const testing::GoldenHead& kind, WeightFormat format) {
  const auto head = testing::load_head_or_die<PairHead>(
      kind, {.threads = 2, .bytes_per_thread = 1, .kv_tokens = 512, .weight_format = format});
  const PairGolden golden = goldens(kind.name)[1];
  const auto expected = logits_of(*head, golden, 1);
  for (const int64_t chunk : {2, 16, 37})
    EXPECT_TRUE(testing::same_bits(expected, logits_of(*head, golden, chunk)));

  const KvHandle other = head->kv().create(), rolled_back = head->kv().create();
  (void)logits_of(*head, goldens(kind.name)[0], 1, other);
  PairGolden wrong = golden;
  for (TokenId& id : std::span(wrong.ids).subspan(30)) id = TokenId((id.value() + 7) % 302);
  (void)logits_of(*head, wrong, 5, rolled_back);
  head->kv().truncate(rolled_back, 0);
  EXPECT_TRUE(testing::same_bits(expected, logits_of(*head, golden, 9, rolled_back)));
}

TEST_P(GoldenHeads, BitsDependOnTheTextAlone) {
  for (const WeightFormat format : {WeightFormat::kAuto, WeightFormat::kBFloat16})
    expect_bits_of_the_text(GetParam(), format);
}

TEST_P(GoldenHeads, QuantisedWeightsStayClose) {
  const PairGolden golden = goldens(GetParam().name)[1];
  const auto exact = testing::load_head_or_die<PairHead>(GetParam());
  const auto truth = logits_of(*exact, golden, 37);
  const auto head = testing::load_head_or_die<PairHead>(GetParam(), {.weight_format = WeightFormat::kInt8});
  const auto logits = logits_of(*head, golden, 37);
  EXPECT_TRUE(testing::same_bits(logits, logits_of(*head, golden, 3)));
  double squares = 0, differences = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    squares += static_cast<double>(truth[i]) * static_cast<double>(truth[i]);
    differences += std::pow(static_cast<double>(logits[i]) - static_cast<double>(truth[i]), 2);
  }
  EXPECT_LT(std::sqrt(differences / squares), 0.2);  // three steps add up: measured 0.03 to 0.13
  EXPECT_GT(differences, 0) << "not quantised at all?";
}

// A module whose concatenation is the other way round: its projection with the halves of its columns swapped.
std::filesystem::path swapped_module(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::copy(from, to);
  testing::TensorsToChange file(from / "model.safetensors");
  for (const char* name :
       {"model.mtp_layers.0.input_proj.weight", "model.layers.2.eh_proj.weight", "mtp.fc.weight"})
    if (const auto found = file.tensors.find(name); found != file.tensors.end()) {
      std::string& bytes = found->second.bytes;
      const size_t row = bytes.size() / static_cast<size_t>(found->second.shape[0]);
      for (size_t at = 0; at < bytes.size(); at += row)
        std::rotate(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                    bytes.begin() + static_cast<std::ptrdiff_t>(at + row / 2),
                    bytes.begin() + static_cast<std::ptrdiff_t>(at + row));
    }
  file.write(to / "model.safetensors");
  return to;
}

// The mistakes that would cost acceptance and nothing else.
TEST(Modules, TheUsualMistakesAreFarOff) {
  for (const testing::GoldenHead& kind : testing::kPairHeads) {
    if (kind.kind != HeadKind::kMtp) continue;
    const PairGolden golden = goldens(kind.name)[1];
    const auto distance = [&](PairHead& head, Mistake mistake) {
      const KvHandle sequence = head.kv().create();
      const auto logits = logits_of(head, golden, 37, sequence, mistake);
      head.kv().release(sequence);
      float most = 0;
      for (size_t i = 0; i < logits.size(); ++i)
        most = std::max(most, std::abs(logits[i] - golden.logits[i]));
      return most;
    };
    const auto head = testing::load_head_or_die<PairHead>(kind);
    EXPECT_LT(distance(*head, Mistake::kNone), 2e-3f) << kind.name;
    for (const Mistake mistake : {Mistake::kStatesUnnormed, Mistake::kStatesLate, Mistake::kTokensLate})
      EXPECT_GT(distance(*head, mistake), 0.5f) << kind.name << ", mistake " << static_cast<int>(mistake);
    const TemporaryDirectory directory;
    auto swapped = PairHead::load(swapped_module(testing::golden_head(kind.name), directory.path()),
                                  testing::golden_model(testing::kHeadsTarget),
                                  {.kind = kind.kind, .compute = testing::suite_compute()});
    ASSERT_TRUE(swapped.ok()) << swapped.status().message();
    EXPECT_GT(distance(**swapped, Mistake::kNone), 0.5f) << kind.name << ", state and token swapped";
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, GoldenHeads, ::testing::ValuesIn(testing::kPairHeads),
                         testing::head_test_name);

}  // namespace
}  // namespace outrider
