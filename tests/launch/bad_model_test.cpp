// Model directories that are incomplete, damaged, unsupported or do not fit together.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/program.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

class BadModel : public ::testing::TestWithParam<const char*> {
 protected:
  bool is_draft() const { return std::string(GetParam()) == "--draft-model"; }
  // A copy of the demo model of this role, to be damaged.
  fs::path model() { return dir_.copy(is_draft() ? demo_draft() : demo_target(), "model"); }

  void change_config(const fs::path& model, const std::function<void(json&)>& change) {
    json config = json::parse(read_file(model / "config.json"));
    change(config);
    write_file(model / "config.json", config.dump());
  }

  // Refused in the role of GetParam(), in one process with an output file.
  void expect_refused(const fs::path& model, const Arguments& says) {
    Arguments arguments{"generate", "--prompt", "x",        "--max-tokens",
                        "8",        "--quiet",  "--output", dir_ / "out.jsonl"};
    if (is_draft()) arguments.insert(arguments.end(), {"--model", demo_target()});
    arguments.insert(arguments.end(), {GetParam(), model});
    for (const bool to_file : {true, false}) {
      if (!to_file) arguments.erase(arguments.begin() + 6, arguments.begin() + 8);
      const Outcome run = outrider_program(arguments, {.limit = std::chrono::seconds(20)});
      EXPECT_EQ(run.code, 2) << run.describe();
      EXPECT_EQ(run.out, "") << run.describe();
      for (const std::string& part : says)
        EXPECT_NE(run.err.find(part), std::string::npos) << "missing: " << part << "\n" << run.describe();
      for (const std::string& name : dir_.entries())
        EXPECT_EQ(name.find("out.jsonl"), std::string::npos) << name << " was left";
    }
  }

  TemporaryDirectory dir_;
};

TEST_P(BadModel, NoSuchDirectory) {
  expect_refused(dir_ / "nowhere", {GetParam(), "nowhere", "no such directory", "config.json"});
}

TEST_P(BadModel, FileThatIsNoGguf) {
  write_file(dir_ / "weights.bin", "x");
  expect_refused(dir_ / "weights.bin", {GetParam(), "weights.bin", "neither a GGUF file nor a directory"});
}

TEST_P(BadModel, NoConfig) {
  const fs::path m = model();
  fs::remove(m / "config.json");
  expect_refused(m, {GetParam(), "config.json", "no such file"});
}

TEST_P(BadModel, ConfigThatIsNotJson) {
  const fs::path m = model();
  write_file(m / "config.json", "{\"hidden_size\": ");
  expect_refused(m, {GetParam(), "config.json", "line 1"});
}

TEST_P(BadModel, NoWeights) {
  const fs::path m = model();
  fs::remove(m / "model.safetensors");
  expect_refused(m, {GetParam(), "model.safetensors"});
}

TEST_P(BadModel, WeightsCutShort) {
  const fs::path m = model();
  fs::resize_file(m / "model.safetensors", fs::file_size(m / "model.safetensors") - 1000);
  expect_refused(m, {GetParam(), "model.safetensors", "download it again"});
}

// As an interrupted download, or a cache that was cleaned, leaves them.
TEST_P(BadModel, EmptyFilesAndLinksWithoutAFile) {
  const fs::path m = model();
  const fs::path cached = dir_ / "models--o--name" / "snapshots" / "1";
  fs::create_directories(cached);
  fs::copy(m, cached, fs::copy_options::recursive);
  for (const char* name : {"model.safetensors", "tokenizer.json", "config.json"}) {
    const std::string good = read_file(cached / name);
    write_file(cached / name, "");
    expect_refused(cached, {GetParam(), name, "is empty; download it again"});
    fs::remove(cached / name);
    fs::create_symlink("../../blobs/4d7a", cached / name);
    expect_refused(cached, {GetParam(), name, "is a link to ../../blobs/4d7a, which does not exist",
                            "`hf download --force-download o/name`"});
    fs::remove(cached / name);
    write_file(cached / name, good);
  }
  fs::remove(cached / "model.safetensors");
  expect_refused(cached, {"model.safetensors", "`hf download o/name`"});
}

TEST_P(BadModel, WeightsWithADamagedHeader) {
  const fs::path m = model();
  std::string bytes = read_file(m / "model.safetensors");
  bytes[20] = '\x01';
  write_file(m / "model.safetensors", bytes);
  expect_refused(m, {GetParam(), "model.safetensors"});
}

TEST_P(BadModel, WeightsThatAreAGitLfsPointer) {
  const fs::path m = model();
  write_file(m / "model.safetensors",
             "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2358952\n");
  expect_refused(m, {GetParam(), "model.safetensors", "git lfs pull"});
}

