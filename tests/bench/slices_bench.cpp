// Dense q whole, through the coordinator, against slices, straight to each target rank: the same requests on
// the same engine (one process, ranks and drafter are threads, Unix sockets between them), in turns.
//   slices_bench TARGET DRAFT [RANKS = 2] [TURNS = 5]
//   tokens/s, ms a round  medians over the turns (lowest to highest), first tokens included
//   coordinator           kB a round that it receives and sends; slices: that pass by it
//   1 Gbit/s              what leaves the draft worker takes so long, whole rows and slices alike; the
//                         coordinator's plan to the target is free
// Correctness first: both give the same text.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>

#include "base/statistics.h"
#include "comm/codec.h"
#include "tests/support/test_cluster.h"

namespace outrider::bench {
namespace {

using testing::ClusterOptions;
using testing::DrafterKind;
using testing::TestCluster;

constexpr double kBytesPerSecond = 1e9 / 8;

// The draft worker's way out, which all slices share.
class Nic {
 public:
  Clock::time_point leaves_at(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::chrono::duration<double> takes(static_cast<double>(bytes) / kBytesPerSecond);
    free_at_ = std::max(free_at_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(takes);
    return free_at_;
  }

 private:
  std::mutex mutex_;
  Clock::time_point free_at_{};
};

// A message at this endpoint becomes visible when the NIC has finished receiving it. A thread records its
// arrival time.
class EndpointBehindNic final : public Transport {
 public:
  EndpointBehindNic(std::unique_ptr<Transport> inner, std::shared_ptr<Nic> nic)
      : inner_(std::move(inner)),
        nic_(std::move(nic)),
        reader_([this](std::stop_token stop) { read(stop); }) {}
  Status send(PeerId, const Message&) override { return unsupported("doors only take"); }
  std::optional<Incoming> receive(Clock::time_point deadline) override {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_until(lock, deadline, [this] { return !waiting_.empty(); })) return std::nullopt;
    const auto due = waiting_.front().first;
    lock.unlock();
    std::this_thread::sleep_until(std::min(due, deadline));
    if (due > deadline) return std::nullopt;
    lock.lock();
    Incoming incoming = std::move(waiting_.front().second);
    waiting_.pop_front();
    return incoming;
  }
  const TransportStats& stats() const override { return inner_->stats(); }

 private:
  void read(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      auto incoming = inner_->receive(Clock::now() + std::chrono::milliseconds(50));
      if (!incoming) continue;
      const auto due = nic_->leaves_at(incoming->bytes);
      const std::lock_guard lock(mutex_);
      waiting_.emplace_back(due, std::move(*incoming));
      arrived_.notify_one();
    }
  }

