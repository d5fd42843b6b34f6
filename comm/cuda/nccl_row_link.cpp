// RowLink over NCCL: a communicator that does not block, a stream of its own, one group of sends or receives
// for each transfer. A dummy row is sent before the first transfer: NCCL connects its ends at the first use,
// and the arrival of that row proves that all ends have joined.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>

#include "base/cuda_peer.h"
#include "comm/cuda/nccl_api.h"

namespace outrider::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// Few blocks, so that a transfer that waits for its peer leaves the device to others.
constexpr int kBlocks = 4;
// Putting a transfer on its stream takes tens of microseconds once the ends are connected.
constexpr std::chrono::milliseconds kPatience{1};

// Buffers, and the streams that use them: queued work may continue for a while after a link has ended.
struct Slots {
  Slots(int64_t size, int64_t host_size) : device(size), host(host_size) {}
  DeviceBuffer<uint16_t> device;
  PinnedBuffer<uint16_t> host;
  Stream transfers, copies;  // transfers may wait for peers; copies must not wait for them
  bool are_idle() const { return is_done(transfers) && is_done(copies); }
};

// Slots shared by all links of one device; freeing them would wait for the device.
struct Room {
  Room(int index, const RowLinkOptions& link_options) : device(index), options(link_options) {
    free.push_back(make());
  }
  int64_t width() const {
    const auto at = static_cast<size_t>(options.rank);
    return options.rank == 0 ? options.bounds.back() : options.bounds[at] - options.bounds[at - 1];
  }
  int64_t slot_size() const { return options.rows * width(); }
  std::unique_ptr<Slots> make() const {
    use_device(device);
    const int64_t size = (options.slots + 1) * slot_size();  // the last slot is for the dummy row
    return std::make_unique<Slots>(size, options.rank == 0 && options.has_host_slots ? size : 0);
  }
  std::unique_ptr<Slots> take() {
    const auto idle = std::find_if(free.begin(), free.end(), [](const auto& s) { return s->are_idle(); });
    if (idle == free.end()) return make();
    auto slots = std::move(*idle);
    free.erase(idle);
    return slots;
  }

  const int device;
  const RowLinkOptions options;
  std::vector<std::unique_ptr<Slots>> free;
};

class NcclRowLink final : public RowLink {
 public:
  NcclRowLink(const NcclApi& api, std::shared_ptr<Room> room)
      : api_(api), room_(std::move(room)), options_(room_->options), slots_(room_->take()) {}
  ~NcclRowLink() override {
    abort("closed");
    room_->free.push_back(std::move(slots_));
  }

  Status connect(const ncclUniqueId& id);
  LinkState state() override;
  const std::string& reason() const override { return reason_; }
  void abort(std::string reason) override;
  bool accepts() override;
  void transfer(int32_t slot, int32_t rows) override { waiting_.push_back({.slot = slot, .rows = rows}); }
  uint64_t done() const override { return done_; }
  uint16_t* slot(int32_t slot) override { return row_of(slot, 0); }
  std::span<uint16_t> host_slot(int32_t slot) override {
    const auto size = static_cast<size_t>(room_->slot_size());
    return slots_->host.span().subspan(static_cast<size_t>(slot) * size, size);
  }
  void fill(int32_t slot, int32_t rows) override {
    copy(row_of(slot, 0), host_slot(slot).data(), rows * room_->width(), copies_);
  }
  void keep(int32_t slot, int32_t row, const uint16_t* on_device) override {
    copy(row_of(slot, row), on_device, room_->width(), copies_);
  }
  void settle() override { copies_.synchronize(); }
  void fetch(int32_t slot, int32_t row) override {
    copy(host_slot(slot).data() + row * room_->width(), row_of(slot, row), room_->width(), copies_);
    settle();
  }

 private:
  struct Transfer {
    int32_t slot = 0, rows = 0;
    std::unique_ptr<Event> ended;
  };
  uint16_t* row_of(int32_t slot, int32_t row) const {
    return slots_->device.data() + slot * room_->slot_size() + row * room_->width();
  }
  bool library_is_idle();
  void launch_waiting();
  ncclResult_t queue(const Transfer& transfer);
  ncclResult_t queue_parts(const Transfer& transfer);
  void take_launched();
  void retire();
  void check_patience(Clock::time_point now);

  const NcclApi& api_;
  const std::shared_ptr<Room> room_;
  const RowLinkOptions& options_;
  std::unique_ptr<Slots> slots_;
  const StreamView stream_ = slots_->transfers, copies_ = slots_->copies;
  ncclComm_t comm_ = nullptr;  // null: broken
  std::string reason_;
  bool launching_ = false;  // the last of launched_ may not be on the stream yet
  bool ready_ = false;
  std::deque<Transfer> waiting_, launched_;
  uint64_t done_ = 0;
  Clock::time_point asked_ = Clock::now();
  Clock::duration waited_{};  // since the last progress
};

Status NcclRowLink::connect(const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = kBlocks;
  const ncclResult_t result =
      api_.init_rank(&comm_, static_cast<int>(options_.bounds.size()), id, options_.rank, &config);
  if (!comm_ || (result != ncclSuccess && result != ncclInProgress)) {
    abort("it was never made");
    return unavailable(fmt::format("NCCL: making a communicator failed: {}", api_.error_string(result)));
  }
  transfer(options_.slots, 1);
  return {};
}

void NcclRowLink::abort(std::string reason) {
  if (!comm_) return;
  reason_ = std::move(reason);
  api_.abort(std::exchange(comm_, nullptr));
  waiting_.clear();
}

