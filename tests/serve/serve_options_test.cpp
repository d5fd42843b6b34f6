// The flags of `outrider serve`, checked before it opens anything, and its messages while it runs.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "serve/engine/activity_log.h"
#include "serve/serve.h"
#include "start/flags/options.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

ServeOptions parsed(std::vector<std::string> arguments) {
  CLI::App app;
  ServeOptions options;
  add_serve_options(app, options);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 wants them so
  app.parse(arguments);
  return options;
}

TEST(ServeOptions, AServersDefaults) {
  const ServeOptions options = parsed({});
  EXPECT_EQ(options.host, "127.0.0.1");
  EXPECT_EQ(options.port, 8000);
  EXPECT_EQ(options.defaults.temperature, 1);
  EXPECT_FALSE(options.metrics_compat_vllm);
  EXPECT_FALSE(options.lists_rounds);
  EXPECT_TRUE(options.parts_thoughts);
  EXPECT_EQ(RequestParams().temperature, 0) << "those of generate stay";
}

TEST(ServeOptions, TakesTheFlagsOfModelsPoolAndSpeculation) {
  const ServeOptions options = parsed({"--model",
                                       "m",
                                       "--port",
                                       "0",
                                       "--served-model-name",
                                       "a",
                                       "--served-model-name",
                                       "b",
                                       "--metrics-compat",
                                       "vllm",
                                       "--per-request-spec-decode-metrics",
                                       "detailed",
                                       "--reasoning-format",
                                       "none",
                                       "--listen",
                                       "tcp://127.0.0.1:*",
                                       "--gamma-policy",
                                       "fixed:gamma=3",
                                       "--pipeline",
                                       "ahead",
                                       "--temperature",
                                       "0.5",
                                       "--max-queued-requests",
                                       "7"});
  EXPECT_EQ(options.served_model_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(options.port, 0);
  EXPECT_TRUE(options.metrics_compat_vllm);
  EXPECT_TRUE(options.lists_rounds);
  EXPECT_FALSE(options.parts_thoughts);
  EXPECT_EQ(*options.cluster.speculation.pipeline, Pipeline::kAhead);
  EXPECT_EQ(options.defaults.temperature, 0.5f);
  EXPECT_EQ(options.max_queued_requests, 7);
}

// Files of several quantisations may be served side by side, so their names differ.
TEST(ServeOptions, AModelOfTheHubHasTheNameThatWasGiven) {
  const TemporaryDirectory dir;
  const fs::path model = fs::path(dir.path()) / "models--org--name";
  fs::create_directories(model / "snapshots" / "1");
  fs::create_directories(model / "refs");
  std::ofstream(model / "refs" / "main") << "1";
  for (const char* file : {"name-Q4_K_M.gguf", "name-Q8_0.gguf"})
    std::ofstream(model / "snapshots" / "1" / file) << "x";
  setenv("HF_HUB_CACHE", dir.path().c_str(), 1);
  for (const char* given : {"org/name:Q4_K_M", "org/name:q8_0"})
    EXPECT_EQ(model_display_name(parsed({"--model", given}).cluster.models), given);
  EXPECT_EQ(model_display_name(parsed({"hf.co/org/name:Q8_0"}).cluster.models), "org/name:Q8_0");
  unsetenv("HF_HUB_CACHE");
  EXPECT_EQ(model_display_name(parsed({"--model", model / "snapshots" / "1"}).cluster.models), "org/name");
  EXPECT_EQ(model_display_name(parsed({"--model", "m"}).cluster.models), "m");
}

TEST(ServeOptions, RefusesWhatMakesNoSense) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--port", "65536"},
                                             {"--port", "-1"},
                                             {"--metrics-compat", "tgi"},
                                             {"--max-queued-requests", "-1"},
                                             {"--drain-timeout", "-1"},
                                             {"--prompt", "x"},
                                             {"--max-tokens", "5"},
                                             {"--output", "x"}})
    EXPECT_THROW(parsed(wrong), CLI::ParseError) << wrong[0] << " " << wrong[1];
  EXPECT_NE(check_serve_options(parsed({"--served-model-name", ""})).message().find("--served-model-name"),
            std::string::npos);
  EXPECT_NE(check_serve_options(parsed({"--report", "/nowhere/at/all.json"})).message().find("--report"),
            std::string::npos);
  EXPECT_TRUE(check_serve_options(parsed({})).ok());
}

