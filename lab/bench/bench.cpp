#include "lab/bench/bench.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/program/exit_codes.h"
#include "comm/cores.h"
#include "lab/bench/bench_report.h"
#include "lab/bench/conclusions.h"
#include "lab/bench/machine.h"
#include "lab/bench/results.h"
#include "lab/bench/verify_curve.h"
#include "lab/report/html.h"
#include "model_files/model_size.h"
#include "requests/output.h"
#include "requests/provenance.h"
#include "start/describe.h"
#include "start/device.h"
#include "text/chat_template/chat_template.h"

namespace outrider {
namespace {

constexpr const char* kDefaultPrompts[] = {"Once upon a time", "The little dog was", "One day, a girl"};
constexpr int kCurveRows = 16;

int threads_of(const ModelSettings& models) { return models.threads > 0 ? models.threads : usable_cores(); }
bool computes_on_device(const ModelSettings& models) {
  return models.device.ok() && models.device->kind == Device::Kind::kCuda;
}

// The share of the weights that belongs to experts which one token does not use.
double share_of_idle_experts(const ModelConfig& c) {
  if (!c.experts) return 0;
  const int64_t expert = 3 * c.hidden_size * c.experts->intermediate_size;
  int64_t all = (c.tie_word_embeddings ? 1 : 2) * c.vocab_size * c.hidden_size, idle = 0;
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const ModelConfig layer = c.sized_for(c.layer(i));
    all += 2 * c.hidden_size * (layer.q_size() + layer.kv_size());
    if (!c.layer(i).has_experts) {
      all += 3 * c.hidden_size * c.intermediate_size;
      continue;
    }
    all += c.experts->count * expert + 3 * c.hidden_size * c.experts->shared_intermediate_size;
    idle += (c.experts->count - c.experts->chosen) * expert;
  }
  return static_cast<double>(idle) / static_cast<double>(all);
}

class Bench {
 public:
  explicit Bench(BenchOptions options)
      : options_(std::move(options)),
        on_device_(computes_on_device(options_.cluster.models)),
        probe_(threads_of(options_.cluster.models)) {}

  Status run() {
    RETURN_IF_ERROR(set_up());
    RETURN_IF_ERROR(check_texts());
    const LoadWatch watch;
    results_.peak_memory_bytes = peak_memory_bytes();
    for (int turn = 0; turn < options_.repetitions; ++turn) {
      tell(fmt::format("turn {} of {}", turn + 1, options_.repetitions));
      RETURN_IF_ERROR(take_turn());
    }
    probe();
    results_.machine.load = watch.load();
    summarise();
    judge(results_);
    return write();
  }

 private:
  // Everything of one policy, over all turns.
  struct Samples {
    std::vector<double> tokens_per_second, speedup, overhead;
    RoundSeconds rounds;
    double round_count = 0;
    RoundSums sums;
    bool identical = true;
    std::vector<std::vector<RequestResult>> requests;
  };

  void tell(const std::string& line) const {
    if (!options_.cluster.quiet) std::fprintf(stderr, "%s\n", line.c_str());
  }

  Status set_up() {
    const ClusterSettings& cluster = options_.cluster;
    probe();
    probe_.release();
    reset_peak_memory();
    const auto started = Clock::now();
    ASSIGN_OR_RETURN(prepared_, prepare(cluster));
    tell_warnings(prepared_);
    ASSIGN_OR_RETURN(prompts_, read_prompts());
    RETURN_IF_ERROR(plan_context());
    ASSIGN_OR_RETURN(models_, LocalModels::load(cluster, prepared_));
    session_.emplace(cluster, prepared_, models_);
    const auto loaded = Clock::now();
    ASSIGN_OR_RETURN(const RunTimes first,
                     session_->run({prompts_.front()}, BenchPolicy::fixed(options_.gammas.front())));
    results_.startup_seconds =
        std::chrono::duration<double>(loaded - started).count() + first.first_token_seconds;
    RETURN_IF_ERROR(lengthen_prompts());
    std::vector<int> rows;
    for (int m = 1; m <= kCurveRows; ++m) rows.push_back(m);
    for (const int gamma : options_.gammas)
      if (gamma + 1 > kCurveRows) rows.push_back(gamma + 1);
    curve_.emplace(models_, prompts_.front().request.prompt, std::move(rows));
    return {};
  }

  Result<std::vector<PromptRequest>> read_prompts() {
    const auto chat = load_chat_template(options_.cluster.models.model);
    const RequestModel model =
        request_model(options_.cluster.models, options_.cluster.speculation, prepared_, chat);
    RequestParams params = options_.request;
    if (params.prompt || !options_.files.prompts.empty()) {
      std::vector<std::string> notes;
      auto read = read_requests(params, options_.files.prompts, model, &notes);
      for (const std::string& note : notes) tell(note);
      return read;
    }
    std::vector<PromptRequest> prompts;
    for (const char* text : kDefaultPrompts) {
      params.prompt = text;
      ASSIGN_OR_RETURN(auto one, read_requests(params, "", model));
      prompts.push_back(std::move(one.front()));
    }
    return prompts;
  }
  int64_t max_len() const { return prepared_.max_model_len; }

