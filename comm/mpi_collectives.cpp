#include "comm/mpi_collectives.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <string>
#include <thread>

#include "base/absence.h"
#include "base/log.h"
#include "comm/cores.h"
#include "comm/mpi_handle.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr int kAbortTag = 0;
constexpr int kTags = 30'000;  // operations are numbered modulo this; MPI promises tags up to 32767

// Polls, then yields, then sleeps. One sleep is at most a sixteenth of the wait so far, to add little
// latency, and at most 1 ms; 5 ms after a second of idleness.
class Patience {
 public:
  Patience(Waiting waiting, microseconds before_sleep)
      : spins_left_(waiting == Waiting::kSpin ? kSpins : 0), before_sleep_(before_sleep) {}

  void pause() {
    if (spins_left_ > 0) {
      --spins_left_;
      return;
    }
    const auto waited = std::chrono::duration_cast<microseconds>(Clock::now() - start_);
    if (waited < before_sleep_) {
      sched_yield();
    } else {
      const microseconds most{waited < std::chrono::seconds(1) ? 1000 : 5000};
      std::this_thread::sleep_for(std::clamp(waited / 16, microseconds{20}, most));
    }
  }

 private:
  static constexpr int kSpins = 1000;  // MPI_Test calls, about 100 us
  int spins_left_;
  const microseconds before_sleep_;
  const Clock::time_point start_ = Clock::now();
};

// Between collectives of one forward pass, ranks differ by time slices. Waiting for work is not urgent.
constexpr microseconds kYieldInOperation{2000};
constexpr microseconds kYieldForWork{50};

class MpiCollectives final : public Collectives {
 public:
  MpiCollectives(MpiComm comm, Waiting waiting, const CollectiveOptions& options)
      : comm_(std::move(comm)),
        waiting_(waiting),
        options_(options),
        rank_(comm_.rank()),
        size_(comm_.size()) {}

  ~MpiCollectives() override {
    // MPI may still read or write these after a failure; the process is about to end.
    if (!failure_.empty()) new auto(std::pair(std::move(mine_), std::move(theirs_)));
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce_sum(std::span<float> values) override {
    CHECK(std::has_single_bit(static_cast<unsigned>(size_)), "float sums need 2^k ranks, not {}", size_);
    reduce(values, [](float a, float b) { return a + b; });
  }
  void all_reduce_sum(std::span<uint64_t> values) override {
    reduce(values, [](uint64_t a, uint64_t b) { return a + b; });
  }
  void all_reduce_max(std::span<uint64_t> values) override {
    reduce(values, [](uint64_t a, uint64_t b) { return std::max(a, b); });
  }
  void all_reduce_min(std::span<uint64_t> values) override {
    reduce(values, [](uint64_t a, uint64_t b) { return std::min(a, b); });
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    CHECK(all.size() == mine.size() * ranks(), "mine={} all={} ranks={}", mine.size(), all.size(), size_);
    begin();
    gather(mine);
    std::copy_n(theirs_.begin(), all.size(), all.begin());
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    CHECK(root >= 0 && root < size_, "root={} ranks={}", root, size_);
    begin();
    if (rank_ == root) {
      mine_.assign(bytes.begin(), bytes.end());
      send_to_all();
    } else {
      theirs_.resize(bytes.size());
      receive(root, theirs_);
      wait();
      std::copy(theirs_.begin(), theirs_.end(), bytes.begin());
    }
  }

  void barrier() override {
    begin();
    disseminate(kYieldInOperation);
  }

  void meet() override {
    begin();
    deadline_ = Clock::time_point::max();
    disseminate(kYieldForWork);
  }

  void broadcast_message(std::vector<std::byte>& bytes, int root, size_t max_bytes) override {
    CHECK(root >= 0 && root < size_, "root={} ranks={}", root, size_);
    begin();
    if (rank_ == root) {
      if (bytes.size() > max_bytes)
        fail_all(fmt::format("a message of {} bytes, at most {}", bytes.size(), max_bytes));
      mine_ = bytes;
      send_to_all();
    } else {
      const size_t size = wait_for_message(root);
      if (size > max_bytes) fail_all(fmt::format("a message of {} bytes, at most {}", size, max_bytes));
      theirs_.resize(size);
      receive(root, theirs_);
      wait();
      bytes = theirs_;
    }
  }

  void abort() noexcept override {
    if (!failure_.empty()) return;  // the other ranks know it, or reported it
    failure_ = "this rank aborted the group";
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      if (MPI_Isend(nullptr, 0, MPI_BYTE, r, kAbortTag, comm(), &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
    }
  }

 private:
  MPI_Comm comm() const { return comm_.handle().comm; }
  size_t ranks() const { return static_cast<size_t>(size_); }

  void begin() {
    if (!failure_.empty()) throw CollectiveError(failure_);
    throw_if_others_aborted();
    operation_ = (operation_ + 1) % kTags;
    deadline_ = Clock::now() + options_.timeout;
  }
  int tag() const { return kAbortTag + 1 + operation_; }

  [[noreturn]] void fail_all(const std::string& reason) {
    abort();
    failure_ = reason;
    throw CollectiveError(reason);
  }
  void throw_if_others_aborted() {
    int arrived = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, kAbortTag, comm(), &arrived, &status), "MPI_Iprobe");
    if (arrived == 0) return;
    failure_ = fmt::format("rank {} of the group aborted", status.MPI_SOURCE);
    throw CollectiveError(failure_);
  }

  // ---- MPI sees only mine_ and theirs_, so that a failed operation cannot touch the caller's memory
  // --------------

