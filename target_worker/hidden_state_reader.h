// The target's hidden states of committed tokens as a head reads them: projected, and rounded to bf16. A head
// beside the target and one at a draft worker get the same numbers. One thread, the leader's.
#pragma once

#include <memory>

#include "comm/messages/verifying.h"
#include "heads/hidden_state_projection.h"
#include "model/model.h"
#include "target_worker/hidden_state_links.h"

namespace outrider {

class HiddenStateReader {
 public:
  // `target` was loaded with the head's aux layers. It must outlive the reader.
  HiddenStateReader(Model& target, std::shared_ptr<HiddenStateProjection> projection, int64_t aux_layers);

  // Those of tokens [first, first + rows) of a sequence in the target's cache: to [rows, width], where the
  // projection computes.
  void read(KvHandle sequence, int64_t first, FloatRows to);
  // Appends those that are there of [first, first + count), up to one that is not finite: by the link, in
  // parts, if it takes them now. Null: there is none.
  void tell(KvHandle sequence, const HiddenStateRequest& ask, HiddenStateLink* link,
            std::vector<HiddenStateRows>& told);

 private:
  bool send(KvHandle sequence, HiddenStateRows rows, int64_t end, HiddenStateLink& link,
            std::vector<HiddenStateRows>& told);

  Model& target_;
  const std::shared_ptr<HiddenStateProjection> projection_;
  RowBuffer raw_;  // before they are projected
  RowBuffer rows_;
};

}  // namespace outrider
