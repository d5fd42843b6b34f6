// Deliberate mistakes that reduce acceptance and have no other effect. Each one shows in the share of a
// trained head's draft tokens that equal the target's own tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/json_text.h"
#include "heads/head_drafter.h"
#include "tests/heads/golden_heads.h"

namespace outrider {
namespace {

std::filesystem::path demo(const std::string& name) { return source_dir() / "launch/demo_pair" / name; }

// A deliberate mistake in the hidden states.
struct Mistake {
  int64_t late = 0;               // positions that they are off
  bool unnormed = false;          // their norm is left out
  std::vector<float> projection;  // ... behind this: [width of a row, width of the states]
};

// The states that a target's model keeps.
class ModelStates final : public HiddenStateSource {
 public:
  ModelStates(const Model& target, Head& head, Mistake mistake)
      : target_(target), head_(head), mistake_(std::move(mistake)) {}
  void read(SequenceId, int64_t first, TensorView<float, 2> to) override {
    const auto width = static_cast<int64_t>(head_.config().aux_layers.size()) * target_.config().hidden_size;
    raw_.resize(static_cast<size_t>(to.extent(0) * width));
    const TensorView<float, 2> raw(raw_.data(), {to.extent(0), width});
    for (int64_t r = 0; r < to.extent(0); ++r)
      target_.read_hidden_states(sequence, std::max<int64_t>(0, first + r - mistake_.late), raw.row(r));
    if (!mistake_.unnormed) return head_.committed_hidden_states(raw, to);
    for (int64_t r = 0; r < to.extent(0); ++r) project(raw.row(r), to.row(r));
  }
  KvHandle sequence;

 private:
  void project(std::span<const float> state, std::span<float> to) const {
    if (mistake_.projection.empty())
      return static_cast<void>(std::copy(state.begin(), state.end(), to.begin()));
    for (size_t i = 0; i < to.size(); ++i)
      to[i] = std::inner_product(state.begin(), state.end(), &mistake_.projection[i * state.size()], 0.0f);
  }

