// The doors of a run: the endpoint where draft workers may join (--listen), and that of target groups
// (--listen-targets).
#pragma once

#include "comm/transport.h"
#include "start/prepare.h"
#include "start/settings.h"

namespace outrider {

// The coordinator's end of the roles inside and of those that come to that endpoint, in one. Tells the
// address on standard error, also when --quiet: with port * nobody could know otherwise.
Result<std::unique_ptr<Transport>> open_to_others(const ClusterSettings& settings,
                                                  const Preparation& prepared, InprocHub& inside);
Result<std::unique_ptr<Transport>> open_to_others(const ClusterSettings& settings,
                                                  const Preparation& prepared,
                                                  std::unique_ptr<Transport> inside);

}  // namespace outrider
