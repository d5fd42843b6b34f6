#include "start/make_coordinator.h"

#include <fmt/format.h>

#include "base/absence.h"
#include "base/printable.h"
#include "cluster/acceptance_process.h"
#include "comm/emulated_link.h"
#include "start/load_models.h"
#include "start/mpi_cluster.h"
#include "start/roles.h"
#include "start/tree_option.h"

namespace outrider {
namespace {

constexpr int32_t kPrefillChunk = 256;

}  // namespace

bool is_one_process(const ClusterSettings& settings) {
  return !MpiCluster::launched() && settings.pool.listen.empty() && !settings.targets_join();
}

Status wait_until_ready(Coordinator& coordinator, size_t workers, std::chrono::seconds timeout,
                        const ErrorOf& error, bool quiet) {
  constexpr std::chrono::seconds kFirstWord{5}, kBetweenWords{15};
  const auto begun = Clock::now();
  MovingDeadline deadline(begun + timeout);
  auto next_word = begun + kFirstWord;
  while (true) {
    RETURN_IF_ERROR(error());
    Status status = coordinator.wait_for_peers(workers, Clock::now() + std::chrono::milliseconds(100));
    if (status.code() != StatusCode::kDeadlineExceeded || !coordinator.protocol().target_status().ok())
      return status;
    if (!quiet && Clock::now() >= next_word) {
      next_word = Clock::now() + kBetweenWords;
      const auto waited = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begun);
      tell_error(fmt::format(
          "waiting for {}{} since {} s, at most {} s (--startup-timeout)", coordinator.awaited(workers),
          coordinator.protocol().is_one_process() ? " to load" : "", waited.count(), timeout.count()));
    }
    if (deadline.is_over()) return status.in(fmt::format("--startup-timeout {}", timeout.count()));
  }
}

Result<std::unique_ptr<Coordinator>> make_coordinator(const ClusterSettings& settings,
                                                      const Preparation& prepared,
                                                      std::unique_ptr<Transport> transport,
                                                      GammaPolicyFactory policy,
                                                      CoordinatorCallbacks callbacks, Trace* trace) {
  ASSIGN_OR_RETURN(ProtocolOptions limits, protocol_options(settings, prepared));
  return make_coordinator(settings, prepared, std::move(limits), std::move(transport), std::move(policy),
                          std::move(callbacks), trace);
}

std::unique_ptr<Coordinator> make_coordinator(const ClusterSettings& settings, const Preparation& prepared,
                                              ProtocolOptions limits, std::unique_ptr<Transport> transport,
                                              GammaPolicyFactory policy, CoordinatorCallbacks callbacks,
                                              Trace* trace) {
  if (!settings.speculation.emulate_link.text().empty())
    transport = make_emulated_link(std::move(transport), *settings.speculation.emulate_link);
  return std::make_unique<Coordinator>(std::move(transport), std::move(limits), std::move(policy),
                                       prepared.tokenizer.get(), std::move(callbacks), trace);
}

Result<ProtocolOptions> protocol_options(const ClusterSettings& settings, const Preparation& prepared) {
  const QFormat& q = *settings.speculation.q_format;
  ProtocolOptions protocol;
  protocol.one_process = is_one_process(settings);
  if (settings.speculation.emulate_link.text().empty())
    protocol.process = this_process();  // else all are far away
  protocol.max_num_seqs = settings.models.max_num_seqs;
  protocol.target_groups = settings.models.groups();
  protocol.prefill_groups = settings.models.prefill_groups;
  protocol.min_handoff_tokens = settings.models.min_prefill_tokens.value_or(protocol.min_handoff_tokens);
  protocol.by_priority = settings.models.scheduling_policy == "priority";
  if (settings.targets_join()) {
    protocol.targets_join = true;
    protocol.groups_to_begin = settings.pool.wait_for_target_groups.value_or(1);
    protocol.target_fingerprint = prepared.target_info.fingerprint;
    protocol.target_timeout = std::chrono::seconds(settings.pool.target_timeout_s);
  }
  protocol.max_queued = 1 << 20;  // all requests of a file are read and checked before the first one runs
  protocol.max_queued_tokens = int64_t{1} << 40;
  protocol.target_join_timeout = std::chrono::seconds(settings.models.startup_timeout_s);
  protocol.max_rows_per_step = kMaxRowsPerStep;
  protocol.prefill_chunk = kPrefillChunk;
  protocol.gamma_max = kMaxSpeculativeTokens;
  protocol.may_draft = settings.speculates();
  protocol.max_context = static_cast<int32_t>(prepared.max_model_len);
  protocol.prefix_caching = settings.models.prefix_caching == "on";
  protocol.eos_ids = prepared.target.eos;
  protocol.q_kind = q.kind;
  protocol.row_bytes = q.row_bytes(prepared.target.vocab_size);
  if (q.kind == QKind::kHidden)
    protocol.code_bits = q.code_bits(prepared.target.vocab_size, prepared.draft->hidden_size);
  protocol.pipeline = *settings.speculation.pipeline;
  protocol.fanout = settings.speculation.fanout_budget;
  protocol.tree = *settings.speculation.speculative_tree;
  if (!settings.speculation.synthetic_acceptance.empty()) {
    ASSIGN_OR_RETURN(AcceptanceProcess process,
                     AcceptanceProcess::parse(settings.speculation.synthetic_acceptance,
                                              settings.speculation.synthetic_seed));
    protocol.synthetic_acceptance = std::make_shared<AcceptanceProcess>(std::move(process));
  }
  protocol.unload_after =
      std::chrono::milliseconds(static_cast<int64_t>(settings.speculation.unload_drafter_s * 1000));
  protocol.record_guesses =
      settings.speculation.record_guesses && settings.speculation.synthetic_acceptance.empty();
  return protocol;
}

}  // namespace outrider
