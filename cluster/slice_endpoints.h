// The endpoints of a target group's ranks for slices of dense draft distributions (QKind::kSlices). Each rank
// binds its own; the coordinator sends the addresses and keys to draft workers. One pair of keys serves all
// ranks, another all draft workers that were admitted.
#pragma once

#include <memory>
#include <string>

#include "comm/collectives.h"
#include "comm/transport.h"

namespace outrider {

struct SliceEndpointOptions {
  std::string purpose = "slices of q";  // for a warning: what there is not if an endpoint cannot be opened
  Status possible = {};                 // not ok: this rank cannot open one, for this reason
  std::string
      host;  // this rank's, as others see it; empty: a Unix socket of this user's, all are on one host
  bool encrypted = false;  // on TCP; if libzmq has no CURVE, no endpoint is opened unless allow_remote
  bool allow_remote = false;
  int64_t max_message_bytes = 0;
  int high_water_mark = 0;  // unread slices of each worker
  std::string gpu;          // of this rank, for SliceEndpoint
};

struct OpenSliceEndpoint {
  std::unique_ptr<Transport> own;  // null: some rank could not open one, and none is used
  SliceEndpoints all;
};

// Collective over the target group.
OpenSliceEndpoint open_slice_endpoints(Collectives& group, const SliceEndpointOptions& options);

}  // namespace outrider
