// Ranks that read each other's device memory. See peer_kernels.h for the protocol.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/cuda_peer.h"
#include "base/hash.h"
#include "base/log_line.h"
#include "base/shared_pass.h"
#include "comm/cuda/peer_kernels.h"
#include "comm/cuda/peer_room.h"
#include "comm/device_group.h"

namespace outrider::cuda {
namespace {

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0;
  for (char c : text) hash = hash_combine(hash, static_cast<unsigned char>(c));
  return hash;
}

// Identity of a rank's machine and process, which decide how its memory can be reached.
uint64_t machine_id() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(boot, id);
  return hash_of(id + name);
}

// A rank's introduction to the other ranks, sent as a copy of its bytes.
struct Introduction {
  uint64_t machine = 0;
  int64_t process = 0;
  uint64_t memory = 0;  // address of the rank's memory_, for ranks of its process
  int32_t device = 0;
  uint64_t bus = 0;      // of the device: a hash of its name
  int32_t exported = 0;  // `handle` is set
  MemoryHandle handle{};
};

std::string describe_failure(uint32_t error, int64_t timeout_ms) {
  if (error == kPeerAborted) return "a rank of the group aborted or was late";
  return fmt::format("rank {} did not arrive within {} ms", error - 1, timeout_ms);
}

// Kernels of ranks that share a device wait for each other. So no kernel may be loaded at its first launch,
// which may wait for the device, and no stream may queue behind another's waiting kernel. The driver read
// these variables when it started. Every rank has two streams, for passes and other work; a draft model has
// one more.
Status check_settings_to_share(int ranks) {
  constexpr int kMaxQueues = 32;  // CUDA's maximum
  if (const char* loading = std::getenv("CUDA_MODULE_LOADING"); loading && std::strcmp(loading, "LAZY") == 0)
    return invalid_argument("CUDA_MODULE_LOADING=LAZY: ranks that share a device want EAGER; unset it");
  const int wanted = 2 * ranks + 1;
  if (wanted > kMaxQueues)
    return unavailable(fmt::format("{} ranks of this process share a device, which has queues for {}", ranks,
                                   (kMaxQueues - 1) / 2));
  const char* queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (queues && std::atoi(queues) < wanted)
    return invalid_argument(
        fmt::format("CUDA_DEVICE_MAX_CONNECTIONS={}: {} ranks that share a device want {} or more; unset it",
                    queues, ranks, wanted));
  return {};
}

using Memory = DeviceBuffer<std::byte>;  // PeerHeader, then the slots

class PeerGroup final : public DeviceGroup {
 public:
  PeerGroup(Collectives& host, const PeerOptions& options)
      : options_(options),
        memory_(std::make_shared<Memory>(kPeerHeaderBytes + 2 * options.slot_bytes)),
        error_(1) {
    view_.rank = host.rank();
    view_.size = host.size();
    view_.slot_bytes = options.slot_bytes;
    view_.timeout_ns = static_cast<uint64_t>(std::chrono::nanoseconds(options.timeout).count());
    view_.error = error_.data();
  }

  ~PeerGroup() override {
    pass_.end();
    try {
      use_device(device_);  // whoever ends it
      // Memory of ranks of one process lives as long as any such rank; memory of other processes does not.
      if (connected_ && !imported_.empty()) peer_depart(aside_, view_);
      aside_.synchronize();
    } catch (const std::exception&) {  // the device is lost, and with it the group
    }
  }

  Status connect(Collectives& host);

  int rank() const override { return view_.rank; }
  int size() const override { return view_.size; }
  std::string name() const override { return "peer memory"; }
  int device() const override { return device_; }
  bool is_capturable() const override { return true; }
  const PeerView* peer_view() const override { return &view_; }

  void begin_pass() override {
    if (shares_device_) pass_.begin();
  }
  void end_pass() noexcept override { pass_.end(); }
  bool is_in_pass() const override { return pass_.is_under_way(); }

  void all_reduce(Reduction reduction, void* values, int64_t count, StreamView stream) override {
    CHECK(reduction != Reduction::kTreeSum || std::has_single_bit(static_cast<unsigned>(size())),
          "float sums need 2^k ranks, not {}", size());
    const int64_t step = view_.slot_bytes / element_bytes(reduction);
    auto* at = static_cast<std::byte*>(values);
    for (int64_t begin = 0; begin < count; begin += step)
      peer_reduce(stream, view_, reduction, at + begin * element_bytes(reduction),
                  std::min(step, count - begin));
  }

  void all_gather(const void* mine, void* all, int64_t bytes, StreamView stream) override {
    CHECK(bytes % 4 == 0, "{} bytes", bytes);
    const int64_t words = bytes / 4, step = view_.slot_bytes / 4;
    for (int64_t begin = 0; begin < words; begin += step)
      peer_gather(stream, view_, static_cast<const uint32_t*>(mine) + begin,
                  static_cast<uint32_t*>(all) + begin, words, std::min(step, words - begin));
  }

  void wait(StreamView stream) override {
    stream.synchronize();  // kernels have a deadline
    pass_.end();
    if (const uint32_t error = *view_.error; error != 0)
      throw CollectiveError(describe_failure(error, options_.timeout.count()));
  }

  void abort() noexcept override {
    try {
      use_device(device_);
      peer_poison(aside_, view_);
      aside_.synchronize();
    } catch (const std::exception&) {  // the device is lost, and with it the group
    }
  }

