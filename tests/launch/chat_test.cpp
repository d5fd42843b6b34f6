// `outrider chat` with standard input that is a file, and the ways to name a model and a prompt that other
// programs have.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace outrider::testing {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

constexpr const char* kTemplate =
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:";

class Chat : public ::testing::Test {
 protected:
  Outcome chat(const std::string& lines, Arguments more = {}) {
    Arguments arguments{"chat",    demo_target(), "--draft-model", demo_draft(), "--chat-template",
                        template_, "--quiet",     "--max-tokens",  "12",         "--temperature",
                        "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return outrider_program(arguments, {.input = dir_.write("lines", lines)});
  }
  // What `generate` writes behind these messages.
  std::string answer_to(const json& messages) {
    const std::string prompts = dir_.write("prompts", json{{"messages", messages}}.dump() + "\n");
    const auto model = dir_.copy(demo_target(), "with_template");
    json config = json::parse(read_file(model / "tokenizer_config.json"));
    config["chat_template"] = kTemplate;
    write_file(model / "tokenizer_config.json", config.dump());
    const Outcome run = outrider_program(
        {"generate", "--model", model, "--prompts", prompts, "--max-tokens", "12", "--quiet"});
    EXPECT_TRUE(run.succeeded()) << run.describe();
    std::filesystem::remove_all(model);
    return json::parse(run.out)["text"];
  }

  const TemporaryDirectory dir_;
  const std::string template_ = dir_.write("template.jinja", kTemplate);
};

TEST_F(Chat, AnswersAreThoseOfTheWholeConversation) {
  const std::string first = answer_to({{{"role", "user"}, {"content", "Once"}}});
  const std::string second = answer_to({{{"role", "user"}, {"content", "Once"}},
                                        {{"role", "assistant"}, {"content", first}},
                                        {{"role", "user"}, {"content", "Then"}}});
  const Outcome run = chat("Once\nThen\n");
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_EQ(run.out, first + "\n" + second + "\n");
  EXPECT_EQ(run.err, "");
}

TEST_F(Chat, CommandsChangeTheConversation) {
  const std::string once = answer_to({{{"role", "user"}, {"content", "Once"}}});
  const std::string beneath =
      answer_to({{{"role", "system"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "Once"}}});
  EXPECT_EQ(chat("Once\n/clear\nOnce\n").out, once + "\n" + once + "\n");
  EXPECT_EQ(chat("Once\n/again\n").out, once + "\n" + once + "\n");
  EXPECT_EQ(chat("Then\n/undo\nOnce\n/exit\nnever\n").out.substr(chat("Then\n").out.size()), once + "\n");
  EXPECT_EQ(chat("/system Be brief.\nOnce\n").out, beneath + "\n");
  EXPECT_EQ(chat("Once\n", {"--system", "Be brief."}).out, beneath + "\n");
  EXPECT_EQ(chat("", {"Once"}).out, once + "\n");
  EXPECT_EQ(chat("On\\\nce\n").out, answer_to({{{"role", "user"}, {"content", "On\nce"}}}) + "\n");
  EXPECT_EQ(chat("//Once\n").out, answer_to({{{"role", "user"}, {"content", "/Once"}}}) + "\n");
}

TEST_F(Chat, AConversationIsSavedAsARequest) {
  const std::string file = (std::filesystem::path(dir_.path()) / "saved.jsonl").string();
  const Outcome run = chat("Once\n/save " + file + "\n");
  ASSERT_TRUE(run.succeeded()) << run.describe();
  const json messages = json::parse(read_file(file))["messages"];
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[1]["content"].get<std::string>() + "\n", run.out);
  EXPECT_EQ(chat("Once\n/save " + file + "\n").code, 1) << "a file that exists stays";
}

