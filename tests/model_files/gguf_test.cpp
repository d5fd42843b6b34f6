// GGUF: errors for invalid files, the mapping of keys, and the model in a file (goldens: formats_test.cpp).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "model_files/gguf_model.h"
#include "model_files/gguf_parts.h"
#include "model_files/model_config.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/mutations.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::Gguf;

std::string error_of_gguf(const std::string& file) {
  const auto parsed = parse_gguf(std::as_bytes(std::span(file)), "m.gguf");
  return parsed.ok() ? "" : parsed.status().message();
}

void expect_error_of(const std::string& file, const std::string& words) {
  const std::string message = error_of_gguf(file);
  EXPECT_TRUE(message.starts_with("m.gguf")) << message;
  EXPECT_NE(message.find(words), std::string::npos) << words << " | " << message;
}

Gguf small() {
  return Gguf().text("general.architecture", "llama").tensor("a", {32, 2}, 8, 68).tensor("b", {8}, 0, 32);
}

TEST(GgufFile, TensorsAndValuesAreFound) {
  const std::string file = small().number("n", 7).real("f", 1.5f).file();
  const auto parsed = parse_gguf(std::as_bytes(std::span(file)), "m.gguf");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(*gguf_integer(*parsed, "n", ""), 7);
  EXPECT_EQ(std::get<double>(*parsed->find("f")), 1.5);
  EXPECT_EQ(parsed->tensor("a")->shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(parsed->tensor("a")->data.size(), 68u);
  EXPECT_EQ(parsed->tensor("b")->data.data() - parsed->tensor("a")->data.data(), 96);
  EXPECT_FALSE(gguf_integer(*parsed, "general.architecture", "m").ok());
}

TEST(GgufFile, EveryPrefixIsAnError) {
  const std::string file = small().number("n", 7).file();
  for (size_t size = 0; size < file.size(); ++size)
    EXPECT_NE(error_of_gguf(file.substr(0, size)), "") << size;
}

// An error of an incomplete or damaged file says so and names the remedy.
TEST(GgufFile, DamageNamesItsPlaceAndTheRemedy) {
  const std::string file = small().number("n", 7).file();
  for (const size_t size : {4u, 10u, 40u}) {
    const std::string message = error_of_gguf(file.substr(0, size));
    EXPECT_NE(message.find(fmt::format("ends at byte {}, inside its header; download it again", size)),
              std::string::npos)
        << message;
  }
  expect_error_of(file.substr(0, file.size() - 1),
                  "is cut short, or its download goes on; download it again");
  expect_error_of(small().with_counts(uint64_t{1} << 60, 1), "the file is damaged: download it again");
  expect_error_of(small().with_counts(900'000, 1), "the file is damaged: download it again");
}

// Whatever the bytes, reading ends, and what it hands out lies in the file.
TEST(GgufFile, AnyBytesAreReadOrRefused) {
  const std::string good = small().number("n", 7).file();
  std::mt19937 random(5);
  for (int i = 0; i < 20'000; ++i) {
    std::string file = good;
    for (int changes = 0; changes < 3; ++changes)
      file[random() % file.size()] = static_cast<char>(random() % 4 ? random() : 255);
    const auto parsed = parse_gguf(std::as_bytes(std::span(file)), "m.gguf");
    if (!parsed.ok()) continue;
    for (const TensorInfo& tensor : parsed->tensors) {
      EXPECT_GE(tensor.data.data(), reinterpret_cast<const std::byte*>(file.data()));
      EXPECT_LE(tensor.data.data() + tensor.data.size(),
                reinterpret_cast<const std::byte*>(file.data()) + file.size());
    }
  }
}

TEST(GgufFile, WrongFilesSaySo) {
  expect_error_of("PK\3\4 is another format", "does not start with GGUF");
  expect_error_of("", "the file is empty; download it again");
  expect_error_of(small().file(1), "version 1");
  expect_error_of(small().file(0x03000000), "little endian");
  expect_error_of("version https://git-lfs.github.com/spec/v1\noid", "git lfs pull");
  expect_error_of(small().with_counts(uint64_t{1} << 60, 1), "tensors");
  expect_error_of(small().with_counts(1, uint64_t{1} << 60), "keys");
  expect_error_of(small().with_counts(900'000, 1), "0 dimensions");  // of zeros that pad the data
  expect_error_of(Gguf().add("list", 9, Gguf::bytes(uint32_t{4}) + Gguf::bytes(uint64_t{1} << 62)).file(),
                  "cut short");
  expect_error_of(Gguf().add("list", 9, Gguf::bytes(uint32_t{9}) + Gguf::bytes(uint64_t{1})).file(),
                  "array of type 9");
  expect_error_of(Gguf().add("value", 77, "").file(), "type 77");
  expect_error_of(Gguf().number("n", 1).number("n", 2).file(), "a key twice: n");
  expect_error_of(Gguf().tensor("a", {8}, 0, 32).tensor("a", {8}, 0, 32).file(), "a tensor twice: a");
  expect_error_of(Gguf().tensor_at("a", {16}, 0, 0, 64).tensor_at("b", {8}, 0, 32, 32).file(),
                  "a and b overlap");
  expect_error_of(Gguf().tensor_at("a", {8}, 0, 4, 32).file(), "not aligned");
  expect_error_of(Gguf().tensor_at("a", {8}, 0, uint64_t{1} << 63, 0).file(), "a lies beyond the end");
  expect_error_of(Gguf().tensor("a", {uint64_t{1} << 40, 1 << 20}, 0, 32).file(), "absurd");
  expect_error_of(Gguf().tensor("a", {8, 0}, 0, 32).file(), "absurd");
  expect_error_of(Gguf().tensor("a", {48}, 8, 32).file(), "no whole blocks of Q8_0");
  expect_error_of(Gguf().tensor("a", {256}, 15, 200).file(), "a is Q8_K; supported are");
  expect_error_of(Gguf().tensor("a", {256}, 99, 200).file(), "of type 99");
  expect_error_of(Gguf().number("general.alignment", 3).tensor("a", {8}, 0, 32).file(), "power of two");
}

Gguf file_of(const std::string& architecture, uint64_t layers = 2) {
  const auto key = [&](const char* name) { return architecture + "." + name; };
  return Gguf()
      .text("general.architecture", architecture)
      .number(key("block_count"), layers)
      .number(key("context_length"), 512)
      .number(key("embedding_length"), 128)
      .number(key("feed_forward_length"), 256)
      .number(key("attention.head_count"), 2)
      .number(key("attention.head_count_kv"), 1)
      .real(key("attention.layer_norm_rms_epsilon"), 1e-5f)
      .real(key("rope.freq_base"), 500000.0f)
      .number("tokenizer.ggml.eos_token_id", 5)
      .number("tokenizer.ggml.eot_token_id", 6)
      .tensor("token_embd.weight", {128, 96}, 1, 128 * 96 * 2);
}

Gguf llama_gguf() { return file_of("llama"); }

Result<ModelConfig> config_of(const std::string& file) {
  const TemporaryDirectory directory;
  return read_model_config(directory.write("m.gguf", file));
}

TEST(GgufConfig, KeysBecomeThoseOfConfigJson) {
  const auto config = config_of(llama_gguf().file());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->family, ModelFamily::kLlama);
  EXPECT_EQ(config->num_layers, 2);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->num_kv_heads, 1);
  EXPECT_EQ(config->vocab_size, 96);
  EXPECT_EQ(config->max_position_embeddings, 512);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->eos, (std::vector<TokenId>{TokenId(5), TokenId(6)}));
  EXPECT_FALSE(config_of(llama_gguf().tensor("output.weight", {128, 96}, 1, 128 * 96 * 2).file())
                   ->tie_word_embeddings);
}

// Architectures with a list of one number for each layer read it before the other checks of config.json.
TEST(GgufConfig, NumbersOfLayersThatNoModelHasAreRefused) {
  for (const char* architecture : {"llama", "gemma4", "lfm2", "qwen35", "gemma3"})
    for (const uint64_t layers : {uint64_t{0}, uint64_t{4097}, uint64_t{1} << 61}) {
      Gguf file = file_of(architecture, layers);
      if (std::string_view(architecture).starts_with("gemma"))
        file.number(std::string(architecture) + ".attention.sliding_window_pattern", 1);
      const auto config = config_of(file.file());
      ASSERT_FALSE(config.ok()) << architecture << layers;
      EXPECT_NE(config.status().message().find("block_count"), std::string::npos)
          << config.status().message();
    }
}

TEST(GgufConfig, WhatIsNotUnderstoodIsRefusedByName) {
  const auto refused = [](const Gguf& file, const std::string& words) {
    const auto config = config_of(file.file());
    ASSERT_FALSE(config.ok()) << words;
    EXPECT_NE(config.status().message().find(words), std::string::npos) << config.status().message();
    EXPECT_NE(config.status().message().find("m.gguf"), std::string::npos) << config.status().message();
  };
  refused(llama_gguf().number("llama.surprise", 3), "llama.surprise");
  refused(llama_gguf().number("llama.expert_count", 8), "llama.expert_used_count");
  refused(llama_gguf().text("llama.rope.scaling.type", "yarn"), "llama.rope.scaling.factor");
  refused(llama_gguf().text("llama.rope.scaling.type", "ntk"), "llama.rope.scaling.type");
  refused(llama_gguf().number("llama.rope.dimension_count", 32), "llama.rope.dimension_count");
  refused(llama_gguf().number("split.count", 2), "split.count");
  refused(Gguf().text("general.architecture", "mamba"), "mamba");
  refused(Gguf().text("general.architecture", "llama"), "llama.embedding_length");
  refused(file_of("llama", 1).tensor("blk.0.attn_q.bias", {128}, 0, 512), "biases");
  refused(file_of("minimax-m2", 1).tensor("blk.0.attn_q.bias", {128}, 0, 512), "biases");
  refused(file_of("glm4moe", 1).tensor("blk.0.attn_output.bias", {128}, 0, 512), "biases");
  refused(file_of("glm4moe").number("glm4moe.expert_gating_func", 1), "glm4moe.expert_gating_func is 1");
  refused(llama_gguf().number("llama.nextn_predict_layers", 2), "llama.nextn_predict_layers is 2");
  refused(llama_gguf().tensor("rope_freqs.weight", {16}, 0, 64), "rope_freqs.weight");
  EXPECT_TRUE(
      config_of(llama_gguf().number("llama.expert_count", 0).text("llama.rope.scaling.type", "none").file())
          .ok());
}

// One block's tensors with a norm of 128, an MLP of 256, two heads of 64 and one KV head.
Gguf with_block(Gguf file, const std::string& layer) {
  return file.tensor(layer + "attn_norm.weight", {128}, 0, 128 * 4)
      .tensor(layer + "attn_k.weight", {128, 64}, 1, 128 * 64 * 2)
      .tensor(layer + "attn_output.weight", {128, 128}, 1, 128 * 128 * 2)
      .tensor(layer + "ffn_down.weight", {256, 128}, 1, 256 * 128 * 2);
}

// A file with a key that contradicts its tensors is refused, and the error names file, key and both numbers.
TEST(GgufConfig, KeysThatContradictTensorsAreRefused) {
  const std::string good =
      with_block(with_block(llama_gguf(), "blk.0."), "blk.1.").number("llama.vocab_size", 96).file();
  const auto with = [&](const std::string& key, uint32_t value) {
    std::string file = good;
    const std::string entry = Gguf::string("llama." + key) + Gguf::bytes(uint32_t{4});
    const size_t at = file.find(entry);
    EXPECT_NE(at, file.npos) << key;
    file.replace(at + entry.size(), 4, Gguf::bytes(value));
    return config_of(file);
  };
  ASSERT_TRUE(config_of(good).ok()) << config_of(good).status().message();
  // Converters may pad the rows, and write the number of tokens.
  ASSERT_TRUE(with("vocab_size", 90).ok()) << with("vocab_size", 90).status().message();
  EXPECT_EQ(with("vocab_size", 90)->vocab_size, 96);
  struct Wrong {
    const char* key;
    uint32_t value;
    const char* words;
  };
  for (const Wrong& wrong :
       {Wrong{"block_count", 1, "its tensors are of 2 layers, blk.0 to blk.1"},
        Wrong{"block_count", 3, "its tensors are of 2 layers, blk.0 to blk.1"},
        Wrong{"embedding_length", 256, "token_embd.weight has the shape [96, 128], so 128"},
        Wrong{"vocab_size", 97, "token_embd.weight has the shape [96, 128], so 96"},
        Wrong{"vocab_size", 0, "token_embd.weight has the shape [96, 128], so 96"},
        Wrong{"feed_forward_length", 512, "blk.0.ffn_down.weight has the shape [128, 256]"},
        Wrong{"attention.head_count_kv", 2, "blk.0.attn_k.weight has the shape [64, 128], so 1"},
        Wrong{"attention.head_count", 4, "blk.0.attn_k.weight has the shape [64, 128], so 2"}}) {
    const auto config = with(wrong.key, wrong.value);
    ASSERT_FALSE(config.ok()) << wrong.key;
    const std::string message = config.status().message();
    EXPECT_NE(message.find("m.gguf: llama."), message.npos) << message;
    EXPECT_NE(message.find(wrong.words), message.npos) << message;
    EXPECT_EQ(message.find("config.json"), message.npos) << message;
    // 128 / 4 could be the size of a head, and the number of KV heads wrong.
    const bool blames_another = std::string_view(wrong.key) == "attention.head_count";
    EXPECT_EQ(message.find(fmt::format("llama.{} is {}", wrong.key, wrong.value)) == message.npos,
              blames_another)
        << message;
  }
}

// Errors have the tensor's name in the file, which may lack it.
TEST(GgufTensors, ErrorsNameThemAsTheFileDoes) {
  const TemporaryDirectory directory;
  const auto path = directory.write("m.gguf", with_block(file_of("llama", 1), "blk.0.").file());
  const auto files = TensorFiles::open(path);
  ASSERT_TRUE(files.ok()) << files.status().message();
  const auto error_of = [&](const char* name) { return files->require(name, {1, 1}).status().message(); };
  const std::pair<const char*, const char*> kNames[]{
      {"model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight has shape [128, 128]"},
      {"model.layers.7.post_attention_layernorm.weight", "has no tensor blk.7.ffn_norm.weight"},
      {"model.layers.0.mlp.gate_proj.weight", "has no tensor blk.0.ffn_gate.weight"},
      {"model.layers.0.self_attn.q_proj.bias", "has no tensor blk.0.attn_q.bias"},
      {"model.norm.weight", "has no tensor output_norm.weight"},
      {"lm_head.weight", "has no tensor output.weight"}};
  for (const auto& [name, words] : kNames) {
    EXPECT_NE(error_of(name).find(words), std::string::npos) << error_of(name);
    EXPECT_EQ(error_of(name).find("config.json"), std::string::npos) << error_of(name);
  }
}

constexpr uint32_t kF32 = 6, kU64 = 10, kI64 = 11, kF64 = 12;

TEST(GgufFile, WholeNumbersOfListsAreReadInAnyType) {
  const auto whole_of = [](uint32_t type, auto value) {
    const std::string file = Gguf().numbers<decltype(value)>("list", type, {1, value}).file();
    const auto parsed = parse_gguf(std::as_bytes(std::span(file)), "m.gguf");
    return gguf_array(*parsed, "list")->whole(1);
  };
  EXPECT_EQ(whole_of(0, uint8_t{255}), 255);
  EXPECT_EQ(whole_of(1, int8_t{-1}), -1);
  EXPECT_EQ(whole_of(2, uint16_t{65535}), 65535);
  EXPECT_EQ(whole_of(3, int16_t{-1}), -1);
  EXPECT_EQ(whole_of(4, uint32_t{1} << 31), int64_t{1} << 31);
  EXPECT_EQ(whole_of(5, int32_t{-1}), -1);
  EXPECT_EQ(whole_of(7, uint8_t{1}), 1);
  EXPECT_EQ(whole_of(kU64, uint64_t{INT64_MAX}), INT64_MAX);
  EXPECT_EQ(whole_of(kU64, uint64_t{1} << 63), std::nullopt);
  EXPECT_EQ(whole_of(kI64, INT64_MIN), INT64_MIN);
  EXPECT_EQ(whole_of(kF32, 3.0f), std::nullopt);
  EXPECT_EQ(whole_of(kF64, 3.0), std::nullopt);
}

// Two layers with an MLP of 256 in each, by a list of any type.
TEST(GgufConfig, ListsOfNumbersForLayersAreReadInAnyType) {
  const auto with = [](uint32_t type, auto first, auto second) {
    Gguf file = Gguf()
                    .text("general.architecture", "llama")
                    .number("llama.block_count", 2)
                    .number("llama.context_length", 512)
                    .number("llama.embedding_length", 128)
                    .number("llama.attention.head_count", 2)
                    .number("llama.attention.head_count_kv", 1)
                    .tensor("token_embd.weight", {128, 96}, 1, 128 * 96 * 2)
                    .numbers<decltype(first)>("llama.feed_forward_length", type, {first, second});
    return config_of(with_block(with_block(std::move(file), "blk.0."), "blk.1.").file());
  };
  for (const auto& config : {with(5, int32_t{256}, int32_t{256}), with(kU64, uint64_t{256}, uint64_t{256}),
                             with(kI64, int64_t{256}, int64_t{256})}) {
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->intermediate_size, 256);
  }
  for (const auto& config : {with(kF32, NAN, NAN), with(kF32, 1e30f, 1e30f), with(kF64, 1e300, 1e300),
                             with(kU64, uint64_t{1} << 63, uint64_t{1} << 63)}) {
    ASSERT_FALSE(config.ok());
    EXPECT_NE(config.status().message().find("llama.feed_forward_length is no whole number"),
              std::string::npos)
        << config.status().message();
  }
  EXPECT_NE(
      with(kI64, int64_t{256}, int64_t{512}).status().message().find("llama.feed_forward_length is 512, but"),
      std::string::npos);
}

// Numbers by which no tensor could be as large are refused, and overflow nothing.
TEST(GgufConfig, HugeNumbersAreRefused) {
  const auto refused = [](const std::string& file, const std::string& words) {
    const auto config = config_of(file);
    ASSERT_FALSE(config.ok()) << words;
    EXPECT_NE(config.status().message().find(words), std::string::npos) << config.status().message();
  };
  const auto key = [](int64_t value) { return Gguf::bytes(value); };
  const auto base = [] {
    return Gguf()
        .text("general.architecture", "llama")
        .number("llama.context_length", 512)
        .number("llama.embedding_length", 128)
        .number("llama.feed_forward_length", 256)
        .tensor("token_embd.weight", {128, 96}, 1, 128 * 96 * 2);
  };
  for (const int64_t huge : {INT64_MAX, INT64_MIN, int64_t{1} << 58}) {
    refused(with_block(base()
                           .number("llama.block_count", 1)
                           .number("llama.attention.key_length", 64)
                           .add("llama.attention.head_count", kI64, key(huge)),
                       "blk.0.")
                .file(),
            fmt::format("llama.attention.head_count is {}, but", huge));
    refused(with_block(base()
                           .number("llama.block_count", 2)
                           .number("llama.attention.head_count", 2)
                           .add("llama.nextn_predict_layers", kI64, key(huge)),
                       "blk.0.")
                .file(),
            huge < 0 ? "llama.block_count is 2, but"
                     : fmt::format("llama.nextn_predict_layers is {}, but", huge));
  }
  // The model of 27 billion divides its size by the number of heads.
  for (const auto& [architecture, layers] : {std::pair{"gemma2", 46}, {"gemma3", 62}}) {
    const std::string name = architecture;
    refused(Gguf()
                .text("general.architecture", name)
                .number(name + ".block_count", static_cast<uint32_t>(layers))
                .number(name + ".context_length", 512)
                .number(name + ".embedding_length", 128)
                .number(name + ".feed_forward_length", 256)
                .number(name + ".attention.head_count", 0)
                .number(name + ".attention.key_length", 64)
                .tensor("token_embd.weight", {128, 96}, 1, 128 * 96 * 2)
                .file(),
            "attention.head_count");
  }
}

Gguf deepseek_gguf() {
  return file_of("deepseek2", 1)
      .number("deepseek2.attention.key_length", 96)
      .number("deepseek2.attention.value_length", 64)
      .number("deepseek2.attention.kv_lora_rank", 32)
      .number("deepseek2.rope.dimension_count", 32);
}

// Such a file has no size of all heads.
TEST(GgufTensors, ErrorsNameThoseOfLatentAttention) {
  const TemporaryDirectory directory;
  const auto files = TensorFiles::open(directory.write("m.gguf", deepseek_gguf().file()));
  ASSERT_TRUE(files.ok()) << files.status().message();
  for (const auto& [name, words] :
       {std::pair{"model.layers.0.self_attn.q_a_proj.weight", "has no tensor blk.0.attn_q_a.weight"},
        {"model.layers.0.self_attn.qkv.weight", "has no tensor model.layers.0.self_attn.qkv.weight"}}) {
    const std::string message = files->require(name, {1, 1}).status().message();
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
}

TEST(GgufTensors, FusedProjectionsHaveTheRowsOfHeads) {
  const TemporaryDirectory directory;
  const auto refused = [&](Gguf file, uint64_t rows, const std::string& words) {
    file.tensor("blk.0.attn_qkv.weight", {128, rows}, 1, 128 * rows * 2);
    const auto files = TensorFiles::open(directory.write("m.gguf", file.file()));
    ASSERT_FALSE(files.ok()) << words;
    EXPECT_NE(files.status().message().find(words), std::string::npos) << files.status().message();
  };
  const auto sizes = [](int64_t heads, int64_t kv_heads, int64_t each) {
    const auto key = [](int64_t value) { return Gguf::bytes(value); };
    return Gguf()
        .text("general.architecture", "llama")
        .number("llama.block_count", 1)
        .number("llama.context_length", 512)
        .number("llama.embedding_length", 128)
        .number("llama.feed_forward_length", 256)
        .add("llama.attention.head_count", kI64, key(heads))
        .add("llama.attention.head_count_kv", kI64, key(kv_heads))
        .add("llama.attention.key_length", kI64, key(each))
        .add("llama.attention.value_length", kI64, key(each))
        .add("llama.rope.dimension_count", kI64, key(each))
        .tensor("token_embd.weight", {128, 96}, 1, 128 * 96 * 2);
  };
  Gguf good = sizes(2, 1, 64);
  good.tensor("blk.0.attn_qkv.weight", {128, 256}, 1, 128 * 256 * 2);
  const auto files = TensorFiles::open(directory.write("m.gguf", good.file()));
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(files->find("model.layers.0.self_attn.k_proj.weight")->shape, (std::vector<int64_t>{64, 128}));
  refused(deepseek_gguf(), 256, "blk.0.attn_qkv.weight");
  refused(sizes(2, 1, 64), 192, "blk.0.attn_qkv.weight has 192 rows, not 256");
  refused(sizes(3, 1, 64), 128, "blk.0.attn_qkv.weight has 128 rows, which are not 3 query and 1 key heads");
  refused(sizes(4, -1, 64), 128, "blk.0.attn_qkv.weight");
  refused(sizes(-2, 3, 64), 256, "blk.0.attn_qkv.weight");
  refused(sizes(2, 1, 0), 256, "blk.0.attn_qkv.weight");
  refused(sizes(int64_t{1} << 60, 1, 64), 64, "blk.0.attn_qkv.weight");
}

// The count of a mixture's experts, and the size of each.
TEST(GgufConfig, SizesOfExpertsThatContradictTensorsAreRefused) {
  const auto mixture = [](uint32_t count, uint32_t size) {
    return config_of(file_of("qwen3moe", 1)
                         .number("qwen3moe.expert_count", count)
                         .number("qwen3moe.expert_used_count", 2)
                         .number("qwen3moe.expert_feed_forward_length", size)
                         .tensor("blk.0.ffn_gate_inp.weight", {128, 4}, 0, 128 * 4 * 4)
                         .tensor("blk.0.ffn_down_exps.weight", {32, 128, 4}, 1, 32 * 128 * 4 * 2)
                         .file());
  };
  ASSERT_TRUE(mixture(4, 32).ok()) << mixture(4, 32).status().message();
  EXPECT_NE(
      mixture(8, 32).status().message().find("qwen3moe.expert_count is 8, but blk.0.ffn_gate_inp.weight"),
      std::string::npos)
      << mixture(8, 32).status().message();
  EXPECT_NE(mixture(4, 64).status().message().find("qwen3moe.expert_feed_forward_length is 64, but"),
            std::string::npos)
      << mixture(4, 64).status().message();
}

TEST(GgufConfig, ModulesOfMultiTokenPredictionAreNoLayers) {
  const auto config = config_of(llama_gguf().number("llama.nextn_predict_layers", 1).file());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->num_layers, 1);
}

// Windows mark OLMo 3, whose layers without one are every fourth where the file has no list.
TEST(GgufConfig, Olmo3HasTheNameOfOlmo2) {
  EXPECT_EQ(config_of(file_of("olmo2").file())->family, ModelFamily::kOlmo2);
  const auto config = config_of(file_of("olmo2", 4).number("olmo2.attention.sliding_window", 64).file());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->family, ModelFamily::kOlmo3);
  EXPECT_EQ(config->layer(2).window, 64);
  EXPECT_EQ(config->layer(2).rope, LayerRope::kLocal);
  EXPECT_EQ(config->layer(3).window, 0);
  EXPECT_EQ(config->local_rope.theta, 500000);
}