// A variable that a deployment left empty would open the server to everybody.
TEST(ServeOptions, AnEmptyKeyInTheEnvironmentIsRefused) {
  for (const char* variable : {"OUTRIDER_API_KEY", "OUTRIDER_API_KEY_FILE"}) {
    setenv(variable, "", 1);
    const std::string refusal = check_serve_options(parsed({})).message();
    EXPECT_NE(refusal.find(variable), std::string::npos) << refusal;
    EXPECT_TRUE(check_serve_options(parsed({"--api-key", "secret"})).ok());
    unsetenv(variable);
  }
  EXPECT_THROW(parsed({"--api-key-file", ""}), CLI::ParseError);
}

class ApiKeyFile : public ::testing::Test {
 protected:
  Result<std::vector<std::string>> read(std::string_view content, fs::perms mode = fs::perms::owner_read) {
    const fs::path file = directory_.write("key", content);
    fs::permissions(file, mode);
    auto key = read_api_keys(file);
    fs::remove(file);
    return key;
  }
  TemporaryDirectory directory_;
};

TEST_F(ApiKeyFile, HoldsAKeyOnEachLine) {
  using keys = std::vector<std::string>;
  EXPECT_TRUE(read_api_keys("")->empty()) << "no file, no key";
  EXPECT_EQ(read("secret\n").value(), keys({"secret"}));
  EXPECT_EQ(read("secret\nother\n").value(), keys({"secret", "other"}));
  EXPECT_EQ(read("secret").value(), keys({"secret"}));
  EXPECT_EQ(read("secret\r\n").value(), keys({"secret"}));
  EXPECT_EQ(read("secret\n", fs::perms::owner_read | fs::perms::group_read).value(), keys({"secret"}))
      << "as Kubernetes mounts it for the group of the process";
}

TEST_F(ApiKeyFile, IsRefusedByNameAndNeverShown) {
  for (const std::string_view wrong : {"", "\n", "two words\n", "secret\n\n",
                                       "s\xc3\xa9"
                                       "cret\n"}) {
    const auto key = read(wrong);
    ASSERT_FALSE(key.ok()) << wrong;
    EXPECT_NE(key.status().message().find("--api-key-file"), std::string::npos);
    EXPECT_EQ(key.status().message().find("cret"), std::string::npos) << "it is secret";
  }
  EXPECT_FALSE(read(std::string(5000, 'x')).ok());
  EXPECT_NE(read("secret\n", fs::perms::owner_read | fs::perms::others_read).status().message().find("chmod"),
            std::string::npos);
  EXPECT_FALSE(read_api_keys(directory_ / "none").ok());
  EXPECT_NE(read_api_keys(directory_.path()).status().message().find("directory"), std::string::npos);
}

TEST(ServeOptions, WarnsWhereStrangersMayAsk) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "localhost", "::1"})
    EXPECT_EQ(explain_exposure({.host = host}), "") << host;
  for (const char* host : {"0.0.0.0", "::", "10.1.2.3", "example.org", "127.evil.example.org"})
    EXPECT_NE(explain_exposure({.host = host}).find("WARNING"), std::string::npos) << host;
  EXPECT_EQ(explain_exposure({.host = "0.0.0.0", .api_key_file = "key"}), "");
}

TEST(ActivityLine, TellsWhatHappenedSinceTheLast) {
  EngineNumbers before, now{.running = 2, .waiting = 5};
  before.totals.rounds.add_round(4, 4, 5, false);
  now.totals.rounds = before.totals.rounds;
  now.totals.prompt_tokens = 30;
  EXPECT_EQ(activity_line(before, now, 10), "2 running, 5 waiting; 0.0 tokens/s, prompts 3.0 tokens/s");
  now.totals.rounds.add_round(4, 1, 2, false);
  now.totals.rounds.add_round(2, 2, 3, false);
  now.totals.target_passes = 1;  // which both rounds shared
  EXPECT_EQ(activity_line(before, now, 10),
            "2 running, 5 waiting; 0.5 tokens/s, prompts 3.0 tokens/s; acceptance 0.750, 2.50 tokens per "
            "round, 5.00 per target pass");
}

}  // namespace
}  // namespace outrider
