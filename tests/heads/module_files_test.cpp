// Modules of multi-token prediction (MTP), in their target's files and in files of their own, in published
// formats. Covers the errors for files that are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "heads/module_weights.h"
#include "model_files/unused_tensors.h"
#include "tests/heads/golden_heads.h"
#include "tests/heads/own_module.h"
#include "tests/model/converted_gguf.h"
#include "tests/model/fp8_pair.h"
#include "tests/model/model_suite.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::TensorsToChange;
using testing::write_module_alone;
using testing::write_target_with_module;

Result<std::unique_ptr<Head>> load(const std::filesystem::path& module, const std::filesystem::path& target,
                                   WeightFormat format = WeightFormat::kAuto) {
  return Head::load(module, target,
                    {.kind = HeadKind::kMtp,
                     .threads = 2,
                     .bytes_per_thread = 1,
                     .compute = testing::suite_compute(),
                     .max_positions = 64,
                     .weight_format = format});
}

// Behind thirty random pairs.
std::vector<float> logits_of(const std::filesystem::path& module, const std::filesystem::path& target,
                             int64_t chunk = 30, WeightFormat format = WeightFormat::kAuto) {
  constexpr int64_t kPairs = 30;
  auto loaded = load(module, target, format);
  if (!loaded.ok()) throw std::runtime_error(loaded.status().message());
  auto& head = dynamic_cast<PairHead&>(**loaded);
  std::mt19937 random(3);
  std::vector<float> hidden_states(static_cast<size_t>(kPairs * head.hidden_size()));
  for (float& x : hidden_states) x = static_cast<float>(random() % 2001) / 1000 - 1;
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < kPairs; ++i)
    ids.emplace_back(static_cast<int32_t>(random() % static_cast<uint32_t>(head.vocab_size())));
  const testing::RowsThere rows(head.compute(), hidden_states, kPairs);
  const KvHandle sequence = head.kv().create();
  for (int64_t i = 0; i < kPairs; i += chunk) {
    const int64_t count = std::min(chunk, kPairs - i);
    const PairSlice slice{
        .sequence = sequence,
        .tokens = std::span(ids).subspan(static_cast<size_t>(i), static_cast<size_t>(count)),
        .hidden_states = rows.from(i, count),
        .has_logits = i + count == kPairs};
    const PairHead::Rows out = head.forward({&slice, 1});
    if (slice.has_logits) return testing::numbers_of(head.compute(), out.logits);
  }
  return {};
}

// How far apart, over the largest of the first.
float distance(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0, apart = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(std::isfinite(b[i]));
    largest = std::max(largest, std::abs(a[i]));
    apart = std::max(apart, std::abs(a[i] - b[i]));
  }
  return apart / largest;
}

// A target with a module, to be changed.
class ChangedModule {
 public:
  explicit ChangedModule(const std::string& model = "deepseek-v3") : golden_(testing::golden_model(model)) {
    const bool is_qwen = model.starts_with("qwen");
    (is_qwen ? testing::write_target_with_qwen_module : write_target_with_module)(golden_, directory_.path());
    config_ = json::parse(std::ifstream(directory_.path() / "config.json"));
  }
  void expect_refused(const std::function<void(json& config, TensorsToChange& file)>& change,
                      const std::vector<std::string>& words) {
    TensorsToChange file(directory_.path() / "model.safetensors");
    json config = config_;
    change(config, file);
    const TemporaryDirectory changed;
    file.write(changed.path() / "model.safetensors");
    std::ofstream(changed.path() / "config.json") << config.dump();
    const auto refused = load(changed.path(), golden_);
    ASSERT_FALSE(refused.ok()) << words.front();
    for (const std::string& word : words)
      EXPECT_NE(refused.status().message().find(word), std::string::npos)
          << word << " in: " << refused.status().message();
  }
  void expect_refused(const char* key, const json& value, const std::vector<std::string>& words) {
    expect_refused([&](json& config, TensorsToChange&) { config[key] = value; }, words);
  }

