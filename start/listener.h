// The endpoint of a run where draft workers may join (--listen).
#pragma once

#include "comm/transport.h"
#include "start/flags/options.h"
#include "start/prepare.h"

namespace outrider {

// Keys from their files, and how large a message of a worker may be.
Result<ZmqOptions> listener_options(const RunOptions& options, const Preparation& prepared);
// Of them, the keys alone; none without --curve-secret-key.
Result<std::optional<CurveKeys>> listener_keys(const RunOptions& options);
// On standard error, also when --quiet: with port * nobody could know otherwise.
void tell_where_to_join(const RunOptions& options, const std::string& endpoint);

}  // namespace outrider
