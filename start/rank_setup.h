// Ranks of one job compare everything that decides a text or the size of a buffer before they load a model:
// files on several hosts may differ, and so may flags and variables. An undetected difference would show only
// in the passes, as a text that no model writes, or as a crash.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/collectives.h"
#include "start/prepare.h"
#include "start/settings.h"

namespace outrider {

struct SetupFact {
  std::string what;  // "--max-model-len", "config.json of --model"
  std::string value;
};

// The settings and weights of one rank. Facts of ranks with the same `ranks` are compared; an empty name is
// not compared.
struct RankSetup {
  std::string ranks;  // "target ranks"
  std::string name;   // "rank 1"
  std::vector<SetupFact> facts;
  struct Weights {
    std::string flag;
    std::filesystem::path directory;
  };
  std::vector<Weights> weights;  // compared in full, unless the files are the same
};

std::string this_host();

// Collective: every rank's text, in rank order.
std::vector<std::string> gather_texts(Collectives& world, const std::string& mine);

// The setup of a rank that computes with the target, in any group; and of the coordinator, which only plans
// for it.
Result<RankSetup> target_setup(const RoleSettings& settings, const Preparation& prepared, std::string name);
Result<RankSetup> coordinator_setup(const RoleSettings& settings, const Preparation& prepared,
                                    std::string name);
// The setup of a rank of the draft worker `worker`.
Result<RankSetup> draft_setup(const RoleSettings& settings, const Preparation& prepared,
                              const std::string& worker, std::string name);

// Collective over `world`. An error, the same on every rank that could read its files, names the difference
// and the ranks. A rank without `mine`, whose own error is reported elsewhere, takes part and is not
// compared.
Status compare_setups(Collectives& world, const RankSetup& mine, int threads);

}  // namespace outrider
