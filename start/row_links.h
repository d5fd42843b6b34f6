// Sends dense rows of q and hidden states from device to device (comm/row_link.h): checks whether it is
// possible, and makes the ends of links for a run's roles.
#pragma once

#include <functional>
#include <string>

#include "comm/messages/joining.h"
#include "comm/row_link.h"
#include "model/model.h"

namespace outrider {

// For SliceEndpoint: the GPU of a role, if rows can be sent from it and to it; empty: no GPU, or no NCCL.
std::string linkable_gpu(const Device& device);

// Whether every end has a GPU of its own, which NCCL requires: among target ranks, and with a draft worker on
// `gpu`.
bool ranks_have_links(const SliceEndpoints& endpoints);
bool may_link(const SliceEndpoints& endpoints, const std::string& gpu);
// Whether all ends are on the host of `gpu`, which is required because NCCL does not encrypt.
bool on_one_host(const SliceEndpoints& endpoints, const std::string& gpu);

// Makes an end in place of cuda::nccl_row_links(); empty: that one.
using LinkMaker = std::function<RowLinks(const RowLinkOptions&)>;

// The end of target rank `rank`, or with -1 of a draft worker, for `drafts` drafts at a time.
Result<RowLinks> make_links(const Device& device, const SliceEndpoints& endpoints, int64_t vocab_size,
                            int rank, int drafts, const LinkMaker& make = {});

// Whether hidden states of this width may go from the leader's GPU to that of a draft worker on `gpu`.
bool may_link_hidden_states(const SliceEndpoints& endpoints, const std::string& gpu);
// The leader's end, and the end of a worker with a head for `sequences` sequences.
Result<RowLinks> make_hidden_state_sender(const Device& device, int64_t width, const LinkMaker& make = {});
Result<RowLinks> make_hidden_state_receiver(const Device& device, int64_t width, int sequences,
                                            const LinkMaker& make = {});

}  // namespace outrider