// Token 1 names an end by its text, token 3 is HTML.
TEST(GgufConfig, TextsEndWithWhatKeysAndTextsName) {
  const auto config = config_of(
      llama_gguf()
          .texts("tokenizer.ggml.tokens", {"a", "<|endoftext|>", "<end_of_turn>", "</s>", "b", "c", "d"})
          .numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 1, 3, 4, 1, 3, 3})
          .file());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->eos, (std::vector<TokenId>{TokenId(5), TokenId(6), TokenId(1), TokenId(2)}));
}

Gguf part(uint32_t index, uint32_t count) {
  return Gguf()
      .add("split.no", 2, Gguf::bytes(static_cast<uint16_t>(index)))
      .add("split.count", 2, Gguf::bytes(static_cast<uint16_t>(count)));
}

TEST(GgufParts, TheFirstOpensAll) {
  const TemporaryDirectory directory;
  const auto first = directory.write(
      "m-00001-of-00002.gguf",
      part(0, 2).text("k", "v").number("split.tensors.count", 2).tensor("a", {8}, 0, 32).file());
  const auto second = directory.write("m-00002-of-00002.gguf", part(1, 2).tensor("b", {8}, 0, 32).file());
  const auto parts = open_gguf(first);
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  EXPECT_EQ(parts->files.size(), 2u);
  EXPECT_NE(parts->content.tensor("a"), nullptr);
  ASSERT_NE(parts->content.tensor("b"), nullptr);
  EXPECT_EQ(parts->content.tensor("b")->data.data() >= parts->files[1].bytes().data(), true);
  EXPECT_NE(parts->content.find("k"), nullptr);

  const auto refused = [](const std::filesystem::path& path, const std::string& words) {
    const auto wrong = open_gguf(path);
    ASSERT_FALSE(wrong.ok()) << words;
    EXPECT_NE(wrong.status().message().find(words), std::string::npos) << wrong.status().message();
  };
  refused(second, "give the first, " + first.string());
  refused(directory.write("other.gguf", part(0, 2).file()), "split.count");
  directory.write("m-00002-of-00002.gguf", part(1, 2).tensor("a", {8}, 0, 32).file());
  refused(first, "a tensor of another part: a");
  directory.write("m-00002-of-00002.gguf", part(0, 2).tensor("b", {8}, 0, 32).file());
  refused(first, "says that it is part 1 of 2");
  directory.write("m-00002-of-00002.gguf", part(1, 2).file());
  refused(first, "split.tensors.count");
  std::filesystem::remove(second);
  refused(first, "m-00002-of-00002.gguf");
}

