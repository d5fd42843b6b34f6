#include "requests/round_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/draft_tree.h"
#include "base/json_text.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kMaxLines = size_t{1} << 24;

Json costs_json(const RecordedCosts& c) {
  return {{"verify_base", c.verify.base},
          {"verify_per_row", c.verify.per_row},
          {"verify_per_context", c.verify.per_context},
          {"draft_per_step", c.draft.per_step},
          {"draft_per_further", c.draft.per_further},
          {"exchange", c.exchange}};
}

RecordedCosts costs_of(const Json& json) {
  return {.verify = {.base = json.at("verify_base"),
                     .per_row = json.at("verify_per_row"),
                     .per_context = json.at("verify_per_context")},
          .draft = {.per_step = json.at("draft_per_step"), .per_further = json.at("draft_per_further")},
          .exchange = json.at("exchange")};
}

// ",\"name\":[...]", or nothing.
std::string numbers_text(const char* name, const std::vector<float>& numbers) {
  return numbers.empty() ? "" : fmt::format(",\"{}\":[{:.4g}]", name, fmt::join(numbers, ","));
}

Json header_json(const RoundRecord& r) {
  return {{"outrider_rounds", kFormat},   {"drafter", r.drafter},           {"gamma_policy", r.gamma_policy},
          {"synthetic", r.synthetic},     {"max_num_seqs", r.max_num_seqs}, {"gamma_max", r.gamma_max},
          {"max_context", r.max_context}, {"dropped", r.dropped},           {"costs", costs_json(r.costs)}};
}

// Json throws if a key is missing or has another type; read_round_record turns that into an error.
void read_header(const Json& line, RoundRecord& r) {
  r.drafter = line.at("drafter");
  r.gamma_policy = line.at("gamma_policy");
  r.synthetic = line.at("synthetic");
  r.max_num_seqs = line.at("max_num_seqs");
  r.gamma_max = line.at("gamma_max");
  r.max_context = line.at("max_context");
  r.dropped = line.at("dropped");
  r.costs = costs_of(line.at("costs"));
}

// Reads the tree of a round whose draft branched.
Status read_tree(const Json& line, RecordedRound& round) {
  round.parents = line.at("parents").get<std::vector<int32_t>>();
  round.path = line.at("path").get<std::vector<int32_t>>();
  std::vector<TokenId> ids;
  for (size_t i = 0; i < round.parents.size(); ++i) ids.emplace_back(static_cast<int32_t>(i));
  const DraftTreeView tree(ids, round.parents);
  RETURN_IF_ERROR(check_tree(tree, {.depth = round.gamma}).in("the tree"));
  if (!is_path(tree, round.path) || static_cast<int32_t>(round.path.size()) != round.accepted)
    return malformed("the path is not one of the tree, or not what was accepted");
  return {};
}

Status read_round(const Json& line, const std::set<int64_t>& requests, RoundRecord& record) {
  const Json& fields = line["round"];
  if (fields.size() != 8) return malformed("a round has 8 numbers");
  const int guess = fields.at(7);
  RecordedRound round{.request = fields.at(0),
                      .base = fields.at(1),
                      .gamma = fields.at(2),
                      .drafted = fields.at(3),
                      .accepted = fields.at(4),
                      .emitted = fields.at(5),
                      .eos = fields.at(6) != 0,
                      .guess = static_cast<Guess>(guess)};
  if (!requests.contains(round.request))
    return malformed(fmt::format("request {} is not described above", round.request));
  if (round.base < 1 || round.accepted < 0 || round.accepted > round.drafted || round.drafted > round.gamma ||
      round.emitted < 0 || round.emitted > round.accepted + 1 || guess < -1 || guess > 2)
    return malformed("these numbers fit no round");
  if (line.contains("parents")) RETURN_IF_ERROR(read_tree(line, round));
  if (line.contains("margins")) {
    round.margins = line["margins"].get<std::vector<float>>();
    if (round.margins.size() != static_cast<size_t>(round.drafted))
      return malformed("there must be as many margins as drafted tokens");
  }
  if (line.contains("chances")) {
    round.chances = line["chances"].get<std::vector<float>>();
    if (round.chances.size() != static_cast<size_t>(round.emitted))
      return malformed("there must be as many chances as emitted tokens");
  }
  record.rounds.push_back(std::move(round));
  return {};
}

