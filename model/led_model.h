// A model over several ranks, led by one. The caller uses forward() and the KV cache of the leader alone, and
// gets the logits of the whole vocabulary, with the bits of one rank. The leader broadcasts its operations,
// and the other ranks replay them. So the caller's decisions may depend on the clock and on the order of
// arrival, on which independent ranks could not agree.
#pragma once

#include <memory>

#include "model/model.h"

namespace outrider {

// The leader's, rank 0 of `group`, in place of its shard. A rank that is gone makes forward() throw
// CollectiveError. The other ranks are released when it ends. One thread.
std::unique_ptr<Model> make_led_model(std::unique_ptr<Model> shard, Collectives& group);

// The loop of every rank but the leader, until the leader's model ends. kMalformed: this rank's KV cache and
// the leader's differ. Throws CollectiveError if another rank is gone.
Status follow_leader(Model& shard, Collectives& group);

}  // namespace outrider
