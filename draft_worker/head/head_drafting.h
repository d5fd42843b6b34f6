// A head at a draft worker: it prefills from the hidden states that the job sends (HiddenStateRows), and
// drafts with the class that also drafts beside a target. A round waits for its rows; the coordinator learns
// of missing rows when it repeats the Propose, or when a link with pending rows ends. One thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "draft_worker/draft_window.h"
#include "draft_worker/drafter.h"
#include "draft_worker/head/held_hidden_states.h"
#include "heads/head_drafter.h"

namespace outrider {

struct HeadDraftingOptions {
  int32_t max_sequences = 16;
  std::vector<TokenId> eos_ids;
  // Rows are read ahead of a round once there are this many. Fewer rows wait for the next draft, whose first
  // pass reads them too.
  int32_t read_ahead = 32;
  // Receives rows from device to device; null: no such rows. Must outlive the drafter.
  HiddenStateInbox* inbox = nullptr;
};

class HeadDrafting final : public Drafter, private HiddenStateSource {
 public:
  // `head` must outlive it.
  HeadDrafting(Head& head, HeadDraftingOptions options);
  ~HeadDrafting() override;

  Status open(const Open& open) override;
  void close(SequenceId sequence) override;
  Status begin(const Propose& propose) override;
  Status take(const HiddenStateRows& rows) override;
  // Drafts all rounds whose rows have arrived, from their first token to their last.
  bool work(std::vector<DraftAnswer>& answers) override;
  Resync held(SequenceId sequence) const override;
  int32_t max_context() const override { return static_cast<int32_t>(head_.max_positions()); }

  // Rows held in memory, over all sequences.
  int64_t rows_held() const;

 private:
  struct Sequence {
    DraftWindow window;
    SamplingParams sampling;
    TokenCounts counts;  // of the committed tokens; kept only when penalties need it
    HeldHiddenStates rows;
    std::optional<Propose> round;  // the current round
  };
  Status check_ids(std::span<const TokenId> ids) const;
  Status extend(Sequence& s, Position base, std::span<const TokenId> ids) const;
  void read(SequenceId sequence, int64_t first, FloatRows to) override;
  bool look(std::vector<DraftAnswer>& answers);
  bool awaits_rows();
  bool finish_empty();
  bool draft_rounds(std::vector<DraftAnswer>& answers);
  bool read_ahead();
  void forget_read();
  Draft draft_of(const Sequence& s, HeadDraft& made) const;

  Head& head_;
  const HeadDraftingOptions options_;
  const std::unique_ptr<HeadDrafter> drafter_;
  std::map<SequenceId, Sequence> sequences_;

  // Scratch for one piece of work.
  std::vector<HeadTask> tasks_;
  std::vector<HeadDraft> drafts_;
  int waits_ = 0;  // consecutive polls for rows under way
};

}  // namespace outrider
