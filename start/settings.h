// Settings of the parts of a run. Small structs that the flags fill (start/flags/options.h); each part gets
// the structs that concern it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/emulated_link.h"
#include "comm/messages/draft_forms.h"
#include "heads/head_config.h"
#include "model/model.h"
#include "start/parsed.h"
#include "start/tree_option.h"

namespace outrider {

constexpr int kDefaultDraftSinks = 4, kDefaultPreflightTimeout = 60;

struct QFormat {
  QKind kind = QKind::kSparse;
  int32_t bytes = 0;  // of a drafted token, if given; else the default
  int32_t bits = 0;   // of an element of a hidden state, if given; else the default

  // The byte limit of a row for this vocabulary; with kHidden for rows that cannot be sent as hidden states;
  // with kDense 0.
  int32_t row_bytes(int64_t vocab_size) const;
  // Bits of an element of a hidden state of this size.
  int32_t code_bits(int64_t vocab_size, int64_t hidden_size) const;
};

struct DeviceChoice {
  Device::Kind kind = Device::Kind::kCpu;
  std::optional<int> index;  // cuda:N; without it workers take the GPUs in turn
};

// Each parses the text of a flag. Errors name the flag and the remedy.
Result<WeightFormat> parse_target_format(const std::string& text);  // --weight-format
Result<WeightFormat> parse_draft_format(const std::string& text);   // --draft-weight-format
Result<ModelOptions::Kv> parse_kv_dtype(const std::string& text);
// "cpu", "cuda", "cuda:N", or "auto", which means cpu: GPUs must be requested by name.
Result<DeviceChoice> parse_device(const std::string& text);
using DeviceSetting = Parsed<DeviceChoice, parse_device>;
Result<QFormat> parse_q_format(const std::string& text);
Result<Pipeline> parse_pipeline(const std::string& text);
Result<LinkEmulation> parse_link(const std::string& text);  // --emulate-link

// The models, their devices, and the length of texts.

struct ModelSettings {
  std::string model;
  std::string model_of_hub;  // the model as it was named, "org/name:Q4_K_M"; empty: by a path
  std::string draft_model;
  std::string drafter;  // "", "model", "ngram", "suffix", "recycling", "lookahead", "layerskip", ...
  std::string head_place = "target";   // or "worker", "auto": the place where a head drafts
  int exit_layer = 0;                  // with "layerskip": drafts with this many of the target's layers
  std::string draft_drafter = "off";   // or "ngram", "suffix": guesses tokens of the draft model
  int draft_history_tokens = 1 << 18;  // of finished outputs that the suffix drafter looks through
  int lookahead_ngram = 4;             // tokens of an n-gram of "lookahead"
  int tensor_parallel_size = 1;        // target ranks of a group
  int data_parallel_size = 1;          // target groups that decode
  int prefill_groups = 0;              // target groups that only prefill, beside them
  std::optional<int> min_prefill_tokens;  // of a prompt that these groups prefill; none: 64
  int draft_tensor_parallel_size = 1;
  int threads = 0;        // 0: by the size of the weights (role_threads.h)
  int draft_threads = 0;  // of the draft model; 0: it shares the target's, in turns
  Parsed<WeightFormat, parse_target_format> weight_format = "auto";
  Parsed<WeightFormat, parse_draft_format> draft_weight_format = "auto";
  Parsed<ActivationFormat, parse_activation_format> activation_format = "auto";  // of target and draft
  int draft_vocab_size = 0;        // ids below it are drafted; 0: all
  int draft_window = 0;            // last tokens of a longer text that the draft model reads; 0: all
  std::optional<int> draft_sinks;  // and first ones, with draft_window; default: kDefaultDraftSinks
  Parsed<ModelOptions::Kv, parse_kv_dtype> kv_dtype = "auto";
  std::string isa = "auto";
  DeviceSetting device = "auto";
  int max_num_seqs = 8;                    // in each target group
  int max_model_len = 0;                   // 0: the model's, at most kDefaultMaxModelLen
  std::string prefix_caching = "on";       // or "off"
  int64_t kv_cache_tokens = 0;             // of the target, over all sequences; 0: the longest text for each
  std::string scheduling_policy = "fcfs";  // or "priority"
  int startup_timeout_s = 600;

