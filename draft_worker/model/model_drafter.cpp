#include "draft_worker/model/model_drafter.h"

#include <algorithm>

#include "draft_worker/model/round_inputs.h"
#include "draft_worker/wire/row_sender.h"

namespace outrider {

ModelDrafter::ModelDrafter(Model& model, ModelDrafterOptions options)
    : state_(model, std::move(options)),
      drawing_(state_),
      trees_(state_, drawing_),
      preparation_(state_, drawing_, trees_, runs_) {
  auto runner = model.make_runner(state_.vocab_size);
  if (state_.options.rows && state_.options.rows->vocab_size() != state_.vocab_size)
    state_.options.rows = nullptr;  // rows end before the target's vocabulary
  if (state_.options.head) {
    const IndexRange ids = state_.options.head->ids();
    CHECK(!runner && ids.begin == 0 && ids.end >= state_.vocab_size &&
              state_.options.head->hidden_size() == model.config().hidden_size,
          "a head of another model, or on a device");
  }
  if (state_.options.guesser) {
    CHECK(!runner, "a device's model draws all its tokens itself");
    staged_.emplace(state_.options.guesser);
  }
  if (runner) runs_.emplace(state_, drawing_, std::move(runner));
}

ModelDrafter::~ModelDrafter() {
  while (!state_.sequences.empty()) close(state_.sequences.begin()->first);
}

Status ModelDrafter::open(const Open& open) {
  if (const auto at = state_.sequences.find(open.sequence);
      at != state_.sequences.end() && at->second.window.knows(open.ids))
    return {};
  close(open.sequence);
  if (static_cast<int32_t>(state_.sequences.size()) >= state_.options.max_sequences)
    return resource_exhausted(fmt::format("the drafter holds {} sequences already", state_.sequences.size()));
  DraftedSequence s{.window = DraftWindow(open.ids),
                    .salt = open.salt,
                    .sampling = open.sampling,
                    .counts = {},
                    .kv = state_.model.kv().create(),
                    .job = {},
                    .block = {},
                    .grown = {}};
  if (needs_counts(s.sampling)) {
    const auto prompt = static_cast<size_t>(open.prompt_length);
    s.counts.add_prompt(std::span(open.ids).first(prompt));
    s.counts.add_output(std::span(open.ids).subspan(prompt));
  }
  s.window.reserve(static_cast<size_t>(state_.model.max_positions()));
  if (staged_) staged_->open(open.sequence, open.ids, open.prompt_length, open.salt != 0);
  state_.sequences.emplace(open.sequence, std::move(s));
  return {};
}

void ModelDrafter::close(SequenceId sequence) {
  const auto at = state_.sequences.find(sequence);
  if (at == state_.sequences.end()) return;
  DraftedSequence& s = at->second;
  state_.drop_job(s);
  preparation_.drop(s);
  trees_.drop(s);
  if (state_.options.rows) state_.options.rows->drop(sequence);
  if (staged_) staged_->close(sequence);
  state_.roll_back(s, s.window.keep());  // drop drafted tokens
  state_.texts.keep(s.window.read().first(static_cast<size_t>(s.window.cached())), s.salt, s.kv);
  state_.sequences.erase(at);
}

// Takes over the KV of an open or closed text that begins alike.
void ModelDrafter::take_over(DraftedSequence& s) {
  const auto ids = s.window.read();
  ReadTexts::Found best = state_.texts.find(ids, s.salt);
  for (const auto& [id, other] : state_.sequences) {
    if (&other == &s || other.salt != s.salt) continue;
    const int64_t length = std::min(other.window.keep(), common_length(other.window.read(), ids));
    if (length > best.length) best = {other.kv, length};
  }
  const int64_t length = std::min<int64_t>(best.length, static_cast<int64_t>(ids.size()) - 1);
  if (length <= 0) return;
  const KvHandle fork = state_.model.kv().fork(best.sequence);
  state_.model.kv().truncate(fork, length);
  state_.model.kv().release(std::exchange(s.kv, fork));
  s.window.fed(ids.first(static_cast<size_t>(length)));
}

// Where more is unread than the window, the model reads the first tokens of the text and the last ones.
void ModelDrafter::skip_middle(DraftedSequence& s) {
  const int64_t last = state_.options.window, sinks = last > 0 ? state_.options.sinks : 0;
  if (last == 0) return;
  const auto read = static_cast<int64_t>(s.window.read().size());
  if (read - s.window.keep() <= sinks + last) return;
  state_.drop_job(s);
  preparation_.drop(s);
  trees_.drop(s);
  state_.roll_back(s, std::min(sinks, s.window.keep()));
  s.window.skip_to_last(sinks, last);
}

// Whether this drafter can make such a draft for this sequence.
Status ModelDrafter::check(const DraftedSequence& s, const Propose& propose) const {
  const Rule rule = effective_rule(s.sampling);
  if (propose.q_kind == QKind::kHidden &&
      (!state_.options.head || propose.code_bits < kMinHiddenBits || propose.code_bits > kMaxHiddenBits))
    return unsupported(fmt::format("states of {} bits", propose.code_bits));
  if ((propose.q_kind != QKind::kNone) != needs_q(rule))
    return unsupported(
        fmt::format("q of kind {} under the {} rule", static_cast<int>(propose.q_kind), rule_name(rule)));
  if (!propose.tree.is_chain() && propose.q_kind != QKind::kNone &&
      (propose.tree.nodes > 0 || !is_tree_rule(rule)))
    return unsupported(
        fmt::format("a tree of this shape under the {} rule; its q needs a fixed shape and a "
                    "rule for trees",
                    rule_name(rule)));
  return {};
}

Status ModelDrafter::begin(const Propose& propose) {
  const auto at = state_.sequences.find(propose.sequence);
  if (at == state_.sequences.end()) return not_found("sequence is not open");
  DraftedSequence& s = at->second;
  RETURN_IF_ERROR(check(s, propose));
  const bool repeated = s.job && s.job->propose.round == propose.round &&
                        s.job->propose.base == propose.base && s.job->propose.gamma == propose.gamma;
  if (repeated) return {};
  const auto known = s.window.committed().size();
  RETURN_IF_ERROR(s.window.advance(propose.base, propose.committed));
  if (needs_counts(s.sampling)) s.counts.add_output(s.window.committed().subspan(known));
  if (staged_) staged_->extend(propose.sequence, s.window.committed());
  trees_.learn_from_text(s);
  if (state_.options.kept_texts > 0 && s.window.cached() == 0) take_over(s);
  skip_middle(s);
  // The last drafted token needs no KV.
  const int64_t room = std::max<int64_t>(0, state_.room_behind(s, propose.base));
  const auto limit = static_cast<int32_t>(std::min<int64_t>(propose.gamma, room));
  const bool is_tree = !propose.tree.is_chain() && limit > 0;
  const bool regrown = is_tree && trees_.regrow(s, propose);
  if (!regrown) trees_.drop(s);
  // Branches prepared for a chain are chains.
  if (!preparation_.resume(s, propose) || is_tree) start_fresh(s, propose, regrown);
  s.job->strand.cut(limit);
  if (is_tree) trees_.begin(s, propose, regrown);
  if (regrown) return {};
  // Never keeps all of the committed text: its last token must be fed to get the distribution of the next
  // one.
  state_.roll_back(s,
                   std::min(s.window.cached(), s.window.in_read(propose.base) + s.job->strand.length() - 1));
  return {};
}

void ModelDrafter::start_fresh(DraftedSequence& s, const Propose& propose, bool keeps_cache) {
  if (!s.job) s.job.emplace();
  s.job->propose = propose;
  Strand& strand = s.job->strand = state_.storage.take_strand();
  strand.key = {propose.round, propose.q_kind, propose.row_bytes, propose.code_bits};
  strand.base = propose.base;
  strand.stop = propose.stop;
  if (!keeps_cache) state_.roll_back(s, s.window.keep());
}

Resync ModelDrafter::held(SequenceId sequence) const {
  const auto at = state_.sequences.find(sequence);
  if (at == state_.sequences.end()) return {.sequence = sequence, .epoch = {}, .committed = {}};
  const DraftWindow& window = at->second.window;
  return {.sequence = sequence,
          .epoch = {},
          .committed = Position(static_cast<int32_t>(window.committed().size())),
          .hash = window.hash()};
}

bool ModelDrafter::work(std::vector<DraftAnswer>& answers) {
  return finish_done(answers) || run_jobs(answers) || advance_jobs(answers) ||
         trees_.grow_on(preparation_.max_rows(), runs_ ? &runs_->ranked() : nullptr) ||
         preparation_.prepare();
}

DraftAnswer ModelDrafter::finish(DraftedSequence& s, Status status) {
  DraftJob& job = *s.job;
  DraftAnswer answer{.status = std::move(status),
                     .draft = take_draft(job, s.window.hash()),
                     .wanted = job.propose.gamma > 0};
  if (answer.wanted && answer.status.ok()) {
    const auto now = state_.options.now();
    answer.draft.preparation.wasted_tokens = std::exchange(state_.wasted_tokens, 0);
    answer.draft.preparation.busy_ns = std::exchange(state_.prepare_ns, 0);
    if (job.previous_sent_at)
      state_.policy.round_took(job.was_prepared, state_.ns_between(*job.previous_sent_at, now));
    if (job.branches)
      trees_.finish(s, answer.draft, now);
    else if (!answer.draft.ids.empty())
      preparation_.sent(s, answer.draft.ids, now);
  }
  state_.drop_job(s);
  return answer;
}

Draft ModelDrafter::take_draft(DraftJob& job, uint64_t hash) {
  Draft draft = state_.storage.take_draft();
  draft.sequence = job.propose.sequence;
  draft.epoch = job.propose.epoch;
  draft.round = job.propose.round;
  draft.base = job.propose.base;
  draft.ids.assign(job.strand.tokens.begin(), job.strand.tokens.end());
  draft.parents.clear();
  draft.prefix_hash = hash;
  draft.q_kind = job.propose.q_kind;
  draft.q.swap(job.strand.q);
  draft.hidden.swap(job.strand.hidden);
  draft.eos = job.strand.eos;
  draft.guess = job.guess;
  if (job.strand.margins.size() == draft.ids.size()) draft.margins.swap(job.strand.margins);
  draft.sent_after_us = job.propose.sent_after_us;
  draft.ingest_ns = job.ingest_ns;
  draft.draft_ns = job.draft_ns;
  draft.preparation = job.preparation;
  return draft;
}

bool ModelDrafter::finish_done(std::vector<DraftAnswer>& answers) {
  const size_t before = answers.size();
  for (auto& [id, s] : state_.sequences)
    if (s.job && is_done(s, state_.model)) answers.push_back(finish(s));
  return answers.size() > before;
}

// Draws several tokens of every current round on the model's device. False: there is no round, or these
// rounds run on the host.
bool ModelDrafter::run_jobs(std::vector<DraftAnswer>& answers) {
  if (!runs_ || !runs_->collect_rounds()) return false;
  const auto start = state_.options.now();
  const Status ran = runs_->run_rounds();
  if (!ran.ok() && (state_.texts.forget_one() || preparation_.give_up_branches()))
    return true;  // after freeing memory for another try
  for (size_t i = 0; i < runs_->count(); ++i) {
    Status status = ran.ok() ? runs_->take_round(i) : ran;
    if (status.ok()) continue;
    runs_->failed(i);
    answers.push_back(finish(runs_->sequence(i), std::move(status)));
  }
  runs_->end_rounds(ran.ok(), state_.ns_since(start));
  return true;
}

// Draws one token of every current round, or a level of its tree, or prefills a part of its prompt.
bool ModelDrafter::advance_jobs(std::vector<DraftAnswer>& answers) {
  collect_slices();
  if (slices_.empty()) return false;
  const auto start = state_.options.now();
  const Status passed = drawing_.run(slices_, rank_rows());
  if (!passed.ok() &&
      (state_.texts.forget_one() || preparation_.give_up_branches() || trees_.stop_growth(parts_)))
    return true;  // after freeing memory for another try
  const bool one_each = std::all_of(slices_.begin(), slices_.end(),
                                    [](const BatchSlice& slice) { return slice.tokens.size() == 1; });
  const bool reads_no_prompt = std::all_of(slices_.begin(), slices_.end(), [](const BatchSlice& slice) {
    return static_cast<int64_t>(slice.tokens.size()) <= slice.logit_rows + 1;
  });
  const int32_t drawn = take_parts(passed, state_.ns_since(start), answers);
  if (one_each) state_.policy.pass_took(static_cast<int64_t>(slices_.size()), state_.ns_since(start));
  if (staged_ && passed.ok()) staged_->end_pass(drawn, state_.ns_since(start), reads_no_prompt);
  return true;
}

// Queues the rows of a pass that the device can rank. Null: some rows belong to the host (chains, or trees
// under rules with q).
RankedPass* ModelDrafter::rank_rows() {
  if (!runs_) return nullptr;
  RankedPass& ranked = runs_->ranked();
  ranked.begin();
  int64_t row = 0;
  size_t at = 0;
  for (const PassPart& part : parts_) {
    const DraftedSequence& s = *part.sequence;
    const DraftJob& job = *s.job;
    if (!job.branches || job.strand.key.q_kind != QKind::kNone) return nullptr;
    const int64_t rows = slices_[at].logit_rows;
    if (job.tree.begun) {
      trees_.rank_looks(s, job.tree, job.strand.key, row, ranked);
    } else if (rows > 0) {
      if (rows > 1) ranked.add(TokenDrawing::step_of_last(s), row, 1);
      trees_.rank_root(s, row + rows - 1, ranked);
    }
    for (size_t i = 0; i < part.slices; ++i) row += slices_[at++].logit_rows;
  }
  return &ranked;
}

// Takes the results of every sequence's part of a pass; charges each its share of the time and its own
// processing. Returns the number of drawn tokens.
int32_t ModelDrafter::take_parts(const Status& passed, int64_t pass_ns, std::vector<DraftAnswer>& answers) {
  const int64_t share = pass_ns / static_cast<int64_t>(slices_.size());
  int64_t row = 0;
  int32_t drawn = 0;
  size_t at = 0;
  for (const PassPart& part : parts_) {
    DraftedSequence& s = *part.sequence;
    DraftJob& job = *s.job;
    Status status = passed;
    if (status.ok()) {
      int64_t& busy_ns = job.tree.begun || job.strand.length() > 0 ? job.draft_ns : job.ingest_ns;
      const auto own = state_.options.now();
      if (job.tree.begun)
        trees_.take_looks(s, job.tree, job.strand.key, row);
      else
        drawn += take_slice(s, slices_[at], row, status);
      busy_ns += share * static_cast<int64_t>(part.slices) + state_.ns_since(own);
    }
    for (size_t i = 0; i < part.slices; ++i) row += slices_[at++].logit_rows;
    if (!status.ok()) answers.push_back(finish(s, std::move(status)));
  }
  return drawn;
}

// Takes a sequence's results of a pass; returns the number of drawn tokens. KV entries of guessed tokens that
// were confirmed stay as they are.
int32_t ModelDrafter::take_slice(DraftedSequence& s, const BatchSlice& slice, int64_t row, Status& status) {
  DraftJob& job = *s.job;
  const auto guessed = static_cast<int64_t>(job.guesses.size());
  const int64_t drawing = slice.logit_rows - guessed;  // rows before the guessed ones
  s.window.fed(slice.tokens.first(slice.tokens.size() - job.guesses.size()));
  if (drawing > 1) job.guess = drawing_.guess_of_last(s, row);
  if (drawing == 0) return 0;
  if (job.branches) {
    status = trees_.take_root(s, row + drawing - 1);
    return 0;
  }
  Strand& strand = job.strand;
  const int32_t before = strand.length();
  status = drawing_.draw(s, strand, row + drawing - 1);
  int32_t right = 0;
  while (status.ok() && right < guessed && !strand.complete() &&
         strand.tokens.back() == job.guesses[static_cast<size_t>(right)]) {
    s.window.fed(std::span(job.guesses).subspan(static_cast<size_t>(right), 1));
    status = drawing_.draw(s, strand, row + drawing + right++);
  }
  if (guessed > 0) {
    if (right == guessed || !strand.complete()) staged_->verified(job.propose.sequence, right);
    state_.model.kv().truncate(s.kv, s.window.cached());
  }
  return strand.length() - before;
}

// Appends guesses of the model's next tokens after a row that draws a token, each with a row of logits: a
// right guess saves a pass. The last token of a draft is never fed. All sequences share the rows.
void ModelDrafter::add_guesses(DraftedSequence& s, BatchSlice& slice, int64_t rows, int64_t logit_rows) {
  DraftJob& job = *s.job;
  job.guesses.clear();
  if (!staged_ || job.branches || slice.logit_rows == 0) return;
  const auto texts = static_cast<int64_t>(state_.sequences.size());
  const auto inputs = static_cast<int64_t>(slice.tokens.size());
  const int64_t most =
      std::min({int64_t{StagedDrafts::kMostGuesses}, int64_t{job.strand.limit - job.strand.length() - 1},
                std::min(rows, state_.model.max_rows() / texts) - inputs,
                std::min(logit_rows, state_.model.max_logit_rows() / texts) - slice.logit_rows,
                state_.model.max_positions() - s.window.cached() - inputs});
  if (most <= 0) return;
  staged_->guess(job.propose.sequence, s.window.committed(), job.strand.drafted(), static_cast<int32_t>(most),
                 job.guesses);
  if (job.guesses.empty()) return;
  job.inputs.assign(slice.tokens.begin(), slice.tokens.end());
  job.inputs.insert(job.inputs.end(), job.guesses.begin(), job.guesses.end());
  slice.tokens = job.inputs;
  slice.logit_rows += static_cast<int64_t>(job.guesses.size());
}

void ModelDrafter::collect_slices() {
  slices_.clear();
  parts_.clear();
  if (staged_) staged_->begin_pass();
  int64_t rows = state_.model.max_rows(), logit_rows = state_.model.max_logit_rows();
  for (auto& [id, s] : state_.sequences) {
    if (!s.job || rows == 0 || logit_rows == 0) continue;
    const size_t before = slices_.size();
    if (s.job->tree.begun)
      trees_.add_looks(s, s.job->tree, rows, logit_rows, slices_);
    else
      add_guesses(s, slices_.emplace_back(next_slice(s, state_.model, rows, logit_rows)), rows, logit_rows);
    if (slices_.size() == before) continue;
    parts_.push_back({&s, slices_.size() - before});
    for (size_t i = before; i < slices_.size(); ++i) {
      rows -= static_cast<int64_t>(slices_[i].tokens.size());
      logit_rows -= slices_[i].logit_rows;
    }
  }
}

std::unique_ptr<Drafter> make_model_drafter(Model& model, ModelDrafterOptions options) {
  return std::make_unique<ModelDrafter>(model, std::move(options));
}

}  // namespace outrider
