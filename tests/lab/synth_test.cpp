// `outrider synth` as a user meets it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace outrider::testing {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

Outcome synth(const std::filesystem::path& output, const Arguments& more = {},
              const RunSettings& settings = {}) {
  Arguments arguments{"synth", "--shape", "tiny", "--output", output.string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return outrider_program(arguments, settings);
}

class Synth : public ::testing::Test {
 protected:
  TemporaryDirectory dir_;
};

TEST_F(Synth, WritesAPairThatAgreesAsAsked) {
  const Outcome run = synth(dir_ / "pair", {"--acceptance", "0.7"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_NE(run.out.find("acceptance 0."), std::string::npos) << run.describe();
  const json record = json::parse(read_file(dir_ / "pair/synth.json"));
  // About 6000 choices at 384 positions; 0.06 is some four deviations, and the seed is fixed.
  EXPECT_NEAR(record["measured"]["acceptance"].get<double>(), 0.7, 0.06);
  EXPECT_NEAR(record["measured"]["entropy"].get<double>(), 2.5, 0.3);

  const Outcome generated =
      outrider_program({"generate", "--model", dir_ / "pair/target", "--draft-model", dir_ / "pair/draft",
                        "--prompt", "Once", "--max-tokens", "400", "--ignore-eos", "--temperature", "1", "-g",
                        "3", "--compare-plain", "--report", dir_ / "report.json"});
  ASSERT_TRUE(generated.succeeded()) << generated.describe();
  const json report = json::parse(read_file(dir_ / "report.json"));
  EXPECT_TRUE(report["comparison"]["identical_output"]);
  EXPECT_NEAR(report["metrics"]["rounds"]["acceptance_rate"].get<double>(), 0.7, 0.12);
}

// A mixture, whose text with drafts on two ranks is plain text, and what doctor tells of it.
TEST_F(Synth, WritesAMixtureOfExperts) {
  const Outcome run = synth(dir_ / "pair", {"--experts", "6", "--experts-per-token", "2", "--ffn", "96",
                                            "--acceptance", "0.7", "--quiet"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  const Outcome generated = outrider_program(
      {"generate", "--model", dir_ / "pair/target", "--draft-model", dir_ / "pair/draft", "--prompt", "Once",
       "--max-tokens", "60", "--ignore-eos", "-g", "3", "--compare-plain", "--report", dir_ / "report.json"});
  ASSERT_TRUE(generated.succeeded()) << generated.describe();
  EXPECT_TRUE(json::parse(read_file(dir_ / "report.json"))["comparison"]["identical_output"]);

  const Outcome doctor = outrider_program({"doctor", "--model", dir_ / "pair/target"});
  ASSERT_TRUE(doctor.succeeded()) << doctor.describe();
  // 6 layers of 6 experts of 3 * 96 * 128 weights in bf16, and routers of 6 * 128 in fp32.
  for (const char* part : {"MixtralForCausalLM (Mixtral)", "6 in each of 6 layers, 2 for a token, MLP 96",
                           "experts 2.7 MB, routers 18.4 kB"})
    EXPECT_NE(doctor.out.find(part), std::string::npos) << part << doctor.describe();

  for (const Arguments& wrong : {Arguments{"--experts", "1"}, Arguments{"--experts-per-token", "2"},
                                 Arguments{"--experts", "4", "--experts-per-token", "5"}}) {
    const Outcome refused = synth(dir_ / "wrong", wrong);
    EXPECT_FALSE(refused.succeeded());
    EXPECT_NE(refused.err.find("--experts"), std::string::npos) << refused.describe();
  }
}

TEST_F(Synth, WritesTheLayersOfGptOss) {
  const Outcome run = outrider_program(
      {"synth", "--shape", "gpt-oss", "--output",        dir_ / "pair", "--hidden",
       "128",   "--heads", "4",       "--kv-heads",      "2",           "--layers",
       "6",     "--vocab", "1024",    "--experts",       "6",           "--experts-per-token",
       "2",     "--ffn",   "96",      "--max-positions", "512",         "--acceptance",
       "0.7",   "--quiet"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  const Outcome generated = outrider_program(
      {"generate", "--model", dir_ / "pair/target", "--draft-model", dir_ / "pair/draft", "--prompt", "Once",
       "--max-tokens", "60", "--ignore-eos", "-g", "3", "--compare-plain", "--report", dir_ / "report.json"});
  ASSERT_TRUE(generated.succeeded()) << generated.describe();
  const json report = json::parse(read_file(dir_ / "report.json"));
  EXPECT_TRUE(report["comparison"]["identical_output"]);
  EXPECT_GT(report["metrics"]["rounds"]["acceptance_rate"].get<double>(), 0.3);

  const Outcome doctor = outrider_program({"doctor", "--model", dir_ / "pair/target"});
  ASSERT_TRUE(doctor.succeeded()) << doctor.describe();
  // As in the mixture above; int8 has a scale of two bytes for 64 weights.
  for (const char* part : {"GptOssForCausalLM (gpt-oss)", "6 in each of 6 layers, 2 for a token, MLP 96",
                           "experts 2.7 MB, routers 18.4 kB", "experts 1.4 MB"})
    EXPECT_NE(doctor.out.find(part), std::string::npos) << part << doctor.describe();
  EXPECT_EQ(doctor.out.find("not used"), std::string::npos) << doctor.describe();
}

// Latent attention and a mixture, with a draft model and with a module of multi-token prediction.
TEST_F(Synth, WritesTheLayersOfDeepSeekAndAModule) {
  const Outcome run =
      synth(dir_ / "pair",
            {"--kv-rank", "32", "--q-rank", "48", "--experts", "8", "--experts-per-token", "2", "--ffn", "64",
             "--dense-layers", "1", "--layers", "5", "--head", "mtp", "--acceptance", "0.7", "--quiet"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  const Arguments plain{"generate",     "--model", dir_ / "pair/target", "--prompt", "Once",
                        "--max-tokens", "60",      "--ignore-eos"};
  const auto drafting = [&](const Arguments& more) {
    Arguments arguments = plain;
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome generated = outrider_program(arguments);
    EXPECT_TRUE(generated.succeeded()) << generated.describe();
    return generated.out;
  };
  const std::string expected = drafting({"--quiet"});
  EXPECT_EQ(drafting({"--draft-model", dir_ / "pair/draft", "-g", "3", "--report", dir_ / "report.json"}),
            expected);
  const auto acceptance = [&] {
    return json::parse(read_file(dir_ / "report.json"))["metrics"]["rounds"]["acceptance_rate"].get<double>();
  };
  EXPECT_GT(acceptance(), 0.3);
  const Arguments module{"--drafter", "mtp", "--draft-model", dir_ / "pair/mtp", "-g", "3"};
  EXPECT_EQ(drafting(module), expected);
  Arguments synthetic = module;
  synthetic.insert(synthetic.end(),
                   {"--synthetic-acceptance", "rates:0.8", "--report", dir_ / "report.json"});
  drafting(synthetic);
  EXPECT_GT(acceptance(), 0.5);

  const Outcome doctor = outrider_program({"doctor", "--model", dir_ / "pair/target"});
  ASSERT_TRUE(doctor.succeeded()) << doctor.describe();
  for (const char* part :
       {"DeepseekV3ForCausalLM (DeepSeek-V3)", "32 numbers of every token and 16 that turn",
        "8 in each of 4 layers, 2 for a token, MLP 64, and a shared one of 64"})
    EXPECT_NE(doctor.out.find(part), std::string::npos) << part << doctor.describe();
  EXPECT_EQ(doctor.out.find("not used"), std::string::npos) << doctor.describe();

  for (const Arguments& wrong : {Arguments{"--kv-rank", "32"}, Arguments{"--q-rank", "32"},
                                 Arguments{"--kv-rank", "33", "--experts", "4"}}) {
    const Outcome refused = synth(dir_ / "wrong", wrong);
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find("--kv-rank"), std::string::npos) << refused.describe();
  }
}

// A head costs what one of its size does, whatever it says.
TEST_F(Synth, WritesAHeadForTheTarget) {
  const Outcome run = synth(dir_ / "pair", {"--head", "eagle3", "--draft-vocab", "200", "--vocab", "600",
                                            "--layers", "4", "--quiet"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  const Arguments plain{"generate",     "--model", dir_ / "pair/target", "--prompt", "Once",
                        "--max-tokens", "60",      "--ignore-eos",       "--quiet"};
  Arguments with_head = plain, synthetic;
  with_head.insert(with_head.end(),
                   {"--drafter", "eagle3", "--draft-model", dir_ / "pair/eagle3", "-g", "3"});
  const Outcome drafted = outrider_program(with_head);
  ASSERT_TRUE(drafted.succeeded()) << drafted.describe();
  EXPECT_EQ(drafted.out, outrider_program(plain).out);
  synthetic = with_head;
  synthetic.insert(synthetic.end(),
                   {"--synthetic-acceptance", "rates:0.8", "--report", dir_ / "report.json"});
  ASSERT_TRUE(outrider_program(synthetic).succeeded());
  const json report = json::parse(read_file(dir_ / "report.json"));
  EXPECT_GT(report["metrics"]["rounds"]["acceptance_rate"].get<double>(), 0.5);
}

TEST_F(Synth, WritesABlockHeadForTheTarget) {
  for (const Arguments& more : {Arguments{}, Arguments{"--draft-vocab", "200", "--tied"}}) {
    Arguments all{"--head",  "dflash", "--head-layers", "2", "--block-size", "5",
                  "--vocab", "600",    "--layers",      "4", "--quiet",      "--force"};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome run = synth(dir_ / "pair", all);
    ASSERT_TRUE(run.succeeded()) << run.describe();
    const Arguments plain{"generate",     "--model", dir_ / "pair/target", "--prompt", "Once",
                          "--max-tokens", "60",      "--ignore-eos",       "--quiet"};
    Arguments drafting = plain;
    drafting.insert(drafting.end(),
                    {"--drafter", "dflash", "--draft-model", dir_ / "pair/dflash", "-g", "4"});
    const Outcome drafted = outrider_program(drafting);
    ASSERT_TRUE(drafted.succeeded()) << drafted.describe();
    EXPECT_EQ(drafted.out, outrider_program(plain).out);
  }
  const Outcome refused =
      synth(dir_ / "wrong", {"--head", "dflash", "--block-size", "1", "--layers", "4", "--quiet"});
  EXPECT_NE(refused.err.find("--block-size 1"), std::string::npos) << refused.describe();
}

TEST_F(Synth, WritesEveryOtherHeadForTheTarget) {
  for (const std::string head : {"mtp", "medusa", "hydra"}) {
    const Outcome run = synth(dir_ / "pair", {"--head", head, "--head-branches", "3", "--vocab", "600",
                                              "--layers", "4", "--quiet", "--force"});
    ASSERT_TRUE(run.succeeded()) << run.describe();
    const Arguments plain{"generate",     "--model", dir_ / "pair/target", "--prompt", "Once",
                          "--max-tokens", "60",      "--ignore-eos",       "--quiet"};
    Arguments drafting = plain;
    drafting.insert(drafting.end(), {"--drafter", head, "--draft-model", dir_ / "pair" / head, "-g", "3"});
    const Outcome drafted = outrider_program(drafting);
    ASSERT_TRUE(drafted.succeeded()) << drafted.describe();
    EXPECT_EQ(drafted.out, outrider_program(plain).out);
  }
  const Outcome refused =
      synth(dir_ / "wrong", {"--head", "hydra", "--draft-vocab", "200", "--layers", "4", "--quiet"});
  EXPECT_NE(refused.err.find("--draft-vocab 200"), std::string::npos) << refused.describe();
}

TEST_F(Synth, SameSeedSameFiles) {
  ASSERT_TRUE(synth(dir_ / "a", {"--threads", "1", "--quiet"}).succeeded());
  ASSERT_TRUE(synth(dir_ / "b", {"--threads", "3", "--quiet"}).succeeded());
  ASSERT_TRUE(synth(dir_ / "c", {"--seed", "5", "--quiet"}).succeeded());
  for (const char* part : {"target/model.safetensors", "draft/model.safetensors", "target/tokenizer.json"})
    EXPECT_EQ(read_file(dir_ / "a" / part), read_file(dir_ / "b" / part)) << part;
  EXPECT_NE(read_file(dir_ / "a/target/model.safetensors"), read_file(dir_ / "c/target/model.safetensors"));
}

TEST_F(Synth, GreedyAndTiedAndSeveralDraftLayers) {
  const Outcome run = synth(dir_ / "pair", {"--temperature", "0", "--tied", "--draft-layers", "2", "--layers",
                                            "5", "--heads", "8", "--vocab", "700", "--acceptance", "0.6"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_NEAR(json::parse(read_file(dir_ / "pair/synth.json"))["measured"]["acceptance"].get<double>(), 0.6,
              0.1);
  const json config = json::parse(read_file(dir_ / "pair/draft/config.json"));
  EXPECT_EQ(config["num_hidden_layers"], 2);
  EXPECT_EQ(config["tie_word_embeddings"], true);
}

TEST_F(Synth, ReplacesOnlyWhatItWroteAndOnlyWhenForced) {
  ASSERT_TRUE(synth(dir_ / "pair", {"--quiet"}).succeeded());
  const Outcome again = synth(dir_ / "pair");
  EXPECT_EQ(again.code, 2);
  EXPECT_NE(again.err.find("--force"), std::string::npos) << again.describe();
  EXPECT_TRUE(synth(dir_ / "pair", {"--force", "--seed", "2", "--quiet"}).succeeded());
  std::filesystem::create_directory(dir_ / "mine");
  dir_.write("mine/precious", "text");
  const Outcome foreign = synth(dir_ / "mine", {"--force"});
  EXPECT_EQ(foreign.code, 2);
  EXPECT_EQ(read_file(dir_ / "mine/precious"), "text");
  EXPECT_EQ(dir_.entries(), (Arguments{"mine", "pair"})) << "something unfinished was left";
}

TEST_F(Synth, BadFlagsAreNamed) {
  const auto message = [&](const Arguments& flags) {
    const Outcome run = synth(dir_ / "pair", flags);
    EXPECT_EQ(run.code, 2) << run.describe();
    return run.err;
  };
  EXPECT_NE(message({"--draft-layers", "6"}).find("--draft-layers 6: must be 1 to 5"), std::string::npos);
  EXPECT_NE(message({"--acceptance", "1"}).find("--acceptance 1"), std::string::npos);
  EXPECT_NE(message({"--entropy", "9"}).find("--entropy 9"), std::string::npos);
  EXPECT_NE(message({"--kv-heads", "3"}).find("--kv-heads 3: must divide"), std::string::npos);
  EXPECT_NE(message({"--device", "tpu"}).find("--device tpu: choose"), std::string::npos);
  EXPECT_NE(message({"--device", "cuda:99"}).find("--device cuda:99: "), std::string::npos);
  EXPECT_NE(message({"--shape", "1.1"}).find("did you mean 1.1b?"), std::string::npos);
  EXPECT_TRUE(dir_.entries().empty());
}

TEST_F(Synth, WhereNoDirectoryCanBeMadeIsTold) {
  dir_.write("file", "");
  const Outcome run = synth(dir_ / "file/pair");
  EXPECT_EQ(run.code, 3);
  EXPECT_NE(run.err.find("file/pair"), std::string::npos) << run.describe();
}

TEST_F(Synth, AnInterruptLeavesNothing) {
  // The shell becomes the program, so that its process id, part of the temporary name, is known.
  const std::string out = (dir_ / "pair").string();
  const std::string command =
      "ln -s " + out + ".$$.partial/draft/model.safetensors " + (dir_ / "begun").string() + "; exec \"$@\"";
  const Outcome run = run_program(
      {"sh", "-c", command, "sh", outrider_path(), "synth", "--shape", "100m", "--output", out, "--quiet"},
      {.signal = SIGTERM, .signal_when = dir_ / "begun"});
  EXPECT_EQ(run.signal, SIGTERM) << run.describe();
  EXPECT_EQ(dir_.entries(), Arguments{"begun"});
}

}  // namespace
}  // namespace outrider::testing
