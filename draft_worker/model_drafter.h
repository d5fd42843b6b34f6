// The drafter with a language model. Rounds of all sequences advance together, one token per forward pass;
// when none is under way the same machinery extends branches for the likely outcomes of drafts that are being
// verified. A branch is a copy-on-write fork of its sequence's KV; the Propose that brings its outcome turns
// it into the round. Internal: drafter.h has the factory.
#pragma once

#include <chrono>
#include <map>
#include <optional>

#include "draft_worker/draft_window.h"
#include "draft_worker/drafter.h"
#include "draft_worker/growing_tree.h"
#include "draft_worker/outcome_statistics.h"
#include "draft_worker/preparation_policy.h"
#include "draft_worker/read_texts.h"
#include "draft_worker/staged_drafts.h"
#include "draft_worker/strand.h"
#include "draft_worker/strand_storage.h"
#include "heads/token_guesses.h"
#include "transformer/model/draft_head.h"
#include "transformer/model/token_runner.h"

namespace outrider {

class ModelDrafter final : public Drafter {
 public:
  ModelDrafter(Model& model, ModelDrafterOptions options);
  ~ModelDrafter() override;  // the model's cache is empty again

  Status open(const Open& open) override;
  void close(SequenceId sequence) override;
  Status begin(const Propose& propose) override;
  bool work(std::vector<DraftAnswer>& answers) override;
  Resync held(SequenceId sequence) const override;
  void reuse(Draft draft) override { storage_.give_back(std::move(draft)); }
  int32_t max_context() const override { return static_cast<int32_t>(model_.max_positions()); }

 private:
  // The round under way.
  struct Job {
    void clear() {
      preparation = {};
      guess = TokenId(-1);
      ingest_ns = draft_ns = 0;
      previous_sent_at.reset();
      was_prepared = branches = false;
      guesses.clear();
      tree.clear();
    }
    Propose propose;
    Strand strand;
    PreparationReport preparation;
    TokenId guess{-1};  // of the last committed token
    int64_t ingest_ns = 0, draft_ns = 0;
    // Of the block before it.
    std::optional<std::chrono::steady_clock::time_point> previous_sent_at;
    bool was_prepared = false;
    bool branches = false;  // into this tree; the strand stays empty
    GrowingTree tree;
    // What the next pass reads in one: inputs, and behind them what the model is expected to draw.
    std::vector<TokenId> inputs, guesses;
  };
  struct Branch {
    Outcome outcome;
    Strand strand;
    std::optional<KvHandle> kv;  // once it was fed
  };
  // The last draft, whose verdict is not known, and what is prepared for it.
  struct Block {
    void clear() {
      for (auto* list : {&ids, &inputs}) list->clear();
      outcomes.clear();
      guesses.clear();
      branches.clear();
      planned = false;
      first_guess = 0;
    }

    StrandKey key;
    Position base;
    std::vector<TokenId> ids;
    Pipeline pipeline = Pipeline::kLockstep;
    int32_t fanout = 0, gamma = 0;
    bool eos = false;
    bool prepare = false;  // auto may decide not to
    std::chrono::steady_clock::time_point sent_at;
    bool planned = false;
    std::vector<Outcome> outcomes;  // to prepare for, best first, until `inputs` were fed
    std::vector<TokenId> inputs;    // the last committed token and the block, as far as outcomes need guesses
    size_t first_guess = 0;  // what inputs[0] is asked for: which token stands after so many of the block
    std::vector<std::optional<TokenGuesses>> guesses;  // [i]: of token i; [ids.size()]: of the bonus token
    std::vector<Branch> branches;
  };
  struct Sequence {
    DraftWindow window;  // of kv
    uint64_t salt = 0;
    SamplingParams sampling;
    TokenCounts counts;  // of the committed tokens; kept only when penalties need it
    KvHandle kv;
    Kept<Job> job;
    Kept<Block> block;
    Kept<GrownTree> grown;  // the last draft that branched
  };
  // A sequence's part of a pass.
  struct JobPart {
    Sequence* sequence;
    size_t slices;
  };
  // A part of a preparing pass: the next token of a branch, or (kReadBlock) the tokens of the block once
  // more, for what the model thinks of those after them.
  static constexpr int32_t kReadBlock = -1;
  struct PreparationPart {
    double probability;
    int32_t order;  // among equally likely ones
    Sequence* sequence;
    int32_t branch;
    int32_t rows;
  };

