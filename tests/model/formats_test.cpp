// Published quantized checkpoints (tests/goldens/formats): dequantized values and logits against those of the
// packages and formulas that made them, the same bits for every batching and rank count, and errors for
// invalid files.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/cpu/cpu_ops.h"
#include "model/weights.h"
#include "model_files/gguf_model.h"
#include "model_files/unused_tensors.h"
#include "model_files/weight_map.h"
#include "model_files/wrapper_config.h"
#include "tests/model/model_suite.h"
#include "tests/model/tensors_to_change.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::logits_in_chunks;
using testing::random_ids;
using testing::same_bits;
using testing::TensorsToChange;

fs::path format_model(const std::string& name) { return source_dir() / "tests/goldens/formats" / name; }

const std::vector<std::string> kFormats{
    "gptq-4bit",        "gptq-4bit-act-order", "gptq-8bit",        "awq",
    "compressed-4bit",  "compressed-int8",     "compressed-fp8",   "fp8-blocks",
    "gguf-llama-mixed", "gguf-qwen3-q8",       "gguf-qwen2-halves"};

struct Opened {
  explicit Opened(const fs::path& directory)
      : config(read_model_config(directory).value()),
        files(TensorFiles::open(directory).value()),
        map(map_weights(files, config, ShardPlan(config, {})).value()) {}
  // Every matrix that is stored as codes, by its name in a model that is not quantised.
  std::map<std::string, TensorPart> coded() const {
    std::map<std::string, TensorPart> out;
    const auto add = [&](const MatrixSource& source) {
      for (const TensorPart& part : source.parts)
        if (part.coded) out[part.tensor->name.substr(0, part.tensor->name.rfind('.')) + ".weight"] = part;
    };
    if (map.embedding) add(*map.embedding);
    add(map.head);
    for (size_t i = 0; i < map.layers.size(); ++i)
      for (const MatrixSource* source : map.layers[i].matrices()) add(*source);
    return out;
  }
  // Whether bf16 matrices lie beside the codes, which round what they multiply.
  bool rounds() const {
    if (!map.all_bf16) return false;
    for (const std::string_view name : files.names())
      if (files.find(name)->shape.size() == 2 && files.find(name)->dtype == Dtype::kBF16) return true;
    return false;
  }
  ModelConfig config;
  TensorFiles files;
  WeightMap map;
};