 private:
  const std::filesystem::path golden_;
  const TemporaryDirectory directory_;
  json config_;
};

TEST(ModuleFiles, InTheTargetsFilesAndAloneItIsTheSame) {
  const TemporaryDirectory target, alone;
  const auto golden = testing::golden_model("deepseek-v3");
  write_target_with_module(golden, target.path());
  write_module_alone(target.path(), alone.path());
  const auto expected = logits_of(target.path(), target.path());
  EXPECT_TRUE(testing::same_bits(expected, logits_of(alone.path(), target.path())));
  EXPECT_TRUE(testing::same_bits(expected, logits_of(alone.path(), golden)));
  EXPECT_TRUE(testing::same_bits(expected, logits_of(target.path(), golden, 7)));
}

// A target with gated delta nets has its module in its own files, also in a checkpoint that reads images.
class QwenModules : public ::testing::TestWithParam<std::string> {};

TEST_P(QwenModules, InTheTargetsFilesAreRead) {
  const auto golden = testing::golden_model(GetParam());
  const TemporaryDirectory target, wrapped;
  testing::write_target_with_qwen_module(golden, target.path());
  const auto expected = logits_of(target.path(), target.path());
  EXPECT_TRUE(testing::same_bits(expected, logits_of(target.path(), target.path(), 7)));
  EXPECT_TRUE(testing::same_bits(expected, logits_of(target.path(), golden)));
  const json text = json::parse(std::ifstream(target.path() / "config.json"));
  if (text["model_type"] == "qwen3_next") return;
  TensorsToChange file(target.path() / "model.safetensors");
  const auto tensors = std::exchange(file.tensors, {});
  const std::string model = "model.";
  for (const auto& [name, tensor] : tensors)
    file.tensors[name.starts_with(model) ? "model.language_model." + name.substr(model.size()) : name] =
        tensor;
  file.write(wrapped.path() / "model.safetensors");
  const json whole{{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                   {"model_type", "qwen3_5"},
                   {"tie_word_embeddings", text["tie_word_embeddings"]},
                   {"text_config", text}};
  std::ofstream(wrapped.path() / "config.json") << whole.dump();
  EXPECT_TRUE(testing::same_bits(expected, logits_of(wrapped.path(), wrapped.path())));
}

// A module with the numbers of a layer and of the target's norm, as make_gguf_model_goldens.py makes it.
TEST_P(QwenModules, InAGgufFileAreThoseOfTheDirectory) {
  const auto golden = testing::golden_model(GetParam());
  const TemporaryDirectory directory;
  const json config = testing::converted_config(GetParam());
  const auto file = directory.write("model.gguf", testing::converted_gguf(GetParam(), golden, config));
  testing::write_target_with_qwen_module(golden, directory.path());
  TensorsToChange tensors(directory.path() / "model.safetensors");
  for (const char* norm : {"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"})
    tensors.tensors[fmt::format("mtp.{}.weight", norm)] = tensors.tensors.at("model.norm.weight");
  // Columns are rows of the embedding.
  const auto& rows = tensors.tensors.at("model.embed_tokens.weight");
  auto& fc = tensors.tensors.at("mtp.fc.weight");
  const auto hidden = static_cast<size_t>(rows.shape[1]);
  for (size_t r = 0; r < hidden; ++r)
    for (size_t c = 0; c < 2 * hidden; ++c)
      std::memcpy(fc.bytes.data() + (r * 2 * hidden + c) * sizeof(float),
                  rows.bytes.data() + (c * hidden + r) * sizeof(float), sizeof(float));
  std::erase_if(tensors.tensors, [&](const auto& entry) {
    return config["num_hidden_layers"] == 2 && entry.first.starts_with("model.layers.2.");
  });
  tensors.write(directory.path() / "model.safetensors");
  directory.write("config.json", config.dump());
  EXPECT_LT(distance(logits_of(directory.path(), directory.path()), logits_of(file, file)), 1e-6f);
}

TEST_P(QwenModules, WhatIsNotUnderstoodIsRefusedByName) {
  ChangedModule module(GetParam());
  module.expect_refused("mtp_use_dedicated_embeddings", true,
                        {"config.json", "mtp_use_dedicated_embeddings", "share the target's embedding"});
  module.expect_refused("mtp_num_hidden_layers", 2, {"mtp_num_hidden_layers", "2", "one module"});
  module.expect_refused("attn_output_gate", false, {"attn_output_gate"});
  for (const char* name : {"mtp.layers.0.self_attn.sinks", "mtp.layers.1.input_layernorm.weight",
                           "mtp.layers.0.linear_attn.A_log", "mtp.embed_tokens.weight"})
    module.expect_refused(
        [&](json&, TensorsToChange& file) { file.tensors[name] = file.tensors.at("mtp.norm.weight"); },
        {"model.safetensors", name});
  for (const char* name : {"mtp.layers.0.self_attn.q_norm.weight", "mtp.fc.weight", "mtp.norm.weight"})
    module.expect_refused([&](json&, TensorsToChange& file) { file.tensors.erase(name); }, {name});
}

INSTANTIATE_TEST_SUITE_P(Goldens, QwenModules, ::testing::ValuesIn(testing::kDeltaNetModels),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

// The layer behind the last, which llama.cpp names blk.N.nextn.*.
TEST(ModuleFiles, InAGgufFileItIsThatOfTheDirectory) {
  const TemporaryDirectory directory;
  const auto golden = testing::golden_model("glm4-moe");
  const auto file = directory.write(
      "model.gguf", testing::converted_gguf("glm4-moe", golden, testing::converted_config("glm4-moe")));
  const auto tensors = TensorFiles::open(file);
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  std::map<std::string, TensorsToChange::Tensor> all;
  for (const std::string_view name : tensors->names()) {
    const TensorInfo& tensor = *tensors->find(name);
    all[std::string(name)] = {
        "F32", tensor.shape,
        std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size())};
  }
  ASSERT_TRUE(all.contains("model.layers.2.shared_head.head.weight"));
  TensorsToChange::write_tensors(all, directory.path() / "model.safetensors");
  directory.write("config.json", testing::converted_config("glm4-moe").dump());
  EXPECT_LT(distance(logits_of(directory.path(), directory.path()), logits_of(file, file)), 1e-6f);
  const auto refused = Head::load(file, file, {.kind = HeadKind::kEagle3});
  EXPECT_NE(refused.status().message().find("for --drafter mtp, not for --drafter eagle3"), std::string::npos)
      << refused.status().message();
}

// As quantised files have it: the module's own embedding in Q8_0, whose blocks of 32 are rows here.
TEST(ModuleFiles, InAGgufFileItsEmbeddingMayBeQuantised) {
  const TemporaryDirectory directory;
  std::string bytes = testing::converted_gguf("glm4-moe", testing::golden_model("glm4-moe"),
                                              testing::converted_config("glm4-moe"));
  const auto file = directory.write("model.gguf", bytes);
  const std::string name = "blk.2.nextn.embed_tokens.weight";
  const auto content = parse_gguf(std::as_bytes(std::span(bytes)), "model.gguf").value();
  const TensorInfo& table = *content.tensor(name);
  ASSERT_EQ(table.shape.back(), 32);
  constexpr uint32_t kQ8 = 8;
  const size_t dimensions = bytes.find(name) + name.size();
  std::memcpy(bytes.data() + dimensions + sizeof(uint32_t) + 2 * sizeof(uint64_t), &kQ8, sizeof kQ8);
  char* to = bytes.data() + (reinterpret_cast<const char*>(table.data.data()) - bytes.data());
  const char* from = to;
  for (int64_t row = 0; row < table.shape[0]; ++row) {
    std::array<float, 32> numbers;
    std::memcpy(numbers.data(), from, sizeof numbers);
    from += sizeof numbers;
    constexpr uint16_t kScale = 0x2800;  // 1/32 in fp16
    std::memcpy(to, &kScale, sizeof kScale);
    to += sizeof kScale;
    for (const float number : numbers) *to++ = static_cast<char>(std::lround(number * 32));
  }
  const auto quantised = directory.write("quantised.gguf", bytes);
  const float lost = distance(logits_of(file, file), logits_of(quantised, file));
  EXPECT_GT(lost, 0);
  EXPECT_LT(lost, 0.1f);
}

// As DeepSeek-V3 is published: blocks of fp8 in the layer, numbers beside it.
TEST(ModuleFiles, BlocksOfFp8AreReadAsTheirNumbers) {
  const TemporaryDirectory codes, numbers, in_codes, in_numbers;
  testing::write_fp8_pair(codes.path(), numbers.path(), true);
  for (const auto& [from, to] : {std::pair{&codes, &in_codes}, {&numbers, &in_numbers}})
    write_target_with_module(from->path(), to->path());
  // The projection of pairs is in bf16 there.
  TensorsToChange file(in_codes.path() / "model.safetensors");
  auto& projection = file.tensors.at("model.layers.2.eh_proj.weight");
  projection = testing::in_bf16(projection);
  file.write(in_codes.path() / "model.safetensors");
  const auto expected = logits_of(in_numbers.path(), in_numbers.path());
  const auto coded = logits_of(in_codes.path(), in_codes.path());
  EXPECT_LT(distance(expected, coded), 0.05f);
  EXPECT_GT(distance(expected, coded), 0) << "not in codes at all?";
  EXPECT_TRUE(testing::same_bits(coded, logits_of(in_codes.path(), in_codes.path(), 4)));
  for (const WeightFormat format : {WeightFormat::kBFloat16, WeightFormat::kInt8})
    EXPECT_LT(distance(expected, logits_of(in_codes.path(), in_codes.path(), 30, format)), 0.2f);
}

TEST(ModuleFiles, WhatIsNotUnderstoodIsRefusedByName) {
  ChangedModule module;
  const auto rename = [](const std::string& from, const std::string& to) {
    return [from, to](json&, TensorsToChange& file) {
      auto node = file.tensors.extract(from);
      node.key() = to;
      file.tensors.insert(std::move(node));
    };
  };
  const std::string prefix = testing::kOwnModule;
  module.expect_refused("index_topk", 2048, {"config.json", "index_topk", "not understood"});
  module.expect_refused("model_type", "glm9_moe", {"config.json", "model_type", "glm9_moe"});
  module.expect_refused("num_nextn_predict_layers", 2, {"num_nextn_predict_layers", "2", "one module"});
  module.expect_refused("num_nextn_predict_layers", json(), {"num_nextn_predict_layers", "missing"});
  module.expect_refused("hidden_size", 38, {"hidden_size", "38", "36"});
  module.expect_refused(rename(prefix + "hnorm.weight", prefix + "unorm.weight"), {prefix + "hnorm.weight"});
  module.expect_refused(rename(prefix + "eh_proj.weight", prefix + "ep_proj.weight"),
                        {prefix + "eh_proj.weight"});
  module.expect_refused(rename(prefix + "enorm.weight", prefix + "unorm.weight"),
                        {"no module", "enorm", "pre_fc_norm_embedding", "mtp_layers"});
  module.expect_refused(
      [&](json&, TensorsToChange& file) {
        file.tensors[prefix + "self_attn.indexer.wk.weight"] = file.tensors.at(prefix + "eh_proj.weight");
      },
      {"model.safetensors", prefix + "self_attn.indexer.wk.weight", "deepseek_v3"});
  module.expect_refused(
      [&](json&, TensorsToChange& file) {
        file.tensors["model.layers.3.enorm.weight"] = file.tensors.at(prefix + "enorm.weight");
      },
      {prefix, "model.layers.3.", "one module"});
  module.expect_refused(
      [&](json&, TensorsToChange& file) { file.tensors.erase(prefix + "mlp.experts.7.up_proj.weight"); },
      {prefix + "mlp.experts.7.up_proj.weight"});
}

// A tensor that no code reads would be ignored silently, for instance an embedding that differs from the
// target's.
TEST(ModuleFiles, AloneWhatNothingReadsIsRefusedByFileAndName) {
  const TemporaryDirectory target, own;
  write_target_with_module(testing::golden_model("deepseek-v3"), target.path());
  write_module_alone(target.path(), own.path());
  const auto others = std::to_array<const char*>({"lm_head.weight", "model.embed_tokens.weight",
                                                  "model.layers.1.self_attn.o_proj.weight", "mtp.fc.weight"});
  for (const auto& [directory, model] : {std::pair{own.path(), testing::golden_model("deepseek-v3")},
                                         {testing::golden_head("mtp"), testing::golden_model("qwen3")}})
    for (const std::string name : others) {
      const TemporaryDirectory alone;
      std::filesystem::copy_file(directory / "config.json", alone.path() / "config.json");
      TensorsToChange file(directory / "model.safetensors");
      ASSERT_FALSE(file.tensors.contains(name));
      file.tensors[name] = file.tensors.begin()->second;
      file.write(alone.path() / "model.safetensors");
      const auto refused = load(alone.path(), model);
      ASSERT_FALSE(refused.ok()) << name;
      for (const std::string& word : {(alone.path() / "model.safetensors").string(), name})
        EXPECT_NE(refused.status().message().find(word), std::string::npos) << refused.status().message();
    }
}

// Another copy of the target holds what the target does, and no more.
TEST(ModuleFiles, BesideAnotherCopyOfTheTargetNothingElseMayBe) {
  ChangedModule module;
  module.expect_refused(
      [](json&, TensorsToChange& file) {
        file.tensors["vision.weight"] = file.tensors.at("model.norm.weight");
      },
      {"model.safetensors", "vision.weight", "nothing reads it"});
}

// The files of a target may hold a module in any format, also where the target is run without it.
TEST(ModuleFiles, OfATargetWithoutOneNothingIsRefused) {
  const auto golden = testing::golden_model("qwen3");
  const TemporaryDirectory directory;
  TensorsToChange file(golden / "model.safetensors");
  const auto some = file.tensors.at("model.norm.weight");
  file.tensors["mtp.pre_fc_norm_embedding.weight"] = some;
  for (const char* name : {"mtp.layers.0.mlp.up_proj.weight_scale_inv",
                           "model.mtp_layers.0.input_proj.qweight", "model.layers.enorm.weight"})
    file.tensors[name] = some;
  file.write(directory.path() / "model.safetensors");
  std::filesystem::copy_file(golden / "config.json", directory.path() / "config.json");
  const auto files = TensorFiles::open(directory.path());
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(module_prefix(*files), "mtp.");
  const auto unused = unused_tensors(*files, read_model_config(directory.path()).value());
  ASSERT_TRUE(unused.ok()) << unused.status().message();
  EXPECT_EQ(unused->size(), 4u);
}

TEST(ModuleFiles, QwensOwnCountOfModulesIsRead) {
  const auto golden = testing::golden_head("mtp-qwen");
  for (const int count : {1, 2}) {
    const TemporaryDirectory directory;
    std::filesystem::copy_file(golden / "model.safetensors", directory.path() / "model.safetensors");
    json config = json::parse(std::ifstream(golden / "config.json"));
    config["mtp_num_hidden_layers"] = count;
    std::ofstream(directory.path() / "config.json") << config.dump();
    const auto head = load(directory.path(), testing::golden_model("qwen3"));
    EXPECT_EQ(head.ok(), count == 1) << head.status().message();
    if (count == 2) {
      EXPECT_NE(head.status().message().find("mtp_num_hidden_layers"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace outrider
