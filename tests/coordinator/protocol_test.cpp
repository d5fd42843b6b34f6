// Replays transcripts/*.txt, and checks the bookkeeping against the reference traces.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "coordinator/gamma/gamma_policy.h"
#include "tests/support/source_dir.h"
#include "tests/support/temporary_directory.h"
#include "transcript.h"

namespace outrider {
namespace {

std::filesystem::path folder() { return outrider::source_dir() / "tests" / "coordinator" / "transcripts"; }

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> names() {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder()))
    found.push_back(entry.path().stem().string());
  std::sort(found.begin(), found.end());
  return found;
}

class ProtocolTranscript : public ::testing::TestWithParam<std::string> {};

// With OUTRIDER_UPDATE_TRANSCRIPTS=1 the files are rewritten instead: read the difference before keeping it.
TEST_P(ProtocolTranscript, Replays) {
  const auto path = folder() / (GetParam() + ".txt");
  const std::string expected = read(path);
  Transcript transcript;
  const std::string actual = transcript.replay(expected);
  if (std::getenv("OUTRIDER_UPDATE_TRANSCRIPTS")) {
    std::ofstream(path) << actual;
    GTEST_SKIP() << "rewrote " << path;
  }
  EXPECT_EQ(actual, expected);
}

INSTANTIATE_TEST_SUITE_P(All, ProtocolTranscript, ::testing::ValuesIn(names()),
                         [](const auto& test) { return test.param; });

TEST(Protocol, CountsEachReasonOfADroppedDraft) {
  Transcript transcript;
  transcript.replay(read(folder() / "stale_drafts.txt"));
  for (const DropReason reason :
       {DropReason::kUnknownSequence, DropReason::kUnexpectedSender, DropReason::kStaleEpoch,
        DropReason::kStaleRound, DropReason::kDuplicate, DropReason::kWrongBase, DropReason::kWrongHash,
        DropReason::kTooLong, DropReason::kBadIds, DropReason::kBadQ, DropReason::kTree})
    EXPECT_EQ(transcript.totals().dropped(reason), 1) << kDropReasonNames[static_cast<size_t>(reason)];
}

// ---- reference traces: lockstep bookkeeping -------------------------------------------------------------

class LockstepTrace : public ::testing::Test {
 protected:
  template <class Sent>
  Sent take(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      const auto* send = std::get_if<Send>(&action);
      if (send && std::holds_alternative<Sent>(send->message)) return std::get<Sent>(send->message);
    }
    ADD_FAILURE() << "no such message";
    return {};
  }
  std::vector<Action> step(Event event) {
    now_ += std::chrono::milliseconds(1);
    return protocol_->step(std::move(event), now_);
  }

  Clock::time_point now_{};
  std::unique_ptr<Protocol> protocol_;
};

