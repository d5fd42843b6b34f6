// What `outrider generate` was asked to do. Filled from flags, environment and config file; checked before
// anything is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/sampling_params.h"
#include "base/status.h"
#include "comm/messages.h"
#include "transformer/model/model.h"

namespace CLI {
class App;
}

namespace outrider {

struct RunOptions {
  // Models.
  std::string model;
  std::string draft_model;
  std::string drafter;  // "", "model" or "ngram"
  int tensor_parallel_size = 1;
  int draft_tensor_parallel_size = 1;
  int threads = 0;        // 0: as many as there are cores
  int draft_threads = 0;  // of the draft model alone; 0: those of the target, in turns
  std::string weight_format = "auto", draft_weight_format = "auto";
  std::string kv_dtype = "auto";
  std::string isa = "auto";
  std::string device = "auto";  // cpu, cuda, cuda:N; auto: cpu
  int max_num_seqs = 8;
  int max_model_len = 0;  // 0: the model's, at most kDefaultMaxModelLen
  std::string layout;     // under mpirun
  int startup_timeout_s = 600;
  bool allow_remote = false;  // under mpirun on several hosts: the coordinator listens on the network
  std::string bind_host;      // its address there; empty: what its host name resolves to

  // The pool of draft workers.
  int num_draft_workers = 1;                  // in one process
  std::string listen;                         // where further ones may join
  std::optional<int> wait_for_draft_workers;  // before anything starts; default: those of the run itself
  std::string curve_secret_key;               // of this end: a file of `outrider keygen`
  std::string allowed_keys;                   // of the workers that may join: a file

  // Requests.
  std::optional<std::string> prompt;
  std::string prompts_file;
  std::string output_file;
  std::string resume_file;  // results of an earlier run
  bool chat = false;
  int max_tokens = 128;
  std::string generation_config = "none";  // auto: generation_config.json sets what no flag does
  float temperature = 0;
  int top_k = 0;
  float top_p = 1, min_p = 0;
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::string> logit_bias;  // ID:V
  std::vector<std::string> stop;
  bool ignore_eos = false;
  uint64_t seed = 0;
  int logprobs = -1;

  // Speculation.
  std::optional<int> num_speculative_tokens;  // pins gamma
  std::string gamma_policy;                   // default: ewma, unless gamma is pinned
  std::string synthetic_acceptance;           // not empty: acceptance is not the models'
  std::string rule = "auto";
  std::string q_format = "auto";
  std::string pipeline = "lockstep";
  int fanout_budget = 8;
  std::string emulate_link;  // not empty: messages are delayed or worse on purpose
  bool compare_plain = false;

  // Reports.
  std::string report_file;
  std::string trace_file;
  std::string record_rounds_file;
  bool quiet = false;

  // Of the run itself; others may join it.
  bool has_drafter() const { return !draft_model.empty() || drafter == "ngram"; }
  bool speculates() const { return has_drafter() || !listen.empty(); }
  bool uses_draft_model() const { return !draft_model.empty(); }
  // The policy text after defaults.
  std::string policy() const;
};

constexpr int kDefaultMaxModelLen = 8192;
constexpr int kMaxSpeculativeTokens = 64;
constexpr int kMaxFanoutBudget = 64;
constexpr int kMaxDraftWorkers = 64;

void add_model_options(CLI::App& app, RunOptions& options);
void add_pool_options(CLI::App& app, RunOptions& options);
void add_sampling_options(CLI::App& app, RunOptions& options);
void add_speculation_options(CLI::App& app, RunOptions& options);
void add_report_options(CLI::App& app, RunOptions& options);
void add_generate_options(CLI::App& app, RunOptions& options);  // the last three, and requests

// Everything that can be known to be wrong without opening a file.
Status check_options(const RunOptions& options);
// Of them, what concerns a draft worker.
Status check_drafter_options(const RunOptions& options);

// The sampling parameters that the flags ask for; the rule is resolved.
Result<SamplingParams> sampling_of(const RunOptions& options);
// `auto` is greedy at temperature 0 and invariant otherwise. An error names --rule.
Result<Rule> resolve_rule(const std::string& name, float temperature);
// "ID:V".
Result<std::pair<TokenId, float>> parse_logit_bias(const std::string& text);

struct QFormat {
  QKind kind = QKind::kSparse;
  int32_t bytes = 0;  // of a drafted token, as asked for; else the default
  int32_t bits = 0;   // of an element of a state, as asked for; else the default

  // What a row may take for this vocabulary; with kHidden those that cannot be sent as states, with kDense 0.
  int32_t row_bytes(int64_t vocab_size) const;
  // Of an element of a state of this size.
  int32_t code_bits(int64_t vocab_size, int64_t hidden_size) const;
};
Result<Pipeline> parse_pipeline(const std::string& name);
Result<QFormat> parse_q_format(const std::string& text);
Result<ModelOptions::Kv> parse_kv_dtype(const std::string& text);

}  // namespace outrider