TEST_F(Chat, WhatCannotBeDoneIsToldAndTheConversationGoesOn) {
  const std::string expected = chat("Once\n").out;
  for (const auto& [line, part] : std::vector<std::pair<std::string, std::string>>{
           {"/helo", "/help"},
           {"/set temperature warm", "warm is not a number"},
           {"/set temperature -3", "/set temperature -3: must"},
           {"/save " + (dir_ / "none").string(), "nothing to save"},
           {"/set speed 1", "/set knows"},
           {"/save", "FILE"},
           {"/again", "no message"},
           {std::string(40000, 'x'), "the context"}}) {
    const Outcome run = chat(line + "\nOnce\n");
    EXPECT_EQ(run.code, 1) << run.describe();
    EXPECT_NE(run.err.find(part), std::string::npos) << run.err;
    EXPECT_EQ(run.out, expected);
  }
}

TEST_F(Chat, ACommandThatShowsNothingElseIsConfirmed) {
  const Outcome run = outrider_program(
      {"chat", demo_target(), "--chat-template", template_, "-n", "4"},
      {.input = dir_.write("lines", "Once\n/undo\n/set top-k 7\n/clear\n/system Be brief.\n")});
  for (const char* part : {"forgot the message \"Once\" and its answer", "top-k 7",
                           "a new conversation begins\n", "with this system message\n"})
    EXPECT_NE(run.err.find(part), std::string::npos) << run.err;
}

// The first message and its answer leave; the system message stays.
TEST_F(Chat, TheOldestMessagesLeaveAFullContext) {
  const std::string once = "Once upon a time there was a little girl named Lily", then = "Then she ran";
  const json system{{"role", "system"}, {"content", "Be brief."}};
  const std::string second = answer_to({system, {{"role", "user"}, {"content", then}}});
  const Outcome run = chat(once + "\n" + then + "\n", {"-c", "48", "--system", "Be brief."});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_TRUE(run.out.ends_with(second + "\n")) << run.out << "\nwanted: " << second;
  EXPECT_NE(run.err.find("the oldest message and its answer are dropped"), std::string::npos) << run.err;
}

TEST_F(Chat, ASavedConversationHasWhatTheContextDropped) {
  const std::string once = "Once upon a time there was a little girl named Lily", file = dir_ / "whole.jsonl";
  const Outcome run =
      chat(once + "\nThen she ran\n/save " + file + "\n", {"-c", "48", "--system", "Be brief."});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_NE(run.err.find("5 messages are in " + file + ", with 2 that the full context has dropped"),
            std::string::npos)
      << run.err;
  const json messages = json::parse(read_file(file))["messages"];
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[1]["content"], once);
  EXPECT_EQ(messages[3]["content"], "Then she ran");
}

TEST_F(Chat, NotesNameTheCutAndAnAnswerThatStaysTheSame) {
  const auto err = [&](const Arguments& more) {
    Arguments arguments{"chat", demo_target(), "--chat-template", template_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return outrider_program(arguments, {.input = dir_.write("lines", "Once\n/again\n")}).err;
  };
  const std::string none =
      outrider_program({"chat", demo_target(), "--chat-template", template_, "--temperature", "0"},
                       {.input = dir_.write("lines", "Once\n/clear\n/again\n")})
          .err;
  EXPECT_EQ(none.find("the same again"), std::string::npos) << "there is no message: " << none;
  const std::string greedy = err({"--temperature", "0", "-n", "4"}),
                    drawn = err({"--temperature", "1", "-c", "32"});
  EXPECT_NE(greedy.find("the answer is the same again"), std::string::npos) << greedy;
  EXPECT_NE(greedy.find("; cut at --max-tokens 4\n"), std::string::npos) << greedy;
  EXPECT_EQ(drawn.find("the same again"), std::string::npos) << drawn;
  EXPECT_NE(drawn.find("; cut at the end of the context of 32 tokens\n"), std::string::npos) << drawn;
}

// Also a conversation that `chat` saved.
TEST_F(Chat, ARequestThatEndsWithAnAnswerIsNoted) {
  const std::string prompts = dir_.write(
      "prompts",
      json{{"messages",
            {{{"role", "user"}, {"content", "Once"}}, {{"role", "assistant"}, {"content", "Yes"}}}}}
              .dump() +
          "\n");
  const auto model = dir_.copy(demo_target(), "with_template");
  json config = json::parse(read_file(model / "tokenizer_config.json"));
  config["chat_template"] = kTemplate;
  write_file(model / "tokenizer_config.json", config.dump());
  const Outcome run = outrider_program({"generate", "--model", model, "--prompts", prompts, "-n", "4"});
  EXPECT_TRUE(run.succeeded()) << run.describe();
  EXPECT_NE(run.err.find("1 conversation ends with an answer of the assistant"), std::string::npos)
      << run.err;
}

TEST_F(Chat, SetAloneShowsTheParameters) {
  const Outcome run = chat("/set max-tokens 7\n/set\n");
  EXPECT_NE(run.err.find("max-tokens 7, seed 0"), std::string::npos) << run.err;
}

TEST_F(Chat, AFileThatIsMissingIsNamedOnce) {
  const Outcome run = outrider_program({"chat", "/missing/model.gguf"});
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("--model: /missing/model.gguf: no such file"), std::string::npos) << run.err;
}