TEST_F(LockstepTrace, MatchesTheReference) {
  const auto trace =
      nlohmann::json::parse(read(outrider::source_dir() / "tests" / "vectors" / "kv_traces.json"));
  std::string gammas;
  for (const auto& round : trace["lockstep"]) gammas += round["gamma"].dump() + "\n";
  const TemporaryDirectory directory;
  const auto file = directory.write("gammas.txt", gammas);
  protocol_ = std::make_unique<Protocol>(ProtocolOptions{},
                                         parse_gamma_policy("replay:file=" + file.string()).value());
  const ModelInfo model{
      .name = "m", .vocab_size = 100, .vocabulary_fingerprint = 1, .max_context = 500, .isa = ""};
  step(MessageReceived{PeerId{1},
                       Hello{.role = Role::kTarget, .generation = {}, .model = model, .max_sequences = 4}});
  step(MessageReceived{PeerId{2},
                       Hello{.role = Role::kDraft, .generation = {}, .model = model, .max_sequences = 4}});
  Request request;
  // The trace begins with `prompt` committed tokens of which one has no KV: as after the round that ends a
  // prefill.
  const int32_t prompt = trace["prompt"];
  request.prompt.assign(static_cast<size_t>(prompt - 1), TokenId(3));
  request.max_tokens = 200;
  const SequenceId id(1);
  auto actions = step(Submit{id, request});
  StepPlan plan = take<StepPlan>(actions);
  actions = step(MessageReceived{PeerId{1}, StepResult{.step = plan.step,
                                                       .verdicts = {{.sequence = id,
                                                                     .epoch = plan.entries[0].epoch,
                                                                     .round = plan.entries[0].round,
                                                                     .base = plan.entries[0].base,
                                                                     .next = TokenId(5),
                                                                     .logprobs = {}}}}});
  int32_t kv_length = prompt - 1;
  Epoch epoch{0};
  std::vector<TokenId> ids = request.prompt;
  ids.push_back(TokenId(5));
  for (const auto& expected : trace["lockstep"]) {
    const int32_t gamma = expected["gamma"], accepted = expected["accepted"];
    const Propose propose = take<Propose>(actions);
    EXPECT_EQ(propose.base.value(), expected["base"]);
    EXPECT_EQ(propose.gamma, gamma);
    if (gamma > 0) {
      Draft draft{.sequence = id,
                  .epoch = propose.epoch,
                  .round = propose.round,
                  .base = propose.base,
                  .ids = std::vector<TokenId>(static_cast<size_t>(gamma), TokenId(7)),
                  .parents = {},
                  .prefix_hash = prefix_hash(ids),
                  .q = {}};
      actions = step(MessageReceived{PeerId{2}, draft});
    }
    plan = take<StepPlan>(actions);
    ASSERT_EQ(plan.entries.size(), 1u);
    const PlanEntry& entry = plan.entries[0];
    EXPECT_EQ(plan.state_hash, state_hash_term(id, static_cast<int64_t>(ids.size()), kv_length, epoch));
    EXPECT_EQ(entry.round, propose.round);
    EXPECT_EQ(entry.input_count + static_cast<int32_t>(entry.draft.size()), expected["target_inputs"]);
    EXPECT_EQ(entry.first_input.value() + entry.input_count + static_cast<int32_t>(entry.draft.size()),
              expected["target_kv_peak"]);
    actions = step(MessageReceived{PeerId{1}, StepResult{.step = plan.step,
                                                         .verdicts = {{.sequence = id,
                                                                       .epoch = entry.epoch,
                                                                       .round = entry.round,
                                                                       .base = entry.base,
                                                                       .accepted_count = accepted,
                                                                       .next = TokenId(9),
                                                                       .logprobs = {}}}}});
    ids.insert(ids.end(), static_cast<size_t>(accepted), TokenId(7));
    ids.push_back(TokenId(9));
    const Sequence& sequence = protocol_->find(id)->sequence;
    kv_length = expected["target_kv"];
    epoch = Epoch(expected["epoch"].get<uint32_t>());
    EXPECT_EQ(sequence.committed(), expected["committed"]);
    EXPECT_EQ(sequence.epoch(), epoch);
    EXPECT_EQ(sequence.target.kv_length, kv_length);
    EXPECT_EQ(sequence.target.epoch, epoch);
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), sequence.ids().begin(), sequence.ids().end()));
    EXPECT_EQ(sequence.hash(), prefix_hash(ids));
  }
  int64_t rolled_back = 0;
  for (const auto& round : trace["lockstep"]) rolled_back += round["target_rollback"].get<int64_t>();
  EXPECT_EQ(protocol_->totals().rounds.rolled_back_tokens, rolled_back);
}

// ---- the form of q --------------------------------------------------------------------------------------

// Two sequences of one worker, whose second draft is under way while the first one's q gets lost.
class LostQ : public ::testing::Test {
 protected:
  static constexpr PeerId kTarget{1}, kWorker{2};
  static constexpr SequenceId kFirst{1}, kSecond{2};

