// Where a target rank gets its plans: the leader from the coordinator, the others from the leader. One
// thread.
#pragma once

#include <optional>
#include <vector>

#include "comm/collectives.h"
#include "comm/messages/verifying.h"
#include "comm/transport.h"
#include "model/model.h"
#include "target_worker/target_options.h"

namespace outrider {

class PlanSource {
 public:
  // All must outlive this.
  PlanSource(Model& model, Collectives& group, const TargetOptions& options)
      : model_(model), group_(group), options_(options) {}

  // Collective: throws std::runtime_error where ranks differ in what the bits of a text depend on.
  void agree_on_setup();

  // Leader only: sends Hello and waits for the coordinator's Welcome.
  Status join(Transport& transport);

  // The next plan, on every rank; empty: the end. `transport` is null but on the leader. Throws
  // CollectiveError when a rank is gone.
  std::optional<StepPlan> next(Transport* transport);

  bool leaving() const { return leaving_; }
  // Leader only: why there are no more plans, unless the coordinator sent a Shutdown.
  const Status& ended() const { return ended_; }
  void end(Status why);  // the first reason stays
  // Leader only: `status` is of a message to the coordinator.
  void sent(Transport& transport, Status status);

 private:
  std::optional<StepPlan> receive(Transport& transport);

  Model& model_;
  Collectives& group_;
  const TargetOptions& options_;
  bool leaving_ = false;  // told to shut down, perhaps before it was welcomed
  Status ended_;
  std::vector<std::byte> frame_;
};

}  // namespace outrider
