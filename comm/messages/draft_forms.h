// How a draft is made and sent: the terms that a Propose and a plan name.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

// How draft distributions are sent. Match rules send none. kSlices: dense rows too, but Draft and StepPlan
// hold none; each target rank gets its slice of them straight from the worker. kHidden: the states that the
// dense rows are made from, with the output head that both ends have.
enum class QKind : uint8_t { kNone = 0, kDense = 1, kSparse = 2, kSlices = 3, kHidden = 4 };

// What a draft worker does while its last draft is verified (outcomes: what the verdict may commit).
enum class Pipeline : uint8_t {
  kLockstep = 0,  // nothing
  kAhead = 1,     // goes on as if everything will be accepted
  kFanout = 2,    // drafts for the most likely outcomes
  kAuto = 3,      // for as many outcomes as measured costs and hit rates make worth while
};

// When a drafter ends its draft early. Every rule is a stopping time: it sees the tokens that are sent and
// the distribution of the next one, never a token that is then withheld. kChances looks at distributions
// alone.
enum class StopKind : uint8_t {
  kNone = 0,
  kConfidence = 1,  // after a token with q < threshold; it is sent
  kSvip = 2,        // before a token whose distribution has sqrt(scale * entropy) > threshold
  kAdaEdl = 3,      // before a token whose distribution has 1 - sqrt(scale * entropy) < threshold
  kChances = 4,     // where so many tokens are accepted with too little chance (PlaceRule)
};

// kChances, at one place in a draft. A token is accepted after those before it with the chance
// 1 / (1 + exp(-(slope * margin + offset))), where `margin` is by how much the best token of the draft's
// distribution is ahead of the second, in nats: in the scores with the shared noise under the invariant rule,
// else in log probability. All tokens up to there are, with the product of their chances: one below
// `least_sent` is not sent, and behind one below `least_extended` no other is drafted.
struct PlaceRule {
  float slope = 0, offset = 0, least_sent = 0, least_extended = 0;
  bool operator==(const PlaceRule&) const = default;
};
constexpr float kMostMargin = 16;  // a larger one counts as so much

struct StopRule {
  StopKind kind = StopKind::kNone;
  float threshold = 0;
  float scale = 0;  // of the entropy in nats
  // Of kChances alone; the last holds for all that follow. None: it never stops.
  std::vector<PlaceRule> places;
};

// How a draft may branch, in one of three ways; in none: not at all, a chain.
struct TreeShape {
  std::vector<int32_t> widths;   // children of every node, level by level
  std::vector<int32_t> parents;  // as in DraftTree: this very tree, the better of two siblings first
  // Not 0: so many nodes at most, those that the target most likely comes to.
  int32_t nodes = 0;
  // With `nodes`: expected tokens that each of them, and each further pass of the draft model, has to bring.
  float node_price = 0, pass_price = 0;

  bool is_chain() const { return widths.empty() && parents.empty() && nodes == 0; }
  bool operator==(const TreeShape&) const = default;
};
constexpr int32_t kMostTreeChildren = 8;  // of one node

}  // namespace outrider
