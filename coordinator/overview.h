// How a coordinator stands at one moment, for people who watch it. Plain values; a copy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outrider {

struct WorkerOverview {
  uint64_t peer = 0;  // on its transport; new for every connection
  std::string model;
  enum class State : uint8_t {
    kDrafting,   // takes part
    kLeftAlone,  // was late or silent, and is not asked for a while
  } state = State::kDrafting;
  int32_t sequences = 0, room = 0;                            // held, and at most
  int64_t drafts = 0, drafted = 0, tested = 0, accepted = 0;  // verified, since it joined
  double seconds_per_token = 0;                               // that drafts are waited for; 0: not known
};

// One of a coordinator's target groups.
struct GroupOverview {
  bool here = false;
  int64_t running = 0, places = 0;     // requests
  int64_t kv_tokens = 0, kv_room = 0;  // as of Overview
  int64_t prefix_tokens = 0;
};

struct Overview {
  int64_t running = 0, queued = 0;  // requests
  int64_t kv_tokens = 0;            // in the target's cache, of those that run
  int64_t kv_room = 0;              // the cache's; where it is not told, places times the longest text
  int64_t prefix_tokens = 0;        // room of the blocks that texts are kept in, for others that begin alike
  std::vector<int64_t> gammas;      // [g]: sequences whose last round asked for g tokens
  double plain_round_seconds = 0;   // of all that run together, as it is believed: without drafts
  double round_seconds = 0;         // and with drafts of their mean gamma; 0: nobody runs
  double mean_gamma = 0;
  std::vector<WorkerOverview> workers;
  std::vector<GroupOverview> groups;  // by their place; whose sums are above
  int64_t groups_here() const {
    int64_t count = 0;
    for (const GroupOverview& group : groups) count += group.here ? 1 : 0;
    return count;
  }
};

}  // namespace outrider