  const Model& target_;
  Head& head_;
  const Mistake mistake_;
  std::vector<float> raw_;
};

// Greedy texts of the target, and how many of each three drafted tokens they go on with.
double accepted_per_draft(const std::filesystem::path& directory, HeadKind kind,
                          const Mistake& mistake = {}) {
  constexpr size_t kPrompt = 6, kText = 70;
  const auto single = make_single_collectives();
  auto head = Head::load(directory, demo("target"), {.kind = kind, .max_positions = 100}).value();
  const auto target = testing::load_or_die(
      demo("target"), {.max_positions = 100, .kv_tokens = 200, .aux_layers = head->config().aux_layers},
      *single);
  int64_t accepted = 0, drafts = 0;
  const SamplingParams greedy{.rule = Rule::kGreedy, .temperature = 0};
  for (int32_t text = 0; text < 3; ++text) {
    ModelStates hidden_states(*target, *head, mistake);
    const auto drafter = make_head_drafter(*head, {.max_sequences = 1});
    std::vector<TokenId> ids{TokenId(0)};
    for (size_t i = 1; i < kPrompt; ++i) ids.emplace_back(300 + 37 * text + 11 * static_cast<int32_t>(i));
    hidden_states.sequence = target->kv().create();
    std::vector<std::vector<TokenId>> guesses;  // behind ids.size() - 1 tokens
    std::vector<HeadDraft> drafted;
    size_t fed = 0;
    while (ids.size() < kText) {
      const BatchSlice slice{hidden_states.sequence, std::span(ids).subspan(fed), 1};
      fed = ids.size();
      const auto row = target->forward({&slice, 1})->logits.row(0);
      ids.emplace_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
      const HeadTask task{
          .sequence = SequenceId(1), .committed = ids, .sampling = &greedy, .round = Round(1), .gamma = 3};
      drafter->draft({&task, 1}, hidden_states, drafted);
      guesses.push_back(drafted.front().ids);
    }
    for (size_t i = 0; i + 3 < guesses.size(); ++i, ++drafts) {
      const auto* const next = ids.data() + kPrompt + 1 + i;
      accepted += std::mismatch(guesses[i].begin(), guesses[i].end(), next).first - guesses[i].begin();
    }
    target->kv().release(hidden_states.sequence);
  }
  return static_cast<double>(accepted) / static_cast<double>(drafts);
}

// A copy of a head with another config, or other numbers in a tensor of bf16.
class WrongHead {
 public:
  explicit WrongHead(const char* name) : path_(directory_.copy(demo(name), name)) {}
  WrongHead& set(const char* key, const nlohmann::json& value) {
    std::ifstream in(path_ / "config.json");
    nlohmann::json config = nlohmann::json::parse(in);
    config[key] = value;
    std::ofstream(path_ / "config.json") << json_text(config);
    return *this;
  }
  // Swaps the left and right half of every row in these matrices.
  WrongHead& swap_halves(const std::vector<std::string>& tensors) {
    std::ifstream in(path_ / "model.safetensors", std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    const auto parsed = parse_safetensors(std::as_bytes(std::span(bytes)), "head").value();
    for (const TensorInfo& tensor : parsed) {
      if (std::find(tensors.begin(), tensors.end(), tensor.name) == tensors.end()) continue;
      auto* row = bytes.data() + (reinterpret_cast<const char*>(tensor.data.data()) - bytes.data());
      const ptrdiff_t width = 2 * tensor.shape[1];
      for (int64_t r = 0; r < tensor.shape[0]; ++r, row += width)
        std::swap_ranges(row, row + width / 2, row + width / 2);
    }
    std::ofstream(path_ / "model.safetensors", std::ios::binary) << bytes;
    return *this;
  }
  // Returns the values of a tensor.
  std::vector<float> numbers(const std::string& name) const {
    const auto files = TensorFiles::open(path_).value();
    std::vector<float> out;
    const TensorInfo& tensor = *files.find(name);
    for (size_t i = 0; i + 1 < tensor.data.size(); i += 2) {
      uint16_t half = 0;
      std::memcpy(&half, tensor.data.data() + i, 2);
      out.push_back(std::bit_cast<float>(uint32_t{half} << 16));
    }
    return out;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  const TemporaryDirectory directory_;
  const std::filesystem::path path_;
};

void expect_worse(double good, double bad, const char* mistake) {
  std::printf("%s: %.2f of 3 tokens instead of %.2f\n", mistake, bad, good);
  EXPECT_LT(bad, 0.95 * good) << mistake;
}

TEST(HeadAblations, Eagle3) {
  constexpr auto kKind = HeadKind::kEagle3;
  const double good = accepted_per_draft(demo("eagle3"), kKind);
  EXPECT_GT(good, 1.2);
  WrongHead swapped("eagle3"), later("eagle3"), normed("eagle3"), residual("eagle3");
  swapped.swap_halves({"midlayer.self_attn.q_proj.weight", "midlayer.self_attn.k_proj.weight",
                       "midlayer.self_attn.v_proj.weight"});
  expect_worse(good, accepted_per_draft(swapped.path(), kKind), "state and token swapped");
  later.set("eagle_aux_hidden_state_layer_ids", {3, 6, 8});
  expect_worse(good, accepted_per_draft(later.path(), kKind), "layers one too late");
  normed.set("norm_output", true);
  expect_worse(good, accepted_per_draft(normed.path(), kKind), "goes on from the normed output");
  residual.set("norm_before_residual", true);
  expect_worse(good, accepted_per_draft(residual.path(), kKind), "residual stream of the normed state");
  expect_worse(good, accepted_per_draft(demo("eagle3"), kKind, {.late = 1}), "states one position late");
}

TEST(HeadAblations, DSpark) {
  constexpr auto kKind = HeadKind::kDFlash;
  const double good = accepted_per_draft(demo("dspark"), kKind);
  EXPECT_GT(good, 1.1);
  WrongHead swapped("dspark"), earlier("dspark"), own_place("dspark"), as_it_is("dspark");
  swapped.swap_halves({"fc.weight"});
  expect_worse(good, accepted_per_draft(swapped.path(), kKind), "layers in the wrong order");
  earlier.set("aux_hidden_state_layer_ids", {4, 8});
  expect_worse(good, accepted_per_draft(earlier.path(), kKind), "layers one too early");
  own_place.set("sample_from_anchor", false);
  expect_worse(good, accepted_per_draft(own_place.path(), kKind), "rows say their own places");
  const Mistake unnormed{.unnormed = true, .projection = as_it_is.numbers("fc.weight")};
  expect_worse(good, accepted_per_draft(as_it_is.path(), kKind, unnormed), "states before their norm");
  expect_worse(good, accepted_per_draft(as_it_is.path(), kKind, {.late = 1}), "states one position late");
}

TEST(HeadAblations, Mtp) {
  const double good = accepted_per_draft(demo("mtp"), HeadKind::kMtp);
  EXPECT_GT(good, 0.9);
  WrongHead swapped("mtp");
  swapped.swap_halves({"model.mtp_layers.0.input_proj.weight"});
  expect_worse(good, accepted_per_draft(swapped.path(), HeadKind::kMtp), "mtp: state and token swapped");
}

TEST(HeadAblations, Medusa) {
  constexpr auto kMedusa = HeadKind::kMedusa;
  const double medusa = accepted_per_draft(demo("medusa"), kMedusa);
  EXPECT_GT(medusa, 0.6);
  expect_worse(medusa, accepted_per_draft(demo("medusa"), kMedusa, {.unnormed = true}),
               "medusa: states before the norm");
  expect_worse(medusa, accepted_per_draft(demo("medusa"), kMedusa, {.late = 1}),
               "medusa: states one position late");
}

}  // namespace
}  // namespace outrider
