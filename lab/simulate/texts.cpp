#include "lab/simulate/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/draft_tree.h"
#include "draft_worker/text/found_length.h"

namespace outrider {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 4> kTextKeys{{{"prompt", "output"},
                                                                        {"prompt", "completion"},
                                                                        {"prompt", "canonical_solution"},
                                                                        {"question", "answer"}}};

bool has_text(const nlohmann::json& line, const char* key) {
  return line.contains(key) && line[key].is_string();
}

Result<WrittenText> written_text_of(const nlohmann::json& line, const Tokenizer& tokenizer,
                                    int64_t max_tokens) {
  for (const auto& [prompt, output] : kTextKeys) {
    if (!line.is_object() || !has_text(line, prompt) || !has_text(line, output)) continue;
    WrittenText text;
    ASSIGN_OR_RETURN(text.prompt, tokenizer.encode(line[prompt].get<std::string>(), SpecialTokens::kAdd));
    ASSIGN_OR_RETURN(text.output, tokenizer.encode(line[output].get<std::string>(), SpecialTokens::kOmit));
    if (static_cast<int64_t>(text.output.size()) > max_tokens)
      text.output.resize(static_cast<size_t>(max_tokens));
    return text;
  }
  return invalid_argument("no text with what followed it; write {\"prompt\": \"...\", \"output\": \"...\"}");
}

// How many nodes of the tree the text goes along.
int32_t accepted_of(const DraftTree& tree, std::span<const TokenId> text) {
  int32_t node = kTreeRoot, depth = 0;
  for (const TokenId token : text) {
    const int32_t child = child_with(tree, node, token);
    if (child == kTreeRoot) break;
    node = child;
    ++depth;
  }
  return depth;
}

// Uses prices like those that the coordinator sends: of a pass, and of one of the next few rows.
size_t paying_length(std::span<const double> chances, size_t drafted, const RowCosts& costs) {
  constexpr double kFurther = 8, kPass = 1e9;
  const auto row = static_cast<int64_t>(kPass * (costs.of(1 + kFurther) - 1) / kFurther);
  const FoundLength best = best_found_length(chances, static_cast<int64_t>(kPass), row);
  return std::min(drafted, static_cast<size_t>(best.tokens));
}

}  // namespace

Result<std::vector<WrittenText>> read_written_texts(const std::string& path, const Tokenizer& tokenizer,
                                                    int64_t limit, int64_t max_tokens) {
  std::ifstream file(path);
  if (!file) return not_found(fmt::format("{}: cannot be opened", path));
  std::vector<WrittenText> texts;
  std::string line;
  for (size_t number = 1; static_cast<int64_t>(texts.size()) < limit && std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    auto text = json.is_discarded() ? Result<WrittenText>(malformed("not JSON"))
                                    : written_text_of(json, tokenizer, max_tokens);
    if (!text.ok()) return text.status().in(fmt::format("{}:{}", path, number));
    texts.push_back(std::move(text).value());
  }
  if (texts.empty()) return malformed(fmt::format("{}: holds no text", path));
  return texts;
}

TextDraftFigures replay_texts(TextGuesser& guesser, std::span<const WrittenText> texts,
                              const TextDraftShape& shape, const RowCosts& costs) {
  TextDraftFigures figures;
  std::vector<TokenId> ids;
  for (const WrittenText& text : texts) {
    const SequenceId sequence(&text - texts.data());
    ids = text.prompt;
    guesser.open(sequence, ids, static_cast<int32_t>(ids.size()), false);
    ids.insert(ids.end(), text.output.begin(), text.output.end());
    const std::span<const TokenId> all(ids);
    for (size_t known = text.prompt.size() + 1; known < all.size();) {
      const auto committed = all.first(known);
      const auto most =
          static_cast<int32_t>(std::min<size_t>(static_cast<size_t>(shape.gamma), all.size() - known - 1));
      guesser.extend(sequence, committed);
      DraftTree draft;
      if (most > 0 && shape.nodes > 0)
        draft = guesser.guess_tree(sequence, committed, {.nodes = shape.nodes}, most);
      else if (most > 0)
        guesser.guess(sequence, committed, most, draft.ids);
      if (shape.by_cost) draft.ids.resize(paying_length(guesser.chances(sequence), draft.ids.size(), costs));
      const int32_t accepted = accepted_of(draft, all.subspan(known));
      figures.drafted += static_cast<int64_t>(draft.ids.size());
      figures.accepted += accepted;
      figures.tokens += accepted + 1;
      figures.cost += costs.of(static_cast<double>(draft.ids.size() + 1));
      ++figures.passes;
      known += static_cast<size_t>(accepted) + 1;
    }
    guesser.extend(sequence, all);
    guesser.close(sequence);
  }
  return figures;
}

}  // namespace outrider
