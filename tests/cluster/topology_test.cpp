#include "cluster/topology.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

std::vector<HostInfo> on_one_host(int ranks, int gpus = 0) {
  return std::vector<HostInfo>(static_cast<size_t>(ranks), HostInfo{"alpha", gpus});
}

TEST(Topology, OrderOfRolesIsOrderOfRanks) {
  const auto layout = parse_layout("target=2,coordinator=1,draft=1", 4);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  const Topology topology(*layout, on_one_host(4));
  EXPECT_EQ(topology.leader(), Rank(0));
  EXPECT_EQ(topology.coordinator(), Rank(2));
  EXPECT_EQ(topology.at(Rank(1)).tp_rank, 1);
  EXPECT_FALSE(topology.at(Rank(1)).is_leader());
  EXPECT_EQ(topology.at(Rank(3)).role, Role::kDraft);
  EXPECT_EQ(topology.at(Rank(3)).tp_rank, -1);
  EXPECT_EQ(topology.tp_size(), 2);
}

TEST(Topology, RolesThatAreNotNamed) {
  EXPECT_EQ(*parse_layout("target=2", 3), (Layout{{Role::kCoordinator, 1}, {Role::kTarget, 2}}));
  EXPECT_EQ(*parse_layout("draft=2", 7),
            (Layout{{Role::kCoordinator, 1}, {Role::kDraft, 2}, {Role::kTarget, 4}}));
  EXPECT_EQ(*parse_layout("coordinator=1,draft=0,target=8", 9),
            (Layout{{Role::kCoordinator, 1}, {Role::kDraft, 0}, {Role::kTarget, 8}}));
}

TEST(Topology, BadLayoutsNameTheFlagAndTheRemedy) {
  const struct {
    const char* text;
    int world;
    const char* message;
  } kCases[] = {
      {"", 4, "--layout : '' is not ROLE=COUNT"},
      {"coordinator", 4, "--layout coordinator: 'coordinator' is not ROLE=COUNT"},
      {"verifier=2", 4,
       "--layout verifier=2: 'verifier' is no role; roles are coordinator, draft and target"},
      {"target=two", 4, "--layout target=two: target: 'two' is not a number of ranks"},
      {"target=-1", 4, "--layout target=-1: target: '-1' is not a number of ranks"},
      {"target=2x", 4, "--layout target=2x: target: '2x' is not a number of ranks"},
      {"target=99999999999999", 4,
       "--layout target=99999999999999: target: '99999999999999' is not a number of ranks"},
      {"target=2,", 3, "--layout target=2,: '' is not ROLE=COUNT"},
      {"target=1,draft=1,target=1", 4,
       "--layout target=1,draft=1,target=1: target is named twice; its ranks are consecutive"},
      {"coordinator=2,target=2", 4,
       "--layout coordinator=2,target=2: coordinator=2: there must be exactly 1"},
      {"coordinator=0,target=4", 4,
       "--layout coordinator=0,target=4: coordinator=0: there must be exactly 1"},
      {"target=3", 4, "--layout target=3: target=3: a target group has 1, 2, 4 or 8 ranks"},
      {"target=0,draft=3", 4, "--layout target=0,draft=3: target=0: a target group has 1, 2, 4 or 8 ranks"},
      {"draft=3", 4, "--layout draft=3: target=0: a target group has 1, 2, 4 or 8 ranks"},
      {"target=2,draft=1", 5,
       "--layout target=2,draft=1: it names 4 ranks, but 5 were started; start with -n 4 or "
       "change the layout"},
  };
  for (const auto& bad : kCases) {
    const auto layout = parse_layout(bad.text, bad.world);
    EXPECT_FALSE(layout.ok()) << bad.text;
    EXPECT_EQ(layout.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(layout.status().message(), bad.message);
  }
}

TEST(Topology, DefaultLayouts) {
  EXPECT_EQ(*default_layout(2), (Layout{{Role::kCoordinator, 1}, {Role::kTarget, 1}}));
  for (const int target : {1, 2, 4, 8})
    EXPECT_EQ(*default_layout(target + 2),
              (Layout{{Role::kCoordinator, 1}, {Role::kDraft, 1}, {Role::kTarget, target}}));
  EXPECT_EQ(default_layout(1).status().message(),
            "1 rank cannot be coordinator and target group: start with -n 2 or more, or without mpirun, in "
            "one process");
  EXPECT_EQ(default_layout(8).status().message(),
            "8 ranks would leave 6 for the target group, which has 1, 2, 4 or 8: start with -n 6, or draft "
            "on the others "
            "with --layout coordinator=1,draft=3,target=4");
  // What an error proposes works.
  for (int world = 2; world < 40; ++world) {
    const auto layout = default_layout(world);
    if (layout.ok()) continue;
    const std::string message = layout.status().message();
    const std::string proposal = message.substr(message.rfind(' ') + 1);
    EXPECT_TRUE(parse_layout(proposal, world).ok()) << message;
    const size_t number = message.find("-n ") + 3;
    EXPECT_TRUE(default_layout(std::stoi(message.substr(number))).ok()) << message;
  }
}

TEST(Topology, RanksKnowTheirHostAndDevice) {
  std::vector<HostInfo> hosts = on_one_host(3, 2);
  hosts.resize(6, {"beta", 2});
  const Topology topology(*default_layout(6), hosts);
  const auto device_of = [&](int rank) { return topology.at(Rank(rank)).device; };
  EXPECT_EQ(device_of(0), "cpu");  // the coordinator needs none
  EXPECT_EQ(device_of(1), "cuda:0");
  EXPECT_EQ(device_of(2), "cuda:1");
  EXPECT_EQ(device_of(3), "cuda:0");
  EXPECT_EQ(device_of(4), "cuda:1");
  EXPECT_EQ(device_of(5), "cuda:0");  // shared
  EXPECT_EQ(topology.at(Rank(3)).host, "beta");
  EXPECT_EQ(topology.at(Rank(3)).local_rank, 0);
  EXPECT_EQ(topology.at(Rank(5)).local_rank, 2);
}

TEST(Topology, DescribesItself) {
  const Topology topology(*default_layout(4), on_one_host(4));
  EXPECT_EQ(topology.describe(),
            "rank 0   coordinator  cpu      on alpha (local rank 0)\n"
            "rank 1   draft/0      cpu      on alpha (local rank 1)\n"
            "rank 2   target/0     cpu      on alpha (local rank 2), leader\n"
            "rank 3   target/1     cpu      on alpha (local rank 3)\n");
}

}  // namespace
}  // namespace outrider
