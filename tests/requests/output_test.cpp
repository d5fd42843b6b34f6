// The output file after signals have ended the program.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "requests/output.h"
#include "tests/coordinator/toy_tokenizer.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

// The first signal is noted, the second ends the program.
void write_and_be_interrupted(const std::string& path, const std::vector<size_t>& finished) {
  const ToyTokenizer tokenizer;
  Output output = Output::open({.files = {.output = path}, .quiet = true}, tokenizer).value();
  for (const size_t index : finished) output.result(index, {}, {});
  std::raise(SIGINT);
  std::raise(SIGINT);
}

size_t files_in(const std::string& folder) {
  const std::filesystem::directory_iterator files(folder);
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

TEST(OutputDeathTest, AnInterruptedFileStaysIfItHoldsAResult) {
  for (const auto& [finished, files] :
       std::vector<std::pair<std::vector<size_t>, size_t>>{{{0}, 1}, {{1}, 0}, {{1, 0}, 1}}) {
    const TemporaryDirectory dir;
    EXPECT_EXIT(write_and_be_interrupted(dir / "out.jsonl", finished), ::testing::KilledBySignal(SIGINT), "");
    EXPECT_EQ(files_in(dir.path()), files);
  }
}

}  // namespace
}  // namespace outrider
