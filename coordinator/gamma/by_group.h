// State shared by the sequences of one policy, separately for each target group: these sequences share the
// group's passes and wait for each other's drafts.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

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

}  // namespace outrider
