#include "serve/engine/activity_log.h"

#include <fmt/format.h>

#include <utility>

#include "base/printable.h"

namespace outrider {
namespace {

constexpr std::chrono::seconds kInterval{10};

}  // namespace

std::string activity_line(const EngineNumbers& before, const EngineNumbers& now, double seconds) {
  const Pace pace = pace_between(before.totals, now.totals, seconds, now.overview);
  std::string line =
      fmt::format("{} running, {} waiting; {:.1f} tokens/s, prompts {:.1f} tokens/s", now.running,
                  now.waiting, pace.tokens_per_second, pace.prompt_tokens_per_second);
  if (now.totals.rounds.tested > before.totals.rounds.tested)
    line += fmt::format("; acceptance {:.3f}, {:.2f} tokens per round, {:.2f} per target pass",
                        pace.acceptance, pace.tokens_per_round, pace.tokens_per_target_pass);
  return line;
}

void ActivityLog::look(const Engine& engine) {
  const auto at = Clock::now();
  if (!enabled_ || at - last_ < kInterval) return;
  EngineNumbers now = engine.numbers();
  const bool moved = now.totals.rounds.rounds != before_.totals.rounds.rounds ||
                     now.totals.submitted != before_.totals.submitted;
  if ((moved || now.running > 0) && can_tell())
    tell_error(
        activity_line(before_, now, std::chrono::duration<double>(at - std::exchange(last_, at)).count()));
  last_ = at;
  before_ = std::move(now);
}

}  // namespace outrider
