// A draft worker whose coordinator sends invalid messages: for every field, the worker either exits with an
// error that names the fault or continues undisturbed.
#include <gtest/gtest.h>

#include <random>

#include "draft_worker/draft_worker.h"
#include "draft_worker/head/head_drafting.h"
#include "tests/heads/golden_heads.h"
#include "tests/support/hostile_fields.h"
#include "tests/support/test_models.h"

namespace outrider::testing {
namespace {

using namespace std::chrono_literals;

constexpr int kVocab = 302, kContext = 100;
constexpr SequenceId kFirst(1), kSecond(2), kThird(3);

std::vector<TokenId> ids(int count) {
  std::vector<TokenId> list;
  for (int i = 0; i < count; ++i) list.emplace_back(40 + i % 7);
  return list;
}

struct Manner {
  const char* name;
  SamplingParams sampling;
  QKind q_kind = QKind::kNone;
  Pipeline pipeline = Pipeline::kFanout;
  std::string_view drafter = "model";
};

const Manner kManners[] = {
    {.name = "Greedy", .sampling = {}},
    {.name = "Penalties",
     .sampling = {.rule = Rule::kInvariant,
                  .temperature = 0.8f,
                  .top_k = 20,
                  .repetition_penalty = 1.1f,
                  .frequency_penalty = 0.1f,
                  .logit_bias = {{TokenId(4), 1.0f}, {TokenId(5), -1.0f}}},
     .pipeline = Pipeline::kAhead},
    {.name = "Token",
     .sampling = {.rule = Rule::kToken, .temperature = 0.8f, .top_p = 0.9f, .min_p = 0.01f},
     .q_kind = QKind::kSparse},
    {.name = "Block",
     .sampling = {.rule = Rule::kBlock, .temperature = 1},
     .q_kind = QKind::kSlices,
     .pipeline = Pipeline::kAuto},
    {.name = "Ngram",
     .sampling = {.rule = Rule::kToken, .temperature = 1},
     .q_kind = QKind::kDense,
     .drafter = "ngram"},
    {.name = "Suffix", .sampling = {}, .drafter = "suffix"},
    {.name = "Recycling", .sampling = {}, .drafter = "recycling"},
    {.name = "Lookahead", .sampling = {}, .drafter = "lookahead"},
    {.name = "Head", .sampling = {.rule = Rule::kInvariant, .temperature = 1}, .drafter = "eagle3"},
    {.name = "HeadWithQ",
     .sampling = {.rule = Rule::kToken, .temperature = 0.8f, .repetition_penalty = 1.1f},
     .q_kind = QKind::kSparse,
     .drafter = "mtp"},
    {.name = "HeadOfBranches", .sampling = {}, .drafter = "medusa"},
    {.name = "HeadOfBlocks", .sampling = {.rule = Rule::kInvariant, .temperature = 1}, .drafter = "dflash"},
};

class LyingJob : public ::testing::TestWithParam<Manner> {
 protected:
  Open open(SequenceId sequence) const {
    return {.sequence = sequence, .ids = ids(5), .prompt_length = 4, .sampling = GetParam().sampling};
  }
  Propose propose(SequenceId sequence, uint32_t round, int committed = 0) const {
    return {.sequence = sequence,
            .round = Round(round),
            .base = Position(5 + committed),
            .committed = std::vector<TokenId>(static_cast<size_t>(committed), TokenId(41)),
            .gamma = 3,
            .q_kind = GetParam().q_kind,
            .row_bytes = GetParam().q_kind == QKind::kSparse ? 24 : 0,
            .pipeline = GetParam().pipeline,
            .fanout = 4,
            .stop = {.kind = StopKind::kSvip, .threshold = 100, .scale = 1},
            .wants_guess = true};
  }

  static HiddenStateRows hidden_state_rows(SequenceId sequence, int32_t first, int32_t last, int32_t width) {
    HiddenStateRows rows{
        .sequence = sequence, .first = Position(first), .ids = {}, .width = width, .values = {}};
    for (int32_t at = first; at <= last; ++at) rows.ids.emplace_back(at < 4 ? 41 + at % 7 : 41);
    rows.values.assign(rows.ids.size() * static_cast<size_t>(width), uint16_t{0x3f80});
    return rows;
  }

