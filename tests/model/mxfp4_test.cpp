// Experts in MXFP4: the values of their codes and the output of a model, both compared with transformers; the
// same bits for every batching and rank count; errors for invalid files.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "base/quant_scheme.h"
#include "kernels/cpu/cpu_ops.h"
#include "model/quantized_file.h"
#include "model_files/weight_map.h"
#include "tests/model/model_suite.h"
#include "tests/model/tensors_to_change.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

using testing::TensorsToChange;

std::filesystem::path mxfp4_model() { return source_dir() / "tests/goldens/formats/mxfp4"; }

struct OpenedExperts {
  explicit OpenedExperts(const std::filesystem::path& directory)
      : config(read_model_config(directory).value()),
        files(TensorFiles::open(directory).value()),
        map(map_weights(files, config, ShardPlan(config, {})).value()) {}
  const MlpSources& expert(size_t layer, size_t index) const {
    return map.layers[layer].mixture()->experts[index];
  }
  ModelConfig config;
  TensorFiles files;
  WeightMap map;
};

std::vector<float> row_of(const TensorPart& part, int64_t row) {
  std::vector<float> values(static_cast<size_t>(part.columns.size()));
  part.coded->read_weights(row, 0, values);
  return values;
}

std::vector<float> numbers_in(const TensorInfo& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

TEST(Mxfp4, EveryCodeAndScaleIsTheNumberOfItsSpecification) {
  const std::vector<float> numbers{0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 16; ++code) {
    EXPECT_EQ(std::abs(e2m1_to_float(code)), numbers[code % 8]);
    EXPECT_EQ(std::signbit(e2m1_to_float(code)), code >= 8);
  }
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(power_of_code(static_cast<uint8_t>(code)), std::ldexp(1.0f, code - 127)) << code;
    EXPECT_EQ(code_of_power(power_of_code(static_cast<uint8_t>(code))), code);
  }
  EXPECT_TRUE(std::isnan(power_of_code(255)));
  EXPECT_EQ(code_of_power(power_of_code(255)), 255);
}

TEST(Mxfp4, RowsOfAnExpertAreThoseOfTransformers) {
  const OpenedExperts model(mxfp4_model());
  const SafetensorsFile golden = SafetensorsFile::open(mxfp4_model() / "golden.safetensors").value();
  const MlpSources& last = model.expert(1, model.map.layers[1].mixture()->experts.size() - 1);
  const int64_t columns = model.config.experts->intermediate_size;
  const auto expect_row = [&](const char* tensor, int64_t golden_row, const TensorPart& part, int64_t row) {
    const auto expected = numbers_in(*golden.find(std::string("rows.model.layers.1.mlp.experts.") + tensor));
    const auto begin = expected.begin() + golden_row * part.coded->k();
    EXPECT_EQ(row_of(part, row), std::vector<float>(begin, begin + part.coded->k())) << tensor << golden_row;
  };
  // Stored rows 0 to 3 and the last four: gate, up, gate, up.
  for (int64_t i = 0; i < 8; ++i)
    expect_row("gate_up_proj", i, last.gate_up.parts[static_cast<size_t>(i % 2)],
               i < 4 ? i / 2 : columns - 4 + i / 2);
  for (int64_t i = 0; i < 8; ++i)
    expect_row("down_proj", i, last.down.parts[0], i < 4 ? i : model.config.hidden_size - 8 + i);
}