  void begin(QKind kind) {
    ProtocolOptions options;
    options.q_kind = kind;
    protocol_ = std::make_unique<Protocol>(options, parse_gamma_policy("fixed:gamma=1").value());
    const ModelInfo model{
        .name = "m", .vocab_size = 4, .vocabulary_fingerprint = 1, .max_context = 500, .isa = ""};
    Hello hello{.role = Role::kTarget, .model = model, .max_sequences = 4, .head_fingerprint = 5};
    if (kind == QKind::kDense) hello.slices.of_rank.resize(1);
    step(0, MessageReceived{kTarget, hello});
    hello.role = Role::kDraft;
    hello.generation = Generation(9);
    step(0, MessageReceived{kWorker, hello});
    Request request;
    request.prompt = {TokenId(1)};
    request.sampling.rule = Rule::kToken;
    request.sampling.temperature = 1;
    step(0, Submit{kFirst, request});
    step(0, Submit{kSecond, request});
    step(1, result(false));  // the prompt of the first
    answer(1, kFirst);
    step(1, result(false));  // its first draft, and the prompt of the second
    ASSERT_EQ(proposed_.size(), 2u);
    answer(1, kFirst);
    step(1000, Tick{});  // the second is not waited for any longer
    ASSERT_EQ(plan_.entries.size(), 1u);
    step(1, result(true));
  }
  void step(int ms, Event event) {
    now_ += std::chrono::milliseconds(ms);
    for (const Action& action : protocol_->step(std::move(event), now_)) {
      const auto* send = std::get_if<Send>(&action);
      if (const auto* plan = send ? std::get_if<StepPlan>(&send->message) : nullptr) plan_ = *plan;
      if (const auto* propose = send ? std::get_if<Propose>(&send->message) : nullptr)
        proposed_.insert_or_assign(propose->sequence, *propose);
    }
  }
  Event result(bool lost) const {
    StepResult result{.step = plan_.step};
    for (const PlanEntry& entry : plan_.entries)
      result.verdicts.push_back({.sequence = entry.sequence,
                                 .epoch = entry.epoch,
                                 .round = entry.round,
                                 .base = entry.base,
                                 .draft_lost = lost && !entry.draft.empty(),
                                 .next = TokenId(1),
                                 .logprobs = {}});
    return MessageReceived{kTarget, result};
  }
  void answer(int ms, SequenceId sequence) { answer(ms, proposed_.at(sequence)); }
  void answer(int ms, const Propose& propose) {
    Draft draft{.sequence = propose.sequence,
                .epoch = propose.epoch,
                .round = propose.round,
                .base = propose.base,
                .ids = {TokenId(2)},
                .prefix_hash = protocol_->find(propose.sequence)->sequence.hash(),
                .q_kind = propose.q_kind,
                .sent_after_us = propose.sent_after_us};
    if (propose.q_kind == QKind::kHidden) draft.hidden = {{.scale = 1, .max = 1, .codes = {1, 3}}};
    if (propose.q_kind == QKind::kDense) draft.q = {{.ids = {}, .weights = {1, 1, 1, 1}, .sum = 4}};
    if (propose.q_kind == QKind::kSparse) draft.q = {{.ids = {2}, .weights = {1}, .sum = 1}};
    step(ms, MessageReceived{kWorker, draft});
  }
  // Expects the second sequence to keep the form of q of its first Propose (`asked`), although later Proposes
  // ask for another.
  void expect_used(QKind asked, QKind asked_from_now_on) {
    const auto& totals = protocol_->totals();
    EXPECT_EQ(proposed_.at(kFirst).q_kind, asked_from_now_on);
    EXPECT_EQ(totals.dropped(DropReason::kBadQ), asked == QKind::kHidden ? 1 : 0);  // the lost one
    EXPECT_EQ(protocol_->find(kSecond)->round.draft.q_kind, asked);
    EXPECT_TRUE(protocol_->find(kSecond)->round.has_draft);
  }

  Clock::time_point now_{};
  std::unique_ptr<Protocol> protocol_;
  StepPlan plan_;
  std::map<SequenceId, Propose> proposed_;
};

TEST_F(LostQ, ADraftUnderWayIsWhatWasAskedFor) {
  for (const auto& [option, asked, then] : {std::tuple(QKind::kDense, QKind::kSlices, QKind::kDense),
                                            std::tuple(QKind::kHidden, QKind::kHidden, QKind::kSparse)}) {
    for (const bool repeated : {false, true}) {
      SCOPED_TRACE(fmt::format("asked for {}, repeated {}", static_cast<int>(asked), repeated));
      proposed_.clear();
      begin(option);
      Propose propose = proposed_.at(kSecond);
      propose.q_kind = asked;
      propose.sent_after_us = 0;
      if (repeated) step(2000, Tick{});
      EXPECT_EQ(proposed_.at(kSecond).q_kind == then, repeated);
      answer(1, propose);
      expect_used(asked, then);
    }
  }
}

