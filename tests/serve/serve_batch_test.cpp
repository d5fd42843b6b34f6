// `outrider batch`: every line of a file is answered as a server would.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "served_program.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

json batch_line(const std::string& id, const json& body, const std::string& url = "/v1/completions") {
  return {{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}};
}

// Each line is answered as a server would, also the wrong ones.
TEST(Batch, AnswersEveryLine) {
  const TemporaryDirectory directory;
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines += batch_line("good-" + std::to_string(i), with(kGreedy, {{"max_tokens", 4 + i}})).dump() + "\n";
  lines += batch_line("bad", {{"prompt", "x"}, {"max_token", 1}}).dump() + "\n\n";
  lines += batch_line("nowhere", kGreedy, "/v1/embeddings").dump() + "\n";
  const std::string out = directory / "out.jsonl";
  const std::vector<std::string> arguments{"batch",     "--model", demo_target(),
                                           "--drafter", "ngram",   "--max-num-seqs",
                                           "2",         "--input", directory.write("in.jsonl", lines),
                                           "--output",  out,       "--quiet"};
  const Outcome outcome = outrider_program(arguments);
  EXPECT_EQ(outcome.code, 1) << "two lines were refused" << outcome.describe();
  std::map<std::string, json> answers;
  std::istringstream in(read_file(out));
  for (std::string line; std::getline(in, line);) {
    const json answer = json::parse(line);
    answers[answer["custom_id"]] = answer;
  }
  ASSERT_EQ(answers.size(), 22u);
  EXPECT_EQ(answers["bad"]["response"]["status_code"], 400);
  EXPECT_EQ(answers["bad"]["response"]["body"]["error"]["param"], "max_token");
  EXPECT_EQ(answers["nowhere"]["response"]["status_code"], 404);
  const std::string longest = answers["good-19"]["response"]["body"]["choices"][0]["text"];
  for (int i = 0; i < 20; ++i) {
    const json& response = answers["good-" + std::to_string(i)]["response"];
    EXPECT_EQ(response["status_code"], 200);
    EXPECT_EQ(response["body"]["usage"]["completion_tokens"], 4 + i);
    EXPECT_TRUE(longest.starts_with(response["body"]["choices"][0]["text"].get<std::string>())) << i;
  }
}

TEST(Batch, RefusesAFileThatIsNone) {
  const TemporaryDirectory directory;
  const auto message = [&](const std::string& lines) {
    const Outcome outcome =
        outrider_program({"batch", "--model", demo_target(), "--input", directory.write("in.jsonl", lines),
                          "--output", directory / "out.jsonl", "--quiet"});
    EXPECT_EQ(outcome.code, 2) << outcome.describe();
    EXPECT_FALSE(std::filesystem::exists(directory / "out.jsonl"));
    return outcome.err;
  };
  const std::string good = batch_line("a", kGreedy).dump() + "\n";
  EXPECT_NE(message(good + good).find("in.jsonl:2: \"custom_id\""), std::string::npos);
  EXPECT_NE(message(good + "{\n").find("in.jsonl:2"), std::string::npos);
  EXPECT_NE(message(batch_line("a", with(kGreedy, {{"stream", true}})).dump()).find("\"stream\""),
            std::string::npos);
  EXPECT_NE(message("").find("no requests"), std::string::npos);
}

// Output to a file that is not regular is written in place. The name "-" is standard output.
TEST(Batch, WritesToAStream) {
  const TemporaryDirectory directory;
  const std::string input = directory.write("in.jsonl", batch_line("a", kGreedy).dump() + "\n");
  for (const char* output : {"-", "/dev/stdout"}) {
    const Outcome outcome = outrider_program(
        {"batch", "--model", demo_target(), "--input", input, "--output", output, "--quiet"});
    EXPECT_EQ(outcome.code, 0) << output << outcome.describe();
    EXPECT_EQ(json::parse(outcome.out)["custom_id"], "a") << output;
  }
  EXPECT_FALSE(std::filesystem::exists("-"));
}

// A stream that is closed is no place for answers, and nothing is opened in its stead.
TEST(Batch, AClosedStandardOutputIsRefused) {
  const TemporaryDirectory directory;
  const std::string input = directory.write("in.jsonl", batch_line("a", kGreedy).dump() + "\n");
  const Outcome outcome =
      outrider_program({"batch", "--model", demo_target(), "--input", input, "--output", "-", "--quiet"},
                       {.out = Stdout::kClosed});
  EXPECT_EQ(outcome.code, 2) << outcome.describe();
}

TEST(Batch, AReportThatCannotBeWrittenIsToldFirst) {
  const TemporaryDirectory directory;
  const std::string input = directory.write("in.jsonl", batch_line("a", kGreedy).dump() + "\n");
  const Outcome outcome =
      outrider_program({"batch", "--model", demo_target(), "--input", input, "--output",
                        directory / "out.jsonl", "--report", "/nowhere/report.json", "--quiet"});
  EXPECT_EQ(outcome.code, 2) << outcome.describe();
  EXPECT_NE(outcome.err.find("--report"), std::string::npos) << outcome.err;
  EXPECT_EQ(directory.entries(), std::vector<std::string>{"in.jsonl"});
}

TEST(Batch, DoesNotOverwriteWhatItReads) {
  const TemporaryDirectory directory;
  const std::string line = batch_line("a", kGreedy).dump() + "\n";
  const std::string file = directory.write("in.jsonl", line);
  const Outcome outcome =
      outrider_program({"batch", "--model", demo_target(), "--input", file, "--output", file, "--quiet"});
  EXPECT_EQ(outcome.code, 2) << outcome.describe();
  EXPECT_NE(outcome.err.find("is the file of --input too"), std::string::npos) << outcome.err;
  EXPECT_EQ(read_file(file), line);
}

TEST(Batch, AFullDiskIsToldOnceAndEndsTheRun) {
  const TemporaryDirectory directory;
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += batch_line(std::to_string(i), kGreedy).dump() + "\n";
  const Outcome outcome =
      outrider_program({"batch", "--model", demo_target(), "--max-num-seqs", "1", "--input",
                        directory.write("in.jsonl", lines), "--output", "/dev/full", "--quiet"});
  EXPECT_EQ(outcome.code, 3) << outcome.describe();
  EXPECT_NE(outcome.err.find("--output /dev/full: cannot be written"), std::string::npos) << outcome.err;
}

TEST(Batch, AClientsPolicyReadsNoFile) {
  const TemporaryDirectory directory;
  const std::string secret = directory.write("secret", "do-not-tell\n");
  const std::string input = directory.write(
      "in.jsonl", batch_line("a", with(kGreedy, {{"gamma_policy", "replay:file=" + secret}})).dump() + "\n");
  const Outcome outcome = outrider_program({"batch", "--model", demo_target(), "--drafter", "ngram",
                                            "--input", input, "--output", "-", "--quiet"});
  EXPECT_EQ(outcome.code, 1) << outcome.describe();
  const json answer = json::parse(outcome.out);
  EXPECT_EQ(answer["response"]["status_code"], 400);
  const std::string message = answer["response"]["body"]["error"]["message"];
  EXPECT_NE(message.find("reads a file, which no request may name"), std::string::npos) << message;
  EXPECT_EQ(message.find("do-not-tell"), std::string::npos);
}

}  // namespace
}  // namespace outrider::testing