  // Buffers are planned for the texts that will be, as memory is reported.
  Status plan_context() {
    int64_t longest = options_.context;
    int64_t length = 0;
    for (const PromptRequest& prompt : prompts_) {
      length = prompt.follows
                   ? length + options_.request.max_tokens + static_cast<int64_t>(prompt.turn.size())
                   : static_cast<int64_t>(prompt.request.prompt.size());
      longest = std::max(longest, length);
    }
    longest += options_.request.max_tokens;
    if (longest > max_len())
      return invalid_argument(
          fmt::format("prompts and --max-tokens need {} positions, the model has {}", longest, max_len()));
    if (options_.cluster.models.max_model_len == 0) limit_context(prepared_, longest + kCurveRows);
    return {};
  }

  // The target's own text, so that acceptance there is that of real use.
  Status lengthen_prompts() {
    for (PromptRequest& prompt : prompts_) {
      if (prompt.follows) continue;
      const auto wanted = static_cast<size_t>(options_.context);
      auto& ids = prompt.request.prompt;
      if (ids.size() >= wanted) continue;
      PromptRequest longer = prompt;
      longer.request.max_tokens = static_cast<int32_t>(wanted - ids.size());
      ASSIGN_OR_RETURN(const RunTimes run, session_->run({longer}, BenchPolicy::fixed(0)));
      ids.insert(ids.end(), run.texts.front().begin(), run.texts.front().end());
    }
    return {};
  }

  // Equal bytes before any time: also the warm-up of everything that is timed.
  Status check_texts() {
    tell("checking texts");
    ASSIGN_OR_RETURN(const RunTimes plain, session_->run(prompts_, BenchPolicy::fixed(0)));
    texts_ = plain.texts;
    for (const BenchPolicy& policy : policies()) {
      ASSIGN_OR_RETURN(const RunTimes run, session_->run(prompts_, policy));
      if (run.texts != texts_)
        return malformed(
            fmt::format("with {} the text differs from plain decoding: nothing was timed", policy.policy));
    }
    return {};
  }

  void probe() {
    if (!on_device_) bandwidths_.push_back(probe_.measure());
  }

  Status take_turn() {
    probe();
    RETURN_IF_ERROR(curve_->turn());
    ASSIGN_OR_RETURN(const RunTimes plain, session_->run(prompts_, BenchPolicy::fixed(0)));
    add(BenchPolicy::fixed(0), plain, plain);
    for (const BenchPolicy& policy : policies()) {
      ASSIGN_OR_RETURN(const RunTimes run, session_->run(prompts_, policy));
      add(policy, run, plain);
    }
    return {};
  }

  // Everything but plain decoding: what is asked for, then what a user gets who asks for nothing.
  std::vector<BenchPolicy> policies() const {
    std::vector<BenchPolicy> all;
    for (const int gamma : options_.gammas) all.push_back(BenchPolicy::fixed(gamma));
    all.push_back({.policy = options_.cluster.speculation.policy(), .longest = options_.gammas.back()});
    return all;
  }

  void add(const BenchPolicy& policy, const RunTimes& run, const RunTimes& plain) {
    Samples& samples = samples_[policy.policy];
    samples.tokens_per_second.push_back(run.tokens_per_second());
    samples.speedup.push_back(run.tokens_per_second() / plain.tokens_per_second());
    samples.overhead.push_back(run.median_overhead());
    for (const RoundSeconds& round : run.rounds) samples.rounds += round;
    samples.round_count += static_cast<double>(run.rounds.size());
    samples.sums.add(run.sums);
    samples.requests.push_back(run.requests);
    samples.identical &= run.texts == texts_;
  }

  GammaResult result_of(const BenchPolicy& policy) const {
    const Samples& samples = samples_.at(policy.policy);
    return {.gamma = policy.longest,
            .tokens_per_second = Spread::of(samples.tokens_per_second),
            .speedup = Spread::of(samples.speedup),
            .rates = samples.tokens_per_second,
            .acceptance_rate = samples.sums.acceptance(),
            .tokens_per_round = samples.sums.block_efficiency(),
            .accepted = samples.sums.accepted,
            .tested = samples.sums.tested,
            .drafted = samples.sums.drafted,
            .identical_output = samples.identical,
            .round = samples.rounds / std::max(1.0, samples.round_count),  // long drafts may leave none
            .overhead_median = median(samples.overhead),
            .requests = samples.requests};
  }

