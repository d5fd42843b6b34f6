#include "coordinator/rounds/workers_wanted.h"

#include <algorithm>
#include <cmath>

#include "coordinator/gamma/acceptance.h"
#include "coordinator/rounds/pool_limits.h"

namespace outrider {
namespace {

int32_t ceil_of(int32_t part, int32_t whole) { return (part + whole - 1) / whole; }

// The best rate of a group with drafts for `drafted` sequences. No worker drafts for more than `most`
// sequences.
double rate_of(const DraftedBatch& batch, int32_t drafted, int32_t most) {
  double best = batch.sequences / batch.cost->verify_seconds(batch.sequences, batch.context);
  for (int32_t gamma = 1; drafted > 0 && gamma <= batch.gamma_max; ++gamma) {
    const double seconds = batch.cost->verify_seconds(batch.sequences + gamma * drafted, batch.context) +
                           batch.cost->exchange_seconds() + batch.worker.seconds(gamma, gamma * most);
    const double tokens = batch.sequences - drafted + drafted * expected_tokens(batch.acceptance, gamma);
    best = std::max(best, tokens / seconds);
  }
  return best;
}

double rate_of(std::span<const DraftedBatch> batches, int32_t drafted, int32_t workers) {
  const int32_t most = workers > 0 ? ceil_of(drafted, workers) : 0;
  double rate = 0;
  for (const DraftedBatch& batch : batches) {
    if (batch.sequences == 0) continue;
    const int32_t here = std::min(batch.sequences, drafted);
    drafted -= here;
    rate += rate_of(batch, here, most);
  }
  return rate;
}

}  // namespace

int32_t workers_wanted(std::span<const DraftedBatch> batches, int32_t room) {
  int32_t sequences = 0;
  for (const DraftedBatch& batch : batches) {
    if (batch.sequences > 0 && !batch.cost->draft_known()) return 1;
    sequences += batch.sequences;
  }
  int32_t wanted = 0;
  double best = rate_of(batches, 0, 0);
  int32_t last_drafted = 0, last_most = 0;
  for (int32_t workers = 1; workers <= std::min(sequences, kMostDraftWorkers); ++workers) {
    const auto drafted = static_cast<int32_t>(std::min<int64_t>(sequences, int64_t{workers} * room));
    const int32_t most = ceil_of(drafted, workers);
    if (drafted == last_drafted && most == last_most) continue;  // as fast as fewer
    last_drafted = drafted, last_most = most;
    const double worth = rate_of(batches, drafted, workers) / std::pow(1 + kWorkerGain, workers);
    if (worth > best * (1 + 1e-9)) best = worth, wanted = workers;
  }
  return wanted;
}

}  // namespace outrider
