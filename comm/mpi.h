// Owners of MPI's handles. MPI is used in two places only: to start a job under mpirun, and inside the target
// group. All calls come from the thread that made the session. Errors of MPI throw MpiError.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>

namespace outrider {

class MpiError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A communicator of its own; must be freed before the session ends.
class MpiComm {
 public:
  struct Handle;  // comm/mpi_handle.h; keeps <mpi.h> out of other headers
  explicit MpiComm(std::unique_ptr<Handle> handle);
  MpiComm(MpiComm&&) noexcept;
  MpiComm& operator=(MpiComm&&) noexcept;
  ~MpiComm();

  int rank() const;
  int size() const;
  // Collective. Ranks of the same color form a new communicator, ordered by their rank here.
  MpiComm split(int color) const;
  // Collective. The ranks that share this rank's memory.
  MpiComm split_by_host() const;
  // Collective. The same ranks, with a separate message space.
  MpiComm duplicate() const;
  const Handle& handle() const { return *handle_; }

 private:
  std::unique_ptr<Handle> handle_;
};

// MPI_Init_thread (FUNNELED) ... MPI_Finalize. One per process.
class MpiSession {
 public:
  MpiSession();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // The number of ranks that mpirun or srun started, without initialising MPI; empty if started by neither.
  static std::optional<int> launched_size();
  // This process's rank among them; 0 if unknown.
  static int launched_rank();

  // Collective. All ranks of the job.
  MpiComm world() const;
  // Ends every rank of the job. For a rank that failed: the others would wait for it in MPI_Finalize.
  [[noreturn]] static void abort_job(int exit_code);
};

}  // namespace outrider