  // A worker that drafted once for a sequence and prepares for what becomes of it.
  struct Worker {
    Worker(Model& model, const Manner& manner)
        : head(load_head(manner)),
          drafter(head ? std::make_unique<HeadDrafting>(*head, HeadDraftingOptions{.max_sequences = 3})
                  : manner.drafter == "ngram"
                      ? make_ngram_drafter({.max_sequences = 3, .max_context = kContext})
                  : manner.drafter == "suffix"
                      ? make_suffix_drafter({.max_sequences = 3, .max_context = kContext})
                  : manner.drafter == "recycling"
                      ? make_recycling_drafter({.max_sequences = 3, .max_context = kContext})
                  : manner.drafter == "lookahead"
                      ? make_lookahead_drafter({.max_sequences = 3, .max_context = kContext})
                      : make_model_drafter(
                            model, {.max_sequences = 3, .eos_ids = {TokenId(2)}, .vocab_size = kVocab})),
          worker(*drafter, *end,
                 {.info = {.max_context = kContext},
                  .vocab_size = kVocab,
                  .hidden_state_width = head ? static_cast<int32_t>(head->hidden_size()) : 0}) {
      CHECK(end->send(kCoordinatorPeer, Heartbeat{}).ok(), "the hub is full");
      peer = job->receive(Clock::now())->peer;
    }
    void tell(const Message& message) {
      CHECK(job->send(peer, message).ok(), "the hub is full");
      stays = stays && worker.turn();
    }
    // Rows of tokens [first, last], for a worker that reads them.
    void tell_rows(SequenceId sequence, int32_t first, int32_t last) {
      if (head) tell(hidden_state_rows(sequence, first, last, static_cast<int32_t>(head->hidden_size())));
    }
    static std::unique_ptr<Head> load_head(const Manner& manner) {
      const auto kind = head_kind_of(manner.drafter);
      if (!kind) return nullptr;
      return load_head_or_die({std::string(manner.drafter), *kind},
                              {.max_rows = 16, .max_positions = kContext, .kv_tokens = 700});
    }
    // The messages that the worker sent since the last call.
    std::vector<Message> heard() {
      std::vector<Message> messages;
      while (auto incoming = job->receive(Clock::now())) messages.push_back(std::move(incoming->message));
      return messages;
    }

    std::shared_ptr<InprocHub> hub = make_inproc_hub();
    std::unique_ptr<Transport> job = hub->coordinator_end(), end = hub->connect();
    std::unique_ptr<Head> head;
    std::unique_ptr<Drafter> drafter;
    DraftWorker worker;
    PeerId peer;
    bool stays = true;
  };
  std::unique_ptr<Worker> busy_worker() {
    auto worker = std::make_unique<Worker>(*model_, GetParam());
    worker->tell(open(kFirst));
    worker->tell_rows(kFirst, 0, 3);
    worker->tell(propose(kFirst, 1));
    CHECK(worker->stays, "{}", worker->worker.end().message());
    (void)worker->heard();
    return worker;
  }
  // The draft for a valid sequence.
  std::vector<TokenId> honest_draft(Worker& worker) {
    for (const SequenceId sequence : {kFirst, kSecond, kThird}) worker.tell(Close{sequence});
    (void)worker.heard();
    worker.tell(open(kThird));
    worker.tell_rows(kThird, 0, 3);
    worker.tell(propose(kThird, 9));
    for (const Message& message : worker.heard())
      if (const auto* draft = std::get_if<Draft>(&message); draft && draft->sequence == kThird)
        return draft->ids;
    ADD_FAILURE() << "no draft";
    return {};
  }
  // After a lie: what would use it.
  void go_on(Worker& worker) {
    worker.tell_rows(kSecond, 0, 3);
    worker.tell(propose(kSecond, 1));
    worker.tell_rows(kFirst, 4, 5);
    worker.tell(propose(kFirst, 2, 2));
    worker.tell(propose(kSecond, 2, 1));
    worker.tell_rows(kSecond, 4, 4);
  }
  void expect_honest_draft(Worker& worker) {
    const std::vector<TokenId> draft = honest_draft(worker);
    // The drafts of suffix decoding and recycling depend on every text they received, so only the answer
    // itself is checked.
    if (GetParam().drafter != "suffix" && GetParam().drafter != "recycling") {
      EXPECT_EQ(draft, expected_);
    }
  }
  // It left and said why, or is as it was.
  void expect_sound(Worker& worker, const Message& lie) {
    if (worker.stays) {
      expect_honest_draft(worker);
      return;
    }
    const Status& end = worker.worker.end();
    if (std::holds_alternative<Shutdown>(lie) || end.code() == StatusCode::kInvalidArgument) return;
    ASSERT_EQ(end.code(), StatusCode::kMalformed) << end.message();
    const auto said = worker.heard();
    const auto failure = std::find_if(said.begin(), said.end(), [](const Message& message) {
      return std::holds_alternative<Failure>(message);
    });
    ASSERT_NE(failure, said.end());
    EXPECT_EQ("the job broke the protocol: " + std::get<Failure>(*failure).message.substr(20), end.message());
  }
  template <class Body>
  void lie_about(const Body& honest) {
    int lies = 0, refused = 0;
    lies = for_each_lie(honest, [&](const Message& lie, const std::string& what) {
      SCOPED_TRACE(what);
      const auto worker = busy_worker();
      worker->tell(lie);
      go_on(*worker);
      refused += !worker->stays;
      if (worker->stays) taken_.push_back(lie);
      expect_sound(*worker, lie);
    });
    std::printf("  %s: %d lies, %d end the worker\n", kMessageNames[Message(honest).index()], lies, refused);
  }