std::vector<float> floats_of(const TensorInfo& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

// Under both names that a text model's tensors have in a checkpoint with images, with tensors of images
// beside them.
TEST(TextModel, OfAModelForImagesHasTheSameNumbers) {
  const auto original = testing::golden_model("mistral-window");
  const auto single = make_single_collectives();
  const auto ids = testing::random_ids(30, 120, 3);
  const auto expected =
      testing::logits_in_chunks(*testing::load_or_die(original, {}, *single), ids, ids.size());
  for (const std::string prefix : {"language_model.model.", "model.language_model."}) {
    testing::TensorsToChange file(original / "model.safetensors");
    const auto tensors = std::exchange(file.tensors, {});
    for (const auto& [name, tensor] : tensors) {
      const bool is_head = name.starts_with("lm_head."), is_older = prefix.starts_with("language_model.");
      file.tensors[is_head ? (is_older ? "language_model." : "") + name : prefix + name.substr(6)] = tensor;
    }
    const auto codes = testing::TensorsToChange::Tensor{"F32", {1}, std::string(4, 0)};
    file.tensors["vision_tower.layers.0.q_proj.weight_scale"] = codes;
    file.tensors["model.visual.merger.weight"] = codes;
    const TemporaryDirectory whole;
    file.write(whole.path() / "model.safetensors");
    auto text = nlohmann::json::parse(std::ifstream(original / "config.json"));
    text.erase("architectures");
    whole.write("config.json", nlohmann::json{{"architectures", {"Mistral3ForConditionalGeneration"}},
                                              {"model_type", "mistral3"},
                                              {"text_config", text}}
                                   .dump());
    const Opened model(whole.path());
    const auto unused = unused_tensors(model.files, model.config);
    ASSERT_TRUE(unused.ok()) << unused.status().message();
    EXPECT_EQ(unused->size(), 2u);
    for (const std::string_view name : *unused) EXPECT_TRUE(is_of_images_or_sound(name)) << name;
    auto loaded = testing::load_or_die(whole.path(), {}, *single);
    EXPECT_TRUE(testing::same_bits(expected, testing::logits_in_chunks(*loaded, ids, ids.size()))) << prefix;
  }
}

// As Qwen3-VL is published: an index that names the text model's tensors with a prefix, and images' beside
// them. transformers computes the logits of the golden model qwen3 for the text.
TEST(TextModel, OfQwen3VlInShardsHasTheSameNumbers) {
  const auto original = testing::golden_model("qwen3");
  testing::TensorsToChange whole(original / "model.safetensors");
  const auto tensors = std::exchange(whole.tensors, {});
  for (const auto& [name, tensor] : tensors) whole.tensors["model.language_model." + name.substr(6)] = tensor;
  const testing::TensorsToChange::Tensor codes{"F32", {1}, std::string(4, 0)};
  for (const char* name : {"model.visual.blocks.0.attn.qkv.weight", "model.visual.merger.norm.weight",
                           "model.visual.deepstack_merger_list.0.linear_fc1.bias"})
    whole.tensors[name] = codes;
  const TemporaryDirectory directory;
  std::map<std::string, testing::TensorsToChange::Tensor> shards[2];
  nlohmann::json index;
  for (const auto& [name, tensor] : whole.tensors) {
    const size_t shard = index["weight_map"].size() % 2;
    index["weight_map"][name] = fmt::format("model-0000{}-of-00002.safetensors", shard + 1);
    shards[shard][name] = tensor;
  }
  for (const int shard : {0, 1})
    testing::TensorsToChange::write_tensors(
        shards[shard], directory.path() / fmt::format("model-0000{}-of-00002.safetensors", shard + 1));
  directory.write("model.safetensors.index.json", index.dump());
  auto text = nlohmann::json::parse(std::ifstream(original / "config.json"));
  text.erase("architectures");
  text["model_type"] = "qwen3_vl_text";
  text["rope_scaling"] = {
      {"mrope_interleaved", true}, {"mrope_section", {4, 2, 2}}, {"rope_type", "default"}};
  directory.write("config.json", nlohmann::json{{"architectures", {"Qwen3VLForConditionalGeneration"}},
                                                {"model_type", "qwen3_vl"},
                                                {"image_token_id", 151655},
                                                {"tie_word_embeddings", true},
                                                {"text_config", text}}
                                     .dump());
  const Opened model(directory.path());
  const auto unused = unused_tensors(model.files, model.config);
  ASSERT_TRUE(unused.ok()) << unused.status().message();
  EXPECT_EQ(unused->size(), 3u);
  for (const std::string_view name : *unused) EXPECT_TRUE(is_of_images_or_sound(name)) << name;
  const auto single = make_single_collectives();
  const auto ids = testing::random_ids(30, 302, 3);
  const auto logits = [&](const fs::path& path) {
    return testing::logits_in_chunks(*testing::load_or_die(path, {}, *single), ids, ids.size());
  };
  EXPECT_TRUE(testing::same_bits(logits(original), logits(directory.path())));
}

class PublishedFormat : public ::testing::TestWithParam<std::string> {
 protected:
  bool is_gguf() const { return GetParam().starts_with("gguf-"); }
  fs::path directory() const { return format_model(GetParam()); }
  fs::path path() const { return is_gguf() ? directory() / "model.gguf" : directory(); }
  SafetensorsFile golden() const { return SafetensorsFile::open(directory() / "golden.safetensors").value(); }
};

// As the program asks before it loads a model.
TEST_P(PublishedFormat, HasNoTensorThatIsNotRead) {
  const Opened model(path());
  const auto unused = unused_tensors(model.files, model.config);
  ASSERT_TRUE(unused.ok()) << unused.status().message();
  EXPECT_TRUE(unused->empty()) << unused->front();
}

TEST_P(PublishedFormat, DequantisedRowsAreThoseOfItsPackage) {
  const Opened model(path());
  const auto coded = model.coded();
  const SafetensorsFile goldens = golden();
  int checked = 0;
  for (const TensorInfo& tensor : goldens.tensors()) {
    if (!tensor.name.starts_with("rows.")) continue;
    const TensorPart& part = coded.at(tensor.name.substr(5));
    const std::vector<float> expected = floats_of(tensor);
    const int64_t k = part.coded->k(), n = part.coded->n();
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t i = 0; i < 8; ++i) {
      part.coded->read_weights(i < 4 ? i : n - 8 + i, 0, row);
      EXPECT_EQ(row, std::vector<float>(expected.begin() + i * k, expected.begin() + (i + 1) * k))
          << tensor.name << " row " << i;
    }
    ++checked;
  }
  EXPECT_GE(checked, GetParam() == "gguf-qwen2-halves" ? 0 : 6);
}

