#include "lab/simulate/clocked_drafter.h"

#include <algorithm>
#include <utility>

#include "base/philox.h"
#include "cluster/simulation/simulated_text.h"
#include "coordinator/gamma/gamma_policy.h"
#include "draft_worker/text/text_drafter.h"

namespace outrider {
namespace {

constexpr int64_t kMaxRows = 256;
// Nothing is ever written in its blocks.
class NoStorage final : public KvStorage {
 public:
  void copy_block(int32_t, int32_t) override {}
  void copy_slots(std::span<const KvMove>) override {}
  uint64_t content_hash(std::span<const int32_t>, int64_t) const override { return 0; }
};

int64_t blocks_for(const ClockedDrafterOptions& options) {
  const int64_t tokens = options.max_context + kDefaultGammaMax +
                         kv_tokens_for_outcomes(options.fanout, kDefaultGammaMax) + kBlockTokens;
  return options.max_sequences * kv_blocks_for(tokens);
}

// The model below draws the best guess always, so another token is a wrong one.
class SimulatedGuesser final : public TextGuesser {
 public:
  explicit SimulatedGuesser(const SimulatedGuesses& guesses) : guesses_(guesses) {}

  void open(SequenceId, std::span<const TokenId>, int32_t, bool) override {}
  void extend(SequenceId, std::span<const TokenId>) override {}
  void close(SequenceId) override {}
  void guess(SequenceId sequence, std::span<const TokenId> text, int32_t most,
             std::vector<TokenId>& out) override {
    out.clear();
    for (int32_t i = 0; i < std::min(most, guesses_.most); ++i) {
      const auto position = static_cast<uint32_t>(text.size()) + static_cast<uint32_t>(i);
      const bool is_right = uniform(sequence, position) < guesses_.acceptance;
      out.push_back(is_right ? kBestGuess : TokenId(kBestGuess.value() + 1));
    }
  }

 private:
  // By place alone: a token that is hard to guess is so in every pass.
  static double uniform(SequenceId sequence, uint32_t position) {
    uint32_t place = position, low = static_cast<uint32_t>(sequence.value()),
             high = static_cast<uint32_t>(sequence.value() >> 32), unused = 0;
    philox(place, low, high, unused, kGuessKey);
    return unit_interval((uint64_t{place} << 32) | low);
  }
  static constexpr uint64_t kGuessKey = 0x6775657373;
  const SimulatedGuesses guesses_;
};

}  // namespace

// Ranks its vocabulary in the order of the ids, whatever the text. A pass adds to a clock.
class GuessingModel final : public Model {
 public:
  explicit GuessingModel(const ClockedDrafterOptions& options)
      : cost_(options.cost),
        kv_(std::make_unique<NoStorage>(), blocks_for(options)),
        max_positions_(options.max_context + kDefaultGammaMax) {
    config_.vocab_size = kGuesses;
  }

  Result<LogitsShard> forward(std::span<const BatchSlice> batch) override {
    RETURN_IF_ERROR(append_batch(kv_, batch, max_positions_));
    const BatchRows count = count_rows(batch);
    int64_t context = 0;
    for (const BatchSlice& slice : batch) context += kv_.length(slice.sequence);
    passed_ += cost_.seconds(count.rows, context);
    logits_.resize(static_cast<size_t>(count.logit_rows * kGuesses));
    for (size_t i = 0; i < logits_.size(); ++i) logits_[i] = -static_cast<float>(i % kGuesses);
    return LogitsShard{.logits = TensorView<float, 2>(logits_.data(), {count.logit_rows, kGuesses}),
                       .vocab_range = {0, kGuesses},
                       .vocab_size = kGuesses};
  }

  KvCache& kv() override { return kv_; }
  const ModelConfig& config() const override { return config_; }
  int64_t max_positions() const override { return max_positions_; }
  int64_t max_rows() const override { return kMaxRows; }
  int64_t max_logit_rows() const override { return kMaxRows; }
  int64_t weight_bytes() const override { return 0; }
  std::string isa() const override { return "none"; }

  double passed() const { return passed_; }  // seconds that its clock is ahead
  double take_passed() { return std::exchange(passed_, 0.0); }

 private:
  ForwardCost cost_;
  ModelConfig config_;
  KvCache kv_;
  int64_t max_positions_;
  std::vector<float> logits_;
  double passed_ = 0;
};

ClockedDrafter::ClockedDrafter(EventQueue& events, const ClockedDrafterOptions& options,
                               std::function<void(Message)> send)
    : events_(events),
      send_(std::move(send)),
      model_(std::make_unique<GuessingModel>(options)),
      turns_(options.turns) {
  drafter_ = make_model_drafter(
      *model_,
      {.max_sequences = options.max_sequences,
       .eos_ids = {},
       .now =
           [this] {
             const SimTime now = events_.now() + sim_time(model_->passed());
             return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(now));
           },
       .guesser = options.guesses.most > 0 ? std::make_shared<SimulatedGuesser>(options.guesses) : nullptr});
}

ClockedDrafter::~ClockedDrafter() = default;

void ClockedDrafter::receive(const Message& message) {
  inbox_.push_back(message);
  if (in_pass_) return;
  in_pass_ = true;  // what arrives at the same time is read before the pass
  go_on_after(0);
}

void ClockedDrafter::go_on_after(double seconds) {
  events_.after(sim_time(seconds), [this] {
    in_pass_ = false;
    turn();
  });
}

// Its kernels wait in the device's queue, as they were asked for, until the target's are through.
void ClockedDrafter::pass(double seconds) {
  in_pass_ = true;
  if (!turns_) return go_on_after(seconds);
  turns_->ask(DeviceTurns::Kind::kDraft, [this, seconds] {
    events_.after(sim_time(seconds), [this] {
      turns_->end(DeviceTurns::Kind::kDraft);
      in_pass_ = false;
      turn();
    });
  });
}

// Same as DraftWorker::run: handles arrived messages, then does one piece of work. Results of a pass exist at
// once, but are sent only after the simulated time of the pass, and no message is handled before.
void ClockedDrafter::turn() {
  for (;;) {
    for (const Message& message : std::exchange(inbox_, {})) handle(message);
    answers_.clear();
    const bool worked = drafter_->work(answers_);
    for (DraftAnswer& answer : answers_) {
      if (!answer.status.ok())
        send_(drafter_->held(answer.draft.sequence));
      else if (answer.wanted)
        send_(std::move(answer.draft));
    }
    const double seconds = model_->take_passed();
    busy_ += seconds;
    if (seconds > 0) return pass(seconds);
    // Where the real worker goes on looking for a verdict that is due, here the verdict wakes it.
    if (!worked || answers_.empty()) return;
  }
}

void ClockedDrafter::handle(const Message& message) {
  if (const auto* propose = std::get_if<Propose>(&message)) {
    if (!drafter_->begin(*propose).ok()) send_(drafter_->held(propose->sequence));
  } else if (const auto* open = std::get_if<Open>(&message)) {
    (void)drafter_->open(*open);  // a later Propose tells that there was no room
  } else if (const auto* close = std::get_if<Close>(&message)) {
    drafter_->close(close->sequence);
  }
}

}  // namespace outrider
