// Messages that bypass the coordinator: rows, between a draft worker and the endpoints of target ranks, and
// blocks of keys and values, from target rank to target rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"

namespace outrider {

// ---- to every rank, or to the leader ------------------------------------------------------------

// A rank's slice of the draft distributions of a Draft with QKind::kSlices: the weights of the ids of its
// vocabulary range, each in 16 bits (base/short_weight.h).
struct QSlice {
  SequenceId sequence;
  Round round;
  Generation worker;              // as in its Hello
  int32_t rows = 0;               // as in Draft
  std::vector<uint16_t> weights;  // [rows, ids of the range]
};

// A worker with a GPU of its own has begun to make a communicator with the ranks (comm/row_link.h). A rank
// that cannot take part, now or later, answers with Failure.
struct LinkOffer {
  Generation worker;           // as in its Hello
  std::string id;              // names the communicator
  bool hidden_states = false;  // for hidden states from the leader; false: for rows of q to all ranks
};

// Replaces a QSlice: announces a worker's next transfer through its communicator, `number` 1, 2, ..., with
// the facts that ranks need about rows in device memory.
struct QTransfer {
  SequenceId sequence;
  Round round;
  Generation worker;
  uint64_t number = 0;
  std::vector<uint64_t> sums;     // of whole rows, one for each drafted token
  std::vector<uint64_t> drafted;  // weights of the drafted tokens
};

// ---- from the leader ------------------------------------------------------------

// Announces the next transfer of `rows` hidden states through the communicator of worker and leader; `number`
// counts 1, 2, ... The HiddenStateRows message with this transfer number names the sequence. A worker that
// takes no more transfers answers with Failure.
struct HiddenStateTransfer {
  uint64_t number = 0;
  int32_t rows = 0;
};

// ---- from a rank of a prefill group to the same rank of a decode group ----------------------------

// Consecutive blocks of keys and values of one rank (BlockExport).
struct KvBlocks {
  uint64_t transfer = 0;
  int32_t first = 0;  // block of the sequence
  int32_t count = 0;  // blocks
  // Hash of the text up to the end of the last block, the model, the rank and the number of ranks.
  uint64_t name = 0;
  std::vector<uint8_t> bytes;
};

}  // namespace outrider
