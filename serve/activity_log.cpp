#include "serve/activity_log.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace outrider {
namespace {

constexpr std::chrono::seconds kInterval{10};

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

std::string activity_line(const EngineNumbers& before, const EngineNumbers& now, double seconds) {
  const RoundSums &then = before.totals.rounds, &r = now.totals.rounds;
  const auto per_second = [&](int64_t count) { return static_cast<double>(count) / seconds; };
  std::string line = fmt::format("{} running, {} waiting; {:.1f} tokens/s, prompts {:.1f} tokens/s",
                                 now.running, now.waiting, per_second(r.emitted - then.emitted),
                                 per_second(now.totals.prompt_tokens - before.totals.prompt_tokens));
  if (const int64_t tested = r.tested - then.tested; tested > 0)
    line += fmt::format("; acceptance {:.3f}, {:.2f} tokens per target pass",
                        share(r.accepted - then.accepted, tested),
                        share(r.emitted - then.emitted, r.rounds - then.rounds));
  return line;
}

void ActivityLog::look(const Engine& engine) {
  const auto at = Clock::now();
  if (!enabled_ || at - last_ < kInterval) return;
  EngineNumbers now = engine.numbers();
  const bool moved = now.totals.rounds.rounds != before_.totals.rounds.rounds ||
                     now.totals.submitted != before_.totals.submitted;
  if (moved || now.running > 0)
    std::fprintf(
        stderr, "outrider: %s\n",
        activity_line(before_, now, std::chrono::duration<double>(at - std::exchange(last_, at)).count())
            .c_str());
  last_ = at;
  before_ = std::move(now);
}

}  // namespace outrider
