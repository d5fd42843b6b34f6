// --speculative-tree: the branching of drafts.
#pragma once

#include <string>

#include "base/status.h"
#include "coordinator/choices/tree_shapes.h"
#include "start/parsed.h"

namespace CLI {
class App;
}

namespace outrider {

constexpr int kMaxTreeNodes = 64;

// "off", "4,2,1", "[[0],[1],[0,0]]", "@FILE", "best-first:N", "sequoia:N" or "auto". An error names the flag.
Result<TreeOptions> parse_speculative_tree(const std::string& text);
using SpeculativeTree = Parsed<TreeOptions, parse_speculative_tree>;

void add_tree_option(CLI::App& app, SpeculativeTree& tree, const char* group);

// An error names both flags, and the rules that allow such trees.
Status check_rule_of_trees(const SpeculativeTree& tree, const std::string& rule);

// The longest path of such drafts, if it is fixed without a policy; 0: the default policy decides.
int32_t pinned_depth(const TreeOptions& tree);

}  // namespace outrider
