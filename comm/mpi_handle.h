// MPI handles, for the files that call MPI only.
#pragma once

#define OMPI_SKIP_MPICXX 1  // the C interface is enough
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include "comm/mpi.h"

namespace outrider {

struct MpiComm::Handle {
  explicit Handle(MPI_Comm c) : comm(c) {}
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  const MPI_Comm comm;
};

// Throws MpiError with MPI's own words.
void check_mpi(int code, const char* call);

}  // namespace outrider
