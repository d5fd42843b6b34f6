#include "start/draft_life.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/log_line.h"
#include "draft_worker/draft_worker.h"
#include "draft_worker/wire/hidden_state_inbox.h"
#include "draft_worker/wire/slice_sender.h"
#include "start/device.h"
#include "start/draft_turns.h"
#include "start/load_models.h"
#include "start/make_drafter.h"

namespace outrider {
namespace {

// Ways to the target's ranks past the coordinator, as far as the target offers them.
class DirectWays {
 public:
  DirectWays(const RoleSettings& settings, const DraftModels& models, const Welcome& welcome,
             const DraftLife& life, const RoleSeams& seams)
      : settings_(settings.models),
        models_(models),
        welcome_(welcome),
        life_(life),
        seams_(seams),
        device_(device_of_worker(settings_, target_ranks(settings_))) {
    connect_slices();
    if (slices_) use_links();
    receive_hidden_states();
  }

  SliceSender* slices() { return slices_ ? &*slices_ : nullptr; }    // null: q travels with the drafts
  RowSender* rows() { return slices_ ? slices_->rows() : nullptr; }  // null: q leaves the device
  HiddenStateInbox* hidden_states() const {
    return hidden_states_.get();
  }  // null: the coordinator sends them

 private:
  void complain(const std::string& text) const {
    life_.complain ? life_.complain(text) : log_line(LogLevel::kWarning, "{}", text);
  }
  std::string gpu() const { return seams_.gpu.empty() ? linkable_gpu(device_) : seams_.gpu; }
  bool may_cross(const std::string& gpu) const {
    return life_.crosses_hosts || on_one_host(welcome_.slices, gpu);
  }

  void connect_slices() {
    if (welcome_.slices.of_rank.empty()) return;
    auto sender = SliceSender::connect(welcome_.slices, welcome_.target.vocab_size, life_.generation,
                                       seams_.connect_timeout);
    if (sender.ok())
      slices_ = std::move(sender).value();
    else
      complain(sender.status().message() + "; dense q goes to the target through the coordinator");
  }

  void use_links() {
    if (!models_.draft || life_.turns) return;
    const std::string own = gpu();
    if (!may_link(welcome_.slices, own) || !may_cross(own)) return;
    constexpr int kMaxDrafts = 8;  // in transfer; further drafts use the sockets
    auto links = make_links(device_, welcome_.slices, welcome_.target.vocab_size, -1,
                            std::min(2 * settings_.sequences(), kMaxDrafts), seams_.q_links);
    if (links.ok()) return slices_->use_links(std::move(links).value());
    complain(links.status().message() + "; dense q goes to the target by sockets");
  }

  void receive_hidden_states() {
    const std::string own = models_.hidden_state_head ? gpu() : "";
    if (!may_link_hidden_states(welcome_.slices, own) || !may_cross(own)) return;
    const auto connect = [&]() -> Result<std::unique_ptr<HiddenStateInbox>> {
      const int64_t width = models_.hidden_state_head->hidden_size();
      ASSIGN_OR_RETURN(auto links, make_hidden_state_receiver(device_, width, settings_.sequences(),
                                                              seams_.hidden_state_links));
      return HiddenStateInbox::connect(
          welcome_.slices, std::move(links), models_.hidden_state_head->compute(),
          {.worker = life_.generation, .width = width, .patience = seams_.patience}, seams_.connect_timeout);
    };
    auto inbox = connect();
    if (inbox.ok())
      hidden_states_ = std::move(inbox).value();
    else
      complain(inbox.status().message() + "; rows of states come with the job");
  }

