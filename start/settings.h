// What the parts of a run are told. Small structs that the flags fill (start/flags/options.h); each part gets
// those that concern it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/messages/draft_forms.h"
#include "heads/head_config.h"
#include "transformer/model/model.h"

namespace outrider {

// Which models, where they are computed, and for how much text.
struct ModelSettings {
  std::string model;
  std::string draft_model;
  std::string drafter;  // "", "model", "ngram", "suffix", "recycling", "lookahead", "layerskip", ...
  std::string head_place = "target";   // "worker" or "auto": where a head drafts
  int exit_layer = 0;                  // of "layerskip": drafts with so many of the target's layers
  std::string draft_drafter = "off";   // or "ngram", "suffix": guesses what the draft model draws
  int draft_history_tokens = 1 << 18;  // of finished outputs that the suffix drafter looks through
  int lookahead_ngram = 4;             // tokens of an n-gram of "lookahead"
  int tensor_parallel_size = 1;        // target ranks of a group
  int data_parallel_size = 1;          // target groups
  int draft_tensor_parallel_size = 1;
  int threads = 0;        // 0: as many cores as the weights are worth (role_threads.h)
  int draft_threads = 0;  // of the draft model alone; 0: those of the target, in turns
  std::string weight_format = "auto", draft_weight_format = "auto";
  std::string activation_format = "auto";  // of target and draft
  std::string kv_dtype = "auto";
  std::string isa = "auto";
  std::string device = "auto";             // cpu, cuda, cuda:N; auto: cpu
  int max_num_seqs = 8;                    // in each target group
  int max_model_len = 0;                   // 0: the model's, at most kDefaultMaxModelLen
  std::string prefix_caching = "on";       // or "off"
  int64_t kv_cache_tokens = 0;             // of the target, over all sequences; 0: the longest text for each
  std::string scheduling_policy = "fcfs";  // or "priority"
  int startup_timeout_s = 600;

  int sequences() const { return data_parallel_size * max_num_seqs; }  // of all groups
  // A drafter of the run itself; others may join it.
  bool has_drafter() const { return !draft_model.empty() || drafts_from_text() || exits_early(); }
  // --draft-model is a head. Beside the target it drafts in the leader's process; at draft workers they hold
  // it. With "auto" both do, and what is measured decides.
  std::optional<HeadKind> head() const { return head_kind_of(drafter); }
  bool is_head_beside_target() const { return head() && head_place != "worker"; }
  bool is_head_at_workers() const { return head() && head_place != "target"; }
  bool exits_early() const { return drafter == "layerskip"; }  // the target's own layers draft, on all ranks
  // Nobody but the target drafts.
  bool drafts_beside_target() const { return exits_early() || (head() && !is_head_at_workers()); }
  bool has_draft_workers() const { return has_drafter() && !drafts_beside_target(); }
  // It needs them: there is no drafter without one.
  bool needs_draft_workers() const { return has_draft_workers() && !is_head_beside_target(); }
  bool drafts_from_text() const { return drafter == "ngram" || drafter == "suffix" || reads_successors(); }
  // Of a draft model and of the text, round by round.
  bool drafts_from_both() const { return drafter == "model+suffix"; }
  bool finds_text() const { return drafts_from_both() || drafter == "suffix"; }
  bool looks_ahead() const { return drafter == "lookahead"; }
  bool reads_successors() const { return drafter == "recycling" || looks_ahead(); }  // TokenSuccessors
  bool uses_draft_model() const { return !draft_model.empty() && !head(); }
};

struct SpeculationSettings {
  std::optional<int> num_speculative_tokens;  // pins gamma
  std::string gamma_policy;                   // default: ewma, unless gamma is pinned
  std::string synthetic_acceptance;           // not empty: acceptance is not the models'
  uint64_t synthetic_seed = 0;                // its draws; --seed of the requests
  std::string q_format = "auto";
  std::string speculative_tree = "off";
  std::string pipeline = "lockstep";
  int fanout_budget = 8;
  std::string emulate_link;     // not empty: messages are delayed or worse on purpose
  double unload_drafter_s = 0;  // a draft worker of no use for so long gives its memory back; 0: none does
  bool record_guesses = false;  // the drafter guesses once more after each draft that was fully accepted

  // The policy text after defaults.
  std::string policy() const;
};

// What a role needs to load its model and to work. Nothing in it is secret, and nothing is a request's.
struct RoleSettings {
  ModelSettings models;
  SpeculationSettings speculation;
  bool quiet = false;  // no progress on standard error
};

// Draft workers, and the door through which more of them join.
struct PoolSettings {
  int num_draft_workers = 1;                  // in one process
  std::string listen;                         // where further ones may join
  std::optional<int> wait_for_draft_workers;  // before anything starts; default: those of the run itself
  std::string listen_targets;                 // where target groups join; then none is part of the run
  std::optional<int> wait_for_target_groups;  // before anything starts; default: one
  int target_timeout_s = 60;                  // that requests wait for a group when all were lost
  std::string allowed_target_keys;            // of the groups that may join: a file
  std::string curve_secret_key;               // of this end: a file of `outrider keygen`
  std::string allowed_keys;                   // of the workers that may join: a file
};

// The ranks of an mpirun.
struct MpiSettings {
  std::string layout;
  bool allow_remote = false;  // on several hosts: the coordinator listens on the network
  std::string bind_host;      // its address there; empty: what its host name resolves to
};

// Everything that the start of a run needs.
struct ClusterSettings : RoleSettings {
  PoolSettings pool;
  MpiSettings mpi;

  bool speculates() const { return models.has_drafter() || !pool.listen.empty(); }
  bool targets_join() const { return !pool.listen_targets.empty(); }
};

// Flags that were given and change nothing, because nothing drafts here; each with what would.
std::vector<std::string> flags_without_drafter(const ClusterSettings& settings);

constexpr int kDefaultMaxModelLen = 8192;
constexpr int64_t kLeastKvCacheTokens = 64;
constexpr int kMaxTargetGroups = 64;
constexpr int kMaxSpeculativeTokens = 64;
constexpr int kMaxFanoutBudget = 64;
constexpr int kMaxDraftWorkers = 64;
constexpr int kMaxSequences = 256;  // that a role holds at once
constexpr double kMaxUnloadSeconds = 1e6;
constexpr int kMaxDraftHistoryTokens = 1 << 26;
constexpr int kMinLookaheadNgram = 2, kMaxLookaheadNgram = 8;

// Everything that can be known to be wrong without opening a file. Errors name the flag.
Status check_settings(const RoleSettings& settings);
Status check_pool_settings(const ClusterSettings& settings);
// The part of check_settings that concerns a draft worker.
Status check_drafter_settings(const RoleSettings& settings);

struct QFormat {
  QKind kind = QKind::kSparse;
  int32_t bytes = 0;  // of a drafted token, as asked for; else the default
  int32_t bits = 0;   // of an element of a state, as asked for; else the default

  // What a row may take for this vocabulary; with kHidden those that cannot be sent as states, with kDense 0.
  int32_t row_bytes(int64_t vocab_size) const;
  // The bits that an element of a state of this size takes.
  int32_t code_bits(int64_t vocab_size, int64_t hidden_size) const;
};
Result<Pipeline> parse_pipeline(const std::string& name);
Result<QFormat> parse_q_format(const std::string& text);
Result<ModelOptions::Kv> parse_kv_dtype(const std::string& text);

}  // namespace outrider
