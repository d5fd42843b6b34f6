#include "tests/support/test_cluster.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <thread>

#include "cluster/slice_endpoints.h"
#include "comm/emulated_link.h"
#include "draft_worker/draft_worker.h"
#include "draft_worker/head/head_drafting.h"
#include "heads/early_exit_drafter.h"
#include "model/led_model.h"
#include "target_worker/target_worker.h"

namespace outrider::testing {

class TestCluster::Threads {
 public:
  explicit Threads(const ClusterOptions& options) : options_(options) {
    std::unique_ptr<Transport> coordinator_end = open_wire();
    groups_.resize(static_cast<size_t>(options_.groups));
    for (int g = 0; g < options_.groups; ++g) start_target(g);
    const bool has_drafters = options_.drafter != DrafterKind::kNone || options_.head_at_worker;
    const int drafters = has_drafters ? options_.drafters : 0;
    for (int i = 0; i < drafters; ++i) start_drafter(Generation(static_cast<uint64_t>(i) + 1));
    ProtocolOptions protocol;
    protocol.max_num_seqs = options_.max_num_seqs;
    protocol.target_groups = options_.groups;
    protocol.max_queued = 1 << 20;
    protocol.max_rows_per_step = 64;
    protocol.prefill_chunk = 16;
    protocol.prefix_caching = options_.prefix_caching;
    protocol.eos_ids = options_.eos_ids;
    protocol.q_kind = options_.q_kind;
    protocol.row_bytes = options_.row_bytes;
    protocol.code_bits = options_.code_bits;
    protocol.pipeline = options_.pipeline;
    protocol.fanout = options_.fanout;
    protocol.tree = {.shape = options_.tree, .by_rank = options_.tree_by_rank};
    protocol.draft_timeout_min = options_.draft_timeout;
    protocol.first_draft_timeout = options_.draft_timeout;
    if (!options_.link.empty())
      coordinator_end =
          make_emulated_link(std::move(coordinator_end), parse_link_emulation(options_.link).value());
    const CoordinatorCallbacks callbacks{
        .on_emit =
            [this](const Emit& emit) {
              Finished& f = finished_[emit.request];
              f.ids.insert(f.ids.end(), emit.ids.begin(), emit.ids.end());
              f.logprobs.insert(f.logprobs.end(), emit.logprobs.begin(), emit.logprobs.end());
              f.prompt_logprobs.insert(f.prompt_logprobs.end(), emit.prompt_logprobs.begin(),
                                       emit.prompt_logprobs.end());
            },
        .on_finish =
            [this](const Finish& finish) {
              Finished& f = finished_[finish.request];
              f.reason = finish.reason;
              f.error = finish.error;
              f.metrics = finish.metrics;
            },
    };
    coordinator_ =
        std::make_unique<Coordinator>(std::move(coordinator_end), protocol,
                                      parse_gamma_policy("fixed:gamma=4").value(), nullptr, callbacks);
    const Status ready =
        coordinator_->wait_for_peers(static_cast<size_t>(drafters), Clock::now() + std::chrono::seconds(60));
    EXPECT_TRUE(ready.ok()) << ready.message();
  }

