#include "tests/support/test_cluster.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "cluster/slice_endpoints.h"
#include "start/draft_ranks.h"
#include "start/load_models.h"
#include "start/local_cluster.h"
#include "start/make_coordinator.h"

namespace outrider::testing {
namespace {

// Small, so that short texts fill passes, and that a text takes several.
constexpr int32_t kRowsPerStep = 64, kPrefillChunk = 16, kDraftPrefill = 32;
constexpr int32_t kLinkSlots = 3;  // fewer than drafts may be under way
constexpr int32_t kHiddenStateRows = 4, kHiddenStateSlots = 4;
constexpr std::chrono::seconds kConnectTimeout{10};

std::string directory(const std::string& name) {
  return name.find('/') == std::string::npos ? golden_model(name).string() : name;
}

std::string flag_of(const Device& device) {
  return device.kind == Device::Kind::kCpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

std::string drafter_flag(const ClusterOptions& options) {
  if (options.exit_layer > 0) return "layerskip";
  if (!options.head.empty()) return std::string(head_kind_name(options.head_kind));
  if (options.drafter == DrafterKind::kNgram) return "ngram";
  return options.drafter == DrafterKind::kRecycling ? "recycling" : "";
}

std::string q_format_flag(const ClusterOptions& options) {
  if (options.q_kind == QKind::kDense) return "dense";
  return options.q_kind == QKind::kHidden ? fmt::format("hidden:{}", options.code_bits)
                                          : fmt::format("budget:{}", options.row_bytes);
}

std::string pipeline_flag(Pipeline pipeline) {
  for (const char* flag : {"lockstep", "ahead", "fanout"})
    if (parse_pipeline(flag).value() == pipeline) return flag;
  return "auto";
}

std::string tree_flag(const ClusterOptions& options) {
  const TreeShape& shape = options.tree;
  if (shape.nodes > 0)
    return fmt::format("{}:{}", options.tree_by_rank ? "sequoia" : "best-first", shape.nodes);
  if (shape.parents.empty())
    return shape.widths.empty() ? "off" : fmt::format("{}", fmt::join(shape.widths, ","));
  std::vector<std::string> paths;  // of each node, the ranks among siblings from the root
  std::map<int32_t, int> children;
  for (const int32_t parent : shape.parents)
    paths.push_back((parent < 0 ? "" : paths[static_cast<size_t>(parent)] + ",") +
                    std::to_string(children[parent]++));
  return fmt::format("[[{}]]", fmt::join(paths, "],["));
}

// As the flags of a user would fill them.
ClusterSettings settings_of(const ClusterOptions& options) {
  ClusterSettings settings;
  ModelSettings& models = settings.models;
  models.model = directory(options.target);
  models.drafter = drafter_flag(options);
  if (!options.head.empty()) models.draft_model = options.head;
  if (options.drafter == DrafterKind::kModel) models.draft_model = directory(options.draft);
  models.head_place = options.head_at_worker ? "worker" : "target";
  models.exit_layer = static_cast<int>(options.exit_layer);
  models.tensor_parallel_size = options.tp_size;
  models.data_parallel_size = options.groups;
  models.prefill_groups = options.prefill_groups;
  if (options.prefill_groups > 0) models.min_prefill_tokens = options.min_prefill_tokens;
  models.draft_tensor_parallel_size = options.draft_tp_size;
  models.threads = 1;
  models.weight_format = weight_format_name(options.weight_format);
  models.draft_weight_format =
      weight_format_name(options.head.empty() ? options.weight_format : options.head_format);
  models.draft_vocab_size = static_cast<int>(options.draft_vocab_size);
  models.device = flag_of(options.device);
  models.max_num_seqs = options.max_num_seqs;
  models.prefix_caching = options.prefix_caching ? "on" : "off";
  models.kv_cache_tokens = options.kv_tokens;
  settings.speculation.gamma_policy = "fixed:gamma=4";
  settings.speculation.q_format = q_format_flag(options);
  settings.speculation.speculative_tree = tree_flag(options);
  settings.speculation.pipeline = pipeline_flag(options.pipeline);
  settings.speculation.fanout_budget = options.fanout;
  settings.speculation.emulate_link = options.link;
  settings.quiet = true;
  settings.times_passes = false;
  settings.draft_prefill_rows = kDraftPrefill;
  return settings;
}

// prepare() without a tokenizer, and without the fingerprint of files that are the same for all.
Preparation prepare_without_text(const ClusterOptions& options, const ModelSettings& models) {
  Preparation p;
  p.target = read_model_config(models.model).value();
  p.target.eos = options.eos_ids;
  p.max_model_len = options.max_context;
  p.target_info = {.name = "test",
                   .vocab_size = static_cast<int32_t>(p.target.vocab_size),
                   .vocabulary_fingerprint = 1,
                   .max_context = static_cast<int32_t>(p.max_model_len)};
  p.draft_info = p.target_info;
  p.draft_info.fingerprint = 1;
  if (models.uses_draft_model()) {
    p.draft = read_model_config(models.draft_model).value();
    p.draft_info.vocab_size = static_cast<int32_t>(p.draft->vocab_size);
  } else if (models.head()) {
    p.head = read_head_config(models.draft_model, *models.head(), p.target).value();
    p.hidden_state_head = 9;
  } else {
    p.draft_info.vocab_size = 0;  // it looks at text alone
    p.draft_info.vocabulary_fingerprint = 0;
  }
  return p;
}

// Few slots, so that some rows find none.
LinkMaker q_links(const ClusterOptions& options) {
  const auto make = options.links ? options.links : options.hidden_state_links;
  if (!make) return nullptr;
  return [make](RowLinkOptions end) {
    if (end.rank == 0) end.slots = kLinkSlots;
    return make(end);
  };
}

LinkMaker hidden_state_links(const ClusterOptions& options, int sequences) {
  const auto make = options.hidden_state_links ? options.hidden_state_links : options.links;
  if (!make) return nullptr;
  return [make, sequences](RowLinkOptions end) {
    end.rows = kHiddenStateRows;
    end.slots = kHiddenStateSlots + (end.rank == 0 ? 0 : 2 * sequences);
    return make(end);
  };
}

}  // namespace

class TestCluster::Threads {
 public:
  explicit Threads(const ClusterOptions& options)
      : options_(options),
        settings_(settings_of(options)),
        draft_settings_(settings_),
        prepared_(prepare_without_text(options, settings_.models)) {
    const bool head_on_host = !options_.head.empty() && !options_.head_on_device;
    if (head_on_host) seams_.head_device = Device{};
    draft_settings_.models.device =
        flag_of(head_on_host ? Device{} : options_.draft_device.value_or(options_.device));
    seams_.gpu = "host/worker";
    seams_.q_links = q_links(options_);
    seams_.hidden_state_links = hidden_state_links(options_, settings_.models.sequences());
    seams_.patience = options_.slice_timeout;
    seams_.connect_timeout = kConnectTimeout;
    seams_.ended = [this](Role role, Model& model) {
      EXPECT_TRUE(model.kv().check_invariants().ok());
      if (role == Role::kTarget && options_.target_ended) options_.target_ended(model);
    };
    const int drafters = settings_.models.has_draft_workers() ? options_.drafters : 0;
    make_coordinator(is_of_one_command() ? start_locally(drafters) : start_apart(drafters));
    const Status ready =
        coordinator_->wait_for_peers(static_cast<size_t>(drafters), Clock::now() + std::chrono::seconds(60));
    EXPECT_TRUE(ready.ok()) << ready.message();
  }

