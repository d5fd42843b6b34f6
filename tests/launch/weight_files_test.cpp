// Files of weights that hold more than the model uses, and files that are cut while they are read.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/program.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

struct WeightFile {
  json header;
  std::string data;
};

WeightFile read_weights(const fs::path& path) {
  const std::string bytes = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  return {json::parse(bytes.substr(sizeof length, length)), bytes.substr(sizeof length + length)};
}

void write_weights(const fs::path& path, const WeightFile& weights) {
  const std::string header = weights.header.dump();
  const uint64_t length = header.size();
  write_file(path,
             std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + weights.data);
}

// Copies of the demo models whose files gain tensors.
class MoreTensors : public ::testing::Test {
 protected:
  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
           const std::string& bytes) {
    WeightFile weights = read_weights(model_ / "model.safetensors");
    const size_t at = weights.data.size();
    weights.header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {at, at + bytes.size()}}};
    weights.data += bytes;
    write_weights(model_ / "model.safetensors", weights);
  }
  void add_vector(const std::string& name) { add(name, "BF16", {4}, std::string(8, 'x')); }
  std::string embedding() const {
    const WeightFile weights = read_weights(model_ / "model.safetensors");
    const json at = weights.header["model.embed_tokens.weight"]["data_offsets"];
    return weights.data.substr(at[0], at[1].get<size_t>() - at[0].get<size_t>());
  }

  Outcome run(const char* role = "--model") const {
    Arguments arguments{"generate", "--prompt", "Once upon a time", "--max-tokens", "8", "--quiet"};
    if (std::string(role) == "--draft-model") arguments.insert(arguments.end(), {"--model", demo_target()});
    arguments.insert(arguments.end(), {role, model_});
    return outrider_program(arguments);
  }
  void expect_refused(const Arguments& says) const {
    const Outcome outcome = run();
    EXPECT_EQ(outcome.code, 2) << outcome.describe();
    EXPECT_EQ(outcome.out, "");
    for (const std::string& part : says)
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << "\n" << outcome.describe();
  }

  TemporaryDirectory dir_;
  const fs::path model_ = dir_.copy(demo_target(), "model");
  const std::string text_ = generate({"--prompt", "Once upon a time", "--max-tokens", "8", "--quiet"}).out;
};

TEST_F(MoreTensors, OneWarningNamesWhatIsNotUsed) {
  for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.layers.10.mlp.up_proj.weight",
                           "base_model.model.layers.0.q_proj.lora_A.weight"})
    add_vector(name);
  for (const char* role : {"--model", "--draft-model"}) {
    const Outcome outcome = run(role);
    EXPECT_EQ(outcome.code, 0) << outcome.describe();
    EXPECT_EQ(outcome.out, text_);
    EXPECT_EQ(outcome.err, std::string("outrider: warning: ") + role + " " + model_.string() +
                               ": 3 tensors that its config.json does not ask for will not be used: "
                               "base_model.model.layers.0.q_proj.lora_A.weight, "
                               "model.layers.0.self_attn.q_proj.bias, model.layers.10.mlp.up_proj.weight\n");
  }
  for (int layer = 11; layer < 15; ++layer)
    add_vector(fmt::format("model.layers.{}.mlp.up_proj.weight", layer));
  EXPECT_NE(run().err.find("7 tensors"), std::string::npos);
  EXPECT_NE(run().err.find("and 3 more\n"), std::string::npos);
}

// The demo model as the text model of a checkpoint that also reads images.
TEST_F(MoreTensors, AWarningCountsTensorsOfImages) {
  WeightFile weights = read_weights(model_ / "model.safetensors");
  json renamed;
  for (const auto& [name, info] : weights.header.items())
    renamed[name.starts_with("model.") ? "model.language_model." + name.substr(6) : name] = info;
  weights.header = renamed;
  write_weights(model_ / "model.safetensors", weights);
  add_vector("model.visual.patch_embed.proj.bias");
  add_vector("model.vision_tower.layers.0.q_proj.weight");
  json text = json::parse(read_file(model_ / "config.json"));
  text.erase("architectures");
  const json whole{{"architectures", {"Mistral3ForConditionalGeneration"}},
                   {"model_type", "mistral3"},
                   {"vision_config", {{"model_type", "pixtral"}}},
                   {"tie_word_embeddings", true},
                   {"text_config", text}};
  write_file(model_ / "config.json", whole.dump());
  const Outcome outcome = run();
  EXPECT_EQ(outcome.code, 0) << outcome.describe();
  EXPECT_EQ(outcome.out, text_);
  EXPECT_EQ(outcome.err,
            "outrider: warning: --model " + model_.string() +
                ": 2 tensors that read images or sound will not be used; this program reads text "
                "alone\n");
}