// Error from the format of the inputs, as a share of the logits of a tiny random model.
constexpr std::pair<ActivationFormat, double> kActivations[]{{ActivationFormat::kBFloat16, 0.02},
                                                             {ActivationFormat::kInt8, 0.06}};

TEST_P(PublishedFormat, LogitsAreThoseOfTheDequantisedModel) {
  auto single = make_single_collectives();
  const SafetensorsFile goldens = golden();
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    for (const auto& [activations, lost] : kActivations) {
      auto model = testing::load_or_die(
          path(),
          {.threads = 2, .bytes_per_thread = 1, .kv = ModelOptions::Kv::kFloat32, .activations = activations},
          *single);
      for (int i = 0; i < 3; ++i) {
        const TensorInfo* ids = goldens.find("input_ids." + std::to_string(i));
        std::vector<int32_t> raw(ids->data.size() / 4);
        std::memcpy(raw.data(), ids->data.data(), ids->data.size());
        const auto expected = floats_of(*goldens.find("logits." + std::to_string(i)));
        const auto got = logits_in_chunks(*model, std::vector<TokenId>(raw.begin(), raw.end()), 64);
        ASSERT_EQ(got.size(), expected.size());
        if (!Opened(path()).coded().empty()) {
          EXPECT_LT(testing::relative_difference(got, expected), lost) << isa;
          continue;
        }
        float worst = 0;
        for (size_t j = 0; j < got.size(); ++j) worst = std::max(worst, std::abs(got[j] - expected[j]));
        EXPECT_LT(worst, Opened(path()).rounds() ? 0.3f : 5e-4f) << isa;
      }
    }
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

TEST_P(PublishedFormat, BitsDependOnNoBatchNoChunkAndNoRanks) {
  auto single = make_single_collectives();
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    auto model = testing::load_or_die(path(), {.threads = 2, .bytes_per_thread = 1}, *single);
    const auto ids = random_ids(40, model->config().vocab_size, 7);
    const auto reference = logits_in_chunks(*model, ids, 1);
    for (size_t chunk : {2u, 5u, 9u, 17u, 40u})
      EXPECT_TRUE(same_bits(reference, logits_in_chunks(*model, ids, chunk))) << isa << " chunk " << chunk;
    for (int tp_size : {1, 2, 4, 8})
      EXPECT_TRUE(same_bits(reference, testing::logits_of_group(path().string(), tp_size, ids, 7)))
          << isa << " ranks " << tp_size;
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

// bf16 matrices beside the codes become fp32 ones.
void widen(std::map<std::string, TensorsToChange::Tensor>& tensors) {
  for (auto& [name, t] : tensors) {
    if (t.dtype != "BF16" || t.shape.size() != 2 || name.ends_with("scale")) continue;
    std::string wide;
    for (size_t i = 0; i < t.bytes.size(); i += 2) wide += std::string(2, '\0') + t.bytes.substr(i, 2);
    t = {"F32", t.shape, wide};
  }
}

// The same model with fp32 numbers in every tensor, as a directory of safetensors.
void write_numbers(const fs::path& model, const fs::path& to) {
  const Opened opened(model);
  const auto coded = opened.coded();
  std::map<std::string, TensorsToChange::Tensor> tensors;
  std::set<const TensorInfo*> of_codes;
  const auto add = [&](const std::string& name, const TensorPart& part, int64_t n, int64_t k) {
    std::string bytes;
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t i = 0; i < n; ++i) {
      read_floats(source_row(part, i), 0, row);
      bytes.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float));
    }
    tensors[name] = {"F32", {n, k}, bytes};
  };
  for (const auto& [name, part] : coded) {
    add(name,
        {.tensor = part.tensor,
         .rows = {0, part.coded->n()},
         .columns = {0, part.coded->k()},
         .coded = part.coded},
        part.coded->n(), part.coded->k());
    of_codes.insert(part.coded->tensors().begin(), part.coded->tensors().end());
  }
  for (const std::string_view name : opened.files.names()) {
    const TensorInfo& tensor = *opened.files.find(name);
    if (of_codes.contains(&tensor) || name.ends_with(".weight_shape")) continue;
    const bool is_vector = tensor.shape.size() == 1;
    if (!is_vector) {
      add(std::string(name),
          {.tensor = &tensor, .rows = {0, tensor.shape[0]}, .columns = {0, tensor.shape[1]}}, tensor.shape[0],
          tensor.shape[1]);
      continue;
    }
    const auto values = read_vector({{.tensor = &tensor, .rows = {0, 1}, .columns = {0, tensor.shape[0]}}});
    tensors[std::string(name)] = {
        "F32", tensor.shape,
        std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
  }
  TensorsToChange::write_tensors(tensors, to / "model.safetensors");
  json config;
  if (is_gguf_path(model)) {
    const MappedFile file = MappedFile::open(model).value();
    config = gguf_config(parse_gguf(file.bytes(), "m").value(), "m").value();
  } else {
    config = json::parse(std::ifstream(model / "config.json"));
    config.erase("quantization_config");
  }
  std::ofstream(to / "config.json") << config.dump();
}