// ---- drafters that look at the text alone ---------------------------------------------------------------

// The first Propose that a worker of this kind receives for a request.
Propose first_propose(const std::string& policy, bool finds_text) {
  constexpr PeerId kTarget{1}, kWorker{2};
  Protocol protocol({.gamma_max = 64}, parse_gamma_policy(policy).value());
  const ModelInfo model{
      .name = "m", .vocab_size = 100, .vocabulary_fingerprint = 1, .max_context = 500, .isa = ""};
  const ModelInfo none{.name = "suffix", .vocab_size = 0, .fingerprint = 3, .max_context = 500, .isa = ""};
  Request request;
  request.prompt = {TokenId(1)};
  request.max_tokens = 300;
  StepPlan plan;
  std::optional<Propose> propose;
  const auto step = [&](Event event) {
    for (const Action& action : protocol.step(std::move(event), Clock::time_point{})) {
      const auto* send = std::get_if<Send>(&action);
      if (const auto* asked = send ? std::get_if<Propose>(&send->message) : nullptr) propose = *asked;
      if (const auto* planned = send ? std::get_if<StepPlan>(&send->message) : nullptr) plan = *planned;
    }
  };
  step(MessageReceived{kTarget, Hello{.role = Role::kTarget, .model = model, .max_sequences = 4}});
  step(MessageReceived{kWorker, Hello{.role = Role::kDraft,
                                      .generation = Generation(9),
                                      .model = none,
                                      .max_sequences = 4,
                                      .finds_text = finds_text}});
  step(Submit{SequenceId(1), request});
  while (!propose && !plan.entries.empty()) {
    StepResult result{.step = plan.step};
    for (const PlanEntry& entry : std::exchange(plan.entries, {}))
      result.verdicts.push_back({.sequence = entry.sequence,
                                 .epoch = entry.epoch,
                                 .round = entry.round,
                                 .base = entry.base,
                                 .next = TokenId(1),
                                 .logprobs = {}});
    step(MessageReceived{kTarget, result});
  }
  EXPECT_TRUE(propose.has_value()) << "nothing was asked for";
  return propose.value_or(Propose{});
}

TEST(FoundDrafts, AreEndedByTheDrafterWhereThePolicyWeighsCosts) {
  const Propose of_ewma = first_propose("ewma", true);
  EXPECT_GT(of_ewma.pass_ns, 0);
  EXPECT_EQ(of_ewma.text_gamma, 0) << "there is no model beside it";
  // A number that the user asked for stays what it is, and so does a drafter that knows no chances.
  const Propose of_fixed = first_propose("fixed:gamma=4", true), of_ngrams = first_propose("ewma", false);
  EXPECT_EQ(of_fixed.gamma, 4);
  EXPECT_EQ(of_fixed.pass_ns, 0);
  EXPECT_EQ(of_ngrams.pass_ns, 0);
}

// ---- drafters that read the target's hidden states
// -------------------------------------------------------------

class StatesOnTheirWay : public ::testing::Test {
 protected:
  static constexpr PeerId kTarget{1}, kWorker{2};
  static constexpr SequenceId kOnly{1};

