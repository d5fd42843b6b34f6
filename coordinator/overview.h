// The state of a coordinator at one moment, for people who watch it. Plain values; a copy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outrider {

struct WorkerOverview {
  uint64_t peer = 0;  // on its transport; new for every connection
  std::string host;   // from which it connects; empty: not known
  std::string model;
  uint64_t weights = 0;  // fingerprint of its model; 0: it has none
  enum class State : uint8_t {
    kDrafting,   // in use
    kLeftAlone,  // was late or silent, and gets no requests for a while
  } state = State::kDrafting;
  int32_t sequences = 0, room = 0;                            // held, and at most
  int64_t drafts = 0, drafted = 0, tested = 0, accepted = 0;  // verified, since it joined
  double seconds_per_token = 0;                               // average wait for a drafted token; 0: unknown
};

// One of a coordinator's target groups.
struct GroupOverview {
  bool here = false;
  bool was_lost = false;  // and no other has taken its place
  bool only_prefills = false;
  const char* role() const { return only_prefills ? "prefill" : "decode"; }
  uint64_t peer = 0;                   // while it is here
  std::string host;                    // as of a worker
  int64_t running = 0, seq_slots = 0;  // requests
  int64_t kv_tokens = 0, kv_room = 0;  // as of Overview
  int64_t prefix_tokens = 0;
};

struct Overview {
  int64_t running = 0, queued = 0;  // requests
  int64_t kv_tokens = 0;            // in the target's cache, of the running requests
  int64_t kv_room = 0;              // room of the cache; if unknown, slots times the longest text
  int64_t prefix_tokens = 0;        // in cached texts, for prompts that begin alike
  std::vector<int64_t> gammas;      // [g]: sequences whose last round asked for g tokens
  double plain_round_seconds = 0;   // of the running batch, by the cost model: without drafts
  double round_seconds = 0;         // and with drafts of the mean gamma; 0: no request runs
  double mean_gamma = 0;
  int32_t workers_wanted = 0;  // workers_wanted() of the sequences that decode now
  std::vector<WorkerOverview> workers;
  std::vector<GroupOverview> groups;  // by entry; their sums are above
  int64_t groups_here() const {
    int64_t count = 0;
    for (const GroupOverview& group : groups) count += group.here ? 1 : 0;
    return count;
  }
  bool can_decode() const {
    for (const GroupOverview& group : groups)
      if (group.here && !group.only_prefills) return true;
    return false;
  }
};

}  // namespace outrider
