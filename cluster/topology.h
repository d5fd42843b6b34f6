// Assigns roles to ranks. Pure: a layout is decided, or refused, before anything is loaded or connected.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "comm/messages/joining.h"

namespace outrider {

const char* role_name(Role role);

// Consecutive ranks of one role.
struct RoleRanks {
  Role role = Role::kTarget;
  int count = 0;   // in all
  int groups = 1;  // of targets, one after the other
  int width = 1;   // of drafts: ranks of each worker, one after the other
  int prefill_groups = 0;  // of targets: the first groups, which only prefill
  bool operator==(const RoleRanks&) const = default;
};
// In rank order; together they are the world.
using Layout = std::vector<RoleRanks>;

// `text` as in --layout coordinator=1,draft=1,target=2, or target=2x4: two target groups of four ranks each,
// and draft=2x4: two draft workers of four. The order of roles is the order of ranks. Defaults for roles that
// are not named: one coordinator (first), no draft worker, and the remaining ranks as targets. There is one
// coordinator, and a target group or a draft worker of several ranks has 1, 2, 4 or 8 ranks, because its sums
// are balanced trees. target=prefill:1x2,decode:2x2 is one group of two ranks that only prefills, and behind
// it two that decode. `groups`: --data-parallel-size and --prefill-groups together, `draft_width`:
// --draft-tensor-parallel-size, and `prefill_groups`: --prefill-groups, if given.
Result<Layout> parse_layout(std::string_view text, int world_size, int groups = 1, int draft_width = 1,
                            int prefill_groups = 0);

// Rank 0 coordinates. The next rank drafts, or `draft_width` ranks if that leaves at least one for each
// target group. The remaining ranks are the target.
Result<Layout> default_layout(int world_size, int groups = 1, int draft_width = 1, int prefill_groups = 0);

// A rank's description of the host that it runs on.
struct HostInfo {
  std::string name;
  int gpus = 0;  // that this host's ranks may use
};

struct RankPlace {
  Rank rank;
  Role role = Role::kTarget;
  int index = 0;        // within the role; of a target rank, of all groups
  int group = 0;        // of a target rank; of a draft rank, its worker
  int tp_rank = -1;     // of a target rank, in its group
  int draft_rank = -1;  // of a draft rank, in its worker
  std::string host;
  int local_rank = 0;          // among this host's ranks
  std::string device = "cpu";  // or "cuda:N"
  bool is_leader() const { return tp_rank == 0; }
  bool drafts() const { return draft_rank == 0; }  // for its worker
};

class Topology {
 public:
  // One host per rank. Workers of a host take its GPUs in rank order, and share when there are fewer GPUs.
  Topology(const Layout& layout, const std::vector<HostInfo>& hosts);

  const std::vector<RankPlace>& ranks() const { return ranks_; }
  const RankPlace& at(Rank rank) const;
  Rank coordinator() const { return first(Role::kCoordinator); }
  Rank leader() const { return first(Role::kTarget); }  // of the first group
  int count(Role role) const;
  int groups() const { return groups_; }                          // of targets
  int prefill_groups() const { return prefill_groups_; }          // the first groups
  int tp_size() const { return count(Role::kTarget) / groups_; }  // ranks of each
  int draft_width() const { return draft_width_; }                // ranks of a draft worker
  int draft_workers() const { return count(Role::kDraft) / draft_width_; }

  // One line per rank, for people.
  std::string describe() const;

 private:
  Rank first(Role role) const;
  std::vector<RankPlace> ranks_;
  int groups_ = 1, prefill_groups_ = 0, draft_width_ = 1;
};

}  // namespace outrider