  void summarise() {
    BenchResults& r = results_;
    r.target = prepared_.target_info.name;
    r.draft = prepared_.draft_info.name;
    r.prompts = static_cast<int>(prompts_.size());
    r.tokens = options_.request.max_tokens;
    r.repetitions = options_.repetitions;
    r.context = options_.context;
    r.temperature = static_cast<double>(options_.request.temperature);
    r.provenance = provenance({{"text", options_.request.seed}, {"intervals", BootstrapOptions().seed}});
    r.machine.threads = models_.target.front()->threads() * options_.cluster.models.tensor_parallel_size;
    r.machine.isa = models_.target.front()->isa();
    r.machine.bandwidth = Spread::of(bandwidths_);
    if (!on_device_) {
      r.machine.bandwidth_before = bandwidths_.front();
      r.machine.bandwidth_after = bandwidths_.back();
    }
    const double one = curve_->seconds(1);
    for (const int rows : curve_->rows())
      r.curve.push_back({rows, curve_->seconds(rows), curve_->seconds(rows) / one});
    r.draft_step_seconds = curve_->draft_step_seconds();
    r.plain = result_of(BenchPolicy::fixed(0));
    const double plain_step = one + r.plain.round.verification + r.plain.round.commit;
    for (const int gamma : options_.gammas) {
      GammaResult run = result_of(BenchPolicy::fixed(gamma));
      const double round =
          run.round.draft + curve_->seconds(gamma + 1) + run.round.verification + run.round.commit;
      run.predicted_speedup = predicted_speedup(run.acceptance_rate, gamma, round, plain_step);
      r.runs.push_back(std::move(run));
    }
    r.policy = options_.cluster.speculation.policy();
    r.by_policy = result_of(policies().back());
    sum_memory();
    if (on_device_) return;
    r.decode_bandwidth_share =
        r.decode_bytes_per_token * r.plain.tokens_per_second.median / r.machine.bandwidth.median;
    r.forward_bandwidth_share = r.decode_bytes_per_token / r.plain.round.forward / r.machine.bandwidth.median;
  }

  void sum_memory() {
    BenchResults& r = results_;
    const auto bytes_of_kv = [&](const ModelConfig& config, int64_t positions) {
      const int64_t element =
          options_.cluster.models.kv_dtype == "fp32" || config.torch_dtype == Dtype::kF32 ? 4 : 2;
      const ModelSize size = size_of(config);  // the CPU caches a latent twice
      return element * size.kv_numbers * (size.shares_kv ? 2 : 1) * positions;
    };
    double target_bytes = 0;
    for (const auto& model : models_.target) target_bytes += static_cast<double>(model->weight_bytes());
    r.weight_bytes = static_cast<int64_t>(target_bytes);
    for (const auto& model : models_.target)
      r.kv_bytes += bytes_of_kv(prepared_.target, model->kv().num_blocks() * kBlockTokens) /
                    static_cast<int64_t>(models_.target.size());
    if (models_.draft) {
      r.weight_bytes += models_.draft->weight_bytes();
      r.kv_bytes += bytes_of_kv(*prepared_.draft, models_.draft->kv().num_blocks() * kBlockTokens);
    }
    // One token reads every weight but the embedding, of which it reads one row, and those of experts that it
    // does not go through; and the KV of the text, but for rows that no later token reads. States are read
    // and written.
    const ModelConfig& config = prepared_.target;
    const int64_t element = config.torch_dtype == Dtype::kF32 ? 4 : 2;
    const int64_t embedding =
        config.tie_word_embeddings ? 0 : config.vocab_size * config.hidden_size * element;
    int64_t context = 0;
    for (const PromptRequest& prompt : prompts_)
      context += static_cast<int64_t>(prompt.request.prompt.size());
    context = context / static_cast<int64_t>(prompts_.size()) + options_.request.max_tokens / 2;
    r.decode_bytes_per_token = target_bytes * (1 - share_of_idle_experts(config)) -
                               static_cast<double>(embedding) +
                               static_cast<double>(bytes_of_kv(config, context)) -
                               static_cast<double>(element * size_of(config).row_numbers * context) +
                               2 * sizeof(float) * static_cast<double>(size_of(config).state_numbers);
  }

  Status write() const {
    std::fputs(bench_tables(results_).c_str(), stdout);
    if (std::fflush(stdout) != 0) return unavailable("standard output cannot be written");
    if (!options_.files.report.empty())
      RETURN_IF_ERROR(
          write_file(options_.files.report, json_text(bench_json(results_), 2) + "\n").in("--report"));
    if (!options_.html_file.empty())
      RETURN_IF_ERROR(write_file(options_.html_file, report::html_page(bench_report(results_))).in("--html"));
    if (!options_.csv_file.empty())
      RETURN_IF_ERROR(write_file(options_.csv_file, bench_csv(results_)).in("--csv"));
    for (const BenchPolicy& policy : policies())
      if (!samples_.at(policy.policy).identical)
        return malformed(fmt::format("with {} a timed text differed from plain decoding", policy.policy));
    return {};
  }

  BenchOptions options_;
  const bool on_device_;  // models compute there, and no host memory is what they wait for
  ReadProbe probe_;
  Preparation prepared_;
  std::vector<PromptRequest> prompts_;
  LocalModels models_;
  std::optional<BenchSession> session_;
  std::optional<VerifyCurve> curve_;
  std::vector<std::vector<TokenId>> texts_;  // of plain decoding, by prompt
  std::vector<double> bandwidths_;
  std::map<std::string, Samples> samples_;  // by policy
  BenchResults results_;
};

}  // namespace

int run_bench(BenchOptions options) {
  set_thread_role("coordinator");
  Status status = complete_bench_options(options);
  if (status.ok()) status = Bench(std::move(options)).run();
  return told_exit_code(status);
}

}  // namespace outrider
