// Every counter of metrics.h and of a transport, declared once. Sums over coordinators, the JSON report and
// /metrics follow from the tables here: a new counter is a field and its line, and a field without a line
// does not compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <type_traits>

#include "coordinator/metrics/metrics.h"

namespace outrider {

// Nanoseconds are printed as milliseconds in JSON and as seconds in /metrics.
enum class Unit : uint8_t { kCount, kNanoseconds };
// kCommon: other servers count it too, so /metrics also has it under vLLM's prefix.
enum class Names : uint8_t { kOwn, kCommon };

template <class Sums, class Value = int64_t>
struct Counter {
  Value Sums::*field;
  std::string_view section, key;  // report["section"]["key"]; without a section report["key"]
  // In /metrics: outrider_METRIC{LABEL}. Consecutive entries with the same name form one metric with the help
  // text of the first; entries with the same name and label are summed.
  std::string_view metric, help;
  std::string_view label = {};
  Unit unit = Unit::kCount;
  Names names = Names::kOwn;
};

constexpr Counter<EventCounts> kEventCounters[] = {
    {&EventCounts::submitted, "requests", "submitted", "requests_submitted_total",
     "Requests that reached the coordinator."},
    {&EventCounts::refused, "requests", "refused", "requests_rejected_total",
     "Requests that the coordinator could not take."},
    {&EventCounts::prompt_tokens, "", "prompt_tokens", "prompt_tokens_total",
     "Prompt tokens of requests that began.", "", Unit::kCount, Names::kCommon},
    {&EventCounts::prefix_queries, "prefix_cache", "queries", "prefix_cache_queries_total",
     "Prompt tokens that were looked for in the prefix cache.", "", Unit::kCount, Names::kCommon},
    {&EventCounts::prefix_hits, "prefix_cache", "hits", "prefix_cache_hits_total",
     "Prompt tokens that were there, and not computed again.", "", Unit::kCount, Names::kCommon},
    {&EventCounts::preemptions, "target", "preemptions", "num_preemptions_total",
     "Sequences that gave their place in the KV cache up for others, and were read again.", "", Unit::kCount,
     Names::kCommon},
    {&EventCounts::failovers, "target", "failovers", "failovers_total",
     "Requests that went on in another target group when theirs was lost."},
    {&EventCounts::drafts_received, "drafts", "received", "drafts_received_total", "Drafts that arrived."},
    {&EventCounts::drafts_used, "drafts", "used", "drafts_used_total",
     "Drafts that went into a pass of the target."},
    {&EventCounts::proposals, "drafts", "proposals", "proposals_total", "Drafts that were asked for."},
    {&EventCounts::proposals_repeated, "drafts", "repeated", "proposals_repeated_total",
     "Drafts that were asked for again, being overdue."},
    {&EventCounts::draft_deadlines_missed, "drafts", "deadlines_missed", "draft_deadlines_missed_total",
     "Drafts that were not waited for."},
    {&EventCounts::liveness_timeouts, "drafts", "liveness_timeouts", "draft_liveness_timeouts_total",
     "Drafts that were not waited for under a rule that needs q, where it must be rare."},
    {&EventCounts::draft_ingest_ns, "drafts", "ingest_ms", "draft_seconds_total",
     "Busy time of draft workers, as they tell.", "", Unit::kNanoseconds},
    {&EventCounts::draft_ns, "drafts", "draft_ms", "draft_seconds_total", "", "", Unit::kNanoseconds},
    {&EventCounts::target_passes, "target", "passes", "target_passes_total", "Forward passes of the target."},
    {&EventCounts::target_rows, "target", "rows", "target_rows_total",
     "Rows of the target's forward passes."},
    {&EventCounts::forward_ns, "phases", "forward_ms", "target_seconds_total",
     "Busy time of the target, by what it did.", "part=\"forward\"", Unit::kNanoseconds},
    {&EventCounts::verify_ns, "phases", "verification_ms", "target_seconds_total", "", "part=\"verify\"",
     Unit::kNanoseconds},
    {&EventCounts::commit_ns, "phases", "commit_ms", "target_seconds_total", "", "part=\"commit\"",
     Unit::kNanoseconds},
    {&EventCounts::nonfinite_verdicts, "target", "nonfinite_verdicts", "nonfinite_verdicts_total",
     "Requests that failed because logits were not finite."},
    {&EventCounts::constrained_requests, "grammar", "requests", "constrained_requests_total",
     "Requests with a grammar that began."},
    {&EventCounts::masks, "grammar", "masks", "grammar_masks_total",
     "Rows of logits for which a grammar said what may be drawn."},
    {&EventCounts::mask_ns, "grammar", "mask_ms", "grammar_seconds_total", "Time that this took.", "",
     Unit::kNanoseconds},
    {&EventCounts::mask_cut_tokens, "grammar", "cut_tokens", "grammar_cut_tokens_total",
     "Draft tokens that were dropped because a grammar refused them, or one before them."},
    {&EventCounts::forced_tokens, "grammar", "forced_tokens", "grammar_forced_tokens_total",
     "Draft tokens that came from a grammar."},
    {&EventCounts::workers_joined, "cluster", "workers_joined", "draft_worker_events_total",
     "Draft workers that joined, left, were lost or refused.", "event=\"joined\""},
    {&EventCounts::workers_left, "cluster", "workers_left", "draft_worker_events_total", "",
     "event=\"left\""},
    {&EventCounts::workers_lost, "cluster", "workers_lost", "draft_worker_events_total", "",
     "event=\"lost\""},
    {&EventCounts::workers_unloaded, "cluster", "workers_rested", "draft_worker_events_total", "",
     "event=\"rested\""},
    {&EventCounts::hellos_refused, "cluster", "hellos_refused", "draft_worker_events_total", "",
     "event=\"refused\""},
    {&EventCounts::sequences_moved, "cluster", "sequences_moved", "sequences_moved_total",
     "Sequences that changed their draft worker."},
    {&EventCounts::resyncs, "cluster", "resyncs", "resyncs_total",
     "Draft workers that asked for a sequence from its beginning."},
    {&EventCounts::sends_failed, "cluster", "sends_failed", "sends_failed_total",
     "Messages that could not be sent."},
    {&EventCounts::unexpected_messages, "cluster", "unexpected_messages", "unexpected_messages_total",
     "Messages that fitted nothing that was under way."},
    {&EventCounts::stale_results, "cluster", "stale_results", "stale_results_total",
     "Results of passes that were no longer waited for."},
    {&EventCounts::head_rounds_at_target, "drafts", "head_rounds_at_target", "head_rounds_total",
     "Rounds by where the head drafts for them.", "place=\"target\""},
    {&EventCounts::head_rounds_at_worker, "drafts", "head_rounds_at_worker", "head_rounds_total", "",
     "place=\"worker\""},
    {&EventCounts::place_trials, "drafts", "place_trials", "head_place_trials_total",
     "Times that a head's other place was tried."},
    {&EventCounts::ranked_rows, "drafts", "ranked_rows", "ranked_rows_total",
     "Rows whose best tokens went to draft workers that draft with them."},
    {&EventCounts::text_rounds, "drafts", "text_rounds", "text_draft_rounds_total",
     "Rounds whose draft was found in the text by a worker that has a model, too."},
    {&EventCounts::text_drafted, "drafts", "text_drafted_tokens", "text_draft_tokens_total",
     "Tokens of these drafts."},
    {&EventCounts::text_accepted, "drafts", "text_accepted_tokens", "text_accepted_tokens_total",
     "Those of them that were accepted."},
    {&EventCounts::handoffs, "prefill_groups", "prompts", "prefill_prompts_total",
     "Prompts that one target group prefilled and another decodes."},
    {&EventCounts::handoffs_lost, "prefill_groups", "fallbacks", "prefill_fallbacks_total",
     "Prompts that a target group computed itself, because the blocks of another did not arrive or it was "
     "late."},
    {&EventCounts::handoff_blocks, "prefill_groups", "blocks", "prefill_blocks_total",
     "Blocks of keys and values that came from a target group that only prefills."},
    {&EventCounts::handoff_bytes, "prefill_groups", "bytes", "prefill_bytes_total",
     "Bytes of keys and values that such groups sent, from all ranks."},
};
static_assert(sizeof(EventCounts) == std::size(kEventCounters) * sizeof(int64_t),
              "a counter has no line above");

// In the report these belong to the wire: report["wire"]["kinds"]["q_slice"] and ["state_rows"], if there are
// any.
constexpr Counter<SliceBytes> kSliceCounters[] = {
    {&SliceBytes::slice_bytes, "q_slice", "sent_bytes", "q_slice_bytes_total",
     "Bytes of q that went from draft workers to target ranks."},
    {&SliceBytes::link_bytes, "q_slice", "device_to_device_bytes", "q_device_to_device_bytes_total",
     "Bytes of q that went from the device of a draft worker to that of a target rank."},
    {&SliceBytes::hidden_state_link_bytes, "state_rows", "device_to_device_bytes",
     "states_device_to_device_bytes_total",
     "Bytes of states that went from the device of a target's leader to that of a draft worker."},
};
static_assert(sizeof(SliceBytes) == std::size(kSliceCounters) * sizeof(int64_t),
              "a counter has no line above");

// In the report: report["rounds"], and of a request its own "rounds".
constexpr Counter<RoundSums> kRoundCounters[] = {
    {&RoundSums::rounds, "", "rounds", "verified_rounds_total", "Rounds that were verified, of any length."},
    {&RoundSums::first_rounds, "", "first_rounds", "first_rounds_total",
     "Rounds that ended the reading of a prompt."},
    {&RoundSums::g0_rounds, "", "g0_rounds", "plain_rounds_total", "Rounds without a draft."},
    {&RoundSums::emitted, "", "emitted_tokens", "generation_tokens_total", "Tokens that were generated.", "",
     Unit::kCount, Names::kCommon},
    {&RoundSums::emitted_speculative, "", "emitted_speculative_tokens", "speculative_tokens_total",
     "Tokens that were generated in rounds with a draft."},
    {&RoundSums::drafted, "", "drafted_tokens", "spec_decode_num_draft_tokens_total",
     "Tokens of drafts that were verified.", "", Unit::kCount, Names::kCommon},
    {&RoundSums::tested, "", "tested_tokens", "tested_tokens_total",
     "Draft tokens that the target looked at."},
    {&RoundSums::accepted, "", "accepted_tokens", "spec_decode_num_accepted_tokens_total",
     "Draft tokens that were accepted.", "", Unit::kCount, Names::kCommon},
    {&RoundSums::rollbacks, "", "rollbacks", "rollbacks_total", "Rounds with a rejected draft token."},
    {&RoundSums::rolled_back_tokens, "", "rolled_back_tokens", "rolled_back_tokens_total",
     "Draft tokens that were not accepted, siblings of accepted ones in trees included."},
};
static_assert(offsetof(RoundSums, gamma_histogram) == std::size(kRoundCounters) * sizeof(int64_t),
              "a counter has no line above");

constexpr Counter<PhaseTimes, std::chrono::nanoseconds> kPhaseCounters[] = {
    {&PhaseTimes::draft_wait, "", "draft_wait_ms", "round_seconds_total",
     "Time of rounds by phase; those of several sequences overlap.", "phase=\"draft_wait\"",
     Unit::kNanoseconds},
    {&PhaseTimes::plan_wait, "", "plan_wait_ms", "round_seconds_total", "", "phase=\"plan_wait\"",
     Unit::kNanoseconds},
    {&PhaseTimes::verify, "", "verify_ms", "round_seconds_total", "", "phase=\"verify\"", Unit::kNanoseconds},
};
static_assert(sizeof(PhaseTimes) == std::size(kPhaseCounters) * sizeof(std::chrono::nanoseconds),
              "a time has no line above");

constexpr Counter<PreparationTotals> kPreparationCounters[] = {
    {&PreparationTotals::lookups, "", "lookups", "outcome_cache_lookups_total",
     "Rounds for whose outcome a draft could have been prepared."},
    {&PreparationTotals::hits, "", "hits", "outcome_cache_hits_total",
     "Rounds for whose outcome a draft was prepared."},
    {&PreparationTotals::outcomes, "", "outcomes", "outcome_cache_outcomes_total",
     "Outcomes that drafts were prepared for."},
    {&PreparationTotals::used_tokens, "", "used_tokens", "outcome_cache_used_tokens_total",
     "Tokens of prepared drafts that were used."},
    {&PreparationTotals::wasted_tokens, "", "wasted_tokens", "outcome_cache_wasted_tokens_total",
     "Tokens of prepared drafts that were not used."},
    {&PreparationTotals::busy_ns, "", "prepare_ms", "outcome_cache_seconds_total",
     "Busy time of draft workers that prepared drafts.", "", Unit::kNanoseconds},
};
static_assert(sizeof(PreparationTotals) == std::size(kPreparationCounters) * sizeof(int64_t),
              "a counter has no line above");

// By kind of draft worker: in report["drafters"], and with the labels model and weights in /metrics. The
// number of kinds is bounded (DrafterCosts).
constexpr Counter<DrafterTotals> kDrafterCounters[] = {
    {&DrafterTotals::joined, "", "joined", "drafter_joined_total",
     "Times that a draft worker with these weights joined."},
    {&DrafterTotals::lost, "", "lost", "drafter_lost_total", "Times that one was lost."},
    {&DrafterTotals::left, "", "left", "drafter_left_total", "Times that one left."},
    {&DrafterTotals::opened, "", "sequences_opened", "drafter_sequences_total",
     "Sequences that were given to one."},
    {&DrafterTotals::rounds, "", "rounds", "drafter_rounds_total",
     "Rounds of sequences that one drafts for, rounds without a draft included."},
    {&DrafterTotals::drafted, "", "drafted_tokens", "drafter_draft_tokens_total",
     "Draft tokens of these rounds."},
    {&DrafterTotals::accepted, "", "accepted_tokens", "drafter_accepted_tokens_total",
     "Those that were accepted."},
    {&DrafterTotals::emitted, "", "emitted_tokens", "drafter_generation_tokens_total",
     "Tokens that these rounds generated."},
};
static_assert(offsetof(DrafterTotals, round_seconds) - offsetof(DrafterTotals, joined) ==
                  std::size(kDrafterCounters) * sizeof(int64_t),
              "a counter has no line above");

// By target group, where there are several: in report["groups"], and with the label group in /metrics.
constexpr Counter<GroupTotals> kGroupCounters[] = {
    {&GroupTotals::joined, "", "joined", "target_group_joined_total", "Times that the group has joined."},
    {&GroupTotals::lost, "", "lost", "target_group_lost_total", "Times that the group was lost."},
    {&GroupTotals::requests, "", "requests", "target_group_requests_total",
     "Requests that began in the group."},
    {&GroupTotals::handed_over, "", "handed_over", "target_group_handed_over_total",
     "Requests of the group that went on in another one when it was lost."},
    {&GroupTotals::passes, "", "passes", "target_group_passes_total", "Forward passes of the group."},
    {&GroupTotals::rows, "", "rows", "target_group_rows_total", "Rows of the group's forward passes."},
    {&GroupTotals::emitted, "", "emitted_tokens", "target_group_generation_tokens_total",
     "Tokens that were generated in the group."},
    {&GroupTotals::prefix_queries, "", "prefix_queries", "target_group_prefix_cache_queries_total",
     "Prompt tokens that were looked for in the group's prefix cache."},
    {&GroupTotals::prefix_hits, "", "prefix_hits", "target_group_prefix_cache_hits_total",
     "Prompt tokens that were there."},
    {&GroupTotals::preemptions, "", "preemptions", "target_group_preemptions_total",
     "Sequences of the group that gave their place up for others."},
    {&GroupTotals::busy_ns, "", "busy_ms", "target_group_busy_seconds_total",
     "Busy time of the group's leader.", "", Unit::kNanoseconds},
};
static_assert(sizeof(GroupTotals) == std::size(kGroupCounters) * sizeof(int64_t),
              "a counter has no line above");

// Besides bytes and messages by kind. In the report: report["wire"].
constexpr Counter<TransportStats, uint64_t> kWireCounters[] = {
    {&TransportStats::malformed_frames, "", "malformed_frames", "malformed_frames_total",
     "Frames that were dropped because they are damaged or none of ours."},
    {&TransportStats::duplicate_frames, "", "duplicate_frames", "duplicate_frames_total",
     "Frames that were dropped because they had been here before."},
    {&TransportStats::refused_keys, "", "refused_keys", "refused_keys_total",
     "Connections whose key is not among the allowed ones."},
    {&TransportStats::refused_peers, "", "refused_peers", "refused_peers_total",
     "Connections or identities that were one too many."},
    {&TransportStats::hung_up, "", "hung_up", "hung_up_total",
     "Connections that were closed because they went beyond a limit."},
};
static_assert(sizeof(TransportStats) ==
                  (4 * TransportStats::kKinds + std::size(kWireCounters)) * sizeof(uint64_t),
              "a counter has no line above");

template <class Sums, class Value, class From>
constexpr auto value_of(const Counter<Sums, Value>& counter, const From& from) {
  if constexpr (std::is_integral_v<Value>)
    return from.*counter.field;
  else
    return from.*counter.field / std::chrono::nanoseconds(1);
}

template <class Table, class Sums>
void add_counters(const Table& table, Sums& to, const Sums& from) {
  for (const auto& counter : table) to.*counter.field += from.*counter.field;
}

}  // namespace outrider
