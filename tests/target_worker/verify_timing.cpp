// Prints how long verification takes on one rank, per rule: median and spread over passes, logits restored
// outside the clock. Usage: verify_timing [passes]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/statistics.h"
#include "tests/target_worker/verify_support.h"

namespace outrider {
namespace {

struct Setting {
  Rule rule;
  const char* what;
  float top_p = 1;
  int32_t top_k = 0;
  double spread = 3;
};

void time_setting(const Setting& setting, size_t vocab_size, int gamma, int passes) {
  std::mt19937_64 rng(1);
  TestRound round;
  round.params = {.rule = setting.rule,
                  .temperature = setting.rule == Rule::kGreedy ? 0.0f : 0.8f,
                  .top_k = setting.top_k,
                  .top_p = setting.top_p};
  round.prompt = {TokenId(1)};
  const bool with_q = needs_q(setting.rule);
  round.q_kind = with_q ? QKind::kSparse : QKind::kNone;
  for (int i = 0; i <= gamma; ++i) {
    round.raw.push_back(reference::random_logits(rng, vocab_size, setting.spread, 1e6));
    if (i == gamma) break;
    if (with_q) round.q.push_back(random_q(rng, round.raw.back(), QKind::kSparse, 64));
    round.draft.push_back(with_q ? draw_token(round.q.back(), rng()) : reference::argmax(round.raw.back()));
  }
  const auto group = make_single_collectives();
  ShardedVerifier verifier(*group);
  const auto rows = static_cast<int64_t>(round.raw.size());
  const auto width = static_cast<int64_t>(vocab_size);
  std::vector<float> shard(static_cast<size_t>(rows * width));
  const LogitsShard logits{TensorView<float, 2>(shard.data(), {rows, width}), {0, width}, width};
  const VerifyRequest request{.sampling = &round.params,
                              .round = Round(1),
                              .base = round.base(),
                              .draft = round.draft,
                              .q_kind = round.q_kind,
                              .q = round.q};
  std::vector<double> milliseconds;
  for (int pass = 0; pass < passes + 3; ++pass) {
    for (int64_t r = 0; r < rows; ++r)
      std::copy(round.raw[static_cast<size_t>(r)].begin(), round.raw[static_cast<size_t>(r)].end(),
                shard.begin() + r * width);
    round.params.seed = Seed{static_cast<uint64_t>(pass)};
    const auto begin = std::chrono::steady_clock::now();
    const auto& results = verifier.verify(std::span(&request, 1), logits);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (results[0].status != VerdictStatus::kOk) std::abort();
    if (pass >= 3) milliseconds.push_back(took.count());
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  std::printf("%-28s %6zu %5ld   %8.3f  %8.3f .. %8.3f\n", setting.what, vocab_size, static_cast<long>(rows),
              median(milliseconds), milliseconds.front(), milliseconds[milliseconds.size() * 9 / 10]);
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  using namespace outrider;
  const int passes = argc > 1 ? std::atoi(argv[1]) : 50;
  std::printf("%-28s %6s %5s   %8s  %s\n", "rule", "V", "rows", "median", "min .. p90, ms per pass");
  for (const auto& [vocab_size, gamma] : {std::pair<size_t, int>{32000, 8}, {4096, 5}, {128256, 8}}) {
    for (const Setting& setting :
         {Setting{Rule::kGreedy, "greedy"}, Setting{Rule::kInvariant, "invariant"},
          Setting{Rule::kInvariant, "invariant, flat rows", 1, 0, 0.3},
          Setting{Rule::kInvariant, "invariant, top-p 0.9", 0.9f}, Setting{Rule::kNaive, "naive"},
          Setting{Rule::kToken, "token"}, Setting{Rule::kToken, "token, top-k 50 top-p 0.9", 0.9f, 50},
          Setting{Rule::kToken, "token, top-p 0.99 flat", 0.99f, 0, 0.3}, Setting{Rule::kBlock, "block"}})
      time_setting(setting, vocab_size, gamma, passes);
  }
}
