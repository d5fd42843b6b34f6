#include "lab/simulate/texts_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/version.h"
#include "lab/simulate/pages.h"
#include "start/flags/options.h"

namespace outrider {
namespace {

constexpr int kMaxDrafted = 256;  // of a draft
constexpr int kMostByCost = 64;   // the same, of the default policy

std::shared_ptr<TextGuesser> guesser_of(const std::string& drafter) {
  if (drafter == "suffix") return make_suffix_guesser({});
  if (drafter == "suffix-own") return make_suffix_guesser({.history_tokens = 0});
  return make_ngram_guesser({});
}

std::string lines_of(const TextsTable& table) {
  std::string out = fmt::format("{}\n\n{:<12} {:<20} {:>11} {:>12} {:>12} {:>9}\n", table.subtitle, "drafter",
                                "a draft", "acceptance", "drafted/pass", "tokens/round", "speed-up");
  for (const TextsRow& row : table.rows)
    out += fmt::format("{:<12} {:<20} {:>11.3f} {:>12.2f} {:>12.2f} {:>9.2f}\n", row.drafter,
                       row.shape_text(), row.figures.acceptance(), row.figures.drafted_per_pass(),
                       row.figures.tokens_per_round(), row.figures.speedup());
  return out +
         fmt::format(
             "\nOf all passes but those that read a prompt. Acceptance and tokens a pass are those of a real "
             "run at these\nlengths, if the model writes these texts. The speed-up assumes that a pass "
             "over M rows costs {} of one row, with\nstraight lines between, and that drafts cost "
             "nothing. By cost: each draft ends where its rows stop paying.\n",
             fmt::join(table.row_costs, " and "));
}

nlohmann::json json_of(const TextsTable& table) {
  nlohmann::json rows = nlohmann::json::array();
  for (const TextsRow& row : table.rows)
    rows.push_back({{"drafter", row.drafter},
                    {"gamma", row.shape.gamma},
                    {"nodes", row.shape.nodes},
                    {"by_cost", row.shape.by_cost},
                    {"tokens", row.figures.tokens},
                    {"passes", row.figures.passes},
                    {"drafted", row.figures.drafted},
                    {"accepted", row.figures.accepted},
                    {"acceptance_rate", row.figures.acceptance()},
                    {"tokens_per_round", row.figures.tokens_per_round()},
                    {"speedup", row.figures.speedup()}});
  return {{"simulated", true},
          {"version", kVersion},
          {"file", table.file},
          {"row_costs", table.row_costs},
          {"rows", rows}};
}

}  // namespace

std::string TextsRow::shape_text() const {
  if (shape.by_cost) return fmt::format("chain by cost");
  if (shape.nodes == 0) return fmt::format("chain of {}", shape.gamma);
  return fmt::format("tree of {}, {} deep", shape.nodes, shape.gamma);
}

const TextsRow* TextsTable::fastest() const {
  const auto slower = [](const TextsRow& a, const TextsRow& b) {
    return a.figures.speedup() < b.figures.speedup();
  };
  const auto best = std::max_element(rows.begin(), rows.end(), slower);
  return best == rows.end() ? nullptr : &*best;
}

void add_texts_options(CLI::App& app, TextsOptions& o) {
  app.add_option(
         "file", o.file,
         "Texts as JSON lines: {\"prompt\": \"...\", \"output\": \"...\"}; also HumanEval and GSM8K as they "
         "are")
      ->required();
  finds_model(
      app.add_option("--model", o.model, "Directory with the tokenizer of the model that writes such texts"))
      ->required();
  app.add_option("--drafters", o.drafters,
                 "suffix looks into the outputs in front of a text, too; suffix-own into the text alone")
      ->check(CLI::IsMember({"ngram", "suffix", "suffix-own"}))
      ->capture_default_str();
  app.add_option("--gammas", o.gammas, "Tokens of a chain, at most")
      ->check(CLI::Range(1, kMaxDrafted))
      ->capture_default_str();
  app.add_option("--nodes", o.nodes, "Tokens of a tree, at most; 0: chains alone")
      ->check(CLI::Range(0, kMaxDrafted))
      ->capture_default_str();
  app.add_option(
         "--row-costs", o.row_costs,
         "ROWS=COST of a target pass, of one with a single row; straight lines between, and beyond the "
         "last\nas before it")
      ->capture_default_str();
  app.add_option("--limit", o.limit, "Lines of the file, at most")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--max-tokens", o.max_tokens, "Of each output, at most")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  add_report_options(app, o.files);
}

Status run_texts(const TextsOptions& o) {
  RETURN_IF_ERROR(check(o.files));
  ASSIGN_OR_RETURN(const RowCosts costs, parse_row_costs(o.row_costs));
  ASSIGN_OR_RETURN(const auto tokenizer, load_tokenizer(o.model));
  ASSIGN_OR_RETURN(const auto texts, read_written_texts(o.file, *tokenizer, o.limit, o.max_tokens));
  size_t prompts = 0, outputs = 0;
  for (const WrittenText& text : texts) {
    prompts += text.prompt.size();
    outputs += text.output.size();
  }
  TextsTable table{.file = o.file,
                   .subtitle = fmt::format("{} texts, {} tokens behind {} of their prompts; no model ran.",
                                           texts.size(), outputs, prompts),
                   .row_costs = o.row_costs,
                   .rows = {}};
  std::vector<TextDraftShape> shapes;
  for (const int gamma : o.gammas) shapes.push_back({.gamma = gamma});
  for (const int nodes : o.nodes)
    if (nodes > 0) shapes.push_back({.gamma = nodes, .nodes = nodes});
  for (const std::string& drafter : o.drafters) {
    const auto replay = [&](const TextDraftShape& shape) {
      table.rows.push_back({drafter, shape, replay_texts(*guesser_of(drafter), texts, shape, costs)});
    };
    for (const TextDraftShape& shape : shapes) replay(shape);
    if (drafter != "ngram") replay({.gamma = kMostByCost, .by_cost = true});
  }
  std::fputs(lines_of(table).c_str(), stdout);
  return write(o.files, json_of(table), texts_page(table));
}

}  // namespace outrider
