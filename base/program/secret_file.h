// The check that a file with a secret is private.
#pragma once

struct stat;

namespace outrider {

// A mounted secret (Kubernetes: root's, with the group of the process, 0440) is as private as a file of mode
// 0600, because its group exists for this process.
bool may_be_read_by_others(const struct stat& info);

}  // namespace outrider