  ~Threads() {
    coordinator_->shutdown();
    for (std::thread& thread : threads_) thread.join();
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
  std::filesystem::path directory(const std::string& name) const {
    return name.find('/') == std::string::npos ? golden_model(name) : std::filesystem::path(name);
  }

  std::unique_ptr<Transport> open_wire() {
    if (options_.wire == Wire::kInproc) {
      hub_ = make_inproc_hub();
      return hub_->coordinator_end();
    }
    const std::string bind =
        options_.wire == Wire::kZmqTcp ? "tcp://127.0.0.1:*" : "ipc://" + (directory_ / "control").string();
    auto server = make_zmq_server(bind);
    if (!server.ok()) throw std::runtime_error(server.status().message());
    endpoint_ = (*server)->endpoint();
    return std::move(server).value();
  }

  std::unique_ptr<Transport> connect() {
    if (hub_) return hub_->connect();
    auto client = make_zmq_client(endpoint_);
    if (!client.ok()) throw std::runtime_error(client.status().message());
    return std::move(client).value();
  }

  ModelOptions model_options(Shard shard, int sequences) const {
    return {.device = options_.device,
            .shard = shard,
            .max_rows = 64,
            .max_logit_rows = 64,
            .max_positions = options_.max_context,
            .kv_tokens = sequences * (options_.max_context + 80),
            .weight_format = options_.weight_format};
  }
  // That a drafter serves: those of all groups.
  int all_sequences() const { return options_.groups * options_.max_num_seqs; }

  static ModelInfo info(const Model& model) {
    return {.name = "test",
            .vocab_size = static_cast<int32_t>(model.config().vocab_size),
            .vocabulary_fingerprint = 1,
            .max_context = static_cast<int32_t>(model.max_positions())};
  }

  void start_target(int g) {
    auto& ranks = groups_[static_cast<size_t>(g)];
    if (options_.tp_size == 1)
      ranks.push_back(make_single_collectives());
    else
      ranks = make_thread_collectives(options_.tp_size);
    for (int r = 0; r < options_.tp_size; ++r)
      threads_.emplace_back([this, g, r] {
        Collectives& group = *groups_[static_cast<size_t>(g)][static_cast<size_t>(r)];
        try {
          ModelOptions options = model_options({r, options_.tp_size}, options_.max_num_seqs);
          if (r == 0 && !options_.head.empty()) options.aux_layers = head_config().aux_layers;
          if (options_.kv_tokens > 0) options.kv_tokens = options_.kv_tokens;
          options.exit_layer = options_.exit_layer;
          if (options_.exit_layer > 0 && options_.tp_size == 1) options.run_sequences = options_.max_num_seqs;
          auto model = load_or_die(directory(options_.target), options, group);
          auto head = r == 0 && !options_.head_at_worker ? load_head(model.get()) : nullptr;
          auto transport = r == 0 ? connect() : nullptr;
          if (transport && options_.target_wire) transport = options_.target_wire(g, std::move(transport));
          TargetOptions target{.info = info(*model),
                               .max_sequences = options_.max_num_seqs,
                               .generation = Generation(static_cast<uint64_t>(g) + 1)};
          const bool has_own = options_.exit_layer > 0 || !(options_.head.empty() || options_.head_at_worker);
          target.co_located_drafter = has_own ? 1 : 0;
          const HiddenStateDrafterOptions drafting{.max_sequences = options_.max_num_seqs,
                                                   .eos_ids = options_.eos_ids,
                                                   .q_kind = options_.q_kind,
                                                   .row_bytes = options_.row_bytes};
          if (options_.exit_layer > 0)
            target.drafter = std::make_shared<HiddenStateDrafter>(
                std::make_unique<EarlyExitDrafter>(
                    *model, group, options_.exit_layer,
                    HeadDrafterOptions{.max_sequences = options_.max_num_seqs, .eos_ids = options_.eos_ids}),
                drafting);
          else if (options_.head_at_worker)
            tell_hidden_states(*model, r == 0, target);
          else if (head)
            target.drafter = std::make_shared<HiddenStateDrafter>(*model, std::move(head), drafting);
          if (options_.slices || options_.hidden_state_links) open_endpoint(*model, group, target);
          target.head =
              head_of(options_.draft, vocab_range(model->config().vocab_size, {r, options_.tp_size}));
          TargetWorker worker(*model, group, std::move(target));
          const Status status = worker.run(transport.get());
          EXPECT_TRUE(status.ok()) << status.message();
          EXPECT_TRUE(model->kv().check_invariants().ok());
          if (options_.target_ended) options_.target_ended(*model);
        } catch (const WorkerDeath&) {
          dead_[static_cast<size_t>(g)] = true;
          group.abort();
        } catch (const std::exception& error) {
          if (!dead_[static_cast<size_t>(g)]) ADD_FAILURE() << "target rank " << r << ": " << error.what();
          group.abort();
        }
      });
  }

  HeadConfig head_config() const {
    return read_head_config(options_.head, options_.head_kind,
                            read_model_config(directory(options_.target)).value())
        .value();
  }

  std::shared_ptr<HeadCompute> head_compute(Model* beside) const {
    return options_.head_on_device ? make_device_compute(options_.device, beside).value()
                                   : make_host_compute(1, 1);
  }

  void tell_hidden_states(Model& model, bool leads, TargetOptions& target) const {
    const HeadConfig config = head_config();
    target.hidden_state_head = kHiddenStateHead;
    target.hidden_state_width = static_cast<int32_t>(config.layer.hidden_size);
    if (!leads) return;
    target.hidden_states = std::make_shared<HiddenStateReader>(
        model,
        HiddenStateProjection::load(options_.head, directory(options_.target), config, model.config(),
                                    options_.head_format, 32, head_compute(&model))
            .value(),
        static_cast<int64_t>(config.aux_layers.size()));
  }

  std::unique_ptr<Head> load_head(Model* beside) const {
    if (options_.head.empty()) return nullptr;
    auto head = Head::load(options_.head, directory(options_.target),
                           {.kind = options_.head_kind,
                            .compute = head_compute(beside),
                            .max_rows = 32,
                            .max_sequences = all_sequences(),
                            .max_positions = options_.max_context,
                            .kv_tokens = all_sequences() * (options_.max_context + 80),
                            .tree_nodes = options_.tree.is_chain() ? 0 : 2 * most_nodes(options_.tree, 8),
                            .weight_format = options_.head_format});
    if (!head.ok()) throw std::runtime_error(head.status().message());
    return std::move(head).value();
  }

  std::shared_ptr<const DraftHead> head_of(const std::string& model, IndexRange ids) const {
    if (options_.q_kind != QKind::kHidden) return nullptr;
    return std::make_shared<const DraftHead>(DraftHead::load(directory(model), ids, 1).value());
  }

  void open_endpoint(const Model& model, Collectives& group, TargetOptions& target) {
    const bool tcp = options_.wire == Wire::kZmqTcp;
    OpenSliceEndpoint endpoint = open_slice_endpoints(group, {.host = tcp ? "127.0.0.1" : "",
                                                              .encrypted = tcp,
                                                              .max_message_bytes = 1 << 20,
                                                              .high_water_mark = 2 * options_.max_num_seqs});
    if (!endpoint.own) throw std::runtime_error("no doors for slices");
    if (options_.endpoint) endpoint.own = options_.endpoint(group.rank(), std::move(endpoint.own));
    target.slice_inbox = std::make_shared<SliceInbox>(
        std::move(endpoint.own),
        SliceSlotsOptions{.range = vocab_range(model.config().vocab_size, {group.rank(), group.size()}),
                          .rank = group.rank(),
                          .sequences = options_.max_num_seqs,
                          .rows = 16},
        links(model.config().vocab_size, 1 + group.rank(), options_.max_num_seqs + 1),
        group.rank() == 0 ? hidden_state_links(target.hidden_state_width, 0) : RowLinks());
    target.slices = std::move(endpoint.all);
    target.slice_timeout = options_.slice_timeout;
  }

  RowLinks links(int64_t vocab_size, int rank, int32_t slots) const {
    if (!options_.links) return {};
    RowLinkOptions link{.bounds = {0}, .rank = rank, .rows = 16, .slots = slots};
    for (int r = 0; r < options_.tp_size; ++r)
      link.bounds.push_back(vocab_range(vocab_size, {r, options_.tp_size}).end);
    return options_.links(link);
  }

  RowLinks hidden_state_links(int64_t width, int rank) const {
    if (!options_.hidden_state_links) return {};
    return options_.hidden_state_links(
        {.bounds = {0, width},
         .rank = rank,
         .rows = kHiddenStateRows,
         .slots = rank == 0 ? kHiddenStateSlots : kHiddenStateSlots + 2 * all_sequences(),
         .has_host_slots = false});
  }

  ModelOptions draft_options(Shard shard) const {
    ModelOptions options = model_options(shard, all_sequences());
    options.kv_tokens += all_sequences() * kv_tokens_for_outcomes(options_.fanout, 8);
    if (!options_.tree.is_chain())
      options.kv_tokens += all_sequences() * kv_tokens_for_outcomes(most_nodes(options_.tree, 8), 1);
    options.stand_in = kDraftStandIn;
    options.output_ids = options_.draft_vocab_size;
    options.run_sequences = runs_at_a_time(all_sequences(), options_.fanout);
    options.device = options_.draft_device.value_or(options_.device);
    return options;
  }

  int64_t drafted_ids(const Welcome& welcome) const {
    const int64_t all = welcome.target.vocab_size;
    return options_.draft_vocab_size > 0 ? std::min(all, options_.draft_vocab_size) : all;
  }

  void follow_drafter(int rank, Collectives& group) {
    try {
      const auto part = load_or_die(directory(options_.draft), draft_options({rank, group.size()}), group);
      const Status status = follow_leader(*part, group);
      EXPECT_TRUE(status.ok()) << status.message();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << " of a draft worker: " << error.what();
      group.abort();
    }
  }

  void start_drafter(Generation generation) {
    using Ranks = std::vector<std::unique_ptr<Collectives>>;
    const auto ranks = std::make_shared<Ranks>(
        options_.draft_tp_size > 1 ? make_thread_collectives(options_.draft_tp_size) : Ranks());
    for (int r = 1; r < options_.draft_tp_size; ++r)
      threads_.emplace_back([this, ranks, r] { follow_drafter(r, *(*ranks)[static_cast<size_t>(r)]); });
    threads_.emplace_back([this, generation, ranks] {
      try {
        auto transport = connect();
        if (options_.drafter_wire) transport = options_.drafter_wire(std::move(transport));
        std::unique_ptr<Collectives> single = make_single_collectives();
        std::unique_ptr<Model> model;
        std::shared_ptr<const DraftHead> head;
        ModelInfo draft_info{.name = "ngram", .vocabulary_fingerprint = 1, .max_context = 4096};
        if (options_.drafter == DrafterKind::kModel) {
          Collectives& leader = ranks->empty() ? *single : *ranks->front();
          model = load_or_die(directory(options_.draft), draft_options({0, leader.size()}), leader);
          if (leader.size() > 1) model = make_led_model(std::move(model), leader);
          draft_info = info(*model);
          head = head_of(options_.drafters_head.empty() ? options_.draft : options_.drafters_head,
                         {0, model->config().vocab_size});
        }
        const auto hidden_state_head = options_.head_at_worker ? load_head(nullptr) : nullptr;
        if (hidden_state_head)
          draft_info.max_context = static_cast<int32_t>(hidden_state_head->max_positions());
        DraftWorkerOptions worker{
            .info = draft_info, .generation = generation, .max_sequences = all_sequences()};
        if (head) worker.head_fingerprint = head->fingerprint();
        worker.successors = options_.drafter == DrafterKind::kRecycling;
        if (hidden_state_head) {
          worker.hidden_state_head = kHiddenStateHead;
          worker.hidden_state_width = static_cast<int32_t>(hidden_state_head->hidden_size());
        }
        const auto welcome = join_coordinator(*transport, worker).value();
        if (!welcome) return;
        std::optional<SliceSender> slices;
        if (options_.slices)
          slices = SliceSender::connect(welcome->slices, welcome->target.vocab_size, generation,
                                        std::chrono::seconds(10))
                       .value();
        if (slices && options_.links) slices->use_links(links(welcome->target.vocab_size, 0, kLinkSlots));
        worker.slices = slices ? &*slices : nullptr;
        std::unique_ptr<HiddenStateInbox> hidden_states;
        if (options_.hidden_state_links)
          hidden_states =
              HiddenStateInbox::connect(welcome->slices, hidden_state_links(worker.hidden_state_width, 1),
                                        hidden_state_head->compute(),
                                        {.worker = generation,
                                         .width = worker.hidden_state_width,
                                         .patience = options_.slice_timeout},
                                        std::chrono::seconds(10))
                  .value();
        const auto drafter = hidden_state_head ? make_head_worker(*hidden_state_head, hidden_states.get())
                             : model
                                 ? make_model_drafter(*model, {.max_sequences = all_sequences(),
                                                               .kept_texts = options_.prefix_caching ? 4 : 0,
                                                               .eos_ids = options_.eos_ids,
                                                               .vocab_size = drafted_ids(*welcome),
                                                               .rows = slices ? slices->rows() : nullptr,
                                                               .head = head.get()})
                             : worker.successors ? make_recycling_drafter({.max_sequences = all_sequences()})
                                                 : make_ngram_drafter({.max_sequences = all_sequences()});
        const Status status = DraftWorker(*drafter, *transport, worker).serve();
        EXPECT_TRUE(status.ok()) << status.message();
        if (model) {
          EXPECT_TRUE(model->kv().check_invariants().ok());
        }
      } catch (const WorkerDeath&) {
      } catch (const std::exception& error) {
        ADD_FAILURE() << "draft worker: " << error.what();
      }
    });
  }

  std::unique_ptr<Drafter> make_head_worker(Head& head, HiddenStateInbox* inbox) const {
    return std::make_unique<HeadDrafting>(
        head,
        HeadDraftingOptions{.max_sequences = all_sequences(), .eos_ids = options_.eos_ids, .inbox = inbox});
  }

  static constexpr int32_t kLinkSlots = 3;  // fewer than drafts may be under way
  static constexpr int32_t kHiddenStateRows = 4, kHiddenStateSlots = 4;
  static constexpr uint64_t kHiddenStateHead = 9;  // the fingerprint of `head`

  ClusterOptions options_;
  std::shared_ptr<InprocHub> hub_;
  const TemporaryDirectory directory_;  // of a socket
  std::string endpoint_;
  std::vector<std::vector<std::unique_ptr<Collectives>>> groups_;  // their ranks
  std::array<std::atomic<bool>, 8> dead_{};                        // by group
  std::map<SequenceId, Finished> finished_;
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