  ~Threads() {
    coordinator_->shutdown();
    if (local_) {
      coordinator_.reset();  // roles that were lent to its thread return to theirs
      note_end("a role", local_->wait());
    }
    for (std::thread& thread : threads_) thread.join();
    for (const auto& [role, ends] : ends_) {
      const bool died = std::any_of(ends.begin(), ends.end(), [](const Status& end) {
        return end.message().find(WorkerDeath().what()) != std::string::npos;
      });
      for (const Status& end : ends) EXPECT_TRUE(died || end.ok()) << role << ": " << end.message();
    }
  }

  // Runs the requests together, as far as max_num_seqs allows; results in their order.
  std::vector<Finished> run(std::vector<Request> requests) {
    constexpr size_t kAtOnce = 256;
    std::vector<Finished> results;
    for (size_t begin = 0; begin < requests.size(); begin += kAtOnce) {
      std::vector<SequenceId> ids;
      for (size_t i = begin; i < std::min(begin + kAtOnce, requests.size()); ++i)
        ids.push_back(coordinator_->submit(std::move(requests[i])));
      const Status status = coordinator_->run();
      EXPECT_TRUE(status.ok()) << status.message();
      for (SequenceId id : ids) results.push_back(std::move(finished_[id]));
      finished_.clear();
    }
    return results;
  }

