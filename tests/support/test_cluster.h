// A whole engine in this process, over models without text: a coordinator, target groups as threads, and
// drafters, connected by any transport. start/ builds it, as for `outrider generate`; from tests come small
// limits, patience, and wires that fail.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/row_link.h"
#include "comm/transport.h"
#include "coordinator/coordinator.h"
#include "heads/head.h"
#include "start/block_ends.h"
#include "tests/support/test_models.h"

namespace outrider::testing {

enum class Wire { kInproc, kZmqIpc, kZmqTcp };
enum class DrafterKind { kNone, kModel, kNgram, kRecycling };

struct ClusterOptions {
  std::string target;  // names of golden models, or directories
  std::string draft;
  DrafterKind drafter = DrafterKind::kNone;
  std::string head;             // a directory: drafts beside the target, and there is no other drafter
  bool head_at_worker = false;  // ... or at draft workers
  HeadKind head_kind = HeadKind::kEagle3;
  bool head_on_device = false;  // on `device`, as its models; else on the host
  WeightFormat head_format = WeightFormat::kAuto;
  int64_t exit_layer = 0;  // above 0: the target's own first layers draft, on every rank
  int tp_size = 1;
  int draft_tp_size = 1;                             // ranks of a draft model
  int groups = 1;                                    // of tp_size target ranks each
  int prefill_groups = 0;                            // beside them; they are the first ones
  int min_prefill_tokens = 16;
  int max_num_seqs = 1;                              // in each
  int64_t draft_vocab_size = 0;                      // as --draft-vocab-size
  Device device;                                     // of every model,
  std::optional<Device> draft_device;                // but for the draft
  WeightFormat weight_format = WeightFormat::kAuto;  // the same
  Wire wire = Wire::kInproc;
  QKind q_kind = QKind::kDense;
  int32_t row_bytes = 0;      // with kSparse
  int32_t code_bits = 4;      // with kHidden
  std::string drafters_head;  // with kHidden: of this model instead of `draft`
  int64_t max_context = 120;
  bool prefix_caching = true;
  int64_t kv_tokens = 0;  // of the target's cache; 0: enough for all
  std::vector<TokenId> eos_ids;
  Pipeline pipeline = Pipeline::kLockstep;
  int32_t fanout = 6;
  TreeShape tree;             // of drafts under the match rules
  bool tree_by_rank = false;  // as TreeOptions::by_rank
  int drafters = 1;
  std::string link;  // --emulate-link
  // Dense q in slices, over Unix sockets, or over TCP with keys as the wire requires. `endpoint` wraps a
  // rank's transport.
  bool slices = false;
  std::function<std::unique_ptr<Transport>(int rank, std::unique_ptr<Transport> endpoint)> endpoint;
  std::chrono::milliseconds slice_timeout{60'000};
  // Besides, from device to device; `links` makes an end's.
  std::function<RowLinks(RowLinkOptions end)> links;
  // The same for hidden states that go to a head at draft workers. It needs endpoints too.
  std::function<RowLinks(RowLinkOptions end)> hidden_state_links;
  // Wraps the transport of a drafter.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport> transport)> drafter_wire;
  // Wraps that of a target group's leader.
  std::function<std::unique_ptr<Transport>(int group, std::unique_ptr<Transport> transport)> target_wire;
  std::chrono::milliseconds handoff_timeout{60'000};
  // Wraps the end through which a rank of a group sends or takes blocks of prefilled prompts.
  std::function<BlockEnd(int group, BlockEnd end)> block_wire;
  // Told the model of a target rank when its work is over.
  std::function<void(const Model&)> target_ended;
  // A loaded machine must not change which rounds draft.
  std::chrono::milliseconds draft_timeout{60'000};
};

// A draft worker, or the leader of a target group, whose wire throws it dies. Its wire sends nothing more.
struct WorkerDeath : std::exception {
  const char* what() const noexcept override { return "the test ends this worker"; }
};

struct Finished {
  std::vector<TokenId> ids;
  std::vector<PositionLogprobs> logprobs, prompt_logprobs;
  FinishReason reason = FinishReason::kStop;
  Status error;
  RequestMetrics metrics;
};

class TestCluster {
 public:
  explicit TestCluster(const ClusterOptions& options);
  ~TestCluster();

  // Runs the requests together, as far as max_num_seqs allows; results in their order.
  std::vector<Finished> run(std::vector<Request> requests);

  const Totals& totals() const;
  const TransportStats& transport_stats() const;

 private:
  class Threads;
  std::unique_ptr<Threads> threads_;
};

}  // namespace outrider::testing