 private:
  Introduction introduce() const;
  Status claim_room(Collectives& host, const std::vector<Introduction>& all);
  Status reach(int rank, const Introduction& peer, const Introduction& self);

  const PeerOptions options_;
  const int device_ = current_device();
  bool connected_ = false, shares_device_ = false;
  bool is_first_here_ = false;  // of the ranks on this device
  PeerRoom room_;               // shared by all ranks on the device, held by the first one
  SharedPass pass_;
  const std::shared_ptr<Memory> memory_;
  std::vector<std::shared_ptr<Memory>> shared_;  // by ranks of this process
  PinnedBuffer<uint32_t> error_;
  std::vector<ImportedMemory> imported_;
  Stream aside_;  // the write of the poison word must not queue behind the kernel that waits for it
  PeerView view_;
};

Introduction PeerGroup::introduce() const {
  Introduction self{.machine = machine_id(),
                    .process = getpid(),
                    .memory = reinterpret_cast<uint64_t>(&memory_),
                    .device = device_,
                    .bus = hash_of(bus_id(device_))};
  if (const auto handle = export_memory(memory_->data()); handle.ok()) {
    self.handle = *handle;
    self.exported = 1;
  }
  return self;
}

Status PeerGroup::reach(int rank, const Introduction& peer, const Introduction& self) {
  std::byte* memory = nullptr;
  if (peer.machine != self.machine) return unavailable(fmt::format("rank {} is on another machine", rank));
  if (peer.process == self.process) {
    RETURN_IF_ERROR(allow_peer(peer.device));
    shares_device_ |= rank != view_.rank && peer.bus == self.bus;
    shared_.push_back(*reinterpret_cast<const std::shared_ptr<Memory>*>(peer.memory));
    memory = shared_.back()->data();
  } else {
    if (peer.bus == self.bus)
      return unavailable(fmt::format("rank {} is another process on the same device", rank));
    if (!peer.exported) return unavailable(fmt::format("rank {} cannot share its device memory", rank));
    ASSIGN_OR_RETURN(ImportedMemory imported, ImportedMemory::open(peer.handle));
    memory = static_cast<std::byte*>(imported.data());
    imported_.push_back(std::move(imported));
  }
  view_.headers[rank] = reinterpret_cast<PeerHeader*>(memory);
  view_.slots[rank] = memory + kPeerHeaderBytes;
  return {};
}

// Claims the number of blocks that every device has for all its ranks. An error of a single rank is reported
// by that rank.
Status PeerGroup::claim_room(Collectives& host, const std::vector<Introduction>& all) {
  const Introduction& self = all[static_cast<size_t>(rank())];
  const auto is_here = [&](const Introduction& other) {
    return other.machine == self.machine && other.process == self.process && other.bus == self.bus;
  };
  const auto sharing = static_cast<int>(std::count_if(all.begin(), all.end(), is_here));
  Status status;
  uint64_t blocks = kMaxPeerBlocks;
  is_first_here_ = std::find_if(all.begin(), all.end(), is_here) == all.begin() + rank();
  if (is_first_here_) {
    auto room = PeerRoom::claim(self.bus, resident_blocks(device_), sharing);
    status = room.status();
    if (room.ok()) room_ = std::move(room).value();
    blocks = static_cast<uint64_t>(room_.blocks());
  }
  host.all_reduce_min(std::span(&blocks, 1));
  room_.keep(static_cast<int>(blocks));
  view_.most_blocks = static_cast<int32_t>(blocks);
  return status;
}

Status PeerGroup::connect(Collectives& host) {
  const Introduction self = introduce();
  std::vector<Introduction> all(static_cast<size_t>(size()));
  host.all_gather(std::as_bytes(std::span(&self, 1)), std::as_writable_bytes(std::span(all)));
  pass_.join(hash_combine(all[0].memory, static_cast<uint64_t>(all[0].process)));
  Status status = claim_room(host, all);
  if (const int ranks = PeerRoom::ranks_on(self.bus); status.ok() && ranks > 1)
    status = check_settings_to_share(ranks);
  if (!status.ok() && is_first_here_)
    log_line(LogLevel::kWarning,
             "{}. Until then these ranks add their parts through host memory, which takes longer",
             status.message());
  for (int r = 0; r < size() && status.ok(); ++r) status = reach(r, all[static_cast<size_t>(r)], self);
  uint64_t failures = status.ok() ? 0 : 1;
  host.all_reduce_sum(std::span(&failures, 1));
  connected_ = failures == 0;
  if (!status.ok()) return status.in(fmt::format("peer memory, rank {}", rank()));
  if (connected_) return status;
  return unavailable(fmt::format("peer memory: {} of {} ranks cannot reach the others", failures, size()));
}

}  // namespace

Result<std::unique_ptr<DeviceGroup>> make_peer_group(Collectives& host, const PeerOptions& options) {
  CHECK(options.slot_bytes > 0 && options.slot_bytes % 16 == 0, "slot_bytes={}", options.slot_bytes);
  if (host.size() > kMaxDeviceRanks)
    return unsupported(
        fmt::format("peer memory serves at most {} ranks, not {}", kMaxDeviceRanks, host.size()));
  auto group = std::make_unique<PeerGroup>(host, options);
  RETURN_IF_ERROR(group->connect(host));
  return std::unique_ptr<DeviceGroup>(std::move(group));
}

}  // namespace outrider::cuda
