// A coordinator whose draft worker or target sends invalid messages. Every request ends, whatever the field.
// With an invalid draft worker the text is that of plain decoding; with an invalid target the request has
// that text or an error.
#include <gtest/gtest.h>

#include <deque>

#include "coordinator/protocol.h"
#include "tests/support/hostile_fields.h"
#include "toy_model.h"
#include "toy_target.h"
#include "toy_worker.h"

namespace outrider::testing {
namespace {

constexpr PeerId kTarget{1}, kWorker{2};
constexpr SequenceId kRequest(7);
constexpr int kTokens = 24;

Hello hello_of(Role role) {
  return {.role = role,
          .generation = Generation(role == Role::kTarget ? 1000 : 3),
          .model = toy_info(),
          .max_sequences = 4};
}

// One request. Before the message number `turn` of `liar` that is not a Hello is heard, the lie is.
struct Job {
  Job(PeerId from, int at, std::optional<Message> said, Hello target_hello = hello_of(Role::kTarget))
      : liar(from), turn(at), lie(std::move(said)) {
    step(MessageReceived{kTarget, std::move(target_hello)});
    step(MessageReceived{kWorker, hello_of(Role::kDraft)});
    Request request{.prompt = prompt};
    request.max_tokens = kTokens;
    request.sampling.logprobs = 2;
    request.ignore_eos = true;
    step(Submit{kRequest, std::move(request)});
    for (int i = 0; i < 3000 && !finish; ++i) go_on();
  }

  void step(Event event) {
    for (Action& action : protocol.step(std::move(event), now)) actions.push_back(std::move(action));
  }
  void go_on() {
    if (actions.empty()) {
      const auto next = protocol.next_deadline();
      now = std::max(now + std::chrono::milliseconds(1), next.value_or(now));
      return step(Tick{});
    }
    Action action = std::move(actions.front());
    actions.pop_front();
    if (auto* send = std::get_if<Send>(&action)) take(*send);
    if (auto* emit = std::get_if<Emit>(&action)) {
      ids.insert(ids.end(), emit->ids.begin(), emit->ids.end());
      logprobs.insert(logprobs.end(), emit->logprobs.begin(), emit->logprobs.end());
    }
    if (auto* ended = std::get_if<Finish>(&action)) finish = std::move(*ended);
  }
  void take(Send& send) {
    if (const auto* plan = std::get_if<StepPlan>(&send.message)) return say(kTarget, result_of(*plan));
    if (send.to != kWorker) return;
    for (Message& message : worker.handle(send.message)) say(kWorker, std::move(message));
  }
  void say(PeerId from, Message message) {
    if (from == liar && spoken++ == turn) {
      honest = message;
      if (lie) step(MessageReceived{from, *lie});
      if (lie && from == kTarget) return;  // in place of the result
    }
    step(MessageReceived{from, std::move(message)});
  }
  StepResult result_of(const StepPlan& plan) {
    StepResult result = target.handle(plan);
    for (size_t i = 0; i < result.verdicts.size(); ++i) {
      Verdict& verdict = result.verdicts[i];
      for (int32_t n = 0; n <= verdict.accepted_count; ++n) {
        const TokenId id =
            n < verdict.accepted_count ? plan.entries[i].draft[static_cast<size_t>(n)] : verdict.next;
        verdict.logprobs.push_back({.chosen = {id, -1}, .top = {{id, -1}, {TokenId(1), -2}}});
      }
    }
    return result;
  }