  const Totals& totals() const { return coordinator_->totals(); }
  const TransportStats& transport_stats() const { return coordinator_->transport_stats(); }

 private:
  // The cluster that `outrider generate` starts. Else roles start apart, as by mpirun and by workers that join: each with
  // settings and a connection of its own.
  bool is_of_one_command() const {
    return options_.wire == Wire::kInproc && !has_endpoints() && !options_.target_wire &&
           !options_.block_wire && !options_.drafter_wire && options_.drafters_head.empty() &&
           draft_settings_.models.device == settings_.models.device;
  }
  bool has_endpoints() const { return options_.slices || options_.hidden_state_links; }

  std::unique_ptr<Transport> start_locally(int drafters) {
    local_.emplace(settings_, prepared_, nullptr, seams_);
    return local_->start(drafters, false).value();
  }

  std::unique_ptr<Transport> start_apart(int drafters) {
    auto coordinator_end = open_wire();
    for (int g = 0; g < settings_.models.groups(); ++g) start_target(g);
    for (int i = 0; i < drafters; ++i) start_drafter(i);
    return coordinator_end;
  }

  void make_coordinator(std::unique_ptr<Transport> transport) {
    ProtocolOptions limits = protocol_options(settings_, prepared_).value();
    limits.max_rows_per_step = kRowsPerStep;
    limits.prefill_chunk = kPrefillChunk;
    limits.row_bytes = options_.row_bytes;  // also of rows that cannot be sent as hidden states
    limits.draft_timeout_min = options_.draft_timeout;
    limits.handoff_timeout = options_.handoff_timeout;
    limits.first_draft_timeout = options_.draft_timeout;
    CoordinatorCallbacks callbacks;
    callbacks.on_emit = [this](const Emit& emit) {
      Finished& f = finished_[emit.request];
      f.ids.insert(f.ids.end(), emit.ids.begin(), emit.ids.end());
      f.logprobs.insert(f.logprobs.end(), emit.logprobs.begin(), emit.logprobs.end());
      f.prompt_logprobs.insert(f.prompt_logprobs.end(), emit.prompt_logprobs.begin(),
                               emit.prompt_logprobs.end());
    };
    callbacks.on_finish = [this](const Finish& finish) {
      Finished& f = finished_[finish.request];
      f.reason = finish.reason;
      f.error = finish.error;
      f.metrics = finish.metrics;
    };
    coordinator_ = outrider::make_coordinator(settings_, prepared_, std::move(limits), std::move(transport),
                                              parse_gamma_policy(settings_.speculation.policy()).value(),
                                              std::move(callbacks), nullptr);
  }

  std::unique_ptr<Transport> open_wire() {
    if (options_.wire == Wire::kInproc) {
      hub_ = make_inproc_hub();
      return hub_->coordinator_end();
    }
    const std::string bind = options_.wire == Wire::kZmqTcp
                                 ? "tcp://127.0.0.1:*"
                                 : "ipc://" + (directory_.path() / "control").string();
    auto server = make_zmq_server(bind).value();
    endpoint_ = server->endpoint();
    return server;
  }

  std::unique_ptr<Transport> connect() { return hub_ ? hub_->connect() : make_zmq_client(endpoint_).value(); }

  // Collectives of each target group and draft worker, until the end.
  std::vector<std::unique_ptr<Collectives>>& make_ranks(int count) {
    if (count > 1) return ranks_.emplace_back(make_thread_collectives(count));
    ranks_.emplace_back().push_back(make_single_collectives());
    return ranks_.back();
  }