  const ModelSettings& settings_;
  const DraftModels& models_;
  const Welcome& welcome_;
  const DraftLife& life_;
  const RoleSeams& seams_;
  const Device device_;
  std::optional<SliceSender> slices_;
  std::unique_ptr<HiddenStateInbox> hidden_states_;
};

DraftWorkerOptions worker_options(const ModelSettings& models, const Preparation& prepared,
                                  const DraftModels& loaded, const DraftHead* head, const DraftLife& life) {
  const Head* const reader = loaded.hidden_state_head;
  return {.info = prepared.draft_info,
          .vocabulary_beginnings = prepared.vocabulary_beginnings,
          .generation = life.generation,
          .max_sequences = models.sequences(),
          .head_fingerprint = head ? head->fingerprint() : 0,
          .hidden_state_head = reader ? prepared.hidden_state_head : 0,
          .hidden_state_width = reader ? static_cast<int32_t>(reader->hidden_size()) : 0,
          .successors = models.reads_successors(),
          .finds_text = models.finds_text(),
          .drafts_blocks = models.drafts_blocks(),
          .max_prefill = models.draft_max_prefill(),
          .pass_times = loaded.pass_times,
          .process = this_process(),
          // The target may still be loading. A coordinator that is gone is noticed at once.
          .join_timeout = std::chrono::seconds(models.startup_timeout_s),
          .asked_to_leave = life.asked_to_leave};
}

// A worker in turns with those of other sessions. Its drafter uses their model, so both are made and
// destroyed where the model computes.
Result<std::optional<std::chrono::milliseconds>> draft_in_turns(
    const DraftLife& life, Transport& transport, const DraftWorkerOptions& options,
    const std::function<std::unique_ptr<Drafter>()>& make_drafter) {
  std::unique_ptr<Drafter> drafter;
  std::optional<DraftWorker> worker;
  const auto drop = [&] {
    worker.reset();
    drafter.reset();
  };
  Status status;
  try {
    life.turns->compute(life.session, [&] {
      drafter = make_drafter();
      worker.emplace(*drafter, transport, options);
    });
    life.turns->serve(life.session, *worker, transport);
    status = worker->finish();
  } catch (...) {
    life.turns->compute(life.session, drop);
    throw;
  }
  const auto rest = worker->rest();
  if (life.on_end) life.on_end(*worker);
  life.turns->compute(life.session, drop);
  RETURN_IF_ERROR(status);
  return rest;
}

}  // namespace

Result<std::optional<std::chrono::milliseconds>> live_as_drafter(const RoleSettings& settings,
                                                                 const Preparation& prepared,
                                                                 const DraftModels& models,
                                                                 Transport& transport, const DraftLife& life,
                                                                 const RoleSeams& seams) {
  const DraftHead* const head = offered_head(settings.models, target_ranks(settings.models), models.head);
  DraftWorkerOptions options = worker_options(settings.models, prepared, models, head, life);
  const auto drafter_of = [&](int64_t vocab_size, std::vector<TokenId> eos, DirectWays* ways) {
    if (!settings.speculation.synthetic_acceptance.empty()) eos.clear();
    return models.hidden_state_head ? make_head_worker(settings.models, *models.hidden_state_head,
                                                       std::move(eos), ways ? ways->hidden_states() : nullptr)
                                    : make_drafter(settings.models, prepared, models.draft, vocab_size,
                                                   std::move(eos), head, ways ? ways->rows() : nullptr);
  };
  if (life.lend) {
    const auto drafter = drafter_of(prepared.target.vocab_size, prepared.target.eos, nullptr);
    DraftWorker worker(*drafter, transport, options);
    RETURN_IF_ERROR(worker.begin_to_join());
    life.lend(transport, [&] { return worker.turn(); });
    RETURN_IF_ERROR(worker.end());
    return worker.rest();
  }
  ASSIGN_OR_RETURN(const auto welcome, join_coordinator(transport, options));
  if (!welcome) return std::optional<std::chrono::milliseconds>();
  if (life.on_joined) life.on_joined(*welcome);
  DirectWays ways(settings, models, *welcome, life, seams);
  options.vocab_size = welcome->target.vocab_size;
  options.slices = ways.slices();
  if (life.turns)
    return draft_in_turns(life, transport, options,
                          [&] { return drafter_of(welcome->target.vocab_size, welcome->eos_ids, &ways); });
  const auto drafter = drafter_of(welcome->target.vocab_size, welcome->eos_ids, &ways);
  DraftWorker worker(*drafter, transport, options);
  RETURN_IF_ERROR(worker.serve());
  return worker.rest();
}

}  // namespace outrider
