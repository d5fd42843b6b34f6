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

TEST(Topology, DraftWorkersOfSeveralRanks) {
  const auto layout = parse_layout("coordinator=1,draft=2x2,target=2", 7);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  const Topology topology(*layout, on_one_host(7));
  EXPECT_EQ(topology.draft_width(), 2);
  EXPECT_EQ(topology.draft_workers(), 2);
  EXPECT_EQ(topology.tp_size(), 2);
  for (int i = 0; i < 4; ++i) {
    const RankPlace& place = topology.at(Rank(1 + i));
    EXPECT_EQ(place.group, i / 2);
    EXPECT_EQ(place.draft_rank, i % 2);
    EXPECT_EQ(place.drafts(), i % 2 == 0);
    EXPECT_FALSE(place.is_leader());
  }
  EXPECT_NE(topology.describe().find("draft/1.0"), std::string::npos) << topology.describe();
  const Topology three(*parse_layout("draft=3", 5), on_one_host(5));
  EXPECT_EQ(three.draft_workers(), 3);
  EXPECT_TRUE(three.at(Rank(2)).drafts());

  EXPECT_EQ(*default_layout(4, 1, 2),
            (Layout{{Role::kCoordinator, 1}, {Role::kDraft, 2, 1, 2}, {Role::kTarget, 1}}));
  EXPECT_EQ(
      parse_layout("draft=2,target=1", 4, 1, 2).status().message(),
      "--layout draft=2,target=1: --draft-tensor-parallel-size 2 but its draft workers have 1 rank; say "
      "draft=1x2, or drop the flag");
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
      {"target=2x", 4,
       "--layout target=2x: target=2x: it is groups and the ranks of each, as in target=2x4, which is two "
       "groups of four ranks"},
      {"target=0x2", 4,
       "--layout target=0x2: target=0x2: it is groups and the ranks of each, as in target=2x4, which is two "
       "groups of four ranks"},
      {"coordinator=1x1", 3,
       "--layout coordinator=1x1: coordinator=1x1: only targets and draft workers have several ranks"},
      {"draft=1x", 4,
       "--layout draft=1x: draft=1x: it is workers and the ranks of each, as in draft=1x2, which is one "
       "worker "
       "of two ranks"},
      {"draft=1x3", 5, "--layout draft=1x3: draft=1x3: a draft worker has 1, 2, 4 or 8 ranks"},
      {"draft=2x2", 5, "--layout draft=2x2: target=0: a target group has 1, 2, 4 or 8 ranks"},
      {"target=2x3", 7,
       "--layout target=2x3: target=2x3: 2 groups of 3 ranks each, but a target group has 1, 2, 4 or 8"},
      {"target=16", 17,
       "--layout target=16: target=16: a target group has 1, 2, 4 or 8 ranks; several groups are target=2x4, "
       "say, which is two of four"},
      {"target=2x2", 4,
       "--layout target=2x2: it names 5 ranks, but 4 were started; start with -n 5 or change the layout"},
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

TEST(Topology, GroupsThatOnlyPrefillComeFirst) {
  const auto layout = parse_layout("coordinator=1,target=prefill:1x2,decode:2x2,draft=1", 8);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  const Topology topology(*layout, on_one_host(8));
  EXPECT_EQ(topology.groups(), 3);
  EXPECT_EQ(topology.prefill_groups(), 1);
  EXPECT_EQ(topology.tp_size(), 2);
  EXPECT_EQ(topology.at(Rank(7)).role, Role::kDraft);
  EXPECT_NE(topology.describe().find("leader of group 0, which only prefills"), std::string::npos)
      << topology.describe();
  EXPECT_EQ(*parse_layout("target=prefill:1x1,decode:1x1", 3),
            (Layout{{Role::kCoordinator, 1}, {Role::kTarget, 2, 2, 1, 1}}));
  EXPECT_EQ(*default_layout(3, 2, 1, 1), (Layout{{Role::kCoordinator, 1}, {Role::kTarget, 2, 2, 1, 1}}));
  EXPECT_TRUE(parse_layout("target=prefill:1x2,decode:2x2", 7, 3, 1, 1).ok());
  const auto refusal = [](const char* text, int world, int groups = 1, int prefill = 0) {
    const auto refused = parse_layout(text, world, groups, 1, prefill);
    return refused.ok() ? "" : refused.status().message();
  };
  for (const char* text :
       {"target=decode:1x1,prefill:1x1", "target=prefill:2", "target=prefill:1x1,decode:2"})
    EXPECT_NE(refusal(text, 3).find("target=prefill:1x2,decode:2x2 is"), std::string::npos)
        << refusal(text, 3);
  EXPECT_EQ(refusal("target=prefill:1x1", 2),
            "--layout target=prefill:1x1: target=prefill:... needs decode:GROUPSxRANKS behind it");
  EXPECT_EQ(
      refusal("target=prefill:1x1,decode:0x1", 2),
      "--layout target=prefill:1x1,decode:0x1: 'decode:0x1': groups and ranks are numbers from 1; "
      "target=prefill:1x2,decode:2x2 is one group of two ranks that only prefills, and two that decode");
  EXPECT_NE(refusal("target=prefill:0x1,decode:1x1", 2).find("'prefill:0x1': groups and ranks are numbers"),
            std::string::npos)
      << refusal("target=prefill:0x1,decode:1x1", 2);
  for (const char* text :
       {"target=prefil:1x1,decode:1x1", "target=prefill:1x1,prefil:1x1", "target=prefil:1x1"})
    EXPECT_EQ(
        refusal(text, 3),
        fmt::format("--layout {}: 'prefil' is no kind of target group; kinds are prefill and decode, as in "
                    "target=prefill:1x2,decode:2x2",
                    text));
  EXPECT_NE(refusal("target=prefill:1x1,draft=1", 3).find("it is decode:GROUPSxRANKS"), std::string::npos)
      << refusal("target=prefill:1x1,draft=1", 3);
  // The layout of the hint is accepted beside the flag.
  EXPECT_EQ(
      default_layout(6, 3, 1, 1).status().message(),
      "6 ranks would leave 4 for 3 target groups, which have 1, 2, 4 or 8 each: start with -n 5, or say "
      "what is what with --layout coordinator=1,draft=1,target=prefill:1xRANKS,decode:2xRANKS");
  EXPECT_EQ(refusal("target=prefill:1x2,decode:1x4", 7),
            "--layout target=prefill:1x2,decode:1x4: groups that prefill have 2 ranks each, and groups that "
            "decode 4: give both the same number");
  EXPECT_EQ(refusal("target=prefill:1x1,decode:1x1", 3, 3, 2),
            "--layout target=prefill:1x1,decode:1x1: --prefill-groups 2 but it names 1; say "
            "target=prefill:2xRANKS,decode:1xRANKS, or drop the flag");
  EXPECT_EQ(refusal("target=2x1", 3, 3, 1),
            "--layout target=2x1: --prefill-groups 1 but it names 0; say "
            "target=prefill:1xRANKS,decode:2xRANKS, or drop the flag");
}

TEST(Topology, GroupsOfTargets) {
  const auto layout = parse_layout("coordinator=1,target=2x4,draft=1", 10);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  const Topology topology(*layout, on_one_host(10, 8));
  EXPECT_EQ(topology.groups(), 2);
  EXPECT_EQ(topology.tp_size(), 4);
  EXPECT_EQ(topology.leader(), Rank(1));
  for (int i = 0; i < 8; ++i) {
    const RankPlace& place = topology.at(Rank(1 + i));
    EXPECT_EQ(place.group, i / 4);
    EXPECT_EQ(place.tp_rank, i % 4);
    EXPECT_EQ(place.is_leader(), i % 4 == 0);
    EXPECT_EQ(place.device, fmt::format("cuda:{}", i));
  }
  EXPECT_EQ(topology.at(Rank(9)).role, Role::kDraft);
  EXPECT_NE(topology.describe().find("target/1.0"), std::string::npos) << topology.describe();
  EXPECT_NE(topology.describe().find("leader of group 1"), std::string::npos) << topology.describe();
}

// --data-parallel-size says how many groups where the layout does not, and must not contradict it.
TEST(Topology, GroupsThatAFlagAskedFor) {
  EXPECT_EQ(*parse_layout("draft=1", 6, 2),
            (Layout{{Role::kCoordinator, 1}, {Role::kDraft, 1}, {Role::kTarget, 4, 2}}));
  EXPECT_EQ(*parse_layout("target=3x2", 7, 3), (Layout{{Role::kCoordinator, 1}, {Role::kTarget, 6, 3}}));
  EXPECT_EQ(
      parse_layout("target=4", 5, 2).status().message(),
      "--layout target=4: --data-parallel-size 2 but it names 1 target group; say target=2xRANKS, or drop "
      "the flag");
  EXPECT_EQ(parse_layout("draft=1", 5, 2).status().message(),
            "--layout draft=1: 3 target ranks are not 2 groups of one size");
  EXPECT_EQ(*default_layout(3, 2), (Layout{{Role::kCoordinator, 1}, {Role::kTarget, 2, 2}}));
  EXPECT_EQ(*default_layout(6, 2),
            (Layout{{Role::kCoordinator, 1}, {Role::kDraft, 1}, {Role::kTarget, 4, 2}}));
  EXPECT_NE(default_layout(5, 2).status().message().find("start with -n 4"), std::string::npos)
      << default_layout(5, 2).status().message();
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
  // The layout that an error message proposes is valid.
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
