// Drafts from a draft model or from the text itself: each round uses the one that should bring more tokens
// per second. The value of a draft from the text follows from its votes and its matches' acceptance
// (match_acceptance.h), that of a model's draft from the acceptance of its last drafts. Costs are measured:
// the model's drafts here, the target's passes by the coordinator, which sends them with each Propose.
#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "draft_worker/draft_window.h"
#include "draft_worker/text/found_length.h"
#include "draft_worker/text/text_drafter.h"

namespace outrider {
namespace {

// The least gain of a draft from the text in a round without a model's draft, since the round waits for it.
constexpr double kMinGain = 1.02;
constexpr double kForget = 0.95;          // decay of the model's tests at each of its drafts
constexpr double kPriorTests = 10;        // of the mean over all sequences
constexpr double kForgetCost = 1 / 16.0;  // decay of the model's time for a token

// Tests of the model's tokens, decayed.
struct ModelTests {
  double tested = 0, right = 0;
  void add(int32_t tested_tokens, int32_t right_tokens) {
    tested = tested * kForget + tested_tokens;
    right = right * kForget + right_tokens;
  }
};

class TextOrModelDrafter final : public Drafter {
 public:
  TextOrModelDrafter(std::unique_ptr<Drafter> model, std::shared_ptr<TextGuesser> guesser)
      : model_(std::move(model)), guesser_(std::move(guesser)) {
    all_.add(kPriorTests, 0.7 * kPriorTests);
  }

  Status open(const Open& open) override {
    RETURN_IF_ERROR(model_->open(open));
    const auto at = texts_.find(open.sequence);
    if (at != texts_.end() && at->second.window.knows(open.ids)) return {};
    if (at != texts_.end()) guesser_->close(open.sequence);
    std::erase_if(done_, [&](const DraftAnswer& old) { return old.draft.sequence == open.sequence; });
    texts_.insert_or_assign(open.sequence, Text(open));
    guesser_->open(open.sequence, open.ids, open.prompt_length, open.salt != 0);
    return {};
  }
  void close(SequenceId sequence) override {
    model_->close(sequence);
    std::erase_if(done_, [&](const DraftAnswer& old) { return old.draft.sequence == sequence; });
    if (texts_.erase(sequence) > 0) guesser_->close(sequence);
  }

  Status begin(const Propose& propose) override {
    const auto at = texts_.find(propose.sequence);
    if (at == texts_.end()) return not_found("sequence is not open");
    Text& text = at->second;
    if (text.asked && propose.round == text.round && !text.from_text) return ask_model(text, propose);
    RETURN_IF_ERROR(text.window.advance(propose.base, propose.committed));
    learn(text);
    guesser_->extend(propose.sequence, text.window.committed());
    text.asked = true;
    text.round = propose.round;
    const int32_t found = look_up(text, propose);
    text.from_text = found > 0 || (propose.gamma == 0 && propose.text_gamma > 0);
    if (!text.from_text) return ask_model(text, propose);
    answer(text, propose, found);
    return {};
  }

  bool work(std::vector<DraftAnswer>& answers) override {
    if (!done_.empty()) {
      std::move(done_.begin(), done_.end(), std::back_inserter(answers));
      done_.clear();
      return true;
    }
    const size_t before = answers.size();
    const bool worked = model_->work(answers);
    for (size_t i = before; i < answers.size(); ++i) note(answers[i]);
    return worked;
  }

  void reuse(Draft draft) override {
    if (!draft.from_text) model_->reuse(std::move(draft));
  }
  Resync held(SequenceId sequence) const override {
    const auto at = texts_.find(sequence);
    if (at == texts_.end()) return {.sequence = sequence};
    const DraftWindow& window = at->second.window;
    return {.sequence = sequence,
            .committed = Position(static_cast<int32_t>(window.committed().size())),
            .hash = window.hash()};
  }
  int32_t max_context() const override { return model_->max_context(); }

 private:
  struct Text {
    explicit Text(const Open& open)
        : window(open.ids), opened(open), told(static_cast<int32_t>(open.ids.size())) {
      opened.ids.clear();
    }
    DraftWindow window;
    Open opened;       // without its ids
    int32_t told = 0;  // tokens that the model has; it gets the others with its next draft
    bool asked = false, from_text = false;
    Round round;                   // of the newest Propose
    std::vector<TokenId> drafted;  // by the model, until the text shows the accepted ones
    size_t base = 0;               // its first position
    ModelTests tests;
  };