  void SetUp() override {
    step(MessageReceived{
        kTarget,
        Hello{.role = Role::kTarget,
              .model =
                  {.name = "m", .vocab_size = 50, .vocabulary_fingerprint = 1, .max_context = 500, .isa = ""},
              .max_sequences = 4,
              .hidden_state_head = 77,
              .hidden_state_width = 2}});
    join(77);
  }
  void join(uint64_t head, Generation generation = Generation(5)) {
    step(MessageReceived{kWorker, Hello{.role = Role::kDraft,
                                        .generation = generation,
                                        .model = {.name = "h", .max_context = 500, .isa = ""},
                                        .max_sequences = 4,
                                        .hidden_state_head = head}});
  }
  void submit() {
    Request request;
    request.prompt = {TokenId(1), TokenId(2), TokenId(3)};
    request.max_tokens = 100;
    step(Submit{kOnly, request});
  }
  void step(Event event) {
    now_ += std::chrono::milliseconds(1);
    for (Action& action : protocol_.step(std::move(event), now_)) {
      auto* send = std::get_if<Send>(&action);
      if (!send) continue;
      if (auto* plan = std::get_if<StepPlan>(&send->message))
        plan_ = *plan, ++plans_;
      else
        told_.push_back(std::move(send->message));
    }
  }
  // The result of the plan that is out, with `rows` of what it asked for.
  void answer(int32_t accepted, size_t rows, std::vector<HiddenStateRows> by_link = {}) {
    StepResult result{.step = plan_.step, .verdicts = {}};
    result.hidden_states = std::move(by_link);
    for (const PlanEntry& entry : plan_.entries)
      result.verdicts.push_back({.sequence = kOnly,
                                 .epoch = entry.epoch,
                                 .round = entry.round,
                                 .base = entry.base,
                                 .accepted_count = accepted,
                                 .next = TokenId(9)});
    if (rows > 0)
      result.hidden_states.push_back({.sequence = kOnly,
                                      .first = plan_.hidden_states.at(0).first,
                                      .ids = {},
                                      .width = 2,
                                      .values = std::vector<uint16_t>(2 * rows, 1)});
    step(MessageReceived{kTarget, result});
  }
  template <class T>
  std::vector<T> take() {
    std::vector<T> found;
    for (Message& message : told_)
      if (auto* body = std::get_if<T>(&message)) found.push_back(std::move(*body));
    told_.clear();
    return found;
  }

  Protocol protocol_{{}, parse_gamma_policy("fixed:gamma=3").value()};
  Clock::time_point now_{};
  StepPlan plan_;
  int plans_ = 0;
  std::vector<Message> told_;
};

TEST_F(StatesOnTheirWay, AreAskedForWithEveryPlanAndHandedOnWithTheirTokens) {
  submit();
  ASSERT_EQ(plan_.hidden_states.size(), 1u);
  EXPECT_EQ(plan_.hidden_states[0].first, Position(0));
  EXPECT_EQ(plan_.hidden_states[0].count, 3);
  (void)take<Open>();
  answer(0, 3);
  ASSERT_EQ(told_.size(), 2u) << "rows, then the Propose";
  ASSERT_TRUE(std::holds_alternative<HiddenStateRows>(told_[0]));
  const HiddenStateRows rows = std::get<HiddenStateRows>(told_[0]);
  EXPECT_EQ(rows.first, Position(0));
  EXPECT_EQ(rows.ids, (std::vector<TokenId>{TokenId(2), TokenId(3), TokenId(9)}));
  EXPECT_EQ(rows.values.size(), 6u);
  EXPECT_EQ(plans_, 1) << "the worker drafts";
}

TEST_F(StatesOnTheirWay, AreAskedForAgainWhereAWorkerLacksThem) {
  submit();
  answer(0, 3);
  (void)take<Open>();
  const auto text = protocol_.find(kOnly)->sequence.ids();
  step(MessageReceived{
      kWorker,
      Resync{
          .sequence = kOnly, .committed = Position(4), .hash = prefix_hash(text), .hidden_state_rows = 1}});
  EXPECT_EQ(plans_, 2) << "though there is nothing else to do";
  EXPECT_TRUE(plan_.entries.empty());
  EXPECT_EQ(plan_.hidden_states.at(0).first, Position(1));
  EXPECT_EQ(plan_.hidden_states.at(0).count, 2);
  answer(0, 2);
  const auto rows = take<HiddenStateRows>();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].first, Position(1));
  EXPECT_EQ(rows[0].ids, (std::vector<TokenId>{TokenId(3), TokenId(9)}));
  EXPECT_EQ(protocol_.find(kOnly)->state, RequestState::kDrafting);
}

