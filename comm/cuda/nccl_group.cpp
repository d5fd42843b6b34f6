// Device operations over NCCL. Each one is an NCCL all-gather, which moves bytes and so cannot change bits;
// sums are computed in the fixed tree. The communicator does not block: every call is polled against a
// deadline, and a communicator that misses it is aborted.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include "base/cuda_peer.h"
#include "comm/cuda/nccl_api.h"
#include "comm/cuda/reduce.h"

namespace outrider::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// Polls `done` until it is true or the deadline passes; at first without yielding the core.
template <class Done>
bool poll_until(Clock::time_point deadline, Done done) {
  constexpr int kSpins = 2000;
  for (int i = 0; !done(); ++i) {
    if (i < kSpins) continue;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(const NcclApi& api, Collectives& host, const NcclOptions& options)
      : api_(api),
        options_(options),
        rank_(host.rank()),
        size_(host.size()),
        gathered_(options.slot_bytes * host.size()) {}
  ~NcclGroup() override;

  Status connect(const ncclUniqueId& id);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "NCCL"; }
  int device() const override { return device_; }
  bool is_capturable() const override { return true; }

  void all_reduce(Reduction reduction, void* values, int64_t count, StreamView stream) override;
  void all_gather(const void* mine, void* all, int64_t bytes, StreamView stream) override;
  void wait(StreamView stream) override;
  void abort() noexcept override;

 private:
  Status settle(ncclResult_t result, const char* what, std::chrono::milliseconds limit);
  [[noreturn]] void fail(const std::string& reason) {
    abort();
    throw CollectiveError(reason);
  }

  const NcclApi& api_;
  const NcclOptions options_;
  const int rank_, size_;
  const int device_ = current_device();
  DeviceBuffer<std::byte> gathered_;
  ncclComm_t comm_ = nullptr;   // null: never made, or aborted
  std::future<void> aborting_;  // valid: the library is aborting
};

// A call on a communicator that does not block may continue in the background.
Status NcclGroup::settle(ncclResult_t result, const char* what, std::chrono::milliseconds limit) {
  const bool in_time = poll_until(Clock::now() + limit, [&] {
    if (result != ncclInProgress) return true;
    if (api_.async_error(comm_, &result) != ncclSuccess) result = ncclInternalError;
    return result != ncclInProgress;
  });
  if (!in_time)
    return deadline_exceeded(fmt::format("NCCL: {} did not end within {} ms", what, limit.count()));
  if (result != ncclSuccess)
    return unavailable(fmt::format("NCCL: {} failed: {}", what, api_.error_string(result)));
  return {};
}

Status NcclGroup::connect(const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result = api_.init_rank(&comm_, size_, id, rank_, &config);
  const Status status =
      comm_ || result == ncclSuccess
          ? settle(result, "making a communicator", options_.start_timeout)
          : unavailable(fmt::format("NCCL: making a communicator failed: {}", api_.error_string(result)));
  if (!status.ok()) abort();
  return status;
}

NcclGroup::~NcclGroup() {
  if (comm_) {
    if (settle(api_.finalize(comm_), "closing a communicator", options_.timeout).ok())
      api_.destroy(comm_);
    else
      abort();
  }
  // The graphs are destroyed by now. An abort that still hangs is abandoned, so that the program can end.
  if (aborting_.valid()) aborting_.wait_for(options_.timeout);
}

// The library first releases waiting kernels, and then waits for the graphs with its operations, which belong
// to the calling thread. So another thread waits.
void NcclGroup::abort() noexcept {
  if (!comm_) return;
  const auto comm = std::exchange(comm_, nullptr);
  try {
    std::promise<void> done;
    aborting_ = done.get_future();
    std::thread([&api = api_, device = device_, comm, done = std::move(done)]() mutable {
      try {
        use_device(device);
      } catch (const std::exception&) {  // the device is lost
      }
      api.abort(comm);
      done.set_value();
    }).detach();
  } catch (const std::exception&) {  // without a thread: waits here
    api_.abort(comm);
  }
}

void NcclGroup::all_gather(const void* mine, void* all, int64_t bytes, StreamView stream) {
  if (!comm_) throw CollectiveError("the group was aborted");
  if (bytes == 0) return;
  const ncclResult_t result = api_.all_gather(mine, all, static_cast<size_t>(bytes), ncclInt8, comm_,
                                              reinterpret_cast<cudaStream_t>(stream.handle()));
  if (const Status status = settle(result, "an all-gather", options_.timeout); !status.ok())
    fail(status.message());
}

void NcclGroup::all_reduce(Reduction reduction, void* values, int64_t count, StreamView stream) {
  CHECK(reduction != Reduction::kTreeSum || std::has_single_bit(static_cast<unsigned>(size_)),
        "float sums need 2^k ranks, not {}", size_);
  const int64_t width = element_bytes(reduction), step = options_.slot_bytes / width;
  for (int64_t begin = 0; begin < count; begin += step) {
    auto* at = static_cast<std::byte*>(values) + begin * width;
    const int64_t n = std::min(step, count - begin);
    all_gather(at, gathered_.data(), n * width, stream);
    reduce_gathered(stream, reduction, size_, gathered_.data(), at, n);
  }
}

void NcclGroup::wait(StreamView stream) {
  if (!comm_) throw CollectiveError("the group was aborted");
  ncclResult_t result = ncclSuccess;
  const bool in_time = poll_until(Clock::now() + options_.timeout, [&] {
    if (is_done(stream)) return true;
    if (api_.async_error(comm_, &result) != ncclSuccess) result = ncclInternalError;
    return result != ncclSuccess && result != ncclInProgress;
  });
  if (!in_time)
    fail(fmt::format("NCCL: rank {} waited {} ms for its peers", rank_, options_.timeout.count()));
  if (result != ncclSuccess && result != ncclInProgress)
    fail(fmt::format("NCCL: {}", api_.error_string(result)));
}

// The first failure of any rank is reported on all ranks, so they leave together.
Status agree(Collectives& host, const Status& mine) {
  uint64_t failures = mine.ok() ? 0 : 1;
  host.all_reduce_sum(std::span(&failures, 1));
  if (failures == 0 || !mine.ok()) return mine;
  return unavailable(fmt::format("NCCL failed on {} of {} ranks", failures, host.size()));
}

}  // namespace

Result<std::unique_ptr<DeviceGroup>> make_nccl_group(const NcclApi& api, Collectives& host,
                                                     const NcclOptions& options) {
  ncclUniqueId id{};
  Status status;
  if (host.rank() == 0)
    if (const ncclResult_t result = api.get_unique_id(&id); result != ncclSuccess)
      status = unavailable(fmt::format("NCCL: no unique id: {}", api.error_string(result)));
  RETURN_IF_ERROR(agree(host, status));
  host.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
  auto group = std::make_unique<NcclGroup>(api, host, options);
  RETURN_IF_ERROR(agree(host, group->connect(id)));
  return std::unique_ptr<DeviceGroup>(std::move(group));
}

Result<std::unique_ptr<DeviceGroup>> make_nccl_group(Collectives& host, const NcclOptions& options) {
  if (host.size() > kMaxDeviceRanks)
    return unsupported(fmt::format("at most {} ranks share sums, not {}", kMaxDeviceRanks, host.size()));
  const auto api = nccl_api();
  RETURN_IF_ERROR(agree(host, api.status()));
  return make_nccl_group(**api, host, options);
}

}  // namespace outrider::cuda