  // model_drafter.cpp: rounds
  BatchSlice next_slice(const Sequence& s, int64_t rows, int64_t logit_rows) const;
  DraftStep next_step(const Sequence& s, const Strand& strand) const;
  DraftStep guess_step(const Sequence& s) const;
  bool add_token(Sequence& s, Strand& strand, TokenId token, const DraftConfidence& confidence);
  Status not_finite(const Strand& strand) const;
  void roll_back(Sequence& s, int64_t length);
  void start_fresh(Sequence& s, const Propose& propose, bool keeps_cache);
  void take_over(Sequence& s);
  void drop_job(Sequence& s);
  std::span<const TokenId> next_inputs(const Sequence& s, int64_t rows) const;
  bool is_done(Sequence& s) const;
  bool can_guess(const Sequence& s, int64_t inputs) const;
  void take_guess(Sequence& s, int64_t row);
  DraftAnswer finish(Sequence& s, Status status = {});
  Draft take_draft(Job& job, uint64_t hash);
  void keep_block(Sequence& s, std::span<const TokenId> ids, std::chrono::steady_clock::time_point now);
  bool finish_done(std::vector<DraftAnswer>& answers);
  bool advance_jobs(std::vector<DraftAnswer>& answers);
  void collect_slices();
  void add_guesses(Sequence& s, BatchSlice& slice, int64_t rows, int64_t logit_rows);
  int32_t take_slice(Sequence& s, const BatchSlice& slice, int64_t row, Status& status);
  Status take_row(Sequence& s, Strand& strand, int64_t row);
  int64_t ns_since(std::chrono::steady_clock::time_point start) const;
  std::span<float> logits_row(int64_t row) {
    return logits_.logits.row(row).first(static_cast<size_t>(vocab_size_));
  }
  std::span<float> logits_row(const StrandKey& key, int64_t row);

  // tree_rounds.cpp: drafts that branch
  bool regrow(Sequence& s, const Propose& propose);
  void begin_tree(Sequence& s, const Propose& propose, bool regrown);
  void learn_from_text(Sequence& s);
  void add_looks(Sequence& s, GrowingTree& tree, int64_t rows, int64_t logit_rows);
  KvHandle cache_before(Sequence& s, GrowingTree& tree, int32_t node);
  Status take_root(Sequence& s, int64_t row);
  void take_looks(Sequence& s, GrowingTree& tree, const StrandKey& key, int64_t row);
  bool look_behind(Sequence& s, GrowingTree& tree, const StrandKey& key, int32_t node, int64_t row);
  bool draw_behind(Sequence& s, GrowingTree& tree, const StrandKey& key, int32_t node, int64_t row,
                   const DraftStep& step);
  void take_rows(GrowingTree& tree, std::span<const int32_t> order, Draft& draft);
  bool stop_growth();
  void finish_tree(Sequence& s, Draft& draft, std::chrono::steady_clock::time_point now);
  void drop_grown(Sequence& s);
  bool grow_on();

  // device_runs.cpp: rounds and branches whose tokens the model's device draws
  bool run_jobs(std::vector<DraftAnswer>& answers);
  void collect_runs();
  void share_time(int64_t total_ns);
  Status take_run(Sequence& s, size_t run);
  void take_q(const Sequence& s, Strand& strand, size_t run, size_t token);
  bool collect_branch_runs();
  Status run_branches();

  // outcome_preparation.cpp: branches
  bool resume(Sequence& s, const Propose& propose);
  bool observe(Sequence& s, std::span<const TokenId> outcome);
  TokenId prepared_guess(const Sequence& s, std::span<const TokenId> outcome) const;
  void adopt(Sequence& s, Branch& branch, const Propose& propose);
  void drop_block(Sequence& s);
  void plan(Sequence& s);
  void add_branch(Sequence& s, const Outcome& outcome);
  int64_t max_prepared_rows() const;
  void collect_parts();
  void add_part(double probability, Sequence& s, int32_t branch, int32_t rows);
  void limit_parts();
  bool prepare();
  bool awaits_verdict() const;
  BatchSlice slice_of(const PreparationPart& part);
  Status extend_parts();
  void take_parts();
  void take_guesses(Sequence& s, int64_t row);
  bool give_up_branches();
  OutcomeStatistics& statistics_of(const Sequence& s) {
    return statistics_[static_cast<size_t>(s.sampling.rule)];
  }

  // A sequence's part of a run.
  struct RunPart {
    Sequence* sequence;
    bool drafts_on;  // it had tokens already
    bool failed = false;
  };

  Model& model_;
  ModelDrafterOptions options_;
  std::unique_ptr<Collectives> single_;
  DraftSampler sampler_;
  TokenGuesser guesser_;
  std::unique_ptr<TokenRunner> runner_;  // null: every row of logits comes to the host
  int64_t vocab_size_ = 0;
  std::optional<StagedDrafts> staged_;
  LogitsShard logits_;
  QRow q_;
  // Of a row that travels as its state: that state, and the logits made of it.
  HiddenRow hidden_;
  std::vector<float> head_logits_;
  DraftHead::Scratch head_scratch_;
  std::map<SequenceId, Sequence> sequences_;
  ReadTexts texts_;                                             // of sequences that were closed
  std::array<OutcomeStatistics, kRuleCount> statistics_;        // by rule
  PreparationPolicy policy_;                                    // of Pipeline::kAuto
  std::array<BranchConfidence, kRuleCount> branch_confidence_;  // by rule

  StrandStorage storage_;
  int32_t wasted_tokens_ = 0;  // since the last answer
  int64_t prepare_ns_ = 0;

  // Buffers of one pass.
  std::vector<BatchSlice> slices_;
  std::vector<TokenRun> runs_;
  std::vector<RunPart> run_parts_;  // of runs_
  std::vector<PreparationPart> parts_;
  std::vector<JobPart> job_parts_;
  std::vector<TokenId> path_;
  std::vector<double> probabilities_;
  std::vector<Outcome> outcomes_;
};

}  // namespace outrider