  // The most tokens of a text that the draft model prefills; 0: all.
  int draft_max_prefill() const { return draft_window > 0 ? draft_window + sinks() : 0; }
  int sinks() const { return draft_sinks.value_or(kDefaultDraftSinks); }
  int groups() const { return data_parallel_size + prefill_groups; }
  int sequences() const { return groups() * max_num_seqs; }  // of all groups
  // The run has a drafter of its own; others may join.
  bool has_drafter() const { return !draft_model.empty() || drafts_from_text() || exits_early(); }
  // --draft-model is a head. Beside the target it drafts in the leader's process; with "worker" draft workers
  // hold it. With "auto" both do, and measurements decide.
  std::optional<HeadKind> head() const { return head_kind_of(drafter); }
  bool is_head_beside_target() const { return head() && head_place != "worker"; }
  bool is_head_at_workers() const { return head() && head_place != "target"; }
  bool exits_early() const { return drafter == "layerskip"; }  // the target's layers draft, on all ranks
  // The target is the only drafter.
  bool drafts_beside_target() const { return exits_early() || (head() && !is_head_at_workers()); }
  bool has_draft_workers() const { return has_drafter() && !drafts_beside_target(); }
  // Without draft workers there would be no drafter.
  bool needs_draft_workers() const { return has_draft_workers() && !is_head_beside_target(); }
  bool drafts_from_text() const { return drafter == "ngram" || drafter == "suffix" || reads_successors(); }
  // Drafts from a draft model or from the text, chosen round by round.
  bool drafts_from_both() const { return drafter == "model+suffix"; }
  bool finds_text() const { return drafts_from_both() || drafter == "suffix"; }
  bool looks_ahead() const { return drafter == "lookahead"; }
  bool reads_successors() const { return drafter == "recycling" || looks_ahead(); }  // TokenSuccessors
  // A pass of the head makes a whole draft.
  bool drafts_blocks() const { return head() == HeadKind::kDFlash; }
  bool uses_draft_model() const { return !draft_model.empty() && !head(); }
};

struct SpeculationSettings {
  std::optional<int> num_speculative_tokens;  // pins gamma
  std::string gamma_policy;                   // default: ewma, unless gamma is pinned
  std::string synthetic_acceptance;           // not empty: acceptance does not come from the models
  uint64_t synthetic_seed = 0;                // its draws; --seed of the requests
  Parsed<QFormat, parse_q_format> q_format = "auto";
  SpeculativeTree speculative_tree = "off";
  Parsed<Pipeline, parse_pipeline> pipeline = "lockstep";
  int fanout_budget = 8;
  Parsed<LinkEmulation, parse_link> emulate_link = "";  // not empty: messages are delayed, dropped or changed
  double unload_drafter_s = 0;  // unloads a draft worker without use for this long; 0: never
  bool record_guesses = false;  // the drafter guesses once more after each fully accepted draft

  // The policy text after defaults.
  std::string policy() const;
};

// Settings for loading and running a role's model. Contains no secrets and nothing from requests.
struct RoleSettings {
  ModelSettings models;
  SpeculationSettings speculation;
  bool quiet = false;  // no progress on standard error

  // Not flags. Tests set them, to be quick and to fill passes with short texts; --share sets the second one.
  bool times_passes = true;          // of models before a role reports that it is ready (warm_up)
  int64_t draft_prefill_rows = 256;  // of a pass with a prefill, of a draft model or head
};

// Draft workers, and the endpoint through which further workers join.
struct PoolSettings {
  int num_draft_workers = 1;                  // in one process
  std::string listen;                         // endpoint for further workers; empty: none
  std::optional<int> wait_for_draft_workers;  // before requests begin; default: those of the run itself
  std::string listen_targets;                 // endpoint for target groups; then the run has none of its own
  std::optional<int> wait_for_target_groups;  // before requests begin; default: one
  int target_timeout_s = 60;                  // wait of requests for a group after the loss of all groups
  std::string allowed_target_keys;            // file with the keys of groups that may join
  std::string curve_secret_key;               // file of `outrider keygen` for this end
  std::string allowed_keys;                   // file with the keys of workers that may join
};

// The ranks of an mpirun.
struct MpiSettings {
  std::string layout;
  bool allow_remote = false;  // on several hosts: the coordinator listens on the network
  std::string bind_host;      // its address there; empty: that of its host name
  bool preflight = false;     // check the job and end (preflight.h)
  std::optional<int> preflight_timeout_s;  // default: kDefaultPreflightTimeout
};

// All settings for the start of a run.
struct ClusterSettings : RoleSettings {
  PoolSettings pool;
  MpiSettings mpi;

  bool speculates() const { return models.has_drafter() || !pool.listen.empty(); }
  bool targets_join() const { return !pool.listen_targets.empty(); }
};

// Flags that were given and have no effect, because there is no drafter; each with the flag that would give
// one.
std::vector<std::string> flags_without_drafter(const ClusterSettings& settings);

constexpr int kDefaultMaxModelLen = 8192;
constexpr int64_t kMinKvCacheTokens = 64;
constexpr int kMaxTargetGroups = 64;
constexpr int kMaxSpeculativeTokens = 64;
constexpr int kMaxFanoutBudget = 64;
constexpr int kMaxDraftWorkers = 64;
constexpr int kMaxSequences = 256;  // held at once by a role
constexpr double kMaxUnloadSeconds = 1e6;
constexpr int kMaxDraftHistoryTokens = 1 << 26;
constexpr int kMinLookaheadNgram = 2, kMaxLookaheadNgram = 8;

// All checks that open no file. Errors name the flag.
Status check_settings(const RoleSettings& settings);
Status check_pool_settings(const ClusterSettings& settings);
// The part of check_settings that concerns a draft worker.
Status check_drafter_settings(const RoleSettings& settings);

}  // namespace outrider
