// `outrider draft-worker --share`: one process, one draft model, and a session for each of several
// coordinators, which see an ordinary draft worker each.
#pragma once

#include "launch/commands/joined_worker.h"

namespace outrider {

// Checks --connect, --share and --share-weights together. Fills `connect` for a worker of one coordinator.
Status check_sharing(DraftWorkerSettings& settings);

// Loads the models once and serves until every session has ended: all were asked to leave, or each one's job
// has ended, refused it, or was gone for too long. An error: why the first session ended that did not end
// well, refusals before others.
Status serve_shared(const DraftWorkerSettings& settings, const Preparation& prepared, const ZmqOptions& zmq,
                    const LoadWorkerModels& load);

}  // namespace outrider
