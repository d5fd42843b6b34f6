// The functions of NCCL that are used, found in the library at run time: a program that was built with nccl.h
// starts without libnccl. A table, so that tests can put their own functions into it.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "comm/device_group.h"
#include "comm/row_link.h"

namespace outrider::cuda {

struct NcclApi {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  std::string library;
};

// Loaded once; the library stays for the life of the program.
Result<const NcclApi*> nccl_api();

Result<std::unique_ptr<DeviceGroup>> make_nccl_group(const NcclApi& api, Collectives& host,
                                                     const NcclOptions& options);
RowLinks nccl_row_links(const NcclApi& api, int device, const RowLinkOptions& options);

}  // namespace outrider::cuda
