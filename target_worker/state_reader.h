// The target's states of committed tokens as a head reads them: projected, and rounded to bf16. A head beside
// the target and one at a draft worker get the same numbers. One thread, the leader's.
#pragma once

#include <memory>

#include "comm/messages/verifying.h"
#include "heads/state_projection.h"
#include "target_worker/state_links.h"
#include "transformer/model/model.h"

namespace outrider {

class StateReader {
 public:
  // `target` was loaded with the head's taps. It must outlive the reader.
  StateReader(Model& target, std::shared_ptr<StateProjection> projection, int64_t taps);

  // Those of tokens [first, first + rows) of a sequence in the target's cache: to [rows, width], where the
  // projection computes.
  void read(KvHandle sequence, int64_t first, FloatRows to);
  // Appends those that are there of [first, first + count), up to one that is not finite: by the link, in
  // parts, if it takes them now. Null: there is none.
  void tell(KvHandle sequence, const StateAsk& ask, StateLink* link, std::vector<StateRows>& told);

 private:
  bool send(KvHandle sequence, StateRows rows, int64_t end, StateLink& link, std::vector<StateRows>& told);

  Model& target_;
  const std::shared_ptr<StateProjection> projection_;
  RowBuffer raw_;  // before they are projected
  RowBuffer rows_;
};

}  // namespace outrider