// Those that go from device to device: the worker hears which tokens they are of.
TEST_F(StatesOnTheirWay, MayGoByALinkInParts) {
  submit();
  EXPECT_EQ(plan_.hidden_states.at(0).worker, Generation(5));
  const auto told = [&](int32_t first, int32_t count, uint64_t transfer) {
    return HiddenStateRows{.sequence = kOnly,
                           .first = Position(first),
                           .ids = {},
                           .width = 2,
                           .values = {},
                           .transfer = transfer,
                           .count = count};
  };
  answer(0, 0, {told(0, 2, 7), told(2, 1, 8)});
  const auto rows = take<HiddenStateRows>();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].transfer, 7u);
  EXPECT_EQ(rows[0].ids, (std::vector<TokenId>{TokenId(2), TokenId(3)}));
  EXPECT_EQ(rows[1].transfer, 8u);
  EXPECT_EQ(rows[1].count, 1);
  EXPECT_EQ(rows[1].ids, std::vector<TokenId>{TokenId(9)});
  EXPECT_EQ(protocol_.totals().hidden_state_link_bytes, 3 * 2 * 2);
  EXPECT_TRUE(protocol_.has_target());
}

// It came back as another one, which lacks what went to the first.
TEST_F(StatesOnTheirWay, ByALinkAreOfNoUseToAnotherWorker) {
  submit();
  join(77, Generation(6));
  answer(
      0, 0,
      {HiddenStateRows{.sequence = kOnly, .ids = {}, .width = 2, .values = {}, .transfer = 7, .count = 3}});
  EXPECT_TRUE(take<HiddenStateRows>().empty());
  EXPECT_EQ(plan_.hidden_states.at(0).first, Position(0));
  EXPECT_EQ(plan_.hidden_states.at(0).worker, Generation(6));
  EXPECT_EQ(plans_, 2);
}

// Numbers that are not finite are not told.
TEST_F(StatesOnTheirWay, ThatTheTargetDoesNotHaveAreNotWaitedFor) {
  submit();
  answer(0, 1);
  EXPECT_EQ(plans_, 2);
  EXPECT_TRUE(plan_.entries.empty());
  answer(0, 0);
  EXPECT_EQ(plans_, 3);
  ASSERT_EQ(plan_.entries.size(), 1u) << "the round goes on without a draft";
  EXPECT_TRUE(plan_.entries[0].draft.empty());
  EXPECT_TRUE(protocol_.target_status().ok());
}

TEST_F(StatesOnTheirWay, NobodyAskedForBreakTheProtocol) {
  const std::vector<std::function<void(HiddenStateRows&)>> lies{
      [](HiddenStateRows& rows) { rows.sequence = SequenceId(5); },
      [](HiddenStateRows& rows) { rows.first = Position(1); },
      [](HiddenStateRows& rows) { rows.width = 3; },
      [](HiddenStateRows& rows) { rows.width = 0; },
      [](HiddenStateRows& rows) { rows.values.resize(5); },
      [](HiddenStateRows& rows) { rows.values.resize(100); },
      [](HiddenStateRows& rows) { rows.values.clear(); },
      [](HiddenStateRows& rows) { rows.ids = {TokenId(1)}; },
      [](HiddenStateRows& rows) { rows.transfer = 1; },
      [](HiddenStateRows& rows) { rows.values.clear(), rows.transfer = 1, rows.count = 4; },
      [](HiddenStateRows& rows) { rows.values.clear(), rows.transfer = 1, rows.count = -1; },
      [](HiddenStateRows& rows) { rows.values.clear(), rows.transfer = 1, rows.count = 0; }};
  for (const auto& lie : lies) {
    StatesOnTheirWay::SetUp();
    submit();
    StepResult result{.step = plan_.step,
                      .verdicts = {{.sequence = kOnly,
                                    .epoch = plan_.entries.at(0).epoch,
                                    .round = plan_.entries[0].round,
                                    .base = plan_.entries[0].base,
                                    .next = TokenId(9)}}};
    result.hidden_states.push_back(
        {.sequence = kOnly, .first = {}, .ids = {}, .width = 2, .values = std::vector<uint16_t>(6, 1)});
    lie(result.hidden_states[0]);
    step(MessageReceived{kTarget, result});
    EXPECT_FALSE(protocol_.has_target());
    EXPECT_NE(protocol_.target_status().message().find("states"), std::string::npos);
  }
}

