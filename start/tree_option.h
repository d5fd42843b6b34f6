// --speculative-tree: how drafts branch.
#pragma once

#include <string>

#include "base/status.h"
#include "coordinator/tree_shapes.h"

namespace CLI {
class App;
}

namespace outrider {

constexpr int kMaxTreeNodes = 64;

void add_tree_option(CLI::App& app, std::string& tree, const char* group);

// "off", "4,2,1", "[[0],[1],[0,0]]", "@FILE", "best-first:N", "sequoia:N" or "auto". An error names the flag.
Result<TreeOptions> parse_speculative_tree(const std::string& text);

// An error names both flags, and which rules take such trees.
Status check_rule_of_trees(const std::string& tree, const std::string& rule);

// Tokens of the longest path of such drafts, if no policy says otherwise; 0: the default policy does.
int32_t pinned_depth(const TreeOptions& tree);

}  // namespace outrider