  // The number of tokens of the text's draft (in guess_) that beat the model's draft; 0: none. Rules that
  // need q, and trees, always use the model's drafts.
  int32_t look_up(Text& text, const Propose& propose) {
    if (propose.text_gamma == 0 || propose.q_kind != QKind::kNone || !propose.tree.is_chain()) return 0;
    guess_.clear();
    guesser_->guess(propose.sequence, text.window.committed(), propose.text_gamma, guess_);
    const auto chances = guesser_->chances(propose.sequence);
    const FoundLength best = best_found_length(chances.first(std::min(guess_.size(), chances.size())),
                                               propose.pass_ns, propose.row_ns);
    const double pass = static_cast<double>(std::max<int64_t>(1, propose.pass_ns));
    const auto row = static_cast<double>(propose.row_ns);
    return best.rate > rate_of_model(text, propose.gamma, pass, row) ? best.tokens : 0;
  }

  double rate_of_model(const Text& text, int32_t gamma, double pass, double row) const {
    if (gamma == 0) return kMinGain / pass;
    const double mean = all_.right / all_.tested;
    const double acceptance = (text.tests.right + kPriorTests * mean) / (text.tests.tested + kPriorTests);
    double tokens = 1, reached = 1;
    for (int32_t i = 0; i < gamma; ++i) tokens += reached *= acceptance;
    return tokens / (pass + gamma * (row + token_ns_));
  }

  void answer(const Text& text, const Propose& propose, int32_t count) {
    std::erase_if(done_, [&](const DraftAnswer& old) { return old.draft.sequence == propose.sequence; });
    Draft draft{.sequence = propose.sequence,
                .epoch = propose.epoch,
                .round = propose.round,
                .base = propose.base,
                .prefix_hash = text.window.hash(),
                .from_text = true,
                .sent_after_us = propose.sent_after_us};
    draft.ids.assign(guess_.begin(), guess_.begin() + count);
    done_.push_back({.status = {}, .draft = std::move(draft)});
  }

  // The model first prefills the tokens that were committed since its last draft.
  Status ask_model(Text& text, const Propose& propose) {
    Propose message = propose;
    const auto unread = text.window.committed().subspan(static_cast<size_t>(
        std::min(text.told, propose.base.value() - static_cast<int32_t>(propose.committed.size()))));
    message.committed.assign(unread.begin(), unread.end());
    message.text_gamma = 0;
    text.told = propose.base.value();
    if (model_->begin(message).ok()) return {};
    Open open = text.opened;
    open.ids.assign(text.window.committed().begin(), text.window.committed().end());
    model_->close(open.sequence);
    RETURN_IF_ERROR(model_->open(open));
    message.committed.clear();
    return model_->begin(message);
  }

  // Records the model's draft, if it was sent.
  void note(const DraftAnswer& answer) {
    const auto at = texts_.find(answer.draft.sequence);
    if (at == texts_.end() || !answer.wanted || !answer.status.ok()) return;
    at->second.drafted = answer.draft.ids;
    at->second.base = static_cast<size_t>(answer.draft.base.value());
    if (answer.draft.ids.empty()) return;
    const double ns = static_cast<double>(answer.draft.ingest_ns + answer.draft.draft_ns) /
                      static_cast<double>(answer.draft.ids.size());
    // A prompt, or a stall caused by another program, counts as at most twice the usual time.
    token_ns_ = token_ns_ == 0 ? ns : token_ns_ + kForgetCost * (std::min(ns, 2 * token_ns_) - token_ns_);
  }

  // Learns from the model's newest draft by the text, whether it was verified or came too late.
  void learn(Text& text) {
    const auto committed = text.window.committed();
    if (text.drafted.empty() || committed.size() <= text.base) return;
    int32_t tested = 0, right = 0;
    for (size_t i = 0; i < text.drafted.size() && text.base + i < committed.size(); ++i) {
      ++tested;
      if (committed[text.base + i] != text.drafted[i]) break;
      ++right;
    }
    text.tests.add(tested, right);
    all_.add(tested, right);
    text.drafted.clear();
  }

  const std::unique_ptr<Drafter> model_;
  const std::shared_ptr<TextGuesser> guesser_;
  std::unordered_map<SequenceId, Text> texts_;
  ModelTests all_;
  double token_ns_ = 0;  // of the model, prefill included
  std::vector<TokenId> guess_;
  std::vector<DraftAnswer> done_;  // at most one per sequence
};

}  // namespace

std::unique_ptr<Drafter> make_text_or_model_drafter(std::unique_ptr<Drafter> model,
                                                    std::shared_ptr<TextGuesser> guesser) {
  return std::make_unique<TextOrModelDrafter>(std::move(model), std::move(guesser));
}

}  // namespace outrider
