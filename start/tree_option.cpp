#include "start/tree_option.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/json_file.h"
#include "base/json_text.h"

namespace outrider {
namespace {

std::optional<int32_t> number(std::string_view text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<TreeShape> parse_widths(std::string_view text) {
  TreeShape shape;
  while (true) {
    const size_t comma = text.find(',');
    const auto width = number(text.substr(0, comma));
    if (!width || *width < 1 || *width > kMaxTreeChildren) return std::nullopt;
    shape.widths.push_back(*width);
    if (most_nodes(shape, kMaxTreeNodes) > kMaxTreeNodes) return std::nullopt;
    if (comma == std::string_view::npos) return shape;
    text.remove_prefix(comma + 1);
  }
}

constexpr size_t kMaxTreeText = 64 << 10;

// Python's tuples as JSON's lists; (0,) has a comma that JSON lacks.
std::string lists_of_tuples(std::string_view text) {
  std::string lists;
  for (const char c : text) {
    if (c == ')') {
      const size_t last = lists.find_last_not_of(" \t\r\n");
      if (last != std::string::npos && lists[last] == ',') lists.resize(last);
    }
    lists += c == '(' ? '[' : c == ')' ? ']' : c;
  }
  return lists;
}

// Nodes as paths from the root, each number the rank of a child among its siblings: [[0], [1], [0, 0]], as
// Medusa writes its choices, or [(0,), (1,), (0, 0)], as vLLM writes its token trees. `where` begins errors.
Result<TreeShape> parse_paths(const std::string& text, const std::string& where) {
  ASSIGN_OR_RETURN(const nlohmann::json list, parse_json(lists_of_tuples(text), where));
  const auto wrong = [&](const std::string& what) { return invalid_argument(where + ": " + what); };
  if (!list.is_array() || list.empty() || list.size() > kMaxTreeNodes)
    return wrong(fmt::format("must be a list of 1 to {} paths, such as [[0],[1],[0,0]]", kMaxTreeNodes));
  std::vector<std::vector<int32_t>> paths;
  for (const auto& path : list) {
    if (!path.is_array() || path.empty() || path.size() > kMaxTreeNodes)
      return wrong(json_text(path).substr(0, 100) +
                   " is no path; [0,1] is the second child of the first child");
    auto& ranks = paths.emplace_back();
    for (const auto& rank : path) {
      if (!rank.is_number_integer() || rank < 0 || rank >= kMaxTreeChildren)
        return wrong(fmt::format("{}: children are counted from 0, and there are {} at most",
                                 json_text(path).substr(0, 100), kMaxTreeChildren));
      ranks.push_back(rank.get<int32_t>());
    }
  }
  std::sort(paths.begin(), paths.end(),
            [](const auto& a, const auto& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; });
  TreeShape shape;
  std::map<std::vector<int32_t>, int32_t> nodes{{{}, kTreeRoot}};
  for (auto path : paths) {
    const auto node = static_cast<int32_t>(shape.parents.size());
    const std::string name = json_text(nlohmann::json(path));
    if (!nodes.emplace(path, node).second) return wrong(name + " is listed twice");
    if (path.back() > 0) {
      auto better = path;
      --better.back();
      if (!nodes.contains(better)) return wrong(name + " is listed without its better sibling");
    }
    path.pop_back();
    const auto parent = nodes.find(path);
    if (parent == nodes.end()) return wrong(name + " is listed without its parent");
    shape.parents.push_back(parent->second);
  }
  return shape;
}

}  // namespace

void add_tree_option(CLI::App& app, SpeculativeTree& tree, const char* group) {
  app.add_option(
         "--speculative-tree,--speculative-token-tree", tree,
         "Draft several tokens for a position: off, the children of each node level by level, such as 4,2,1, "
         "[[0],[1],[0,0]] (each node by its path: ranks among siblings, from the root) or @FILE with such a "
         "list, sequoia:NODES (the best fixed tree for the acceptance measured so far), best-first:NODES "
         "(those that the target most likely comes to), or auto (of these, as many as pay). Under the match "
         "rules "
         "(--rule auto, greedy, invariant, naive) the text is the same; of the p/q rules specinfer, kseq, "
         "swor and traversal take trees, the kinds before best-first. It fixes how deep drafts get, unless "
         "--gamma-policy or --num-speculative-tokens does. With a --pipeline that drafts during verification "
         "best-first trees grow on, and what stands behind the text's next token is the next draft")
      ->check(tree.complaint)
      ->group(group)
      ->capture_default_str();
}

Result<TreeOptions> parse_speculative_tree(const std::string& text) {
  constexpr std::string_view kBestFirst = "best-first:", kSequoia = "sequoia:";
  if (text == "off") return TreeOptions{};
  if (text == "auto") return TreeOptions{.shape = {.widths = {}, .nodes = kMaxTreeNodes}, .automatic = true};
  if (text.starts_with('[') || text.starts_with('@')) {
    const bool is_file = text.starts_with('@');
    const std::string where = "--speculative-tree " + text.substr(0, 200);
    std::string paths = text;
    if (text == "@")
      return invalid_argument("--speculative-tree @: name a file behind it, such as @tree.json");
    if (is_file) {
      auto read = read_text_file(text.substr(1), kMaxTreeText);
      if (!read.ok()) return read.status().in("--speculative-tree");
      paths = std::move(read).value();
    }
    ASSIGN_OR_RETURN(TreeShape shape, parse_paths(paths, where));
    return TreeOptions{.shape = std::move(shape)};
  }
  const bool by_rank = text.starts_with(kSequoia);
  if (by_rank || text.starts_with(kBestFirst)) {
    const auto nodes = number(std::string_view(text).substr((by_rank ? kSequoia : kBestFirst).size()));
    if (nodes && *nodes >= 1 && *nodes <= kMaxTreeNodes)
      return TreeOptions{.shape = {.widths = {}, .nodes = *nodes}, .by_rank = by_rank};
  } else if (auto shape = parse_widths(text)) {
    return TreeOptions{.shape = std::move(*shape)};
  }
  return invalid_argument(
      fmt::format("--speculative-tree {}: choose off, auto, best-first:NODES, sequoia:NODES, a list of "
                  "paths such as [[0],[1],[0,0]], @FILE with one, or the children of each node level by "
                  "level, 1 to {} of them, such as 4,2,1; {} nodes at most",
                  text, kMaxTreeChildren, kMaxTreeNodes));
}

Status check_rule_of_trees(const SpeculativeTree& tree, const std::string& name) {
  const auto rule = rule_from_name(name);
  if (!tree.ok() || tree->shape.is_chain() || !rule || tree->suits(*rule)) return {};
  if (is_tree_rule(*rule))
    return unsupported(
        fmt::format("--speculative-tree {}: --rule {} draws the children of a node, so they cannot be chosen "
                    "by what they are; use sequoia:NODES, or the children of each node level by level, such "
                    "as 4,2,1",
                    tree.text(), name));
  return unsupported(
      fmt::format("--speculative-tree {}: drafts under --rule {} are chains; use --rule auto, one of the p/q "
                  "rules for trees (specinfer, kseq, swor, traversal), or --speculative-tree off",
                  tree.text(), name));
}

int32_t pinned_depth(const TreeOptions& tree) {
  if (tree.automatic) return 0;
  if (tree.shape.nodes > 0) return tree.shape.nodes;
  if (tree.shape.parents.empty()) return static_cast<int32_t>(tree.shape.widths.size());
  const auto depths = depths_of(tree.shape.parents);
  return *std::max_element(depths.begin(), depths.end());
}

}  // namespace outrider