TEST_F(MoreTensors, WhatHoldsNothingOfTheModelIsPassedOver) {
  add_vector("model.layers.0.self_attn.rotary_emb.inv_freq");
  add("lm_head.weight", "BF16", {4096, 256}, embedding());
  const Outcome outcome = run();
  EXPECT_EQ(outcome.out, text_);
  EXPECT_EQ(outcome.err, "");
}

TEST_F(MoreTensors, AHeadOfItsOwnBesideATiedEmbeddingIsRefused) {
  std::string head = embedding();
  head.back() = static_cast<char>(head.back() ^ 1);
  add("lm_head.weight", "BF16", {4096, 256}, head);
  expect_refused({"tie_word_embeddings", "lm_head.weight"});
}

TEST_F(MoreTensors, WeightsQuantisedInAnotherWayAreRefused) {
  const std::string original = read_file(model_ / "model.safetensors");
  for (const char* name : {"weight_scale", "weight_scale_inv", "qzeros", "scales", "weight_packed", "SCB"}) {
    write_file(model_ / "model.safetensors", original);
    const std::string tensor = fmt::format("model.layers.0.mlp.up_proj.{}", name);
    add_vector(tensor);
    expect_refused({tensor, "quantised", "bf16"});
  }
}

// One file is a whole model: sizes, weights, tokenizer and chat template.
// A GGUF file with more keys in front of its own. Their bytes are a multiple of the file's alignment.
class GgufWithKeys {
 public:
  void number(const std::string& key, float value) { add(key, 6, &value, sizeof value); }
  void integer(const std::string& key, int32_t value) { add(key, 5, &value, sizeof value); }
  std::string write(const TemporaryDirectory& dir, std::string file) {
    const std::string padding((64 - (keys_.size() + 8 + 3 + 4 + 8) % 32) % 32, ' ');
    const uint64_t length = padding.size();
    add("pad", 8, &length, sizeof length);
    keys_ += padding;
    uint64_t count = 0;
    std::memcpy(&count, &file[16], sizeof count);
    count += count_;
    std::memcpy(&file[16], &count, sizeof count);
    return dir.write("more_keys.gguf", file.insert(24, keys_));
  }

 private:
  void add(const std::string& key, uint32_t type, const void* value, size_t bytes) {
    const uint64_t length = key.size();
    keys_.append(reinterpret_cast<const char*>(&length), sizeof length).append(key);
    keys_.append(reinterpret_cast<const char*>(&type), sizeof type);
    keys_.append(static_cast<const char*>(value), bytes);
    ++count_;
  }
  std::string keys_;
  uint64_t count_ = 0;
};

TEST(GgufFiles, KeysOfSamplingAreDefaultsWhereAsked) {
  const TemporaryDirectory dir;
  GgufWithKeys keys;
  keys.number("general.sampling.temp", 0.9F);
  keys.integer("general.sampling.top_k", 9);
  keys.number("general.sampling.top_p", 0.8F);
  const std::string model =
      keys.write(dir, read_file(source_dir() / "tests/goldens/formats/gguf-qwen3-q8/model.gguf"));
  const auto text = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"generate", model, "Once", "-n", "12", "--quiet", "--seed", "5", "--ignore-eos"});
    const Outcome run = outrider_program(more);
    EXPECT_TRUE(run.succeeded()) << run.describe();
    return run.out;
  };
  const std::string own = text({"--generation-config", "auto"});
  EXPECT_EQ(own, text({"--temperature", "0.9", "--top-k", "9", "--top-p", "0.8"}));
  EXPECT_EQ(text({"--generation-config", "auto", "--temperature", "0"}), text({}));
  EXPECT_NE(own, text({}));

  GgufWithKeys wrong;
  wrong.number("general.sampling.top_p", 8);
  const std::string bad =
      wrong.write(dir, read_file(source_dir() / "tests/goldens/formats/gguf-qwen3-q8/model.gguf"));
  const Outcome run = outrider_program({"generate", bad, "Once", "--generation-config", "auto"});
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("general.sampling.top_p is 8"), std::string::npos) << run.err;
}

