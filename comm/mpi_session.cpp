#include <cstdlib>
#include <string>

#include "base/log.h"
#include "comm/mpi_handle.h"

namespace outrider {
namespace {

// Takes ownership. Errors come back as codes instead of ending the job inside MPI.
MpiComm own(MPI_Comm comm) {
  auto handle = std::make_unique<MpiComm::Handle>(comm);
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return MpiComm(std::move(handle));
}

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw MpiError(std::string(call) + ": " + std::string(text, static_cast<size_t>(length)));
}

MpiComm::Handle::~Handle() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  MPI_Comm mutable_comm = comm;
  if (finalized == 0) MPI_Comm_free(&mutable_comm);
}

MpiComm::MpiComm(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
MpiComm::MpiComm(MpiComm&&) noexcept = default;
MpiComm& MpiComm::operator=(MpiComm&&) noexcept = default;
MpiComm::~MpiComm() = default;

int MpiComm::rank() const {
  int rank = 0;
  check_mpi(MPI_Comm_rank(handle_->comm, &rank), "MPI_Comm_rank");
  return rank;
}

int MpiComm::size() const {
  int size = 0;
  check_mpi(MPI_Comm_size(handle_->comm, &size), "MPI_Comm_size");
  return size;
}

MpiComm MpiComm::split(int color) const {
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(handle_->comm, color, rank(), &part), "MPI_Comm_split");
  return own(part);
}

MpiComm MpiComm::split_by_host() const {
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(handle_->comm, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &part),
            "MPI_Comm_split_type");
  return own(part);
}

MpiComm MpiComm::duplicate() const {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(handle_->comm, &copy), "MPI_Comm_dup");
  return own(copy);
}

MpiSession::MpiSession() {
  // Open MPI polls without yielding in its blocking calls: 8 to 60 ms a call when ranks outnumber cores. A
  // value the user set stays.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*overwrite=*/0);
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED)
    throw MpiError("MPI_Init_thread: this MPI does not allow other threads");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiSession::~MpiSession() { MPI_Finalize(); }

int MpiSession::launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (const char* value = std::getenv(name)) return std::atoi(value);
  return 0;
}

std::optional<int> MpiSession::launched_size() {
  // Open MPI, MPICH and others (PMI), Slurm with PMIx.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* value = std::getenv(name)) return std::atoi(value);
  if (const char* value = std::getenv("SLURM_NTASKS");
      value != nullptr && std::getenv("PMIX_RANK") != nullptr)
    return std::atoi(value);
  return std::nullopt;
}

MpiComm MpiSession::world() const {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  return own(copy);
}

void MpiSession::abort_job(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::abort();  // MPI_Abort may return
}

}  // namespace outrider
