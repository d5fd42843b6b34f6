// Files of draft heads: missing, contradicting and unknown entries are refused with an error that names them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "tests/heads/golden_heads.h"

namespace outrider {
namespace {

using nlohmann::json;

// A copy of a golden head, to be changed.
class ChangedHead {
 public:
  explicit ChangedHead(const std::string& name) : path_(directory_.copy(testing::golden_head(name), name)) {
    std::ifstream in(path_ / "config.json");
    config_ = json::parse(in);
  }
  json& config() { return config_; }
  // Renames a tensor to one of the same length.
  void rename(const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    std::ifstream in(path_ / "model.safetensors", std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    const auto at = bytes.find(from);
    ASSERT_NE(at, std::string::npos);
    bytes.replace(at, from.size(), to);
    std::ofstream(path_ / "model.safetensors", std::ios::binary) << bytes;
  }
  std::string error(HeadKind kind) {
    std::ofstream(path_ / "config.json") << json_text(config_);
    const auto head = Head::load(path_, testing::golden_model(testing::kHeadsTarget), {.kind = kind});
    return head.ok() ? "" : head.status().message();
  }

 private:
  const TemporaryDirectory directory_;
  const std::filesystem::path path_;
  json config_;
};

void expect_refused(const std::string& name, HeadKind kind, const std::function<void(ChangedHead&)>& change,
                    const std::vector<std::string>& words) {
  ChangedHead head(name);
  change(head);
  const std::string error = head.error(kind);
  for (const std::string& word : words)
    EXPECT_NE(error.find(word), std::string::npos) << word << " in: " << error;
}

TEST(HeadFiles, AllGoldenOnesAreThere) { EXPECT_EQ(testing::kGoldenHeads.size(), 21u); }

TEST(HeadFiles, AreReadAsTheyAre) {
  for (const auto& [name, kind] : testing::kGoldenHeads) EXPECT_EQ(ChangedHead(name).error(kind), "") << name;
}

TEST(HeadFiles, KeysThatContradictAreRefusedByName) {
  constexpr auto kEagle3 = HeadKind::kEagle3;
  const auto set = [](const char* key, const json& value) {
    return [key, value](ChangedHead& head) { head.config()[key] = value; };
  };
  const auto without = [](const char* key) { return [key](ChangedHead& head) { head.config().erase(key); }; };
  expect_refused("eagle3", kEagle3, set("vocab_size", 303), {"config.json", "vocab_size", "303", "302"});
  expect_refused("eagle3", kEagle3, set("target_hidden_size", 65), {"target_hidden_size", "65", "64"});
  expect_refused("eagle3", kEagle3, without("draft_vocab_size"), {"draft_vocab_size", "missing"});
  expect_refused("eagle3", kEagle3, set("draft_vocab_size", 303), {"draft_vocab_size"});
  expect_refused("eagle3", kEagle3, set("draft_vocab_size", 91), {"lm_head.weight"});
  expect_refused("eagle3", kEagle3, set("num_hidden_layers", 2), {"num_hidden_layers", "2"});
  const auto as_language_model = [](ChangedHead& head) {
    head.config()["num_hidden_layers"] = 2;
    head.config()["architectures"] = {"LlamaForCausalLM"};
    head.config().erase("draft_vocab_size");
  };
  expect_refused("eagle3", kEagle3, as_language_model, {"num_hidden_layers", "leave out --drafter"});
  expect_refused("eagle3", kEagle3, set("eagle_aux_hidden_state_layer_ids", {0, 1, 3}),
                 {"eagle_aux_hidden_state_layer_ids", "[0,1,3]", "2"});
  expect_refused("eagle3", kEagle3, set("eagle_aux_hidden_state_layer_ids", {1, 0, 2}),
                 {"eagle_aux_hidden_state_layer_ids", "ascend"});
  expect_refused("eagle3", kEagle3, without("eagle_aux_hidden_state_layer_ids"),
                 {"eagle_aux_hidden_state_layer_ids", "missing"});
  expect_refused("eagle3", kEagle3, set("eagle_aux_hidden_state_layer_ids", {0, 1}), {"fc.weight"});
  expect_refused("eagle3", kEagle3, set("norm_before_fc", true), {"input_norm.weight"});
  expect_refused("eagle3", kEagle3, set("parallel_drafting", true), {"parallel_drafting"});
  expect_refused("eagle3", kEagle3, set("some_new_gate", 2), {"some_new_gate", "not understood"});
  expect_refused("eagle3", kEagle3, set("model_type", "gemma"), {"model_type", "gemma"});
  expect_refused("eagle3-speculators", kEagle3, set("speculators_model_type", "dflash"),
                 {"--drafter dflash in place of eagle3"});
  expect_refused("mtp", HeadKind::kMtp, set("num_nextn_predict_layers", 2),
                 {"num_nextn_predict_layers", "2"});
  expect_refused("mtp", HeadKind::kMtp, set("model_type", "deepseek_v3"),
                 {"config.json", "n_routed_experts"});
  expect_refused("eagle", HeadKind::kEagle, set("bias", false), {"fc.bias", "--drafter"});
}

TEST(HeadFiles, MedusaIsRefusedByName) {
  constexpr auto kMedusa = HeadKind::kMedusa;
  const auto set = [](const char* key, const json& value) {
    return [key, value](ChangedHead& head) { head.config()[key] = value; };
  };
  expect_refused("medusa", kMedusa, set("vocab_size", 303), {"vocab_size", "303", "302"});
  expect_refused("medusa", kMedusa, set("hidden_size", 65), {"hidden_size", "65", "64"});
  expect_refused("medusa", kMedusa, set("hydra_head_arch", "mlp"), {"hydra_head_arch", "not understood"});
  expect_refused("medusa", kMedusa,
                 [](ChangedHead& head) { head.rename("\"2.1.weight\"", "\"2.9.weight\""); },
                 {"2.0.linear", "medusa"});
  expect_refused("medusa-shared", kMedusa, set("truncated_vocab_size", 101), {"lm_heads.0.weight"});
  expect_refused("medusa-shared", kMedusa,
                 [](ChangedHead& head) { head.rename("\"token_map\"", "\"token_mat\""); },
                 {"token_map", "missing"});
  expect_refused("eagle", kMedusa, [](ChangedHead&) {}, {"config.json"});
}

TEST(HeadFiles, HydraIsRefusedByName) {
  constexpr auto kHydra = HeadKind::kHydra;
  const auto set = [](const char* key, const json& value) {
    return [key, value](ChangedHead& head) { head.config()[key] = value; };
  };
  const auto rename = [](const char* from, const char* to) {
    return [from, to](ChangedHead& head) { head.rename(from, to); };
  };
  for (const char* key : {"hydra_num_heads", "hydra_num_layers", "hydra_head_arch", "grounded_heads"})
    expect_refused("hydra", kHydra, [key](ChangedHead& head) { head.config().erase(key); },
                   {"config.json", key, "missing"});
  expect_refused("hydra", kHydra, set("hydra_num_heads", 4), {"hydra_mlp.3.0.linear.weight"});
  expect_refused("hydra", kHydra, set("hydra_num_heads", 2), {".2.", "hydra"});
  expect_refused("hydra", kHydra, set("hydra_num_layers", 2), {"hydra_mlp.0.1.linear.weight"});
  expect_refused("hydra", kHydra, set("grounded_heads", false), {"hydra_mlp.0.0.linear.weight"});
  expect_refused("hydra", kHydra, set("hydra_head_arch", "eagle-attn"),
                 {"hydra_head_arch", "eagle-attn", "prefix-mlp"});
  expect_refused("hydra", kHydra, set("hidden_state_offset", 1), {"hidden_state_offset", "1"});
  expect_refused("hydra", kHydra, set("medusa_num_heads", 2), {"medusa_num_heads", "--drafter medusa"});
  expect_refused("hydra", kHydra, rename("hydra_lm_head.1.bias", "hydra_lm_head.1.bios"),
                 {"hydra_lm_head.1.bias"});
  expect_refused("hydra-prefix", kHydra, set("hydra_head_arch", "mlp"), {"hydra_mlp.0.0.linear.weight"});
  expect_refused("hydra-prefix", kHydra,
                 rename("prefix_embeding_layer.norm.weight", "prefix_embeding_layer.morn.weight"),
                 {"prefix_embeding_layer.norm.weight"});
  expect_refused("hydra-prefix", kHydra, rename("input_embed_fn.weight", "input_embed_gn.weight"),
                 {"input_embed_gn.weight", "hydra"});
  expect_refused("medusa", kHydra, [](ChangedHead&) {}, {"config.json", "medusa_num_heads"});
  expect_refused("hydra", HeadKind::kMedusa, [](ChangedHead&) {}, {"config.json", "hydra_num_heads"});
}

TEST(HeadFiles, DFlashIsRefusedByName) {
  constexpr auto kDFlash = HeadKind::kDFlash;
  const auto set = [](const char* key, const json& value) {
    return [key, value](ChangedHead& head) { head.config()[key] = value; };
  };
  const auto set_inner = [](const char* key, const json& value) {
    return [key, value](ChangedHead& head) { head.config()["dflash_config"][key] = value; };
  };
  const auto without = [](const char* key) { return [key](ChangedHead& head) { head.config().erase(key); }; };
  expect_refused("dflash", kDFlash, without("block_size"), {"config.json", "block_size", "missing"});
  expect_refused("dflash", kDFlash, set("block_size", 1), {"block_size", "no token"});
  expect_refused("dflash", kDFlash, set("block_size", 65), {"block_size", "65"});
  expect_refused("dflash", kDFlash, set("num_target_layers", 3), {"num_target_layers", "3", "2"});
  expect_refused("dflash", kDFlash, without("dflash_config"), {"mask_token_id", "missing"});
  expect_refused("dflash", kDFlash, set_inner("mask_token_id", 302), {"mask_token_id", "302"});
  expect_refused("dflash", kDFlash, set_inner("target_layer_ids", json()), {"target_layer_ids"});
  expect_refused("dflash", kDFlash, set_inner("target_layer_ids", {0}), {"fc.weight"});
  expect_refused("dflash", kDFlash, set_inner("target_layer_ids", {1, 2}), {"target_layer_ids", "[1,2]"});
  expect_refused("dflash", kDFlash, set_inner("selector_rank", 64), {"conv_kernel_size", "missing"});
  expect_refused("dflash", kDFlash, set_inner("output_multiplier", -0.5), {"output_multiplier"});
  for (const char* key : {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"})
    expect_refused("dflash2", kDFlash, set_inner(key, json()), {key});
  expect_refused("dflash2", kDFlash, set_inner("conv_kernel_size", 3), {"base_kernel"});
  expect_refused("dflash2", kDFlash, set_inner("conv_group_size", 7), {"conv_group_size", "7", "64"});
  expect_refused("dflash2", kDFlash, set_inner("selector_rank", 13), {"hidden_projection"});
  expect_refused("dflash2", kDFlash, set_inner("selector_top_k", 303), {"selector_top_k", "303"});
  expect_refused("dflash2", kDFlash, set_inner("selector_gate", 2), {"selector_gate", "not understood"});
  expect_refused("dflash2", kDFlash, set("sample_from_anchor", true), {"sample_from_anchor", "DSpark"});
  expect_refused("dflash", kDFlash, set("some_new_gate", 2), {"some_new_gate", "not understood"});
  expect_refused("dflash", kDFlash, set("hidden_size", 65), {"hidden_size", "65"});
  expect_refused("dflash", kDFlash, set("num_hidden_layers", 3), {"layers.2."});
  expect_refused("dflash", kDFlash, set("num_hidden_layers", 1), {"layers.1.", "dflash"});
  expect_refused("dflash", kDFlash, set("layer_types", {"sliding_attention", "full_attention"}),
                 {"use_sliding_window", "sliding_attention"});
  expect_refused("dflash-window-ahead", kDFlash, set("sliding_window", 4), {"sliding_window", "4", "5 rows"});
  expect_refused("dflash-window", kDFlash, set_inner("use_swa", true), {"use_swa", "not understood"});
  expect_refused("dspark", kDFlash,
                 [](ChangedHead& head) {
                   json& layer = head.config()["transformer_layer_config"];
                   layer["layer_types"] = {"sliding_attention"};
                   layer["sliding_window"] = 8;
                   layer["use_sliding_window"] = true;
                 },
                 {"sliding_window_non_causal", "missing"});
  expect_refused("dspark", kDFlash, set("markov_head_type", "gated"), {"markov_head_type", "gated"});
  expect_refused("dspark", kDFlash, set("markov_rank", 13), {"markov_head.markov_w2.weight"});
  expect_refused("dspark", kDFlash, set("markov_rank", 0), {"markov_head", "dflash"});
  expect_refused("dspark", kDFlash, set("projector_type", "domino"), {"projector_type", "domino"});
  expect_refused("dspark", kDFlash, set("shift_label", true), {"shift_label"});
  expect_refused("dspark", kDFlash, set("draft_vocab_size", 121), {"lm_head.weight"});
  expect_refused("dspark", kDFlash, set("speculators_model_type", "eagle3"),
                 {"--drafter eagle3 in place of dflash"});
  expect_refused("eagle3", kDFlash, [](ChangedHead&) {}, {"architectures", "--drafter eagle3"});
}

TEST(HeadFiles, AnotherKindIsRefusedByName) {
  const auto as_it_is = [](ChangedHead&) {};
  constexpr std::pair<const char*, const char*> kTold[]{
      {"eagle3", "eagle3"},         {"eagle3-speculators", "eagle3"},
      {"dflash", "dflash"},         {"dspark", "dflash"},
      {"dflash2", "dflash"},        {"medusa", "medusa"},
      {"medusa-renamed", "medusa"}, {"hydra", "hydra"}};
  for (const auto& [head, drafter] : kTold)
    for (const HeadKind kind : {HeadKind::kEagle, HeadKind::kEagle3, HeadKind::kMtp, HeadKind::kMedusa,
                                HeadKind::kDFlash, HeadKind::kHydra})
      if (head_kind_name(kind) != drafter)
        expect_refused(head, kind, as_it_is,
                       {"config.json", std::string("--drafter ") + drafter + " in place"});
  expect_refused("mtp", HeadKind::kEagle3, as_it_is, {"--drafter mtp in place"});
  expect_refused("eagle", HeadKind::kEagle3, as_it_is, {"draft_vocab_size"});
  expect_refused("eagle", HeadKind::kMtp, as_it_is, {"num_nextn_predict_layers", "missing"});
}

TEST(HeadFiles, TensorsAreRefusedByName) {
  constexpr auto kEagle3 = HeadKind::kEagle3;
  expect_refused("eagle3", kEagle3, [](ChangedHead& head) { head.rename("\"d2t\"", "\"d3t\""); },
                 {"d2t", "missing"});
  expect_refused("eagle3", kEagle3,
                 [](ChangedHead& head) { head.rename("midlayer.hidden_norm", "midlayer.hidden_nose"); },
                 {"midlayer.hidden_norm.weight"});
  expect_refused("eagle3", kEagle3, [](ChangedHead& head) { head.rename("\"t2d\"", "\"t3d\""); },
                 {"t3d", "eagle3"});
}

}  // namespace
}  // namespace outrider