// Bytes that a file gives, and lengths and counts that lie: read or refused, and tensors lie in the file.
TEST(Fuzz, GgufFiles) {
  const std::vector<std::string> good{small().file(), llama_gguf().file(),
                                      llama_gguf()
                                          .texts("tokenizer.ggml.tokens", {"a", "b", "<s>"})
                                          .numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 1, 3})
                                          .numbers<float>("tokenizer.ggml.scores", 6, {0, -1, 0})
                                          .flag("tokenizer.ggml.add_bos_token", true)
                                          .file()};
  testing::Mutations mutations(
      7, good,
      {std::string(8, '\xff'), std::string(4, '\xff'), std::string(8, '\0'), Gguf::bytes(uint64_t{1} << 62),
       Gguf::bytes(uint64_t{1} << 32), Gguf::bytes(uint32_t{9}), Gguf::bytes(uint32_t{8}),
       Gguf::string("general.alignment"), "llama.", "blk.0."});
  testing::fuzz(3000, [&] {
    const std::string file = mutations.next();
    const auto bytes = std::as_bytes(std::span(file));
    auto parsed = parse_gguf(bytes, "m.gguf");
    if (!parsed.ok()) return;
    (void)gguf_config(*parsed, "m.gguf");
    const auto tensors = gguf_tensors(*std::move(parsed), "m.gguf");
    if (!tensors.ok()) return;
    for (const TensorInfo& tensor : *tensors) {
      if (tensor.data.empty()) continue;
      EXPECT_GE(tensor.data.data(), bytes.data());
      EXPECT_LE(tensor.data.data() + tensor.data.size(), bytes.data() + bytes.size());
    }
  });
}

