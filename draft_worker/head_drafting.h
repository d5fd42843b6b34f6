// A head at a draft worker: it reads the rows of the target's states that the job tells (StateRows), and
// drafts with the class that drafts beside a target, too. A round waits for the rows that it needs; the
// coordinator hears of those that are missing when it asks once more, or when a link that brought them ends.
// One thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "draft_worker/draft_window.h"
#include "draft_worker/drafter.h"
#include "draft_worker/held_states.h"
#include "heads/head_drafter.h"

namespace outrider {

struct HeadDraftingOptions {
  int32_t max_sequences = 16;
  std::vector<TokenId> eos_ids;
  // So many rows are read without a round that needs them; fewer wait, for a draft's first pass reads them,
  // too.
  int32_t read_ahead = 32;
  // Rows come from device to device, too; null: they do not. Must outlive the drafter.
  StateInbox* inbox = nullptr;
};

class HeadDrafting final : public Drafter, private StateSource {
 public:
  // `head` must outlive it.
  HeadDrafting(Head& head, HeadDraftingOptions options);
  ~HeadDrafting() override;

  Status open(const Open& open) override;
  void close(SequenceId sequence) override;
  Status begin(const Propose& propose) override;
  Status take(const StateRows& rows) override;
  // All rounds whose rows are there, from their first token to their last.
  bool work(std::vector<DraftAnswer>& answers) override;
  Resync held(SequenceId sequence) const override;
  int32_t max_context() const override { return static_cast<int32_t>(head_.max_positions()); }

  // Rows in memory, of all sequences.
  int64_t rows_held() const;

 private:
  struct Sequence {
    DraftWindow window;
    SamplingParams sampling;
    TokenCounts counts;  // of the committed tokens; kept only when penalties need it
    HeldStates rows;
    std::optional<Propose> round;  // under way
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

  // Of one piece of work.
  std::vector<HeadTask> tasks_;
  std::vector<HeadDraft> drafts_;
  int waits_ = 0;  // in a row, for rows that are on their way
};

}  // namespace outrider