TEST(Mxfp4, LogitsAreThoseOfTransformers) {
  auto single = make_single_collectives();
  const SafetensorsFile golden = SafetensorsFile::open(mxfp4_model() / "golden.safetensors").value();
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    auto model = testing::load_or_die(mxfp4_model(), {.threads = 2, .bytes_per_thread = 1}, *single);
    for (int i = 0; i < 3; ++i) {
      const TensorInfo* ids = golden.find("input_ids." + std::to_string(i));
      std::vector<int32_t> raw(ids->data.size() / 4);
      std::memcpy(raw.data(), ids->data.data(), ids->data.size());
      const auto expected = numbers_in(*golden.find("logits." + std::to_string(i)));
      const auto got = testing::logits_in_chunks(*model, std::vector<TokenId>(raw.begin(), raw.end()), 64);
      ASSERT_EQ(got.size(), expected.size());
      // Numbers are exact, but inputs of codes are rounded to bf16.
      EXPECT_LT(testing::relative_difference(got, expected), 0.02) << isa;
    }
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

TEST(Mxfp4, BitsDependOnNoBatchNoChunkAndNoRanks) {
  auto single = make_single_collectives();
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    auto model = testing::load_or_die(
        mxfp4_model(), {.threads = 2, .bytes_per_thread = 1, .max_logit_rows = 128, .kv_tokens = 1024},
        *single);
    const auto ids = testing::random_ids(40, model->config().vocab_size, 7);
    const auto reference = testing::logits_in_chunks(*model, ids, 1);
    for (const size_t chunk : {2u, 5u, 9u, 17u, 40u})
      EXPECT_TRUE(testing::same_bits(reference, testing::logits_in_chunks(*model, ids, chunk)))
          << isa << " chunk " << chunk;
    for (const int tp_size : {1, 2, 4, 8})
      EXPECT_TRUE(
          testing::same_bits(reference, testing::logits_of_group(mxfp4_model().string(), tp_size, ids, 7)))
          << isa << " ranks " << tp_size;
    const auto other = testing::random_ids(40, model->config().vocab_size, 8);
    const BatchSlice batch[]{{model->kv().create(), other, 40}, {model->kv().create(), ids, 40}};
    const auto together = testing::rows_of(model->forward(batch).value().logits);
    EXPECT_TRUE(testing::same_bits(
        reference, {together.begin() + static_cast<ptrdiff_t>(reference.size()), together.end()}))
        << isa;
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

// The same model with fp32 numbers in place of the codes, as [experts, inputs, outputs].
void write_fp32_experts(const std::filesystem::path& to) {
  const OpenedExperts model(mxfp4_model());
  TensorsToChange file(mxfp4_model() / "model.safetensors");
  const int64_t hidden = model.config.hidden_size, columns = model.config.experts->intermediate_size;
  const int64_t experts = model.config.experts->count;
  for (size_t layer = 0; layer < model.map.layers.size(); ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    std::vector<float> gate_up(static_cast<size_t>(experts * hidden * 2 * columns)),
        down(static_cast<size_t>(experts * columns * hidden));
    for (int64_t e = 0; e < experts; ++e) {
      const MlpSources& expert = model.expert(layer, static_cast<size_t>(e));
      for (int64_t side = 0; side < 2; ++side)
        for (int64_t row = 0; row < columns; ++row) {
          const auto values = row_of(expert.gate_up.parts[static_cast<size_t>(side)], row);
          for (int64_t i = 0; i < hidden; ++i)
            gate_up[static_cast<size_t>((e * hidden + i) * 2 * columns + 2 * row + side)] =
                values[static_cast<size_t>(i)];
        }
      for (int64_t row = 0; row < hidden; ++row) {
        const auto values = row_of(expert.down.parts[0], row);
        for (int64_t i = 0; i < columns; ++i)
          down[static_cast<size_t>((e * columns + i) * hidden + row)] = values[static_cast<size_t>(i)];
      }
    }
    const auto put = [&](const std::string& name, std::vector<int64_t> shape,
                         const std::vector<float>& values) {
      file.tensors.erase(prefix + name + "_blocks");
      file.tensors.erase(prefix + name + "_scales");
      file.tensors[prefix + name] = {
          "F32", std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
    };
    put("gate_up_proj", {experts, hidden, 2 * columns}, gate_up);
    put("down_proj", {experts, columns, hidden}, down);
  }
  file.write(to / "model.safetensors");
  auto config = nlohmann::json::parse(std::ifstream(mxfp4_model() / "config.json"));
  config.erase("quantization_config");
  std::ofstream(to / "config.json") << config.dump();
}

TEST(Mxfp4, LogitsAreNearThoseOfTheSameNumbersInFp32AndMemoryIsThatOfCodes) {
  const TemporaryDirectory plain;
  write_fp32_experts(plain.path());
  auto single = make_single_collectives();
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    const ModelOptions options{.threads = 2, .bytes_per_thread = 1, .kv = ModelOptions::Kv::kFloat32};
    auto packed = testing::load_or_die(mxfp4_model(), options, *single);
    auto numbers = testing::load_or_die(plain.path(), options, *single);
    const auto ids = testing::random_ids(40, packed->config().vocab_size, 3);
    const auto reference = testing::logits_in_chunks(*packed, ids, 7);
    // Inputs of codes are rounded to bf16.
    EXPECT_LT(testing::relative_difference(reference, testing::logits_in_chunks(*numbers, ids, 7)), 0.02)
        << isa;
    const ModelConfig& c = packed->config();
    const int64_t weights =
        c.num_layers * c.experts->count * 3 * c.hidden_size * c.experts->intermediate_size;
    // 4.25 bits in place of 32, but for tiles that are filled up.
    EXPECT_GT(numbers->weight_bytes() - packed->weight_bytes(), weights * 27 / 8);
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

TEST(Mxfp4, OtherFormatsAreMadeOfItsNumbers) {
  auto single = make_single_collectives();
  auto exact = testing::load_or_die(mxfp4_model(), {}, *single);
  const auto ids = testing::random_ids(30, exact->config().vocab_size, 7);
  const auto truth = testing::logits_in_chunks(*exact, ids, 30);
  for (const auto& [format, off] : {std::pair{WeightFormat::kBFloat16, 0.05}, {WeightFormat::kInt8, 0.1}}) {
    auto model = testing::load_or_die(mxfp4_model(), {.weight_format = format}, *single);
    EXPECT_LT(testing::relative_difference(testing::logits_in_chunks(*model, ids, 30), truth), off);
  }
}

// The message of loading a copy in which something was changed.
template <class Change>
std::string mxfp4_refusal(const Change& change) {
  const TemporaryDirectory directory;
  TensorsToChange file(mxfp4_model() / "model.safetensors");
  auto config = nlohmann::json::parse(std::ifstream(mxfp4_model() / "config.json"));
  change(file.tensors, config);
  file.write(directory / "model.safetensors");
  std::ofstream(directory / "config.json") << config.dump();
  const auto single = make_single_collectives();
  const auto model = Model::load(directory.path(), {}, *single);
  return model.ok() ? "" : model.status().message();
}

void expect_all(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << " | " << message;
}

TEST(Mxfp4, FilesThatAreWrongAreRefusedByTensorOrKey) {
  const std::string down = "model.layers.1.mlp.experts.down_proj";
  EXPECT_EQ(mxfp4_refusal([](auto&, auto&) {}), "");
  expect_all(mxfp4_refusal([&](auto& t, auto&) { t.erase(down + "_scales"); }), {down + "_scales"});
  expect_all(mxfp4_refusal([&](auto& t, auto&) { t.erase(down + "_bias"); }), {down + "_bias"});
  expect_all(mxfp4_refusal([&](auto& t, auto&) { t.erase("model.layers.0.self_attn.sinks"); }), {"sinks"});
  expect_all(mxfp4_refusal([&](auto& t, auto&) { t.erase("model.layers.0.mlp.router.bias"); }),
             {"router.bias"});
  expect_all(mxfp4_refusal([](auto&, auto& c) { c["intermediate_size"] = 100; }), {"gate_up_proj"});
  expect_all(mxfp4_refusal([](auto&, auto& c) { c.erase("quantization_config"); }), {"gate_up_proj"});
  expect_all(mxfp4_refusal([](auto&, auto& c) { c["quantization_config"]["warp"] = 2; }), {"warp"});
  expect_all(mxfp4_refusal([](auto&, auto& c) {
               c["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
             }),
             {"MXFP4", "gptq"});
  expect_all(mxfp4_refusal([](auto&, auto& c) { c["experts_per_token"] = 3; }), {"experts_per_token"});
  expect_all(mxfp4_refusal([](auto&, auto& c) { c["initial_context_length"] = 64; }),
             {"initial_context_length"});
  expect_all(mxfp4_refusal([](auto&, auto& c) { c.erase("rope_scaling"); }), {"rope_scaling"});
  expect_all(mxfp4_refusal([](auto&, auto& c) { c["hidden_act"] = "gelu"; }), {"hidden_act"});
}

// Its experts are one tensor, which our own format does not split.
TEST(Mxfp4, QuantisingToAFileIsRefused) {
  const auto directory = testing::golden_model("gpt-oss");
  const auto files = TensorFiles::open(directory).value();
  const auto config = read_model_config(directory).value();
  ThreadPool pool(1);
  std::FILE* to = std::tmpfile();
  const Status refused = write_quantized(files, config, WeightFormat::kInt8, pool, {}, to);
  std::fclose(to);
  ASSERT_FALSE(refused.ok());
  expect_all(refused.message(), {"experts.gate_up_proj", "--weight-format int8"});
}

}  // namespace
}  // namespace outrider