// Codes mean their numbers exactly: only the rounding of inputs to bf16 is between a model of codes and one
// of fp32 numbers.
TEST_P(PublishedFormat, RoundingInputsIsAllThatSetsItApartFromItsNumbersInFp32) {
  const TemporaryDirectory temporary;
  fs::path codes = path();
  const fs::path plain = temporary / "plain";
  fs::create_directory(plain);
  write_numbers(path(), plain);
  if (Opened(path()).rounds()) {
    codes = temporary.copy(path(), "codes");
    TensorsToChange file(path() / "model.safetensors");
    widen(file.tensors);
    fs::remove(codes / "model.safetensors");
    file.write(codes / "model.safetensors");
  }
  auto single = make_single_collectives();
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    const ModelOptions options{.threads = 2,
                               .bytes_per_thread = 1,
                               .kv = ModelOptions::Kv::kFloat32,
                               .activations = ActivationFormat::kBFloat16};
    auto packed = testing::load_or_die(codes, options, *single);
    auto numbers = testing::load_or_die(plain, options, *single);
    const auto ids = random_ids(40, packed->config().vocab_size, 3);
    const auto got = logits_in_chunks(*packed, ids, 7), exact = logits_in_chunks(*numbers, ids, 7);
    if (Opened(path()).coded().empty()) {
      EXPECT_TRUE(same_bits(got, exact)) << isa;
    } else {
      EXPECT_LT(testing::relative_difference(got, exact), 0.02) << isa;
      EXPECT_LT(packed->weight_bytes(), numbers->weight_bytes());
    }
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

TEST_P(PublishedFormat, OtherFormatsAreMadeOfItsNumbers) {
  auto single = make_single_collectives();
  auto exact = testing::load_or_die(path(), {}, *single);
  const auto ids = random_ids(30, exact->config().vocab_size, 7);
  const auto truth = logits_in_chunks(*exact, ids, 30);
  for (const auto& [format, off] : {std::pair{WeightFormat::kBFloat16, 0.05}, {WeightFormat::kInt8, 0.1}}) {
    auto model = testing::load_or_die(path(), {.weight_format = format}, *single);
    EXPECT_LT(testing::relative_difference(logits_in_chunks(*model, ids, 30), truth), off);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, PublishedFormat, ::testing::ValuesIn(kFormats), [](const auto& instance) {
  std::string name = instance.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// A copy of a golden model, of whose tensors and configuration something was changed.
template <class Change>
fs::path changed_model(const TemporaryDirectory& directory, const std::string& name, const Change& change) {
  const fs::path path = directory.copy(format_model(name), name);
  TensorsToChange file(path / "model.safetensors");
  json config = json::parse(std::ifstream(path / "config.json"));
  change(file.tensors, config);
  fs::remove(path / "model.safetensors");
  fs::remove(path / "config.json");
  file.write(path / "model.safetensors");
  std::ofstream(path / "config.json") << config.dump();
  return path;
}

// The message of loading such a copy.
template <class Change>
std::string refusal(const std::string& name, const Change& change) {
  const TemporaryDirectory directory;
  const fs::path path = changed_model(directory, name, change);
  const auto single = make_single_collectives();
  const auto model = Model::load(path, {}, *single);
  return model.ok() ? "" : model.status().message();
}

using Tensors = std::map<std::string, TensorsToChange::Tensor>;

void expect_names(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << " | " << message;
}

TEST(PublishedFormatErrors, NothingChangedIsNoError) {
  EXPECT_EQ(refusal("gptq-4bit", [](Tensors&, json&) {}), "");
}

TEST(PublishedFormatErrors, MissingAndWrongTensorsAreNamedWithTheirFile) {
  const std::string q = "model.layers.1.self_attn.q_proj";
  const auto without = [&](const std::string& format, const std::string& tensor) {
    const std::string message = refusal(format, [&](Tensors& t, json&) { ASSERT_EQ(t.erase(tensor), 1u); });
    expect_names(message, {format, tensor});
  };
  without("gptq-4bit", q + ".scales");
  without("gptq-4bit", q + ".qzeros");
  without("awq", q + ".qzeros");
  without("compressed-4bit", q + ".weight_scale");
  without("compressed-4bit", q + ".weight_zero_point");
  without("fp8-blocks", q + ".weight_scale_inv");
  expect_names(refusal("gptq-4bit",
                       [&](Tensors& t, json&) {
                         t[q + ".scales"].shape = {1, 128};
                       }),
               {"model.safetensors", q + ".scales", "[1, 128]", "[2, 64]"});
  expect_names(refusal("gptq-4bit", [&](Tensors& t, json&) { t[q + ".qweight"].dtype = "F32"; }),
               {"model.safetensors", q + ".qweight", "F32", "I32"});
  expect_names(refusal("gptq-4bit-act-order", [&](Tensors& t, json&) { t[q + ".g_idx"].bytes[0] = 9; }),
               {"model.safetensors", q + ".g_idx", "group 9", "there are 2"});
  expect_names(refusal("compressed-4bit", [&](Tensors& t, json&) { t[q + ".weight_shape"].bytes[0] = 9; }),
               {"model.safetensors", q + ".weight_shape", "[9, 64]", "[64, 64]"});
}

// The same MLP as each of eight experts: what a token gets is the MLP's, whichever it chooses.
constexpr int64_t kSameExperts = 8;
void make_mixture(Tensors& tensors, json& config) {
  config.update({{"architectures", {"MixtralForCausalLM"}},
                 {"model_type", "mixtral"},
                 {"num_local_experts", kSameExperts},
                 {"num_experts_per_tok", 2}});
  Tensors out;
  for (const auto& [name, tensor] : tensors) {
    const size_t mlp = name.find("mlp.");
    if (mlp == name.npos) {
      out[name] = tensor;
      continue;
    }
    const size_t behind = name.find('.', mlp + 4);
    const std::string projection = name.substr(mlp + 4, behind - mlp - 4);
    const char* expert_name = projection == "gate_proj" ? "w1" : projection == "up_proj" ? "w3" : "w2";
    for (int64_t e = 0; e < kSameExperts; ++e)
      out[fmt::format("{}block_sparse_moe.experts.{}.{}{}", name.substr(0, mlp), e, expert_name,
                      name.substr(behind))] = tensor;
    std::vector<float> router;
    for (int64_t i = 0; i < kSameExperts * 64; ++i)
      router.push_back(static_cast<float>(i * 37 % 101) / 50 - 1);
    out[name.substr(0, mlp) + "block_sparse_moe.gate.weight"] = {
        "F32",
        {kSameExperts, 64},
        std::string(reinterpret_cast<const char*>(router.data()), router.size() * sizeof(float))};
  }
  tensors = std::move(out);
}

TEST(PublishedFormat, ExpertsAreCodesLikeAnyMlp) {
  const TemporaryDirectory directory;
  const fs::path path = changed_model(directory, "gptq-4bit",
                                      [](auto& tensors, json& config) { make_mixture(tensors, config); });

  const auto ids = testing::random_ids(30, 128, 3);
  const auto dense = testing::logits_of_group(format_model("gptq-4bit").string(), 1, ids, 30);
  const auto mixture = testing::logits_of_group(path.string(), 1, ids, 30);
  EXPECT_LT(testing::relative_difference(mixture, dense), 1e-5);
  for (const int tp_size : {1, 2, 4, 8})
    EXPECT_TRUE(testing::same_bits(mixture, testing::logits_of_group(path.string(), tp_size, ids, 7)))
        << tp_size;
}

TEST(PublishedFormatErrors, ARouterOfCodesIsRefused) {
  const std::string router = "model.layers.1.block_sparse_moe.gate";
  const std::string message = refusal("gptq-4bit", [&](Tensors& t, json& config) {
    make_mixture(t, config);
    t.erase(router + ".weight");
    const auto zeros = [](size_t bytes) { return std::string(bytes, '\0'); };
    t[router + ".qweight"] = {"I32", {8, kSameExperts}, zeros(4 * 8 * kSameExperts)};
    t[router + ".qzeros"] = {"I32", {2, kSameExperts / 8}, zeros(4 * 2 * kSameExperts / 8)};
    t[router + ".scales"] = {"F16", {2, kSameExperts}, zeros(2 * 2 * kSameExperts)};
  });
  expect_names(message, {router, "is quantised"});
}

TEST(PublishedFormatErrors, AConfigOfOtherSizesIsRefused) {
  expect_names(refusal("gptq-4bit", [](Tensors&, json& c) { c["quantization_config"]["group_size"] = 16; }),
               {"model.safetensors", "qzeros"});
  expect_names(refusal("gptq-4bit", [](Tensors&, json& c) { c["quantization_config"]["bits"] = 8; }),
               {"model.safetensors", "qweight"});
  expect_names(refusal("compressed-int8",
                       [](Tensors&, json& c) {
                         c["quantization_config"]["config_groups"]["group_0"]["targets"] = {"re:.*mlp.*"};
                       }),
               {"model.safetensors", "self_attn", "quantization_config"});
}

TEST(PublishedFormatErrors, AConfigOfWeightsThatAreNotQuantisedIsRefused) {
  const TemporaryDirectory directory;
  const fs::path path = directory.copy(testing::golden_model("llama2"), "llama2");
  json config = json::parse(std::ifstream(path / "config.json"));
  config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
  std::ofstream(path / "config.json") << config.dump();
  const auto single = make_single_collectives();
  const auto model = Model::load(path, {}, *single);
  ASSERT_FALSE(model.ok());
  expect_names(model.status().message(), {"config.json", "quantization_config", "gptq", "bf16"});
}

// A row that is read from the file has the bits that it has in a packed table.
TEST(FileTable, HasTheNumbersOfAPackedTable) {
  ThreadPool pool(2);
  std::vector<fs::path> models{testing::golden_model("llama2"), testing::golden_model("qwen3-bf16"),
                               testing::golden_model("gemma4")};
  for (const std::string& name : kFormats)
    models.push_back(name.starts_with("gguf") ? format_model(name) / "model.gguf" : format_model(name));
  for (const fs::path& directory : models)
    for (const int rank : {0, 1}) {
      const ModelConfig config = read_model_config(directory).value();
      const auto files = std::make_shared<const TensorFiles>(TensorFiles::open(directory).value());
      const WeightMap map = map_weights(*files, config, ShardPlan(config, {rank, 2})).value();
      const MatrixSource& source = map.inputs ? map.inputs->table : map.head;
      for (const WeightFormat format : {WeightFormat::kAuto, WeightFormat::kInt8, WeightFormat::kBFloat16}) {
        const auto type = cpu_weight_type(source, format, MatrixKind::kVocabulary, WeightType::kFloat32);
        if (!type.ok()) continue;  // stored in another way
        FileTable table(source, *type);
        table.keep(files);
        const PackedMatrix packed = pack_matrix(source, *type, pool);
        std::vector<float> expected(static_cast<size_t>(source.k())), read(expected.size());
        for (int64_t row = 0; row < source.n(); row += 1 + row / 3) {
          packed.copy_row(row, expected);
          table.copy_row(row, read);
          ASSERT_TRUE(same_bits(expected, read)) << directory << ", row " << row << " of rank " << rank;
        }
      }
    }
}

// Pages of rows stay in memory after a read.
TEST(FileTable, KeepsThePagesOfItsRows) {
  const fs::path model = format_model("gguf-llama-mixed") / "model.gguf";
  const ModelConfig config = read_model_config(model).value();
  const auto files = std::make_shared<const TensorFiles>(TensorFiles::open(model).value());
  const MatrixSource source = map_weights(*files, config, ShardPlan(config, {})).value().head;
  FileTable table(source, WeightType::kCodes);
  table.keep(files);
  std::vector<float> numbers(static_cast<size_t>(source.k()));
  const auto faults_of_all_rows = [&] {
    const auto faults = [] {
      rusage usage;
      getrusage(RUSAGE_THREAD, &usage);
      return usage.ru_minflt + usage.ru_majflt;
    };
    const auto before = faults();
    for (int64_t row = 0; row < source.n(); ++row) table.copy_row(row, numbers);
    return faults() - before;
  };
  faults_of_all_rows();
  EXPECT_LT(faults_of_all_rows(), source.n() / 4);
}

}  // namespace
}  // namespace outrider