  std::unique_ptr<Collectives> single_ = make_single_collectives();
  std::unique_ptr<Model> model_ = load_or_die(
      golden_model("qwen3"), {.max_rows = 16, .max_positions = kContext, .kv_tokens = 700}, *single_);
  std::vector<TokenId> expected_ = honest_draft(*busy_worker());
  std::vector<Message> taken_;  // lies that a worker goes on after
};

TEST_P(LyingJob, NoFieldHarms) {
  lie_about(open(kSecond));
  lie_about(propose(kFirst, 2, 2));
  lie_about(Welcome{.accepted = true,
                    .target = {.name = "target", .vocab_size = kVocab, .max_context = kContext},
                    .eos_ids = {TokenId(2), TokenId(3)},
                    .slices = {.of_rank = {{.endpoint = "tcp://127.0.0.1:1", .gpu = ""}}}});
  lie_about(hidden_state_rows(kFirst, 4, 6, GetParam().drafter == "model" ? 1 : 64));
  lie_about(Close{kFirst});
  lie_about(Heartbeat{});
  lie_about(Failure{"it failed"});
  // One after the other.
  std::mt19937 random(4);
  for (int run = 0; run < 100; ++run) {
    const auto worker = busy_worker();
    for (int i = 0; i < 12 && worker->stays; ++i) worker->tell(taken_[random() % taken_.size()]);
    if (worker->stays) go_on(*worker);
    if (!worker->stays) continue;
    SCOPED_TRACE(run);
    expect_honest_draft(*worker);
  }
}

// No drafter sees them: one manner with a draft model, one that sends q and one with a head stand for all.
class MessageForOthers : public LyingJob {};

TEST_P(MessageForOthers, ChangesNothing) {
  lie_about(Hello{});
  lie_about(Draft{.sequence = kFirst, .ids = ids(2)});
  lie_about(Resync{.sequence = kFirst, .committed = Position(3)});
  lie_about(
      StepPlan{.closes = {kFirst}, .opens = {open(kSecond)}, .entries = {PlanEntry{.sequence = kFirst}}});
  lie_about(StepResult{.verdicts = {Verdict{.sequence = kFirst}}});
  lie_about(QSlice{.sequence = kFirst, .rows = 1, .weights = {1, 2}});
  lie_about(LinkOffer{.id = "it"});
  lie_about(HiddenStateTransfer{.number = 1, .rows = 1});
  lie_about(QTransfer{.sequence = kFirst, .sums = {3}, .drafted = {1}});
}

const auto kNameOf = [](const auto& manner) { return std::string(manner.param.name); };
INSTANTIATE_TEST_SUITE_P(Manners, MessageForOthers, ::testing::Values(kManners[0], kManners[2], kManners[8]),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(Manners, LyingJob, ::testing::ValuesIn(kManners), kNameOf);

// ---- what a worker says of a lie ------------------------------------------------------------------------

std::string reason(const Message& message) {
  return check_from_job(message, {.vocab_size = kVocab, .max_context = kContext}).message();
}

TEST(LyingJobIsTold, WhichFieldAndWhatIsInIt) {
  Open open{.ids = ids(5), .prompt_length = 5};
  EXPECT_EQ(reason(open), "");
  open.prompt_length = 99;
  EXPECT_EQ(reason(open), "open: prompt_length is 99, not 1 to 5");
  open.prompt_length = -1;
  EXPECT_EQ(reason(open), "open: prompt_length is -1, not 1 to 5");
  open = {.ids = {TokenId(kVocab)}, .prompt_length = 1};
  EXPECT_EQ(reason(open), "open: ids has id 302, outside a vocabulary of 302");
  open = {.ids = ids(1), .prompt_length = 1, .sampling = {.temperature = -0.5f}};
  EXPECT_TRUE(reason(open).starts_with("open: sampling: temperature is -0.5")) << reason(open);
  open.sampling = {.top_p = std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(reason(open).starts_with("open: sampling: top_p is nan")) << reason(open);
  Propose propose{.base = Position(1), .gamma = -3};
  EXPECT_EQ(reason(propose), "propose: gamma is -3, not 0 to 4096");
  propose = {.base = Position(2), .committed = ids(3)};
  EXPECT_EQ(reason(propose), "propose: the number of committed ids is 3, not 0 to 2");
  propose = {.base = Position(kContext + 1)};
  EXPECT_EQ(reason(propose), "propose: base is 101, not 1 to 100");
  propose = {.base = Position(2), .q_kind = QKind::kSparse, .row_bytes = 1};
  EXPECT_TRUE(reason(propose).starts_with("propose: row_bytes is 1, not 16 to")) << reason(propose);
  EXPECT_TRUE(reason(Welcome{.accepted = true}).starts_with("welcome: target.vocab_size is 0, not 1 to"));
}

// ---- a job that never stops talking ---------------------------------------------------------------------

class Chatterbox final : public Transport {
 public:
  Status send(PeerId, const Message&) override { return {}; }
  std::optional<Incoming> receive(Clock::time_point) override {
    return Incoming{kCoordinatorPeer, Heartbeat{}};
  }
  const TransportStats& stats() const override { return stats_; }

 private:
  TransportStats stats_;
};

TEST(AJobThatNeverStopsTalking, HasADeadlineForItsAnswer) {
  Chatterbox job;
  EXPECT_EQ(join_coordinator(job, {.join_timeout = 50ms}).status().code(), StatusCode::kDeadlineExceeded);
}

// Takes a Hello, and then its connection is gone.
class VanishedJob final : public Transport {
 public:
  Status send(PeerId, const Message& message) override {
    return std::holds_alternative<Hello>(message) ? Status() : unavailable("the coordinator is gone");
  }
  std::optional<Incoming> receive(Clock::time_point) override { return std::nullopt; }
  const TransportStats& stats() const override { return stats_; }

 private:
  TransportStats stats_;
};

TEST(AJobThatVanishes, IsNotWaitedFor) {
  VanishedJob job;
  const auto welcome = join_coordinator(job, {.heartbeat = 1ms, .join_timeout = 1h});
  EXPECT_EQ(welcome.status().code(), StatusCode::kUnavailable);
}

TEST(AJobThatNeverStopsTalking, DoesNotKeepAWorkerThatIsAskedToLeave) {
  Chatterbox job;
  const auto asked = Clock::now();
  const auto welcome = join_coordinator(job, {.join_timeout = 1h, .asked_to_leave = [] { return true; }});
  EXPECT_TRUE(welcome.ok() && !*welcome);
  const auto drafter = make_ngram_drafter({});
  EXPECT_TRUE(DraftWorker(*drafter, job, {.asked_to_leave = [] { return true; }}).serve().ok());
  EXPECT_LT(Clock::now() - asked, 2s);
}

}  // namespace
}  // namespace outrider::testing
