// A model over several ranks of which one leads: whoever uses it calls forward() and the cache of the leader
// alone, and gets the whole vocabulary's logits, with the bits of one rank. The leader tells the others what
// it does, and they replay it. So its user may decide by clock and order of arrival, which ranks could not
// do each for itself.
#pragma once

#include <memory>

#include "transformer/model/model.h"

namespace outrider {

// The leader's, rank 0 of `group`, in place of its shard. A rank that is gone makes forward() throw
// CollectiveError. The other ranks are released when it ends. One thread.
std::unique_ptr<Model> make_led_model(std::unique_ptr<Model> shard, Collectives& group);

// What the other ranks do until the leader's model ends. kMalformed: this shard and the leader's no longer
// hold the same. Throws CollectiveError where another rank is gone.
Status follow_leader(Model& shard, Collectives& group);

}  // namespace outrider
