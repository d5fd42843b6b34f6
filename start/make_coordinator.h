// The coordinator of a run, from its settings.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "coordinator/coordinator.h"
#include "start/prepare.h"
#include "start/settings.h"

namespace outrider {

using ErrorOf = std::function<Status()>;
// Peers load their models first, which may take minutes; a role that fails says so through `error`. Unless
// `quiet`, the missing peers are printed to standard error now and then.
Status wait_until_ready(Coordinator& coordinator, size_t workers, std::chrono::seconds timeout,
                        const ErrorOf& error, bool quiet = true);

// Whether all roles are threads of this process, and none may join.
bool is_one_process(const ClusterSettings& settings);

// Behind --emulate-link, if requested. `prepared` must outlive it.
Result<std::unique_ptr<Coordinator>> make_coordinator(const ClusterSettings& settings,
                                                      const Preparation& prepared,
                                                      std::unique_ptr<Transport> transport,
                                                      GammaPolicyFactory policy,
                                                      CoordinatorCallbacks callbacks, Trace* trace);
// The same with other limits than protocol_options().
std::unique_ptr<Coordinator> make_coordinator(const ClusterSettings& settings, const Preparation& prepared,
                                              ProtocolOptions limits, std::unique_ptr<Transport> transport,
                                              GammaPolicyFactory policy, CoordinatorCallbacks callbacks,
                                              Trace* trace);

// The coordinator's limits for these settings; the same numbers size the workers' buffers.
Result<ProtocolOptions> protocol_options(const ClusterSettings& settings, const Preparation& prepared);

}  // namespace outrider