// Llama 3.1's, as the converter writes them: the divisors of its frequencies.
TEST(GgufConfig, RopeFactorsOfLlama3AreRecognised) {
  std::string file = llama_gguf().tensor("rope_freqs.weight", {32}, 0, 128).file();
  for (int i = 0; i < 32; ++i) {
    const double frequency = std::pow(500000.0, -i / 32.0), wavelength = 2 * M_PI / frequency;
    const double smooth = (8192 / wavelength - 1) / 3;
    const auto divisor = static_cast<float>(wavelength < 2048   ? 1
                                            : wavelength > 8192 ? 8
                                                                : 1 / ((1 - smooth) / 8 + smooth));
    std::memcpy(file.data() + file.size() - 128 + 4 * i, &divisor, 4);
  }
  const auto config = config_of(file);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto hugging_face = [] {
    const TemporaryDirectory directory;
    directory.write("config.json", json{{"architectures", {"LlamaForCausalLM"}},
                                        {"model_type", "llama"},
                                        {"hidden_size", 128},
                                        {"num_hidden_layers", 2},
                                        {"num_attention_heads", 2},
                                        {"num_key_value_heads", 1},
                                        {"intermediate_size", 256},
                                        {"vocab_size", 96},
                                        {"max_position_embeddings", 512},
                                        {"rms_norm_eps", 1e-5},
                                        {"rope_theta", 500000.0},
                                        {"rope_scaling",
                                         {{"rope_type", "llama3"},
                                          {"factor", 8.0},
                                          {"low_freq_factor", 1.0},
                                          {"high_freq_factor", 4.0},
                                          {"original_max_position_embeddings", 8192}}}}
                                       .dump());
    return read_model_config(directory.path());
  }();
  ASSERT_TRUE(hugging_face.ok()) << hugging_face.status().message();
  EXPECT_TRUE(config->rope == hugging_face->rope);
}

}  // namespace
}  // namespace outrider