TEST_F(StatesOnTheirWay, OfAnotherHeadAreRefused) {
  told_.clear();
  join(78);
  const auto welcomes = take<Welcome>();
  ASSERT_EQ(welcomes.size(), 1u);
  EXPECT_FALSE(welcomes[0].accepted);
  EXPECT_NE(welcomes[0].reason.find("--head-place"), std::string::npos);
}

// ---- a target that drafts itself ------------------------------------------------------------------------

class CoLocatedDrafts : public ::testing::Test {
 protected:
  static constexpr PeerId kTarget{1}, kWorker{2};
  static constexpr SequenceId kOnly{1};

  void begin(const char* policy, int32_t max_tokens = 100, Rule rule = Rule::kGreedy) {
    protocol_ = std::make_unique<Protocol>(ProtocolOptions{}, parse_gamma_policy(policy).value());
    step(MessageReceived{
        kTarget,
        Hello{.role = Role::kTarget,
              .model =
                  {.name = "m", .vocab_size = 50, .vocabulary_fingerprint = 1, .max_context = 500, .isa = ""},
              .max_sequences = 4,
              .co_located_drafter = 77}});
    Request request;
    request.prompt = {TokenId(1), TokenId(2)};
    request.max_tokens = max_tokens;
    request.sampling.rule = rule;
    request.sampling.temperature = rule == Rule::kGreedy ? 0 : 1;
    step(Submit{kOnly, request});
  }
  std::vector<Action> step(Event event) {
    now_ += std::chrono::milliseconds(1);
    auto actions = protocol_->step(std::move(event), now_);
    for (const Action& action : actions)
      if (const auto* send = std::get_if<Send>(&action))
        if (const auto* plan = std::get_if<StepPlan>(&send->message)) plan_ = *plan;
    return actions;
  }
  const PlanEntry& entry() const { return plan_.entries.at(0); }
  // The plan's result: `accepted` of its draft, and a draft of as many tokens as were asked for, or
  // `change`d.
  void answer(int32_t accepted, const std::function<void(Draft&)>& change = nullptr) {
    const PlanEntry planned = entry();
    StepResult result{.step = plan_.step,
                      .verdicts = {{.sequence = kOnly,
                                    .epoch = planned.epoch,
                                    .round = planned.round,
                                    .base = planned.base,
                                    .accepted_count = accepted,
                                    .next = TokenId(9)}}};
    const auto ids = protocol_->find(kOnly)->sequence.ids();
    std::vector<TokenId> text(ids.begin(), ids.end());
    text.insert(text.end(), planned.draft.begin(), planned.draft.begin() + accepted);
    text.emplace_back(9);
    const bool rejected = accepted < static_cast<int32_t>(planned.draft.size());
    Draft draft{.sequence = kOnly,
                .epoch = Epoch(planned.epoch.value() + rejected),
                .round = planned.next_round,
                .base = Position(static_cast<int32_t>(text.size())),
                .ids = std::vector<TokenId>(static_cast<size_t>(planned.next_gamma), TokenId(30)),
                .prefix_hash = prefix_hash(text)};
    if (change) change(draft);
    if (planned.next_gamma > 0 || change) result.drafts.push_back(draft);
    step(MessageReceived{kTarget, result});
  }

  Clock::time_point now_{};
  std::unique_ptr<Protocol> protocol_;
  StepPlan plan_;
};

TEST_F(CoLocatedDrafts, ComeWithTheResultAndAreVerifiedInTheNextPass) {
  begin("fixed:gamma=3");
  EXPECT_TRUE(entry().draft.empty());
  EXPECT_EQ(entry().next_gamma, 3);
  const Round promised = entry().next_round;
  answer(0);
  EXPECT_EQ(entry().draft.size(), 3u);
  EXPECT_EQ(entry().round, promised);
  EXPECT_EQ(entry().next_gamma, 3);
  EXPECT_NE(entry().next_round, promised);
  answer(2);
  EXPECT_EQ(entry().draft.size(), 3u);
  EXPECT_EQ(entry().epoch, Epoch(1));
  answer(3);
  const Totals& totals = protocol_->totals();
  EXPECT_EQ(totals.rounds.accepted, 5);
  EXPECT_EQ(totals.drafts_received, 3);
  EXPECT_EQ(totals.drafts_used, 3);
  EXPECT_EQ(totals.drafters.at(77).rounds, 2);
}

