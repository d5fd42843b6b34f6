#include "start/row_links.h"

#include <algorithm>
#include <set>

#include "base/shard.h"

namespace outrider {
namespace {

constexpr int32_t kRows = 16;  // of a slot; longer drafts take the sockets
// Slots for hidden states: a round has few rows, a chunk of a prompt takes several slots.
constexpr int32_t kHiddenStateRows = 32, kHiddenStateSlots = 24;

Result<RowLinks> make_end(const Device& device, const RowLinkOptions& end, const LinkMaker& make) {
  return make ? make(end) : cuda::nccl_row_links(device.index, end);
}

}  // namespace

std::string linkable_gpu(const Device& device) {
  if (device.kind != Device::Kind::kCuda) return {};
  const auto gpu = cuda::linkable_device(device.index);
  return gpu.ok() ? *gpu : "";
}

bool ranks_have_links(const SliceEndpoints& endpoints) { return may_link(endpoints, "a device of nobody"); }

bool may_link(const SliceEndpoints& endpoints, const std::string& gpu) {
  std::set<std::string> taken{"", gpu};
  return !gpu.empty() && !endpoints.of_rank.empty() &&
         std::all_of(
             endpoints.of_rank.begin(), endpoints.of_rank.end(),
             [&](const SliceEndpoint& rank_endpoint) { return taken.insert(rank_endpoint.gpu).second; });
}

bool on_one_host(const SliceEndpoints& endpoints, const std::string& gpu) {
  const std::string host = gpu.substr(0, gpu.find('/') + 1);
  return std::all_of(endpoints.of_rank.begin(), endpoints.of_rank.end(),
                     [&](const SliceEndpoint& rank_endpoint) { return rank_endpoint.gpu.starts_with(host); });
}

Result<RowLinks> make_links(const Device& device, const SliceEndpoints& endpoints, int64_t vocab_size,
                            int rank, int drafts, const LinkMaker& make) {
  RowLinkOptions end{.bounds = {0}, .rank = 1 + rank, .rows = kRows, .slots = drafts};
  const auto ranks = static_cast<int>(endpoints.of_rank.size());
  for (int r = 0; r < ranks; ++r) end.bounds.push_back(vocab_range(vocab_size, {r, ranks}).end);
  return make_end(device, end, make);
}

bool may_link_hidden_states(const SliceEndpoints& endpoints, const std::string& gpu) {
  return !endpoints.of_rank.empty() && may_link({.of_rank = {endpoints.of_rank.front()}}, gpu);
}

Result<RowLinks> make_hidden_state_sender(const Device& device, int64_t width, const LinkMaker& make) {
  return make_end(device,
                  {.bounds = {0, width},
                   .rank = 0,
                   .rows = kHiddenStateRows,
                   .slots = kHiddenStateSlots,
                   .has_host_slots = false},
                  make);
}

// Each sequence keeps the last row that was read.
Result<RowLinks> make_hidden_state_receiver(const Device& device, int64_t width, int sequences,
                                            const LinkMaker& make) {
  return make_end(
      device,
      {.bounds = {0, width}, .rank = 1, .rows = kHiddenStateRows, .slots = kHiddenStateSlots + 2 * sequences},
      make);
}

}  // namespace outrider
