// The outside endpoints of a run: that of draft workers (--listen), and that of target groups
// (--listen-targets).
#pragma once

#include "comm/transport.h"
#include "start/prepare.h"
#include "start/settings.h"

namespace outrider {

// The coordinator's single end for the inside roles and for peers that connect to the endpoint. Prints the
// address to standard error, even with --quiet: with port * there is no other way to learn it.
Result<std::unique_ptr<Transport>> open_to_others(const ClusterSettings& settings,
                                                  const Preparation& prepared, InprocHub& inside);
Result<std::unique_ptr<Transport>> open_to_others(const ClusterSettings& settings,
                                                  const Preparation& prepared,
                                                  std::unique_ptr<Transport> inside);

}  // namespace outrider
