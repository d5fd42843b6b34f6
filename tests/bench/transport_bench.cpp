// A round trip between a coordinator's end and one worker's end in another thread: Propose there, Draft back.
//   round_trip/WIRE/QKIND    gamma 8; dense q has 8 rows of 32000 weights, sparse q 8 rows of 64
//   bytes  of both frames    bytes/s  that they make up
// Correctness first: the draft that arrives is the one that was sent.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <stop_token>
#include <string>
#include <thread>

#include "base/log.h"
#include "comm/transport.h"

namespace outrider::bench {
namespace {

using namespace std::chrono_literals;

constexpr int kGamma = 8;
constexpr uint32_t kVocab = 32000, kSparse = 64;

Draft make_draft(QKind kind) {
  Draft draft{.sequence = SequenceId(1), .q_kind = kind};
  for (int i = 0; i < kGamma; ++i) {
    draft.ids.emplace_back(i * 17);
    if (kind == QKind::kNone) continue;
    QRow& row = draft.q.emplace_back();
    const uint32_t entries = kind == QKind::kDense ? kVocab : kSparse;
    for (uint32_t v = 0; v < entries; ++v) {
      if (kind == QKind::kSparse) row.ids.push_back(v * 17);
      row.weights.push_back(1 + v % 1000);
      row.sum += row.weights.back();
    }
  }
  return draft;
}

bool same(const Draft& a, const Draft& b) {
  if (a.ids != b.ids || a.q.size() != b.q.size()) return false;
  for (size_t i = 0; i < a.q.size(); ++i)
    if (a.q[i].ids != b.q[i].ids || a.q[i].weights != b.q[i].weights) return false;
  return true;
}

// The coordinator's end, and a thread that answers every Propose with the same draft.
class Echo {
 public:
  Echo(const std::string& wire, const Draft& draft) {
    if (wire == "inproc") {
      auto hub = make_inproc_hub();
      coordinator_ = hub->coordinator_end();
      worker_end_ = hub->connect();
    } else {
      const std::string bind = wire == "ipc" ? "ipc://" + socket_path() : "tcp://127.0.0.1:*";
      coordinator_ = make_zmq_server(bind).value();
      worker_end_ = make_zmq_client(coordinator_->endpoint()).value();
    }
    CHECK(worker_end_->send(kCoordinatorPeer, Hello{}).ok(), "hello on {}", wire);
    worker_ = coordinator_->receive(Clock::now() + 5s).value().peer;
    thread_ = std::jthread([this, &draft](const std::stop_token& stop) {
      while (!stop.stop_requested())
        if (worker_end_->receive(Clock::now() + 50ms))
          CHECK(worker_end_->send(kCoordinatorPeer, draft).ok(), "draft");
    });
  }
  ~Echo() {
    thread_ = {};
    std::filesystem::remove(socket_path());
  }

  Incoming round_trip() {
    Propose propose{.sequence = SequenceId(1), .committed = std::vector<TokenId>(4), .gamma = kGamma};
    CHECK(coordinator_->send(worker_, propose).ok(), "propose");
    return coordinator_->receive(Clock::now() + 5s).value();
  }

 private:
  static std::string socket_path() {
    return (std::filesystem::temp_directory_path() / ("outrider-bench-" + std::to_string(getpid()))).string();
  }

  std::unique_ptr<Transport> coordinator_, worker_end_;
  PeerId worker_;
  std::jthread thread_;
};

void BM_RoundTrip(benchmark::State& state, const std::string& wire, QKind kind) {
  const Draft draft = make_draft(kind);
  Echo echo(wire, draft);
  const Incoming first = echo.round_trip();
  if (!same(std::get<Draft>(first.message), draft))
    return state.SkipWithError("the draft changed on its way");
  for (auto _ : state) benchmark::DoNotOptimize(echo.round_trip());
  state.counters["bytes"] = static_cast<double>(first.bytes);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(first.bytes));
}

}  // namespace
}  // namespace outrider::bench

int main(int argc, char** argv) {
  using namespace outrider;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  for (const std::string wire : {"inproc", "ipc", "tcp"})
    for (const auto& [name, kind] :
         {std::pair{"none", QKind::kNone}, {"sparse", QKind::kSparse}, {"dense", QKind::kDense}})
      benchmark::RegisterBenchmark(
          ("round_trip/" + wire + "/" + name).c_str(),
          [wire, k = kind](benchmark::State& state) { bench::BM_RoundTrip(state, wire, k); })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
  benchmark::RunSpecifiedBenchmarks();
}
