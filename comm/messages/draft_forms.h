// Forms in which a draft is made and sent; named in Propose and in plans.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

// Wire format of draft distributions. Match rules send none. kSlices: dense rows, but Draft and StepPlan hold
// none; each target rank gets its slice straight from the worker. kHidden: the hidden states that the dense
// rows are computed from, with the output head that both ends have.
enum class QKind : uint8_t { kNone = 0, kDense = 1, kSparse = 2, kSlices = 3, kHidden = 4 };

// Work of a draft worker during the verification of its last draft (outcome: tokens that may be committed).
enum class Pipeline : uint8_t {
  kLockstep = 0,  // nothing
  kAhead = 1,     // continues as if all tokens were accepted
  kFanout = 2,    // drafts for the likeliest outcomes
  kAuto = 3,      // drafts for as many outcomes as pay, by measured costs and hit rates
};

// The rule for ending a draft early. Every rule is a stopping time: it sees the tokens that are sent and the
// distribution of the next one, never a token that is then withheld. kChances sees distributions only.
enum class StopKind : uint8_t {
  kNone = 0,
  kConfidence = 1,  // after a token with q < threshold; it is sent
  kSvip = 2,        // before a token whose distribution has sqrt(scale * entropy) > threshold
  kAdaEdl = 3,      // before a token whose distribution has 1 - sqrt(scale * entropy) < threshold
  kChances = 4,     // at the first token whose chance falls below the threshold of its place (PlaceRule)
};

// kChances, at one place in a draft. A token is accepted after those before it with the chance 1 / (1 +
// exp(-(slope * margin + offset))). `margin` is the lead of the best token over the second, in nats: in the
// scores with the shared noise under the invariant rule, else in log probability. The product of the chances
// up to a token is the chance that all are accepted. Below `least_sent` the token is not sent; below
// `least_extended` it is the last one.
struct PlaceRule {
  float slope = 0, offset = 0, least_sent = 0, least_extended = 0;
  bool operator==(const PlaceRule&) const = default;
};
constexpr float kMaxMargin = 16;  // larger margins are clamped to it

struct StopRule {
  StopKind kind = StopKind::kNone;
  float threshold = 0;
  float scale = 0;  // factor of the entropy in nats
  // kChances only: one rule for each place; the last one holds for all further places. None: it never stops.
  std::vector<PlaceRule> places;
};

// The branching of a draft, in one of three ways; if none is set, the draft is a chain.
struct TreeShape {
  std::vector<int32_t> widths;   // children of every node, by level
  std::vector<int32_t> parents;  // as in DraftTree: this exact tree, the better of two siblings first
  // Not 0: at most this many nodes, those that the target reaches with the highest probability.
  int32_t nodes = 0;
  // With `nodes`: the expected tokens that each node, and each further pass of the draft model, has to bring.
  float node_price = 0, pass_price = 0;

  bool is_chain() const { return widths.empty() && parents.empty() && nodes == 0; }
  bool operator==(const TreeShape&) const = default;
};
constexpr int32_t kMaxTreeChildren = 8;  // of one node

}  // namespace outrider