  const std::unique_ptr<Transport> inner_;
  const std::shared_ptr<Nic> nic_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::pair<Clock::time_point, Incoming>> waiting_;
  std::jthread reader_;  // the last: it uses what stands before it
};

struct Way {
  const char* name;
  bool slices, slow, drafts = true;
};
constexpr Way kWays[] = {{"whole", false, false},
                         {"slices", true, false},
                         {"whole, 1 Gbit/s", false, true},
                         {"slices, 1 Gbit/s", true, true},
                         {"no drafts", false, false, false}};

struct Run {
  double tokens_per_s = 0, round_ms = 0, accepted = 0, coordinator_kb = 0, slice_kb = 0;
  std::vector<std::vector<TokenId>> texts;
};

std::vector<Request> requests() {
  std::vector<Request> all;
  for (uint64_t i = 0; i < 3; ++i) {
    Request request{
        .prompt = {TokenId(static_cast<int32_t>(100 + i)), TokenId(5)}, .max_tokens = 40, .ignore_eos = true};
    request.sampling = {.rule = Rule::kToken, .temperature = 1, .seed = Seed{i}};
    all.push_back(std::move(request));
  }
  return all;
}

Run run(ClusterOptions options, const Way& way) {
  options.slices = way.slices;
  if (!way.drafts) options.drafter = DrafterKind::kNone;
  if (way.slow) options.link = "rate=1gbit";
  if (way.slices && way.slow)
    options.endpoint = [nic = std::make_shared<Nic>()](int, std::unique_ptr<Transport> endpoint) {
      return std::make_unique<EndpointBehindNic>(std::move(endpoint), nic);
    };
  TestCluster cluster(options);
  (void)cluster.run(requests());  // warms up
  const auto counts = [&] {
    uint64_t bytes = 0;
    const TransportStats& stats = cluster.transport_stats();
    for (size_t i = 0; i < TransportStats::kKinds; ++i)
      bytes += stats.sent_bytes[i] + stats.received_bytes[i];
    return std::pair(cluster.totals(), static_cast<double>(bytes));
  };
  const auto [before, bytes_before] = counts();
  const auto start = Clock::now();
  const auto finished = cluster.run(requests());
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const auto [after, bytes] = counts();
  const auto passes = static_cast<double>(after.target_passes - before.target_passes);
  const auto emitted = static_cast<double>(after.rounds.emitted - before.rounds.emitted);
  Run result{.tokens_per_s = emitted / seconds,
             .round_ms = 1e3 * seconds / passes,
             .accepted = static_cast<double>(after.rounds.accepted - before.rounds.accepted) / passes,
             .coordinator_kb = (bytes - bytes_before) / passes / 1e3,
             .slice_kb = static_cast<double>(after.slice_bytes - before.slice_bytes) / passes / 1e3,
             .texts = {}};
  for (const auto& f : finished) result.texts.push_back(f.ids);
  return result;
}

template <class Value>
std::string spread(const std::vector<Run>& runs, Value value, const char* form) {
  std::vector<double> values;
  for (const Run& run : runs) values.push_back(value(run));
  const auto text = [&](double figure) { return fmt::format(fmt::runtime(form), figure); };
  const Spread all = Spread::of(values);
  return fmt::format("{} ({} to {})", text(all.median), text(all.low), text(all.high));
}

int bench(const ClusterOptions& options, int turns) {
  std::vector<Run> runs[std::size(kWays)];
  for (int turn = 0; turn < turns; ++turn)
    for (size_t w = 0; w < std::size(kWays); ++w) {
      runs[w].push_back(run(options, kWays[w]));
      if (!kWays[w].drafts || runs[w].back().texts == runs[0].front().texts) continue;
      std::fprintf(stderr, "%s: another text\n", kWays[w].name);
      return 1;
    }
  std::printf(
      "%d ranks\n| q | tokens/s | ms a round | accepted a round | coordinator, kB a round | slices, kB |\n",
      options.tp_size);
  for (size_t w = 0; w < std::size(kWays); ++w) {
    const Run any = runs[w].front();
    std::printf("| %s | %s | %s | %.2f | %.1f | %.1f |\n", kWays[w].name,
                spread(
                    runs[w], [](const Run& r) { return r.tokens_per_s; }, "{:.1f}")
                    .c_str(),
                spread(
                    runs[w], [](const Run& r) { return r.round_ms; }, "{:.2f}")
                    .c_str(),
                any.accepted, any.coordinator_kb, any.slice_kb);
  }
  return 0;
}

}  // namespace
}  // namespace outrider::bench

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "%s TARGET DRAFT [RANKS] [TURNS]: model directories, as outrider synth makes them\n",
                 argv[0]);
    return 1;
  }
  outrider::testing::ClusterOptions options{
      .target = argv[1], .draft = argv[2], .drafter = outrider::testing::DrafterKind::kModel};
  options.tp_size = argc > 3 ? std::atoi(argv[3]) : 2;
  options.wire = outrider::testing::Wire::kZmqIpc;
  return outrider::bench::bench(options, argc > 4 ? std::atoi(argv[4]) : 5);
}
