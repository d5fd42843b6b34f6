// State shared by the sequences of one policy, separately for each target group: these sequences share the
// group's passes and wait for each other's drafts.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace outrider {

template <class Shared>
class ByGroup {
 public:
  explicit ByGroup(Shared fresh) : fresh_(std::move(fresh)) {}
  // The reference stays valid for as long as this lives.
  Shared& of(int32_t group) { return groups_.try_emplace(group, fresh_).first->second; }

 private:
  const Shared fresh_;
  std::map<int32_t, Shared> groups_;
};

// The running sequences of one factory in a target group, for policies that divide something among them. It
// is divided anew where it is stale.
template <class Policy>
struct PolicyBatch {
  std::vector<Policy*> members;
  bool stale = true;
};

// A policy's membership in the batch of the group that it runs in.
template <class Policy>
class InBatch {
 public:
  explicit InBatch(Policy& self) : self_(self) {}
  InBatch(const InBatch&) = delete;
  InBatch& operator=(const InBatch&) = delete;
  ~InBatch() { leave(); }

  PolicyBatch<Policy>& join(PolicyBatch<Policy>& batch) {
    if (batch_ == &batch) return batch;
    leave();
    batch_ = &batch;
    batch.members.push_back(&self_);
    batch.stale = true;
    return batch;
  }
  void make_stale() {
    if (batch_) batch_->stale = true;
  }

 private:
  void leave() {
    if (!batch_) return;
    std::erase(batch_->members, &self_);
    batch_->stale = true;
  }

  Policy& self_;
  PolicyBatch<Policy>* batch_ = nullptr;
};

}  // namespace outrider
