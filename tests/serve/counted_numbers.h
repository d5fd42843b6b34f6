// Metrics in which every counter has a different value, so that two counters cannot be confused.
#pragma once

#include "serve/engine/engine.h"

namespace outrider::testing {

inline EngineNumbers counted_numbers() {
  using std::chrono::milliseconds;
  EngineNumbers numbers{.totals = {},
                        .wire = {},
                        .running = 1,
                        .waiting = 2,
                        .refused = 3,
                        .draft_workers = 4,
                        .draft_workers_wanted = 63};
  Totals& t = numbers.totals;
  t.finished = {5, 6, 7, 8};
  t.submitted = 9;
  t.refused = 10;
  t.rounds.add_round(0, 0, 1, true);
  t.rounds.add_round(4, 4, 5, false);
  t.rounds.add_round(4, 1, 2, false);
  t.rounds.add_round(2, 0, 1, false);
  t.rounds.add_round(3, 3, 3, false);
  t.phases = {.draft_wait = milliseconds(11), .plan_wait = milliseconds(12), .verify = milliseconds(13)};
  t.prompt_tokens = 14;
  t.drafts_received = 15;
  t.drafts_used = 16;
  for (size_t i = 0; i < t.drafts_dropped.size(); ++i) t.drafts_dropped[i] = 100 + static_cast<int64_t>(i);
  t.proposals = 17;
  t.proposals_repeated = 18;
  t.draft_deadlines_missed = 19;
  t.liveness_timeouts = 20;
  t.draft_ingest_ns = 21'000'000;
  t.draft_ns = 22'000'000;
  t.slice_bytes = 23;
  t.link_bytes = 24;
  t.preparation.lookups = 25;
  t.preparation.hits = 26;
  t.preparation.used_tokens = 27;
  t.preparation.wasted_tokens = 28;
  t.preparation.outcomes = 29;
  t.preparation.busy_ns = 30'000'000;
  t.drafters[31] = {.name = "model",
                    .joined = 32,
                    .lost = 33,
                    .left = 34,
                    .opened = 35,
                    .rounds = 36,
                    .drafted = 37,
                    .accepted = 38,
                    .emitted = 39,
                    .round_seconds = 40};
  t.target_passes = 41;
  t.target_rows = 42;
  t.forward_ns = 43'000'000;
  t.verify_ns = 44'000'000;
  t.commit_ns = 45'000'000;
  t.nonfinite_verdicts = 46;
  t.constrained_requests = 461;
  t.masks = 462;
  t.mask_ns = 463'000'000;
  t.mask_cut_tokens = 464;
  t.forced_tokens = 465;
  t.workers_joined = 47;
  t.workers_lost = 48;
  t.workers_left = 49;
  t.sequences_moved = 50;
  t.hellos_refused = 51;
  t.resyncs = 52;
  t.sends_failed = 53;
  t.unexpected_messages = 54;
  t.stale_results = 55;
  t.prefix_queries = 61;
  t.prefix_hits = 62;
  t.first_submit_at = Clock::time_point{} + milliseconds(1000);
  t.last_finish_at = Clock::time_point{} + milliseconds(3500);
  t.busy = milliseconds(2500);
  for (size_t kind = 0; kind < 10; ++kind) {  // so that more kinds change nothing here
    numbers.wire.sent_messages[kind] = 200 + kind;
    numbers.wire.sent_bytes[kind] = 300 + kind;
    numbers.wire.received_messages[kind] = 400 + kind;
    numbers.wire.received_bytes[kind] = 500 + kind;
  }
  numbers.wire.malformed_frames = 56;
  numbers.wire.duplicate_frames = 57;
  numbers.wire.refused_keys = 58;
  numbers.wire.refused_peers = 59;
  numbers.wire.hung_up = 60;
  return numbers;
}

}  // namespace outrider::testing
