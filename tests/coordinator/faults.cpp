#include "faults.h"

namespace outrider {

FaultCounts& FaultCounts::operator+=(const FaultCounts& more) {
  drop += more.drop, duplicate += more.duplicate, corrupt += more.corrupt, refuse_send += more.refuse_send;
  worker_death += more.worker_death, target_failure += more.target_failure, cancel += more.cancel,
      lose_blocks += more.lose_blocks;
  stall += more.stall;
  return *this;
}

void corrupt(Draft& draft, std::mt19937_64& random) {
  switch (random() % 10) {
    case 0:
      draft.epoch = Epoch(static_cast<uint32_t>(random()));
      break;
    case 1:
      draft.round = Round(static_cast<uint32_t>(random()));
      break;
    case 2:
      draft.base = Position(static_cast<int32_t>(random()));
      break;
    case 3:
      draft.prefix_hash = random();
      break;
    case 4:
      draft.sequence = SequenceId(random() % 9);
      break;
    case 5:
      draft.ids.assign(50, TokenId(1));
      break;
    case 6:
      draft.parents.assign(draft.ids.size(), 0);
      for (int32_t& parent : draft.parents) parent -= static_cast<int32_t>(random() % 3);
      break;
    case 7:
      draft.q.push_back({.ids = {99999}, .weights = {0, 0}, .sum = 3});
      break;
    case 8:
      draft.ingest_ns = draft.draft_ns = static_cast<int64_t>(random());
      break;
    default:
      for (TokenId& id : draft.ids) id = TokenId(static_cast<int32_t>(random() % 80) - 20);
  }
}

// Other weights are believed: a worker that was let in may draw from what it likes.
void corrupt(QSlice& slice, std::mt19937_64& random) {
  switch (random() % 6) {
    case 0:
      slice.sequence = SequenceId(random());
      break;
    case 1:
      slice.round = Round(static_cast<uint32_t>(random()));
      break;
    case 2:
      slice.worker = Generation(random());
      break;
    case 3:
      slice.rows = static_cast<int32_t>(random());
      break;
    case 4:
      slice.weights.resize(random() % 100);
      break;
    default:
      slice.weights.front() = UINT16_MAX;
  }
}

}  // namespace outrider