  void send(int to, std::span<const std::byte> bytes) {
    MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Isend(bytes.data(), count(bytes), MPI_BYTE, to, tag(), comm(), &request), "MPI_Isend");
  }
  void receive(int from, std::span<std::byte> bytes) {
    MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Irecv(bytes.data(), count(bytes), MPI_BYTE, from, tag(), comm(), &request), "MPI_Irecv");
  }
  static int count(std::span<const std::byte> bytes) {
    CHECK(bytes.size() <= size_t{INT_MAX}, "{} bytes in one operation", bytes.size());
    return static_cast<int>(bytes.size());
  }

  // After step k a rank has heard from the 2^k ranks before it.
  void disseminate(microseconds before_sleep) {
    for (int stride = 1; stride < size_; stride *= 2) {
      receive((rank_ - stride + size_) % size_, {});
      send((rank_ + stride) % size_, {});
      wait(before_sleep);
    }
  }

  // Waits until all started operations are done.
  void wait(microseconds before_sleep = kYieldInOperation) {
    Patience patience(waiting_, before_sleep);
    MovingDeadline deadline(deadline_);
    for (uint64_t polls = 1; !done(); ++polls) {
      if (polls % 64 == 0) {
        throw_if_others_aborted();
        if (deadline.is_over())
          fail_all(fmt::format("a rank did not take part within {} ms", options_.timeout.count()));
      }
      patience.pause();
    }
    requests_.clear();
  }
  bool done() {
    int finished = 0;
    check_mpi(
        MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &finished, MPI_STATUSES_IGNORE),
        "MPI_Testall");
    return finished != 0;
  }

  // Waits without a deadline. Returns the size of the root's message.
  size_t wait_for_message(int root) {
    Patience patience(waiting_, kYieldForWork);
    while (true) {
      int arrived = 0, size = 0;
      MPI_Status status;
      check_mpi(MPI_Iprobe(root, tag(), comm(), &arrived, &status), "MPI_Iprobe");
      if (arrived != 0) {
        check_mpi(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
        deadline_ = Clock::now() + options_.timeout;
        return static_cast<size_t>(size);
      }
      throw_if_others_aborted();
      patience.pause();
    }
  }

  // Sends mine_ to every other rank.
  void send_to_all() {
    for (int r = 0; r < size_; ++r)
      if (r != rank_) send(r, mine_);
    wait();
  }

  // theirs_ = every rank's `mine`, in rank order.
  void gather(std::span<const std::byte> mine) {
    mine_.assign(mine.begin(), mine.end());
    theirs_.resize(mine.size() * ranks());
    for (int r = 0; r < size_; ++r) {
      const auto slot = std::span(theirs_).subspan(static_cast<size_t>(r) * mine.size(), mine.size());
      if (r == rank_) {
        std::copy(mine.begin(), mine.end(), slot.begin());
      } else {
        receive(r, slot);
        send(r, mine_);
      }
    }
    wait();
  }

  template <class T, class Combine>
  void reduce(std::span<T> values, Combine combine) {
    begin();
    if (std::has_single_bit(static_cast<unsigned>(size_))) return reduce_by_doubling(values, combine);
    gather(std::as_bytes(values));  // integers only, so any order is correct
    for (int r = 0; r < size_; ++r) {
      const size_t first = static_cast<size_t>(r) * values.size();
      for (size_t i = 0; i < values.size(); ++i) {
        const T theirs = load<T>(theirs_, first + i);
        values[i] = r == 0 ? theirs : combine(values[i], theirs);
      }
    }
  }

  // Recursive doubling. After step k the ranks of a block of 2^k hold the same sum, the left half's on the
  // left: the balanced tree of comm/collectives.h.
  template <class T, class Combine>
  void reduce_by_doubling(std::span<T> values, Combine combine) {
    const size_t bytes = values.size_bytes();
    mine_.resize(bytes);
    theirs_.resize(bytes);
    for (int stride = 1; stride < size_; stride *= 2) {
      const int partner = rank_ ^ stride;
      receive(partner, theirs_);
      if (bytes > 0) std::memcpy(mine_.data(), values.data(), bytes);
      send(partner, mine_);
      wait();
      for (size_t i = 0; i < values.size(); ++i) {
        const T theirs = load<T>(theirs_, i);
        values[i] = rank_ < partner ? combine(values[i], theirs) : combine(theirs, values[i]);
      }
    }
  }

  template <class T>
  static T load(const std::vector<std::byte>& bytes, size_t index) {
    T value;
    std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
    return value;
  }

  const MpiComm comm_;
  const Waiting waiting_;
  const CollectiveOptions options_;
  const int rank_;
  const int size_;
  int operation_ = 0;
  Clock::time_point deadline_;
  std::vector<MPI_Request> requests_;
  std::vector<std::byte> mine_, theirs_;
  std::string failure_;  // once set, the group is finished
};

}  // namespace

Waiting choose_waiting(const MpiComm& world) {
  const MpiComm host = world.split_by_host();
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) CPU_SET(0, &mine);
  // mpirun binds a rank to few cores; together the ranks may use the union.
  cpu_set_t all;
  check_mpi(MPI_Allreduce(&mine, &all, sizeof mine, MPI_BYTE, MPI_BOR, host.handle().comm), "MPI_Allreduce");
  const bool crowded = host.size() > std::min(CPU_COUNT(&all), quota_cores());
  return crowded ? Waiting::kYield : Waiting::kSpin;
}

std::unique_ptr<Collectives> make_mpi_collectives(MpiComm comm, Waiting waiting,
                                                  const CollectiveOptions& options) {
  return std::make_unique<MpiCollectives>(std::move(comm), waiting, options);
}

}  // namespace outrider