// A draft worker is not needed here: the target drafts by itself.
TEST_F(CoLocatedDrafts, NeedNoDraftWorker) {
  begin("fixed:gamma=3");
  const auto actions = step(MessageReceived{
      kWorker,
      Hello{.role = Role::kDraft, .model = {.name = "d", .vocab_size = 50, .vocabulary_fingerprint = 1}}});
  ASSERT_EQ(actions.size(), 1u);
  const auto& welcome = std::get<Welcome>(std::get<Send>(actions[0]).message);
  EXPECT_FALSE(welcome.accepted);
  EXPECT_NE(welcome.reason.find("drafts itself"), std::string::npos);
}

// The next round is plain, under a number that nothing was drawn for.
TEST_F(CoLocatedDrafts, ThatCannotBeAreDroppedAndCounted) {
  struct Lie {
    std::function<void(Draft&)> tell;
    DropReason reason;
  };
  const std::vector<Lie> lies{{[](Draft& d) { d.prefix_hash ^= 1; }, DropReason::kWrongHash},
                              {[](Draft& d) { ++d.epoch; }, DropReason::kStaleEpoch},
                              {[](Draft& d) { d.base = Position(1); }, DropReason::kWrongBase},
                              {[](Draft& d) { d.ids[1] = TokenId(50); }, DropReason::kBadIds},
                              {[](Draft& d) {
                                 d.parents = {-1, 0, 1};
                               },
                               DropReason::kTree},
                              {[](Draft& d) { d.q_kind = QKind::kSparse; }, DropReason::kBadQ},
                              {[](Draft& d) { d.round = Round(1000); }, DropReason::kStaleRound},
                              {[](Draft& d) { d.sequence = SequenceId(5); }, DropReason::kUnknownSequence}};
  for (const Lie& lie : lies) {
    begin("fixed:gamma=3");
    const Round promised = entry().next_round;
    answer(0, lie.tell);
    EXPECT_TRUE(entry().draft.empty());
    EXPECT_NE(entry().round, promised);
    EXPECT_EQ(protocol_->totals().dropped(lie.reason), 1)
        << kDropReasonNames[static_cast<size_t>(lie.reason)];
    answer(0);
    EXPECT_EQ(entry().draft.size(), 3u);  // and the target is asked again
  }
}

TEST_F(CoLocatedDrafts, AreAsMuchAsMayStillBeEmitted) {
  begin("fixed:gamma=8", 6);
  EXPECT_EQ(entry().next_gamma, 4);  // one is emitted now, and one follows each draft
  answer(0);
  EXPECT_EQ(entry().draft.size(), 4u);
  EXPECT_EQ(entry().next_gamma, 3);  // one token at least will be emitted
  answer(2);
  EXPECT_EQ(entry().draft.size(), 1u) << "of 6 tokens 4 are there, and one more follows a draft";
  EXPECT_EQ(entry().next_gamma, 0);
  answer(1);
  EXPECT_EQ(protocol_->running_requests(), 0u);
  EXPECT_EQ(protocol_->find(kOnly), nullptr);
}

// A policy decides with what it knew before the pass whose result brings the draft.
TEST_F(CoLocatedDrafts, LengthsFollowFromRoundsThatAreOver) {
  const TemporaryDirectory directory;
  const auto file = directory.write("gammas.txt", "2\n0\n5\n1\n");
  begin(("replay:file=" + file.string()).c_str());
  EXPECT_EQ(entry().next_gamma, 2);
  answer(0);
  EXPECT_EQ(entry().draft.size(), 2u);
  EXPECT_EQ(entry().next_gamma, 0);
  answer(2);
  EXPECT_TRUE(entry().draft.empty());
  EXPECT_EQ(entry().next_gamma, 5);
  answer(0);
  EXPECT_EQ(entry().draft.size(), 5u);
  EXPECT_EQ(entry().next_gamma, 1);
}

}  // namespace
}  // namespace outrider
