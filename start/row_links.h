// Dense rows of q and rows of states from device to device (comm/row_link.h): who can, and the ends of links
// of a run's roles.
#pragma once

#include <string>

#include "comm/messages/joining.h"
#include "comm/row_link.h"
#include "transformer/model/model.h"

namespace outrider {

// For SliceDoor: the GPU that a role runs on, by which rows can come and go; empty: none, or no NCCL.
std::string linkable_gpu(const Device& device);

// NCCL wants every end on a GPU of its own. Of target ranks alone, and with a draft worker on `gpu`.
bool ranks_have_links(const SliceDoors& doors);
bool may_link(const SliceDoors& doors, const std::string& gpu);
// All on the host of `gpu`: NCCL encrypts nothing.
bool on_one_host(const SliceDoors& doors, const std::string& gpu);

// The end of target rank `rank`, or, with -1, of a draft worker, for `drafts` at a time.
Result<RowLinks> make_links(const Device& device, const SliceDoors& doors, int64_t vocab_size, int rank,
                            int drafts);

// Rows of states of so many numbers go from the leader's GPU to that of a draft worker on `gpu`.
bool may_link_states(const SliceDoors& doors, const std::string& gpu);
// The end of the leader, or that of a worker with a head for so many sequences.
Result<RowLinks> make_state_sender(const Device& device, int64_t width);
Result<RowLinks> make_state_receiver(const Device& device, int64_t width, int sequences);

}  // namespace outrider
