// Recorded spec steps: the contents of a record, and replay at another draft length, which must equal a real
// run.
#include "lab/simulate/replay.h"

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/program.h"

namespace outrider::testing {
namespace {

GammaPolicyFactory policy(const std::string& text) {
  auto parsed = parse_gamma_policy(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.value();
}

RoundRecord record_of(std::vector<RecordedRound> rounds, int32_t emitted) {
  return {
      .drafter = "model",
      .gamma_policy = "fixed:gamma=4",
      .gamma_max = 16,
      .max_context = 1000,
      .costs = {.verify = {.base = 0.009, .per_row = 0.001}, .draft = {.per_step = 0.002}, .exchange = 0.001},
      .requests =
          {{.id = 1, .rule = "greedy", .prompt_tokens = 10, .max_tokens = emitted, .emitted = emitted}},
      .rounds = std::move(rounds)};
}

using Shape = std::array<int32_t, 4>;  // base, drafted, accepted, emitted
std::vector<Shape> shapes(const std::vector<RecordedRound>& rounds) {
  std::vector<Shape> out;
  for (const RecordedRound& r : rounds) out.push_back({r.base, r.drafted, r.accepted, r.emitted});
  return out;
}

// Tokens 11.. of the text: right right wrong | right right right right wrong(guess) | right wrong.
const std::vector<RecordedRound> kRounds{
    {.request = 1, .base = 10, .emitted = 1},
    {.request = 1, .base = 11, .gamma = 4, .drafted = 4, .accepted = 2, .emitted = 3},
    {.request = 1, .base = 14, .gamma = 4, .drafted = 4, .accepted = 4, .emitted = 5},
    {.request = 1,
     .base = 19,
     .gamma = 4,
     .drafted = 4,
     .accepted = 1,
     .emitted = 2,
     .guess = Guess::kWrong}};

TEST(Replay, AnotherLengthMeetsTheSameText) {
  const RoundRecord record = record_of(kRounds, 11);
  const ReplayResult same = replay(record, policy("fixed:gamma=4"));
  EXPECT_EQ(same.gaps, 0);
  EXPECT_EQ(
      shapes(same.rounds),
      (std::vector<Shape>{{10, 0, 0, 1}, {11, 4, 2, 3}, {14, 4, 4, 5}, {19, 1, 1, 2}}));  // room for 2 more
  const ReplayResult shorter = replay(record, policy("fixed:gamma=2"));
  EXPECT_EQ(shorter.gaps, 0);
  EXPECT_EQ(shapes(shorter.rounds),
            (std::vector<Shape>{{10, 0, 0, 1}, {11, 2, 2, 3}, {14, 2, 2, 3}, {17, 2, 1, 2}, {19, 1, 1, 2}}));
  // verify 0.009 + rows of 0.001; drafts of 0.002 a token and 0.001 for the exchange
  EXPECT_NEAR(shorter.seconds, 3 * (0.012 + 0.005) + 0.011 + 0.003, 1e-12);
  EXPECT_EQ(shorter.sums.emitted, 10);
  const ReplayResult plain = replay(record, policy("fixed:gamma=0"));
  EXPECT_NEAR(plain.seconds, 10 * 0.010, 1e-12);
  EXPECT_TRUE(replay_caveats(record).empty());
}

TEST(Replay, WhatNoRoundTestedIsAGapAndCounted) {
  std::vector<RecordedRound> rounds = kRounds;
  rounds.back().guess = Guess::kUnknown;
  const ReplayResult longer = replay(record_of(rounds, 11), policy("fixed:gamma=6"));
  EXPECT_EQ(longer.gaps, 1);  // position 18, behind the four that were accepted
  const ReplayResult same = replay(record_of(rounds, 11), policy("fixed:gamma=4"));
  EXPECT_EQ(same.gaps, 0);
  const ReplayResult again = replay(record_of(rounds, 11), policy("fixed:gamma=6"));
  EXPECT_EQ(again.rounds, longer.rounds);
}

TEST(Replay, ADraftEndsWhereItsDrafterSawAnEnd) {
  std::vector<RecordedRound> rounds{
      {.request = 1, .base = 10, .emitted = 1},
      // wrong at 12, and the drafter went on to an end of text at 13
      {.request = 1, .base = 11, .gamma = 6, .drafted = 3, .accepted = 1, .emitted = 2, .eos = true},
      // an end of text that the target took, and went on
      {.request = 1, .base = 13, .gamma = 6, .drafted = 2, .accepted = 2, .emitted = 3, .eos = true}};
  const ReplayResult r = replay(record_of(rounds, 6), policy("fixed:gamma=4"));
  EXPECT_EQ(shapes(r.rounds), (std::vector<Shape>{{10, 0, 0, 1}, {11, 3, 1, 2}, {13, 2, 2, 3}}));
  const ReplayResult two = replay(record_of(rounds, 6), policy("fixed:gamma=2"));
  EXPECT_EQ(shapes(two.rounds), (std::vector<Shape>{{10, 0, 0, 1}, {11, 2, 1, 2}, {13, 2, 2, 3}}));
}

TEST(Replay, SaysWhereItIsNotExact) {
  RoundRecord record = record_of(kRounds, 11);
  record.requests[0].rule = "token";
  record.drafter = "ngram";
  record.synthetic = true;
  EXPECT_EQ(replay_caveats(record).size(), 3u);
  EXPECT_TRUE(replay(record, policy("confidence")).stops_early);
  EXPECT_FALSE(replay(record, policy("ewma")).stops_early);
}

// Drafts of 4, ended before the first token whose chance, with those before it, is below a half.
class EndsByChance : public GammaPolicy {
 public:
  int32_t next(const GammaContext&) override { return 4; }
  void update(const RoundOutcome& outcome) override { margins.push_back(outcome.margins.size()); }
  StopRule stop_rule() const override {
    return {.kind = StopKind::kChances, .places = {{.slope = 1, .offset = 0, .least_sent = 0.5F}}};
  }
  static inline std::vector<size_t> margins;
};

TEST(Replay, DraftsEndByTheRecordedConfidence) {
  std::vector<RecordedRound> rounds = kRounds;
  rounds[1].margins = {3, 3, -1, 5};  // right right, then a wrong one that is doubted
  rounds[2].margins = {3, -2, 3, 3};  // all right; the second one is doubted
  rounds[3].margins = {3, 3, 3, 3};   // right, then a wrong one that is not doubted, and two behind it
  EndsByChance::margins.clear();
  const ReplayResult r = replay(record_of(rounds, 11), [] { return std::make_unique<EndsByChance>(); });
  EXPECT_FALSE(r.stops_early);
  EXPECT_EQ(shapes(r.rounds),
            (std::vector<Shape>{{10, 0, 0, 1}, {11, 2, 2, 3}, {14, 1, 1, 2}, {16, 4, 2, 3}, {19, 1, 1, 2}}));
  EXPECT_EQ(EndsByChance::margins, (std::vector<size_t>{2, 1, 4, 1}));
  EXPECT_EQ(r.gaps, 1) << "no draft of the record had a token at 18";
  // Passes of 3, 2, 5 and 2 rows; of the draft model 3, 2, 4 and 1, of which the last one of the first two is
  // withheld.
  EXPECT_NEAR(r.seconds, 4 * (0.009 + 0.001) + 12 * 0.001 + 10 * 0.002, 1e-12);
}

TEST(Replay, GivenCostsReplaceTheRecordedOnes) {
  const ReplayCosts costs{.rows = RowCosts({{3, 2}}), .draft = 0.5, .draft_prefill = 0.1};
  const ReplayResult r = replay(record_of(kRounds, 11), policy("fixed:gamma=2"), costs);
  // Three rounds of 3 rows and one of 2; a pass of one row takes 10 ms. The prompt and its first token are
  // prefilled once.
  EXPECT_NEAR(r.seconds, 3 * (0.020 + 0.011) + 0.015 + 0.006 + 11 * 0.001, 1e-12);
}

class Recorded : public ::testing::Test {
 protected:
  static constexpr int kMaxTries = 20;
  // A run of many texts, and its record. A draft that comes too late, because other programs have the cores,
  // makes a plain round and has its drafter left alone for a while: no replay knows of that, so the run is
  // made again.
  RoundRecord run(const std::string& gamma_policy, std::vector<std::string> more) const {
    const std::string file = dir_ / "rounds.jsonl";
    std::vector<std::string> arguments{"--draft-model",   demo_draft(),
                                       "--prompts",       openings(),
                                       "--max-tokens",    "48",
                                       "--max-num-seqs",  "4",
                                       "--gamma-policy",  gamma_policy,
                                       "--record-rounds", file,
                                       "--output",        dir_ / "text.jsonl",
                                       "--quiet"};
    arguments.insert(arguments.end(), {"--report", dir_ / "report.json", "--overwrite"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    int64_t late = 0;
    for (int tries = 0; tries < kMaxTries; ++tries) {
      const Outcome ran = generate(arguments);
      EXPECT_EQ(ran.code, 0) << ran.describe();
      late = nlohmann::json::parse(read_file(dir_ / "report.json"))["metrics"]["drafts"]["deadlines_missed"]
                 .get<int64_t>();
      if (late == 0) break;
    }
    EXPECT_EQ(late, 0) << "drafts came too late in each of " << kMaxTries << " runs";
    auto record = read_round_record(file);
    EXPECT_TRUE(record.ok()) << record.status().message();
    return std::move(record).value();
  }
  static std::string openings() {
    return (demo_target().parent_path().parent_path().parent_path() / "lab" / "study" / "openings.jsonl")
        .string();
  }
  TemporaryDirectory dir_;
};

// The rounds of one text in order. What a run says of its guesses is no part of its course.
std::vector<RecordedRound> course(const std::vector<RecordedRound>& rounds, int64_t request) {
  std::vector<RecordedRound> out;
  for (RecordedRound round : rounds) {
    round.guess = Guess::kUnknown;
    round.margins.clear();
    round.chances.clear();
    if (round.request == request) out.push_back(round);
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.base < b.base; });
  return out;
}

RoundRecord only(const RoundRecord& record, const RecordedRequest& request) {
  RoundRecord out = record;
  out.requests = {request};
  std::erase_if(out.rounds, [&](const RecordedRound& r) { return r.request != request.id; });
  return out;
}

// Behind a rejected token nothing is promised but its number: the record may not reach as far.
void forgive_ends_behind_rejections(std::vector<RecordedRound>& replayed,
                                    const std::vector<RecordedRound>& real) {
  for (size_t i = 0; i < std::min(replayed.size(), real.size()); ++i)
    if (real[i].eos && real[i].accepted < real[i].drafted && replayed[i].accepted == real[i].accepted)
      replayed[i].drafted = real[i].drafted, replayed[i].eos = true;
}

// The confidence in a tested token depends on the text before it, not on the length of its draft.
void expect_equal_margins(const RoundRecord& a, const RoundRecord& b, int64_t request) {
  const auto by_position = [&](const RoundRecord& record) {
    std::map<int32_t, float> out;
    for (const RecordedRound& r : record.rounds)
      for (int32_t i = 0; r.request == request && i < std::min(r.drafted, r.accepted + 1); ++i) {
        EXPECT_EQ(r.margins.size(), static_cast<size_t>(r.drafted));
        if (r.margins.empty()) break;
        out[r.base + i] = r.margins[static_cast<size_t>(i)];
      }
    return out;
  };
  const auto of_a = by_position(a), of_b = by_position(b);
  for (const auto& [position, margin] : of_b) {
    const auto other = of_a.find(position);
    EXPECT_EQ(margin, other == of_a.end() ? margin : other->second) << position;
  }
}

TEST_F(Recorded, AReplayAtASmallerLengthIsTheRealRun) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<int>>> kRuns{
      {{"--temperature", "0", "--ignore-eos"}, {1, 3, 5}},
      {{"--temperature", "0.7", "--seed", "3"}, {3}},
      {{"--temperature", "0.9", "--rule", "naive", "--ignore-eos"}, {1, 5}},
      {{"--temperature", "0", "--pipeline", "ahead"}, {3}}};
  for (const auto& [more, lengths] : kRuns) {
    const RoundRecord record = run("fixed:gamma=8", more);
    for (const int gamma : lengths) {
      const std::string name = fmt::format("fixed:gamma={}", gamma);
      const RoundRecord real = run(name, more);
      ASSERT_EQ(real.requests.size(), 16u);
      size_t compared = 0;
      for (const RecordedRequest& request : record.requests) {
        const ReplayResult replayed = replay(only(record, request), policy(name));
        if (replayed.gaps > 0) continue;  // a text may end right behind a fully accepted draft
        ++compared;
        const auto expected = course(real.rounds, request.id);
        auto got = course(replayed.rounds, request.id);
        forgive_ends_behind_rejections(got, expected);
        if (more.back() != "ahead") expect_equal_margins(record, real, request.id);
        EXPECT_EQ(got, expected) << name << ", " << fmt::format("{}", fmt::join(more, " "));
      }
      EXPECT_GE(compared, 13u) << name << ", " << fmt::format("{}", fmt::join(more, " "));
    }
  }
}

TEST_F(Recorded, PenaltiesAndPlainRoundsLeaveGaps) {
  const RoundRecord penalised = run("fixed:gamma=2", {"--temperature", "0", "--repetition-penalty", "1.1"});
  EXPECT_GT(replay(penalised, policy("fixed:gamma=4")).gaps, 50);
  const RoundRecord plain = run("fixed:gamma=0", {"--temperature", "0"});
  EXPECT_EQ(replay(plain, policy("fixed:gamma=1")).gaps, replay(plain, policy("fixed:gamma=1")).sums.tested);
}

// The target's probability of every token, and of the prompt's: those of --logprobs.
TEST_F(Recorded, HasTheChancesOfTheTargetWhereAsked) {
  const RoundRecord record = run("fixed:gamma=3", {"--temperature", "0", "--logprobs", "0"});
  std::istringstream lines(read_file(dir_ / "text.jsonl"));
  std::map<int64_t, std::vector<float>> expected;
  std::string line;
  while (std::getline(lines, line)) {
    const auto text = nlohmann::json::parse(line);
    for (const auto& token : text["logprobs"])
      expected[text["index"].get<int64_t>()].push_back(std::exp(token["logprob"].get<float>()));
  }
  ASSERT_EQ(record.requests.size(), expected.size());
  for (size_t i = 0; i < record.requests.size(); ++i) {
    const RecordedRequest& request = record.requests[i];
    ASSERT_TRUE(request.prompt_chance);
    EXPECT_GT(*request.prompt_chance, 0);
    EXPECT_LE(*request.prompt_chance, 1);
    std::vector<float> chances(static_cast<size_t>(request.emitted), -1);
    for (const RecordedRound& round : record.rounds) {
      if (round.request != request.id) continue;
      ASSERT_EQ(round.chances.size(), static_cast<size_t>(round.emitted));
      for (size_t k = 0; k < round.chances.size(); ++k)
        chances[static_cast<size_t>(round.base - request.prompt_tokens) + k] = round.chances[k];
    }
    const auto& own = expected.at(static_cast<int64_t>(i));
    for (size_t k = 0; k < own.size(); ++k) EXPECT_NEAR(chances[k], own[k], 1e-3) << i << " " << k;
  }
  for (const RecordedRound& round : run("fixed:gamma=3", {"--temperature", "0"}).rounds)
    EXPECT_TRUE(round.chances.empty());
}

TEST_F(Recorded, TheCommandComparesPolicies) {
  run("fixed:gamma=6", {"--temperature", "0"});
  const Outcome out = outrider_program(
      {"simulate", "replay", dir_ / "rounds.jsonl", "--report", dir_ / "r.json", "--html", dir_ / "r.html"});
  ASSERT_EQ(out.code, 0) << out.describe();
  EXPECT_NE(out.out.find("exactly those of real runs"), std::string::npos) << out.out;
  const auto report = nlohmann::json::parse(read_file(dir_ / "r.json"));
  EXPECT_TRUE(report["exact"].get<bool>());
  EXPECT_GE(report["policies"].size(), 12u);
  const std::string page = read_file(dir_ / "r.html");
  EXPECT_NE(page.find(" is the fastest fixed length"), std::string::npos);
  for (const auto& row : report["policies"]) {
    EXPECT_GT(row["tokens_per_second"].get<double>(), 0) << row;
    EXPECT_NE(page.find(row["policy"].get<std::string>()), std::string::npos) << row;
  }
  const Outcome unknown =
      outrider_program({"simulate", "replay", dir_ / "rounds.jsonl", "--policies", "ewna"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("ewma"), std::string::npos) << unknown.err;
}

TEST_F(Recorded, BadRecordsAreRefusedByLine) {
  const std::string good = format_round_record(record_of(kRounds, 11));
  const auto refusal = [&](const std::string& text) {
    const auto read = read_round_record(dir_.write("bad.jsonl", text));
    EXPECT_FALSE(read.ok());
    return read.ok() ? std::string() : read.status().message();
  };
  ASSERT_TRUE(read_round_record(dir_.write("good.jsonl", good)).ok());
  EXPECT_EQ(read_round_record(dir_ / "good.jsonl").value().rounds, kRounds);
  EXPECT_NE(refusal("").find("holds no round"), std::string::npos);
  EXPECT_NE(read_round_record(dir_.path()).status().message().find("is a directory"), std::string::npos);
  EXPECT_NE(refusal("{\"a\":1}\n").find("bad.jsonl:1: not a record of rounds"), std::string::npos);
  EXPECT_NE(refusal(good + "{\"round\":[1,2]}\n").find("bad.jsonl:7: a round has 8 numbers"),
            std::string::npos);
  EXPECT_NE(refusal(good + "{\"round\":[1,11,2,3,0,1,0,-1]}\n").find(":7: these numbers fit no round"),
            std::string::npos);
  EXPECT_NE(refusal(good + "{\"round\":[1,11,2,2,0,1,0,-1],\"margins\":[1]}\n").find("as many margins"),
            std::string::npos);
  EXPECT_NE(refusal(good + "{\"round\":[1,11,2,2,0,1,0,-1],\"chances\":[1,1]}\n").find("as many chances"),
            std::string::npos);
  EXPECT_NE(refusal(good + "{\"round\":[9,11,2,2,0,1,0,-1]}\n").find("request 9 is not described"),
            std::string::npos);
  EXPECT_NE(refusal(good + "rubbish\n").find("bad.jsonl:7: "), std::string::npos);
  EXPECT_EQ(read_round_record(dir_ / "absent").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace outrider::testing
