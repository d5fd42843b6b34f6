#include "simulated_ranks.h"

#include <algorithm>
#include <deque>

#include "base/short_weight.h"
#include "toy_model.h"

namespace outrider {
namespace {

constexpr size_t kHighWaterMark = 8;  // slices waiting at one endpoint

uint32_t weight_of(const QSlice& slice, int64_t width, size_t row, int64_t id) {
  const auto packed = slice.weights.at(row * static_cast<size_t>(width) + static_cast<size_t>(id));
  return unpack_short_weight(packed).value();
}

}  // namespace

class SimulatedRanks::RankEndpoint final : public Transport {
 public:
  Status send(PeerId, const Message&) override { return unsupported("doors only take"); }
  std::optional<Incoming> receive(Clock::time_point) override {
    if (waiting.empty()) return std::nullopt;
    Incoming incoming{.peer = {}, .message = std::move(waiting.front())};
    waiting.pop_front();
    return incoming;
  }
  const TransportStats& stats() const override { return stats_; }

  std::deque<QSlice> waiting;

 private:
  TransportStats stats_;
};

struct SimulatedRanks::Rank {
  Rank(std::unique_ptr<RankEndpoint> own_endpoint, const SliceSlotsOptions& options)
      : endpoint(own_endpoint.get()), inbox(std::move(own_endpoint), options) {}
  RankEndpoint* const endpoint;  // the inbox's
  SliceInbox inbox;
};

SimulatedRanks::SimulatedRanks(int count, int32_t sequences, int32_t rows) {
  for (int r = 0; r < count; ++r)
    ranks_.push_back(std::make_unique<Rank>(
        std::make_unique<RankEndpoint>(),
        SliceSlotsOptions{
            .range = vocab_range(kToyVocab, {r, count}), .sequences = sequences, .rows = rows}));
}
SimulatedRanks::~SimulatedRanks() = default;

void SimulatedRanks::check(bool condition, const char* what) {
  if (!condition && error_.empty()) error_ = what;
}

void SimulatedRanks::hand_over(int rank, const QSlice& slice) {
  const auto [at, is_new] = drawn_[{slice.sequence, slice.round, slice.worker}].try_emplace(rank, slice);
  check(is_new || at->second.weights == slice.weights, "a worker drew one draft from two distributions");
}

bool SimulatedRanks::endpoint_is_full(int rank) const {
  return ranks_[static_cast<size_t>(rank)]->endpoint->waiting.size() >= kHighWaterMark;
}

void SimulatedRanks::arrive(int rank, const QSlice& slice) {
  ranks_[static_cast<size_t>(rank)]->endpoint->waiting.push_back(slice);
}

void SimulatedRanks::begin(const StepPlan& plan) {
  for (const auto& rank : ranks_) {
    for (const SequenceId id : plan.closes) rank->inbox.slots().close(id);
    for (const Open& open : plan.opens) rank->inbox.slots().open(open.sequence);
  }
}

bool SimulatedRanks::collect(std::span<const PlanEntry> entries) {
  bool complete = true;
  for (const auto& rank : ranks_) complete &= rank->inbox.collect(entries, {});
  return complete;
}

std::set<SequenceId> SimulatedRanks::gather(std::span<const PlanEntry> entries) {
  std::vector<uint64_t> sums;
  for (const auto& rank : ranks_) {
    const auto mine = rank->inbox.slots().tally(entries);
    sums.resize(mine.size());
    for (size_t i = 0; i < mine.size(); ++i) sums[i] += mine[i];
  }
  std::set<SequenceId> lost;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    std::vector<SlicedQ> sliced(entries.size());
    std::ranges::copy(sums, ranks_[r]->inbox.slots().tally(entries).begin());
    ranks_[r]->inbox.slots().settle(entries, count(), sliced);
    for (size_t e = 0; e < entries.size(); ++e) {
      if (entries[e].q_kind != QKind::kSlices) continue;
      if (r == 0 && sliced[e].lost) lost.insert(entries[e].sequence);
      check(sliced[e].lost == lost.contains(entries[e].sequence), "ranks disagree about what is lost");
      if (!sliced[e].lost) check_rows(entries[e], r, sliced[e]);
      used_ += r == 0 && !sliced[e].lost && !entries[e].draft.empty();
    }
  }
  return lost;
}

// The draft's own distributions and no others: not those of another round, worker or rank.
void SimulatedRanks::check_rows(const PlanEntry& entry, size_t rank, const SlicedQ& q) {
  if (entry.draft.empty()) return;
  const auto drawn = drawn_.find({entry.sequence, entry.round, entry.worker});
  check(drawn != drawn_.end() && drawn->second.size() == ranks_.size(), "q of a draft that was never sliced");
  check(q.rows.size() == entry.draft.size() && q.drafted.size() == q.rows.size(), "another number of rows");
  for (size_t i = 0; i < entry.draft.size() && error_.empty(); ++i) {
    uint64_t sum = 0, drafted = 0;
    for (const auto& [r, slice] : drawn->second) {
      const IndexRange range = vocab_range(kToyVocab, {r, count()});
      for (int64_t id = 0; id < range.size(); ++id) {
        const uint32_t weight = weight_of(slice, range.size(), i, id);
        sum += weight;
        if (range.begin + id == entry.draft[i].value()) drafted = weight;
        if (r == static_cast<int>(rank))
          check(q.rows[i].weights.at(static_cast<size_t>(id)) == weight, "weights of another draft");
      }
    }
    check(q.rows[i].sum == sum, "not the sum of the whole row");
    check(q.drafted[i] == drafted, "not the weight of the drafted token");
  }
}

}  // namespace outrider
