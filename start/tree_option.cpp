#include "start/tree_option.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <optional>

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
    if (!width || *width < 1 || *width > kMostTreeChildren) return std::nullopt;
    shape.widths.push_back(*width);
    if (most_nodes(shape, kMaxTreeNodes) > kMaxTreeNodes) return std::nullopt;
    if (comma == std::string_view::npos) return shape;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

void add_tree_option(CLI::App& app, std::string& tree, const char* group) {
  app.add_option(
         "--speculative-tree,--speculative-token-tree", tree,
         "Draft several tokens for a position: off, the children of each node level by level, such as 4,2,1, "
         "sequoia:NODES (the best fixed tree for the acceptance measured so far), best-first:NODES (those "
         "that the target most likely comes to), or auto (of these, as many as pay). Under the match rules "
         "(--rule auto, greedy, invariant, naive) the text is the same; of the p/q rules specinfer, kseq, "
         "swor and traversal take trees, the first two of these kinds. It fixes how deep drafts get, unless "
         "--gamma-policy or --num-speculative-tokens does; nothing is drafted ahead of a verdict on a tree, "
         "whatever the pipeline")
      ->group(group)
      ->capture_default_str();
}

Result<TreeOptions> parse_speculative_tree(const std::string& text) {
  constexpr std::string_view kBestFirst = "best-first:", kSequoia = "sequoia:";
  if (text == "off") return TreeOptions{};
  if (text == "auto") return TreeOptions{.shape = {.widths = {}, .nodes = kMaxTreeNodes}, .automatic = true};
  const bool by_rank = text.starts_with(kSequoia);
  if (by_rank || text.starts_with(kBestFirst)) {
    const auto nodes = number(std::string_view(text).substr((by_rank ? kSequoia : kBestFirst).size()));
    if (nodes && *nodes >= 1 && *nodes <= kMaxTreeNodes)
      return TreeOptions{.shape = {.widths = {}, .nodes = *nodes}, .by_rank = by_rank};
  } else if (auto shape = parse_widths(text)) {
    return TreeOptions{.shape = std::move(*shape)};
  }
  return invalid_argument(
      fmt::format("--speculative-tree {}: choose off, auto, best-first:NODES, sequoia:NODES, or the children "
                  "of each node "
                  "level by level, 1 to {} of them, such as 4,2,1; {} nodes at most",
                  text, kMostTreeChildren, kMaxTreeNodes));
}

Status check_rule_of_trees(const std::string& tree, const std::string& name) {
  const auto options = parse_speculative_tree(tree);
  const auto rule = rule_from_name(name);
  if (!options.ok() || options->shape.is_chain() || !rule || options->suits(*rule)) return {};
  if (is_tree_rule(*rule))
    return unsupported(
        fmt::format("--speculative-tree {}: --rule {} draws the children of a node, so they cannot be chosen "
                    "by what they are; use sequoia:NODES, or the children of each node level by level, such "
                    "as 4,2,1",
                    tree, name));
  return unsupported(
      fmt::format("--speculative-tree {}: drafts under --rule {} are chains; use --rule auto, one of the p/q "
                  "rules for trees (specinfer, kseq, swor, traversal), or --speculative-tree off",
                  tree, name));
}

int32_t pinned_depth(const TreeOptions& tree) {
  if (tree.automatic) return 0;
  return tree.shape.nodes > 0 ? tree.shape.nodes : static_cast<int32_t>(tree.shape.widths.size());
}

}  // namespace outrider
