// `outrider serve` with a head: the texts of `generate`, for clients that come together.
#include <gtest/gtest.h>

#include <future>

#include "served_program.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

TEST(ServeHeads, WritesTheTextsOfPlainDecoding) {
  std::vector<json> requests;
  for (int i = 0; i < 8; ++i)
    requests.push_back({{"prompt", i % 2 ? "Once upon a time" : "The little dog"},
                        {"seed", 40 + i},
                        {"max_tokens", 12 + 5 * i},
                        {"temperature", i % 3 == 0 ? 0.0 : 0.9}});
  const auto answers = [&](std::vector<std::string> flags) {
    flags.push_back("--quiet");
    ServedProgram server(std::move(flags));
    std::vector<std::future<std::string>> texts;
    for (const json& request : requests)
      texts.push_back(std::async(std::launch::async, [&] {
        return server.complete(request)["choices"][0]["text"].get<std::string>();
      }));
    std::vector<std::string> out;
    for (auto& text : texts) out.push_back(text.get());
    return out;
  };
  EXPECT_EQ(answers({}),
            answers({"--drafter", "eagle3", "--draft-model", source_dir() / "launch/demo_pair/eagle3",
                     "--num-speculative-tokens", "4"}));
}

}  // namespace
}  // namespace outrider::testing