TEST_F(Chat, AModelWithoutATemplateIsRefused) {
  const Outcome run = outrider_program({"chat", demo_target()});
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("--chat-template FILE"), std::string::npos) << run.err;
  EXPECT_EQ(run.err.find("plain text"), std::string::npos) << "a second advice: " << run.err;
  const Outcome once = outrider_program({"generate", demo_target(), "x", "--chat"});
  const std::string path = demo_target().string();
  EXPECT_EQ(once.err.find(path), once.err.rfind(path)) << once.err;
}

class Names : public ::testing::Test {
 protected:
  static std::string text(Arguments arguments, const RunSettings& settings = {}) {
    arguments.insert(arguments.begin(), "generate");
    arguments.insert(arguments.end(), {"--max-tokens", "8", "--quiet"});
    const Outcome run = outrider_program(arguments, settings);
    EXPECT_TRUE(run.succeeded()) << run.describe();
    return run.out;
  }
  const TemporaryDirectory dir_;
  const std::string expected_ = text({"--model", demo_target(), "--prompt", "Once upon"});
};

TEST_F(Names, AModelAndAPromptNeedNoFlag) {
  EXPECT_EQ(text({demo_target(), "Once upon"}), expected_);
  EXPECT_EQ(text({"--model", demo_target(), "Once upon"}), expected_);
  EXPECT_EQ(text({demo_target(), "-p", "Once upon", "--temp", "0", "-c", "64"}), expected_);
}

TEST_F(Names, AVariableForTheModelLeavesThePlaceToThePrompt) {
  const RunSettings settings{.env = {{"OUTRIDER_MODEL", demo_target()}}};
  EXPECT_EQ(text({"Once upon"}, settings), expected_);
  EXPECT_EQ(text({"-p", "Once upon"}, settings), expected_);
  EXPECT_EQ(text({"@" + dir_.write("prompt", "Once upon\n").string()}, settings), expected_);
  EXPECT_EQ(text({demo_target(), "Once upon"}, {.env = {{"OUTRIDER_MODEL", "/missing"}}}), expected_);
  const Outcome run = outrider_program({"generate", "/missing", "-p", "Once"}, settings);
  EXPECT_NE(run.err.find("--model /missing"), std::string::npos) << run.err;
}

TEST_F(Names, APromptComesFromAFileOrStandardInput) {
  const std::string file = dir_.write("prompt", "Once upon\n");
  EXPECT_EQ(text({demo_target(), "-f", file}), expected_);
  EXPECT_EQ(text({demo_target(), "-p", "@" + file}), expected_);
  EXPECT_EQ(text({demo_target(), "-p", "-"}, {.input = file}), expected_);
  EXPECT_EQ(text({demo_target(), "-f", "-"}, {.input = file}), expected_);
  const Outcome piped = run_program(
      {"sh", "-c", "echo 'Once upon' | \"$0\" generate \"$1\" -p - -n 8 -q", outrider_path(), demo_target()});
  EXPECT_EQ(piped.out, expected_) << piped.describe();
  for (const Arguments& wrong : std::vector<Arguments>{{"one text", "-p", "another"},
                                                       {"one text", "-f", file},
                                                       {"-f", dir_.write("empty", "")},
                                                       {"-f", dir_.path().string()}}) {
    Arguments arguments{"generate", demo_target()};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const Outcome run = outrider_program(arguments);
    EXPECT_EQ(run.code, 2) << run.describe();
    EXPECT_NE(run.err.find("--prompt"), std::string::npos) << run.err;
  }
  EXPECT_EQ(text({demo_target(), "-p", "@@x"}), text({demo_target(), "-f", dir_.write("at", "@x")}));
  const Outcome run = outrider_program({"generate", demo_target(), "-p", "@/nonexistent"});
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("/nonexistent"), std::string::npos) << run.err;
}

