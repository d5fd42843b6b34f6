// How many cores this process may use; waiting code spins only when every waiter has one.
#pragma once

namespace outrider {

// From the affinity mask (which container CPU sets and mpirun's binding set) and the CPU quota; at least 1.
int usable_cores();

// The cgroup's CPU quota, rounded up, in cores; INT_MAX without one.
int quota_cores();

}  // namespace outrider