TEST_P(BadModel, UnsupportedArchitecture) {
  const fs::path m = model();
  change_config(m, [](json& c) { c["architectures"] = {"MambaForCausalLM"}; });
  expect_refused(m, {GetParam(), "config.json", "MambaForCausalLM", "LlamaForCausalLM"});
}

TEST_P(BadModel, QuantizedWeights) {
  const fs::path m = model();
  change_config(m, [](json& c) { c["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}}; });
  expect_refused(m, {GetParam(), "config.json", "quantization_config", "gptq", "bf16"});
}

// Only the weights themselves can contradict this one.
TEST_P(BadModel, ConfigThatLiesAboutTheShape) {
  const fs::path m = model();
  change_config(m, [](json& c) { c["intermediate_size"] = c["intermediate_size"].get<int>() + 16; });
  expect_refused(m, {"model.safetensors", "config.json", "shape"});
}

TEST_P(BadModel, NoTokenizer) {
  const fs::path m = model();
  fs::remove(m / "tokenizer.json");
  expect_refused(m, {GetParam(), "tokenizer.json"});
}

TEST_P(BadModel, DamagedTokenizer) {
  const fs::path m = model();
  fs::resize_file(m / "tokenizer.json", 1000);
  expect_refused(m, {GetParam(), "tokenizer.json"});
}

INSTANTIATE_TEST_SUITE_P(Role, BadModel, ::testing::Values("--model", "--draft-model"),
                         [](const auto& test) { return std::string(test.index == 0 ? "target" : "draft"); });

TEST(BadPair, DifferentVocabulariesNameTheFirstIdThatDiffers) {
  const TemporaryDirectory dir;
  const fs::path draft = dir.copy(demo_draft(), "draft");
  json tokenizer = json::parse(read_file(draft / "tokenizer.json"));
  std::string changed;
  for (auto& [token, id] : tokenizer["model"]["vocab"].items())
    if (id == 100) changed = token;
  ASSERT_FALSE(changed.empty());
  tokenizer["model"]["vocab"].erase(changed);
  tokenizer["model"]["vocab"]["outridertoken"] = 100;
  // Merges that make or use the token must go too, or the tokenizer is refused for itself.
  json merges = json::array();
  for (const json& merge : tokenizer["model"]["merges"]) {
    const std::string left = merge.is_array()
                                 ? merge[0].get<std::string>()
                                 : merge.get<std::string>().substr(0, merge.get<std::string>().find(' '));
    const std::string right =
        merge.is_array() ? merge[1].get<std::string>() : merge.get<std::string>().substr(left.size() + 1);
    if (left != changed && right != changed && left + right != changed) merges.push_back(merge);
  }
  tokenizer["model"]["merges"] = merges;
  write_file(draft / "tokenizer.json", tokenizer.dump());
  const Outcome run =
      generate({"--prompt", "x", "--draft-model", draft}, {.limit = std::chrono::seconds(20)});
  EXPECT_EQ(run.code, 2) << run.describe();
  EXPECT_EQ(run.out, "");
  for (const char* part : {"--draft-model", "id 100", "outridertoken", "vocabular"})
    EXPECT_NE(run.err.find(part), std::string::npos) << part << run.describe();
}

TEST(BadPair, ATokenizerOfAnotherFamily) {
  const TemporaryDirectory dir;
  const fs::path draft = dir.copy(demo_draft(), "draft");
  write_file(draft / "tokenizer.json",
             read_file(outrider::source_dir() / "tests/goldens/tokenizers/gpt2/tokenizer.json"));
  const Outcome run =
      generate({"--prompt", "x", "--draft-model", draft}, {.limit = std::chrono::seconds(20)});
  EXPECT_EQ(run.code, 2) << run.describe();
  for (const char* part : {"--draft-model", "different vocabularies", "id 0"})
    EXPECT_NE(run.err.find(part), std::string::npos) << part << run.describe();
}

// A bad template is of no interest to those who send prompts.
TEST(BadChatTemplate, IsToldToThoseWhoNeedIt) {
  TemporaryDirectory dir;
  const fs::path model = dir.copy(demo_target(), "model");
  write_file(model / "chat_template.jinja", "{% for message in %}");
  const auto generate = [&](const char* line) {
    return outrider_program({"generate", "--model", model, "--max-tokens", "2", "--quiet", "--prompts",
                             dir.write("in.jsonl", line)});
  };
  EXPECT_EQ(generate(R"({"prompt": "x"})").code, 0);
  const Outcome refused = generate(R"({"messages": [{"role": "user", "content": "x"}]})");
  EXPECT_EQ(refused.code, 2);
  for (const char* part : {"in.jsonl:1", "--model", "chat_template.jinja"})
    EXPECT_NE(refused.err.find(part), std::string::npos) << refused.describe();
}

}  // namespace
}  // namespace outrider::testing