TEST_F(Names, AModelOfTheHubIsFoundInItsCache) {
  const std::filesystem::path cache = std::filesystem::path(dir_.path()) / "hub";
  const std::filesystem::path model = cache / "models--some-org--toy.target";
  std::filesystem::create_directories(model / "refs");
  std::filesystem::create_directories(model / "snapshots");
  std::filesystem::create_directory_symlink(demo_target(), model / "snapshots" / "abc123");
  write_file(model / "refs" / "main", "abc123");
  EXPECT_EQ(text({"some-org/toy.target", "Once upon"}, {.env = {{"HF_HUB_CACHE", cache}}}), expected_);
  EXPECT_EQ(text({"some-org/toy.target", "Once upon"}, {.env = {{"HF_HOME", dir_.path()}}}), expected_);
  for (const char* form : {"hf.co/some-org/toy.target", "https://huggingface.co/some-org/toy.target"})
    EXPECT_EQ(text({form, "Once upon"}, {.env = {{"HF_HUB_CACHE", cache}}}), expected_);
  EXPECT_EQ(text({"-hf", "some-org/toy.target", "-p", "Once upon"}, {.env = {{"HF_HUB_CACHE", cache}}}),
            expected_);
  const Outcome doctor =
      outrider_program({"doctor", "--model", "some-org/toy.target"}, {.env = {{"HF_HUB_CACHE", cache}}});
  EXPECT_EQ(doctor.code, 0) << doctor.describe();
  EXPECT_NE(doctor.out.find("models--some-org--toy.target"), std::string::npos) << doctor.out;
  const Outcome run =
      outrider_program({"generate", "some-org/other", "Once"}, {.env = {{"HF_HUB_CACHE", cache}}});
  EXPECT_EQ(run.code, 2);
  for (const std::string& part : {std::string("some-org/other"), cache.string(), std::string("hf download")})
    EXPECT_NE(run.err.find(part), std::string::npos) << run.err;
}

// The chosen file is no GGUF file, which the error says of it.
TEST_F(Names, AQuantisationOfTheHubIsFoundInItsCache) {
  const std::filesystem::path cache = std::filesystem::path(dir_.path()) / "hub",
                              model = cache / "models--some-org--toy-GGUF",
                              snapshot = model / "snapshots" / "abc";
  std::filesystem::create_directories(model / "refs");
  std::filesystem::create_directories(snapshot / "BF16");
  write_file(model / "refs" / "main", "abc");
  for (const char* file :
       {"toy-q4_k_m.gguf", "toy-Q4_K.gguf", "toy.Q8_0.gguf", "BF16/toy-BF16-00001-of-00002.gguf",
        "BF16/toy-BF16-00002-of-00002.gguf", "mmproj-Q8_0.gguf"})
    write_file(snapshot / file, "no GGUF");
  const auto error = [&](const std::string& name) {
    const Outcome run =
        outrider_program({"generate", "some-org/" + name, "x"}, {.env = {{"HF_HUB_CACHE", cache}}});
    EXPECT_EQ(run.code, 2) << run.describe();
    return run.err;
  };
  for (const auto& [name, file] : std::vector<std::pair<std::string, std::string>>{
           {"toy-GGUF:Q4_K_M", "abc/toy-q4_k_m.gguf: "},
           {"toy-GGUF:q4_k", "abc/toy-Q4_K.gguf: "},
           {"toy-GGUF:Q8_0", "abc/toy.Q8_0.gguf: "},
           {"toy-GGUF:BF16", "abc/BF16/toy-BF16-00001-of-00002.gguf: "},
           {"toy-GGUF:Q5_0", "there is no GGUF file of that quantisation in"},
           {"toy-GGUF:Q5_0", "which has BF16/toy-BF16-00001-of-00002.gguf, toy-Q4_K.gguf, "},
           {"toy-GGUF",
            "several GGUF files; name a quantisation as in :Q4_K_M, or the path of one: BF16/toy"},
           {"toy-GGUF:", "no quantisation stands behind the colon"},
           {"no-file.gguf", "some-org/no-file.gguf: no such file"},
           {"other:Q4_K_M", "hf download some-org/other`"}})
    EXPECT_NE(error(name).find(file), std::string::npos) << name << ": " << error(name);
}