LinkState NcclRowLink::state() {
  const auto now = Clock::now();
  if (comm_ && library_is_idle()) {
    take_launched();
    launch_waiting();
  }
  retire();
  check_patience(now);
  if (!comm_) return LinkState::kBroken;
  return ready_ ? LinkState::kReady : LinkState::kConnecting;
}

bool NcclRowLink::accepts() {
  const auto end = Clock::now() + kPatience;
  while (state() == LinkState::kReady && launching_)
    if (Clock::now() >= end) return false;
  return comm_ && !launching_;
}

// A call on a communicator that does not block may continue in the background, and no other call is allowed
// until it is done.
bool NcclRowLink::library_is_idle() {
  ncclResult_t result = ncclSuccess;
  if (api_.async_error(comm_, &result) != ncclSuccess) result = ncclInternalError;
  if (result != ncclSuccess && result != ncclInProgress)
    abort(fmt::format("NCCL: {}", api_.error_string(result)));
  return comm_ && result == ncclSuccess;
}

void NcclRowLink::take_launched() {
  if (!std::exchange(launching_, false)) return;
  launched_.back().ended->record(stream_);
}

void NcclRowLink::launch_waiting() {
  while (comm_ && !launching_ && !waiting_.empty()) {
    if (launched_.empty()) waited_ = {};
    launched_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    use_device(room_->device);  // the event's device
    launched_.back().ended = std::make_unique<Event>();
    launching_ = true;
    const ncclResult_t result = queue(launched_.back());
    if (result == ncclSuccess)
      take_launched();
    else if (result != ncclInProgress)
      abort(fmt::format("NCCL: {}", api_.error_string(result)));
  }
}

ncclResult_t NcclRowLink::queue(const Transfer& transfer) {
  if (const ncclResult_t result = api_.group_start(); result != ncclSuccess) return result;
  const ncclResult_t parts = queue_parts(transfer), end = api_.group_end();
  return parts == ncclSuccess || parts == ncclInProgress ? end : parts;
}

// Sends row by row, in the same order at all ends; to a single receiver in one piece, because its rows are
// contiguous.
ncclResult_t NcclRowLink::queue_parts(const Transfer& transfer) {
  const auto stream = reinterpret_cast<cudaStream_t>(stream_.handle());
  const int32_t rows = options_.bounds.size() == 2 ? transfer.rows : 1;  // of a piece
  ncclResult_t result = ncclSuccess;
  for (int32_t i = 0; i < transfer.rows && (result == ncclSuccess || result == ncclInProgress); i += rows) {
    uint16_t* const row = row_of(transfer.slot, i);
    const auto bytes = [rows](int64_t numbers) {
      return static_cast<size_t>(rows * numbers) * sizeof(uint16_t);
    };
    if (options_.rank > 0) {
      result = api_.receive(row, bytes(room_->width()), ncclInt8, 0, comm_, stream);
      continue;
    }
    for (size_t r = 0; r + 1 < options_.bounds.size() && (result == ncclSuccess || result == ncclInProgress);
         ++r)
      result = api_.send(row + options_.bounds[r], bytes(options_.bounds[r + 1] - options_.bounds[r]),
                         ncclInt8, static_cast<int>(r) + 1, comm_, stream);
  }
  return result;
}

void NcclRowLink::retire() {
  while (comm_ && launched_.size() > (launching_ ? 1u : 0u) && is_done(*launched_.front().ended)) {
    launched_.pop_front();
    waited_ = {};
    if (std::exchange(ready_, true)) ++done_;
  }
}

void NcclRowLink::check_patience(Clock::time_point now) {
  constexpr Clock::duration kMost = std::chrono::milliseconds(100);
  waited_ += std::min(now - std::exchange(asked_, now), kMost);
  if (!comm_ || (ready_ && launched_.empty())) return;
  const auto limit = ready_ ? options_.timeout : options_.connect_timeout;
  if (waited_ > limit)
    abort(
        fmt::format("{} within {} ms", ready_ ? "rows did not pass" : "not everybody joined", limit.count()));
}

}  // namespace

RowLinks nccl_row_links(const NcclApi& api, int device, const RowLinkOptions& options) {
  const auto room = std::make_shared<Room>(device, options);
  const auto new_id = [&api]() -> Result<std::string> {
    ncclUniqueId id{};
    if (const ncclResult_t result = api.get_unique_id(&id); result != ncclSuccess)
      return unavailable(fmt::format("NCCL: no unique id: {}", api.error_string(result)));
    return std::string(id.internal, sizeof id.internal);
  };
  const auto join = [&api, room](const std::string& text) -> Result<std::unique_ptr<RowLink>> {
    ncclUniqueId id{};
    if (text.size() != sizeof id.internal) return malformed("no id of NCCL");
    std::memcpy(id.internal, text.data(), text.size());
    try {
      use_device(room->device);
      auto link = std::make_unique<NcclRowLink>(api, room);
      RETURN_IF_ERROR(link->connect(id));
      return std::unique_ptr<RowLink>(std::move(link));
    } catch (const CudaError& error) {  // no memory for the slots of one more
      return unavailable(error.what());
    }
  };
  return {new_id, join, options.rows, options.slots};
}

Result<RowLinks> nccl_row_links(int device, const RowLinkOptions& options) {
  ASSIGN_OR_RETURN(const NcclApi* const api, nccl_api());
  try {
    return nccl_row_links(*api, device, options);
  } catch (const CudaError& error) {  // no memory for the slots
    return unavailable(error.what());
  }
}

Result<std::string> linkable_device(int device) {
  RETURN_IF_ERROR(nccl_api().status());
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return fmt::format("{}/{}", host.data(), bus_id(device));
}

}  // namespace outrider::cuda