  void start_role(std::string name, std::function<Status()> role) {
    threads_.emplace_back([this, name = std::move(name), role = std::move(role)] { note_end(name, role()); });
  }

  void note_end(const std::string& role, Status status) {
    const std::lock_guard lock(mutex_);
    ends_[role].push_back(std::move(status));
  }

  void start_target(int g) {
    for (const auto& rank : make_ranks(options_.tp_size))
      start_role(fmt::format("target group {}", g), [this, g, &group = *rank,
                                                     blocks = block_ends_.end(g, rank->rank())]() mutable {
        if (options_.block_wire) blocks = options_.block_wire(g, std::move(blocks));
        std::unique_ptr<Transport> transport = group.rank() == 0 ? connect() : nullptr;
        if (transport && options_.target_wire) transport = options_.target_wire(g, std::move(transport));
        return run_target_rank(
            settings_, prepared_, {}, group, transport.get(), {.is_timed = false, .seams = seams_}, nullptr,
            has_endpoints() ? open_endpoint(group) : OpenSliceEndpoint(), g, std::move(blocks));
      });
  }

  OpenSliceEndpoint open_endpoint(Collectives& group) {
    const bool tcp = options_.wire == Wire::kZmqTcp;
    const bool has_links = options_.links || options_.hidden_state_links;
    OpenSliceEndpoint endpoint =
        open_slice_endpoints(group, {.host = tcp ? "127.0.0.1" : "",
                                     .encrypted = tcp,
                                     .max_message_bytes = 1 << 20,
                                     .high_water_mark = 2 * options_.max_num_seqs,
                                     .gpu = has_links ? fmt::format("host/{}", group.rank()) : ""});
    EXPECT_TRUE(endpoint.own);
    if (endpoint.own && options_.endpoint)
      endpoint.own = options_.endpoint(group.rank(), std::move(endpoint.own));
    return endpoint;
  }

  void start_drafter(int i) {
    const std::string name = fmt::format("draft worker {}", i);
    for (const auto& rank : make_ranks(options_.draft_tp_size))
      start_role(name, [this, &group = *rank] {
        if (group.rank() > 0) return run_draft_follower(draft_settings_, prepared_, {}, group);
        std::unique_ptr<Transport> transport = connect();
        if (options_.drafter_wire) transport = options_.drafter_wire(std::move(transport));
        return run_draft_worker(draft_settings_, prepared_, {}, group, *transport,
                                {.head = load_drafters_head(), .seams = seams_});
      });
  }

  std::shared_ptr<const DraftHead> load_drafters_head() const {
    if (options_.drafters_head.empty()) return nullptr;
    RoleSettings other = draft_settings_;
    other.models.draft_model = options_.drafters_head;
    return load_draft_head(other, {0, prepared_.draft->vocab_size}, {}).value();
  }

  const ClusterOptions options_;
  const ClusterSettings settings_;
  ClusterSettings draft_settings_;  // of roles that start apart
  const Preparation prepared_;
  RoleSeams seams_;
  std::map<SequenceId, Finished> finished_;
  std::mutex mutex_;
  std::map<std::string, std::vector<Status>> ends_;  // of every role
  std::optional<LocalCluster> local_;
  const LocalBlockEnds block_ends_{settings_.models, prepared_};
  // Roles that start apart.
  std::shared_ptr<InprocHub> hub_;
  const TemporaryDirectory directory_;  // of a socket
  std::string endpoint_;
  std::deque<std::vector<std::unique_ptr<Collectives>>> ranks_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<std::thread> threads_;
};

TestCluster::TestCluster(const ClusterOptions& options) : threads_(std::make_unique<Threads>(options)) {}
TestCluster::~TestCluster() = default;

std::vector<Finished> TestCluster::run(std::vector<Request> requests) {
  return threads_->run(std::move(requests));
}
const Totals& TestCluster::totals() const { return threads_->totals(); }
const TransportStats& TestCluster::transport_stats() const { return threads_->transport_stats(); }

}  // namespace outrider::testing