TEST_F(Names, WordsThatFitNowhereAreExplained) {
  const auto err = [](const Arguments& arguments) { return outrider_program(arguments).err; };
  for (const auto& [said, part] : std::vector<std::pair<std::string, std::string>>{
           {err({"generate", demo_target(), "Once", "Twice"}), "\"Twice\" is a second text beside \"Once\""},
           {err({"generate", demo_target(), "Once", "-p", "Twice"}),
            "--prompt is given more than once (a text"},
           {err({"generate", demo_target(), "--no-such-flag", "value", "-p", "Twice"}),
            "there is no flag --no-such-flag"},
           {err({"quantize", demo_target(), "--weigth-format", "q8_0"}), "did you mean --weight-format?"},
           {err({"simulate", "bogus"}), "there is no simulate bogus; choose plan, run, grid"},
           {err({"generate", demo_target(), "Once", "-n", "1", "--draft-model", demo_draft(),
                 "--draft-vocab-size", "1000000"}),
            "--draft-vocab-size 1000000 has no effect"}})
    EXPECT_NE(said.find(part), std::string::npos) << part << ": " << said;
}

TEST_F(Names, SpeculationIsWrittenAsVllmWritesIt) {
  const json config{{"model", demo_draft().string()}, {"num_speculative_tokens", 3}};
  EXPECT_EQ(text({demo_target(), "Once upon", "--speculative-config", config.dump()}), expected_);
  EXPECT_EQ(text({demo_target(), "Once upon", "--speculative-config", R"({"method": "ngram"})"}), expected_);
  for (const auto& [wrong, part] : std::vector<std::pair<std::string, std::string>>{
           {R"({"method": "oracle"})", "draft_model"},
           {R"({"num_speculative_tokens": 3})", "\"model\""},
           {R"({"method": "ngram", "num_speculative_tokens": -3})", "whole number"},
           {R"({"method": "ngram", "num_speculative_tokens": 65})",
            "\"num_speculative_tokens\" must be a whole"},
           {R"({"model": "no/model"})", "\"model\" is no/model: there is no such path"},
           {R"({"method": "ngram", "quantization": "q4"})", "\"quantization\" is q4; choose auto"},
           {R"({"method": "ngram", "draft_tensor_parallel_size": 3})", "\"draft_tensor_parallel_size\" is 3"},
           {R"({"method": "ngram", "disable_by_batch_size": 4})", "no counterpart"},
           {R"({"method": "ngram", "prompt_lookup_max": 4})", "\"prompt_lookup_max\" has no counterpart"},
           {R"({"method": "ngram", "tokens": 4})", "is not a key"},
           {R"({"rejection_sample_method": "magic", "method": "ngram"})", "standard or block"},
           {"{", "--speculative-config"}}) {
    const Outcome run = outrider_program({"generate", demo_target(), "Once", "--speculative-config", wrong});
    EXPECT_EQ(run.code, 2) << run.describe();
    EXPECT_NE(run.err.find(part), std::string::npos) << run.err;
  }
  const Outcome both = outrider_program(
      {"generate", demo_target(), "Once", "--drafter", "ngram", "--speculative-config", config.dump()});
  EXPECT_EQ(both.code, 2);
  EXPECT_NE(both.err.find("--drafter exclude each other"), std::string::npos) << both.err;
}

}  // namespace
}  // namespace outrider::testing