  const std::vector<TokenId> prompt{TokenId(3), TokenId(1), TokenId(4)};
  const PeerId liar;
  const int turn;
  const std::optional<Message> lie;
  std::optional<Message> honest;  // what was said after the lie
  int spoken = 0;
  Clock::time_point now{};
  Protocol protocol{{}, parse_gamma_policy("fixed:gamma=3").value()};
  ToyTarget target{1000};
  std::mt19937_64 random{1};
  ToyWorker worker{0.7, &random};
  std::deque<Action> actions;
  std::vector<TokenId> ids;
  std::vector<PositionLogprobs> logprobs;
  std::optional<Finish> finish;
};

std::vector<TokenId> plain_text() {
  return toy_plain({TokenId(3), TokenId(1), TokenId(4)}, kTokens, toy_info().max_context, true);
}

// Every lie about the worker's message number `turn`.
void expect_plain_text(const Message& lie) {
  const Job job(kWorker, 2, lie);
  ASSERT_TRUE(job.finish);
  EXPECT_EQ(job.finish->reason, FinishReason::kLength) << job.finish->error.message();
  EXPECT_EQ(job.ids, plain_text());
  EXPECT_EQ(job.target.error(), "");
}

void expect_an_end(const Job& job) {
  ASSERT_TRUE(job.finish);
  if (job.finish->reason == FinishReason::kError) {
    EXPECT_FALSE(job.finish->error.ok());
    return;
  }
  for (const TokenId id : job.ids) EXPECT_TRUE(id.value() >= 0 && id.value() < kToyVocab);
  ASSERT_EQ(job.logprobs.size(), job.ids.size());
  for (size_t i = 0; i < job.ids.size(); ++i) {
    EXPECT_EQ(job.logprobs[i].chosen.id, job.ids[i]);
    EXPECT_LE(job.logprobs[i].top.size(), 2u);
    for (const TokenLogprob& other : job.logprobs[i].top)
      EXPECT_TRUE(other.id.value() >= 0 && other.id.value() < kToyVocab);
  }
}

template <class Body>
void expect_plain_text_whatever(const Body& honest) {
  const int lies = for_each_lie(honest, [](const Message& lie, const std::string& what) {
    SCOPED_TRACE(what);
    expect_plain_text(lie);
  });
  std::printf("  %s: %d lies\n", kMessageNames[Message(honest).index()], lies);
}

TEST(LyingDraftWorker, NoFieldChangesTheText) {
  const Job honest(kWorker, 2, std::nullopt);
  ASSERT_EQ(honest.ids, plain_text());
  ASSERT_TRUE(honest.honest && std::holds_alternative<Draft>(*honest.honest));
  Draft draft = std::get<Draft>(*honest.honest);
  ASSERT_FALSE(draft.ids.empty());
  expect_plain_text_whatever(draft);
  draft.parents.assign(draft.ids.size(), 0);
  draft.q_kind = QKind::kSparse;
  draft.q.assign(draft.ids.size(), {.ids = {5}, .weights = {1}, .sum = 1});
  expect_plain_text_whatever(draft);
  draft.q.clear();
  draft.q_kind = QKind::kHidden;
  draft.hidden.assign(draft.ids.size(), {.scale = 1, .max = 2, .codes = {1, -1, 3}});
  expect_plain_text_whatever(draft);
  expect_plain_text_whatever(hello_of(Role::kDraft));
  expect_plain_text_whatever(Resync{.sequence = kRequest, .committed = Position(3), .hash = 5});
  expect_plain_text_whatever(Heartbeat{});
  expect_plain_text_whatever(Failure{"it failed"});
  expect_plain_text(Shutdown{});
  // Such are not for a coordinator.
  const Open open{.sequence = kRequest, .ids = {TokenId(1)}, .prompt_length = 1};
  expect_plain_text_whatever(open);
  expect_plain_text_whatever(Close{kRequest});
  expect_plain_text_whatever(Propose{.sequence = kRequest, .committed = {TokenId(1)}});
  expect_plain_text_whatever(Welcome{.accepted = true, .eos_ids = {TokenId(1)}});
  expect_plain_text_whatever(StepPlan{.closes = {kRequest}, .opens = {open}, .entries = {PlanEntry{}}});
  expect_plain_text_whatever(StepResult{.verdicts = {Verdict{.sequence = kRequest}}});
  expect_plain_text_whatever(QSlice{.sequence = kRequest, .rows = 1, .weights = {1}});
  expect_plain_text_whatever(LinkOffer{.id = "it"});
  expect_plain_text_whatever(HiddenStateTransfer{.number = 1, .rows = 1});
  expect_plain_text_whatever(QTransfer{.sequence = kRequest, .sums = {1}, .drafted = {1}});
}

template <class Body>
void expect_an_end_whatever(const Body& honest) {
  const int lies = for_each_lie(honest, [](const Message& lie, const std::string& what) {
    SCOPED_TRACE(what);
    expect_an_end(Job(kTarget, 3, lie));
  });
  std::printf("  %s: %d lies\n", kMessageNames[Message(honest).index()], lies);
}

TEST(LyingTarget, NoFieldLeavesARequestOpen) {
  const Job honest(kTarget, 3, std::nullopt);
  ASSERT_EQ(honest.ids, plain_text());
  expect_an_end_whatever(std::get<StepResult>(*honest.honest));
  expect_an_end_whatever(hello_of(Role::kTarget));
  expect_an_end_whatever(Failure{"it failed"});
  expect_an_end_whatever(Heartbeat{});
  expect_an_end(Job(kTarget, 3, Shutdown{}));
  for_each_lie(hello_of(Role::kTarget), [](const Message& lie, const std::string& what) {
    SCOPED_TRACE(what);
    expect_an_end(Job(kTarget, -1, std::nullopt, std::get<Hello>(lie)));
  });
}

}  // namespace
}  // namespace outrider::testing