TEST(GgufFiles, GenerateAndDoctorTakeThemAsModels) {
  const std::string model = (source_dir() / "tests/goldens/formats/gguf-qwen3-q8/model.gguf").string();
  const auto text = [&](const Arguments& more) {
    Arguments arguments{"generate",   "--model",      model, "--prompt",
                        "in the end", "--max-tokens", "16",  "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = outrider_program(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.describe();
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  };
  const std::string plain = text({});
  EXPECT_NE(plain, "");
  EXPECT_EQ(text({"--drafter", "ngram"}), plain);
  EXPECT_EQ(text({"--draft-model", model}), plain);
  EXPECT_EQ(text({"--tp", "2"}), plain);
  const Outcome told = outrider_program({"doctor", "--model", model});
  EXPECT_EQ(told.code, 0) << told.describe();
  for (const char* part :
       {"Qwen3ForCausalLM", "stored as GGUF Q8_0", "272 ids", "chat template          found"})
    EXPECT_NE(told.out.find(part), std::string::npos) << part << "\n" << told.describe();
}

// A model that takes a moment to load: all zeros, in a file with holes.
class CutWhileLoading : public ::testing::TestWithParam<Arguments> {
 protected:
  static constexpr int64_t kHidden = 256, kWide = 1 << 17;

  fs::path wide_model(const std::string& name) {
    const fs::path model = dir_.copy(demo_target(), name);
    json config = json::parse(read_file(model / "config.json"));
    config["intermediate_size"] = kWide;
    config["num_hidden_layers"] = 1;
    write_file(model / "config.json", config.dump());
    WeightFile weights = read_weights(model / "model.safetensors");
    int64_t at = 0;
    json header;
    for (auto& [tensor, value] : weights.header.items()) {
      if (tensor == "__metadata__" ||
          (tensor.starts_with("model.layers.") && !tensor.starts_with("model.layers.0.")))
        continue;
      if (tensor.find("gate_proj") != tensor.npos || tensor.find("up_proj") != tensor.npos)
        value["shape"] = {kWide, kHidden};
      if (tensor.find("down_proj") != tensor.npos) value["shape"] = {kHidden, kWide};
      value["dtype"] = "BF16";
      int64_t bytes = 2;
      for (const auto& extent : value["shape"]) bytes *= extent.get<int64_t>();
      value["data_offsets"] = {at, at + bytes};
      at += bytes;
      header[tensor] = value;
    }
    write_weights(model / "model.safetensors", {header, ""});
    fs::resize_file(model / "model.safetensors", fs::file_size(model / "model.safetensors") + at);
    return model;
  }

  // The line of /proc/PID/maps for the file; empty if it is not mapped.
  static std::string mapping(pid_t pid, const std::string& path) {
    std::istringstream lines(read_file(fmt::format("/proc/{}/maps", pid)));
    for (std::string line; std::getline(lines, line);)
      if (line.ends_with(path)) return line;
    return {};
  }

  // Starts the program, cuts the file once it has been mapped for a while, and waits for the end.
  Outcome cut(const Arguments& arguments, const fs::path& file) {
    const std::string out = dir_ / "out", err = dir_ / "err";
    Arguments argv{outrider_path()};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& a : argv) pointers.push_back(a.data());
    pointers.push_back(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      heed_signals();
      dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
      dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
      execv(pointers[0], pointers.data());
      _exit(127);
    }
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
    std::string before = "none";
    for (int i = 0; i < 3000; ++i) {
      const std::string now = mapping(pid, file.filename());
      if (!now.empty() && now == before) break;
      before = now;
      pause();
    }
    kill(pid, SIGSTOP);
    fs::resize_file(file, 4096);
    kill(pid, SIGCONT);
    int status = 0;
    for (int i = 0; i < 20'000 && waitpid(pid, &status, WNOHANG) == 0; ++i) {
      pause();
      if (i == 19'999) kill(pid, SIGKILL);
    }
    return {.arguments = argv,
            .code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
            .out = read_file(out),
            .err = read_file(err)};
  }

  TemporaryDirectory dir_;
};

TEST_P(CutWhileLoading, TheFileIsNamedAndTheCodeIsThatOfARuntimeError) {
  // The file is mapped more than once, first briefly. A truncation that is noticed at the next open is
  // reported as an ordinary error; the test then tries again.
  for (int attempt = 0; attempt < 8; ++attempt) {
    const fs::path model = wide_model(fmt::format("model{}", attempt));
    const fs::path file = model / "model.safetensors";
    Arguments arguments = GetParam();
    for (std::string& a : arguments) {
      if (a == "TARGET") a = demo_target();
      if (a == "CUT") a = model;
      if (a == "OUT") a = dir_ / "out.jsonl";
    }
    const Outcome run = cut(arguments, file);
    ASSERT_EQ(run.signal, 0) << run.describe();
    EXPECT_NE(run.code, 0) << run.describe();
    EXPECT_EQ(run.out, "");
    EXPECT_NE(run.err.find(file), std::string::npos) << run.describe();
    EXPECT_FALSE(fs::exists(dir_ / "out.jsonl"));
    for (const std::string& name : dir_.entries())
      EXPECT_EQ(name.find(".partial"), std::string::npos) << name;
    if (run.err.find("cannot be read where it is mapped") == std::string::npos) continue;
    EXPECT_EQ(run.code, 3) << run.describe();
    EXPECT_NE(run.err.find("became shorter"), std::string::npos) << run.describe();
    return;
  }
  FAIL() << "the file was never cut while it was mapped";
}

const char* const kCommands[] = {"generate", "draft", "serve", "draft_worker"};

INSTANTIATE_TEST_SUITE_P(Commands, CutWhileLoading,
                         ::testing::Values(Arguments{"generate", "--prompt", "x", "--quiet", "--output",
                                                     "OUT", "--model", "CUT"},
                                           Arguments{"generate", "--prompt", "x", "--quiet", "--output",
                                                     "OUT", "--model", "TARGET", "--draft-model", "CUT"},
                                           Arguments{"serve", "--port", "0", "--quiet", "--model", "CUT"},
                                           Arguments{"draft-worker", "--connect", "tcp://127.0.0.1:1",
                                                     "--quiet", "--draft-model", "CUT"}),
                         [](const auto& command) { return std::string(kCommands[command.index]); });

TEST(Quantize, WritesBlocksOfGgufThatLoad) {
  const TemporaryDirectory dir;
  for (const char* format : {"q4_k", "q6_k", "q8_0"}) {
    const std::string to = dir / format;
    const Outcome written =
        outrider_program({"quantize", "--model", demo_target(), "--weight-format", format, "--output", to});
    ASSERT_EQ(written.code, 0) << written.describe();
    EXPECT_NE(written.err.find(fmt::format("wrote {}: {} weights of ", to, format)), std::string::npos)
        << written.describe();
    const Outcome text = outrider_program(
        {"generate", "--model", to, "--prompt", "Once upon a time", "--max-tokens", "16", "--quiet"});
    EXPECT_EQ(text.code, 0) << text.describe();
    EXPECT_GT(text.out.size(), 20u) << text.describe();
    const Outcome refused =
        outrider_program({"quantize", "--model", to, "--output", dir / "again", "--weight-format", format});
    EXPECT_EQ(refused.code, 2) << refused.describe();
    EXPECT_NE(refused.err.find("quantised already"), std::string::npos) << refused.describe();
  }
  EXPECT_EQ(dir.entries(), (Arguments{"q4_k", "q6_k", "q8_0"}));
}

}  // namespace
}  // namespace outrider::testing