Status read_line(const Json& line, std::set<int64_t>& requests, RoundRecord& record) {
  if (line.contains("round")) return read_round(line, requests, record);
  RecordedRequest request{.id = line.at("request"),
                          .rule = line.at("rule"),
                          .prompt_tokens = line.at("prompt_tokens"),
                          .max_tokens = line.at("max_tokens"),
                          .emitted = line.at("emitted")};
  if (line.contains("prompt_chance")) request.prompt_chance = line["prompt_chance"].get<float>();
  if (request.prompt_tokens < 1 || request.max_tokens < 0 || request.emitted < 0 ||
      request.emitted > request.max_tokens || !requests.insert(request.id).second)
    return malformed("these numbers fit no request, or it is described twice");
  record.requests.push_back(std::move(request));
  return {};
}

}  // namespace

RecordedRound RecordedRound::of(const RoundDone& round) {
  const Guess guess = !round.guess_was_right    ? Guess::kUnknown
                      : !*round.guess_was_right ? Guess::kWrong
                      : round.guess_was_eos     ? Guess::kRightAndEnds
                                                : Guess::kRight;
  const bool is_chain = round.parents.empty();
  return {.request = static_cast<int64_t>(round.request.value()),
          .base = round.base.value(),
          .gamma = round.gamma,
          .drafted = is_chain ? round.drafted : round.tested,
          .accepted = round.accepted_count,
          .emitted = round.emitted,
          .eos = round.eos,
          .guess = guess,
          .parents = round.parents,
          .path = round.path,
          .margins = is_chain && round.margins.size() == static_cast<size_t>(round.drafted)
                         ? round.margins
                         : std::vector<float>(),
          .chances = {}};
}

std::string format_round_record(const RoundRecord& record) {
  std::string out = json_text(header_json(record)) + "\n";
  for (const RecordedRequest& r : record.requests) {
    Json line{{"request", r.id},
              {"rule", r.rule},
              {"prompt_tokens", r.prompt_tokens},
              {"max_tokens", r.max_tokens},
              {"emitted", r.emitted}};
    if (r.prompt_chance) line["prompt_chance"] = *r.prompt_chance;
    out += json_text(line) + "\n";
  }
  for (const RecordedRound& r : record.rounds) {
    const std::string tree = r.parents.empty()
                                 ? ""
                                 : fmt::format(",\"parents\":[{}],\"path\":[{}]", fmt::join(r.parents, ","),
                                               fmt::join(r.path, ","));
    out += fmt::format("{{\"round\":[{},{},{},{},{},{},{},{}]{}{}{}}}\n", r.request, r.base, r.gamma,
                       r.drafted, r.accepted, r.emitted, r.eos ? 1 : 0, static_cast<int>(r.guess), tree,
                       numbers_text("margins", r.margins), numbers_text("chances", r.chances));
  }
  return out;
}

Result<RoundRecord> read_round_record(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return not_found(fmt::format("{}: is a directory; name a file of `generate --record-rounds`", path));
  std::ifstream file(path);
  if (!file) return not_found(fmt::format("{}: cannot be opened", path));
  RoundRecord record;
  std::set<int64_t> requests;
  std::string text;
  for (size_t number = 1; std::getline(file, text); ++number) {
    const auto fault = [&](const std::string& why) {
      return malformed(fmt::format("{}:{}: {}", path, number, why));
    };
    if (number > kMaxLines) return fault("too many lines");
    try {
      const Json line = Json::parse(text);
      if (number > 1) {
        RETURN_IF_ERROR(read_line(line, requests, record).in(fmt::format("{}:{}", path, number)));
      } else if (line.value("outrider_rounds", 0) == kFormat) {
        read_header(line, record);
      } else {
        return fault("not a record of rounds; write one with `generate --record-rounds FILE`");
      }
    } catch (const Json::exception& error) {
      const std::string why = error.what();  // "[json.exception...] why": drops the bracket
      return fault("not a record of rounds: " + why.substr(why.find("] ") + 2));
    }
  }
  if (record.rounds.empty()) return malformed(fmt::format("{}: holds no round", path));
  return record;
}

}  // namespace outrider
