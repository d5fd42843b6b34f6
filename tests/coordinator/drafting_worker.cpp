#include "drafting_worker.h"

#include "rows_gate.h"
#include "toy_language_model.h"
#include "toy_model.h"

namespace outrider {
namespace {

class Outbox final : public Transport {
 public:
  Status send(PeerId, const Message& message) override {
    sent.push_back(message);
    return {};
  }
  std::optional<Incoming> receive(Clock::time_point) override { return std::nullopt; }
  const TransportStats& stats() const override { return stats_; }

  std::vector<Message> sent;

 private:
  TransportStats stats_;
};

class RankEndpoint final : public Transport {
 public:
  RankEndpoint(int rank, const std::function<Status(int rank, const QSlice& slice)>& to_rank)
      : rank_(rank), to_rank_(to_rank) {}
  Status send(PeerId, const Message& message) override { return to_rank_(rank_, std::get<QSlice>(message)); }
  std::optional<Incoming> receive(Clock::time_point) override { return std::nullopt; }
  const TransportStats& stats() const override { return stats_; }

 private:
  const int rank_;
  const std::function<Status(int rank, const QSlice& slice)> to_rank_;
  TransportStats stats_;
};

SliceSender make_sender(const DraftingWorker::Options& options) {
  std::vector<std::unique_ptr<Transport>> endpoints;
  for (int r = 0; r < options.ranks; ++r)
    endpoints.push_back(std::make_unique<RankEndpoint>(r, options.to_rank));
  return {std::move(endpoints), kToyVocab, options.generation};
}

}  // namespace

// Texts that were read are kept by every second worker; the others must be empty when all is closed.
struct DraftingWorker::Parts {
  explicit Parts(const Options& options)
      : keeps(options.spare_blocks % 2 == 1),
        model(make_toy_language_model(
            {.accuracy = options.accuracy,
             .kv_blocks = options.max_sequences * kv_blocks_for(96) + options.spare_blocks})),
        drafter(make_model_drafter(*model, {.max_sequences = options.max_sequences,
                                            .kept_texts = keeps ? 2 : 0,
                                            .eos_ids = {kToyEos},
                                            .now = options.now})),
        gate(options.needs_rows ? std::make_unique<RowsGate>(std::move(drafter)) : nullptr),
        slices(make_sender(options)),
        worker(gate ? static_cast<Drafter&>(*gate) : *drafter, outbox,
               {.info = {},
                .hidden_state_width = gate ? 1 : 0,
                .slices = options.ranks > 0 ? &slices : nullptr}) {}

  const bool keeps;
  Outbox outbox;
  std::unique_ptr<Model> model;
  std::unique_ptr<Drafter> drafter;
  std::unique_ptr<RowsGate> gate;  // holds the drafter
  SliceSender slices;
  DraftWorker worker;
};

DraftingWorker::DraftingWorker(const Options& options) : parts_(std::make_unique<Parts>(options)) {}
DraftingWorker::~DraftingWorker() = default;
DraftingWorker::DraftingWorker(DraftingWorker&&) noexcept = default;

void DraftingWorker::handle(const Message& message) {
  if (const auto* open = std::get_if<Open>(&message)) open_.insert(open->sequence);
  if (const auto* close = std::get_if<Close>(&message)) open_.erase(close->sequence);
  parts_->worker.handle(message);
}

bool DraftingWorker::work() {
  const bool worked = parts_->worker.work();
  const KvCache& kv = parts_->model->kv();
  if (parts_->gate && !parts_->gate->error.empty()) error_ = parts_->gate->error;
  if (!kv.check_invariants().ok()) error_ = kv.check_invariants().message();
  if (open_.empty() && !parts_->keeps && kv.free_blocks() != kv.num_blocks()) error_ = "KV blocks leaked";
  return worked;
}

std::vector<Message> DraftingWorker::take_replies() { return std::exchange(parts_->outbox.sent, {}); }

}  // namespace outrider
