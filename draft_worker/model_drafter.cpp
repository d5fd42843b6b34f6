#include "draft_worker/model_drafter.h"

#include <algorithm>
#include <cmath>

#include "comm/chances.h"
#include "draft_worker/row_sender.h"
#include "heads/stop_rule.h"
#include "transformer/sampling/confidence.h"
#include "transformer/sampling/penalties.h"

namespace outrider {
namespace {

int64_t ns_between(std::chrono::steady_clock::time_point start, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count();
}

}  // namespace

ModelDrafter::ModelDrafter(Model& model, ModelDrafterOptions options)
    : model_(model),
      options_(std::move(options)),
      single_(make_single_collectives()),
      sampler_(*single_),
      texts_(model.kv(), static_cast<size_t>(options_.kept_texts)) {
  const int64_t all = model.config().vocab_size;
  vocab_size_ = options_.vocab_size > 0 ? std::min(options_.vocab_size, all) : all;
  runner_ = model.make_runner(vocab_size_);
  if (options_.rows && options_.rows->vocab_size() != vocab_size_)
    options_.rows = nullptr;  // rows end too soon
  if (options_.head) {
    const IndexRange ids = options_.head->ids();
    CHECK(!runner_ && ids.begin == 0 && ids.end >= vocab_size_ &&
              options_.head->hidden_size() == model.config().hidden_size,
          "a head of another model, or on a device");
    head_logits_.resize(static_cast<size_t>(vocab_size_));
  }
  if (options_.guesser) {
    CHECK(!runner_, "a device's model draws all its tokens itself");
    staged_.emplace(options_.guesser);
  }
}

ModelDrafter::~ModelDrafter() {
  while (!sequences_.empty()) close(sequences_.begin()->first);
}

Status ModelDrafter::open(const Open& open) {
  if (const auto at = sequences_.find(open.sequence);
      at != sequences_.end() && at->second.window.knows(open.ids))
    return {};
  close(open.sequence);
  if (static_cast<int32_t>(sequences_.size()) >= options_.max_sequences)
    return resource_exhausted(fmt::format("the drafter holds {} sequences already", sequences_.size()));
  Sequence s{.window = DraftWindow(open.ids),
             .salt = open.salt,
             .sampling = open.sampling,
             .counts = {},
             .kv = model_.kv().create(),
             .job = {},
             .block = {},
             .grown = {}};
  if (needs_counts(s.sampling)) {
    const auto prompt = static_cast<size_t>(open.prompt_length);
    s.counts.add_prompt(std::span(open.ids).first(prompt));
    s.counts.add_output(std::span(open.ids).subspan(prompt));
  }
  s.window.reserve(static_cast<size_t>(model_.max_positions()));
  if (staged_) staged_->open(open.sequence, open.ids, open.prompt_length, open.salt != 0);
  sequences_.emplace(open.sequence, std::move(s));
  return {};
}

void ModelDrafter::close(SequenceId sequence) {
  const auto at = sequences_.find(sequence);
  if (at == sequences_.end()) return;
  drop_job(at->second);
  drop_block(at->second);
  drop_grown(at->second);
  if (options_.rows) options_.rows->drop(sequence);
  if (staged_) staged_->close(sequence);
  Sequence& s = at->second;
  roll_back(s, s.window.keep());  // what was drafted is nobody's text
  texts_.keep(s.window.committed().first(static_cast<size_t>(s.window.cached())), s.salt, s.kv);
  sequences_.erase(at);
}

// Of a text that begins alike, open or closed, what was read need not be read again.
void ModelDrafter::take_over(Sequence& s) {
  const auto ids = s.window.committed();
  ReadTexts::Found best = texts_.find(ids, s.salt);
  for (const auto& [id, other] : sequences_) {
    if (&other == &s || other.salt != s.salt) continue;
    const int64_t length = std::min(other.window.keep(), common_length(other.window.committed(), ids));
    if (length > best.length) best = {other.kv, length};
  }
  const int64_t length = std::min<int64_t>(best.length, static_cast<int64_t>(ids.size()) - 1);
  if (length <= 0) return;
  const KvHandle fork = model_.kv().fork(best.sequence);
  model_.kv().truncate(fork, length);
  model_.kv().release(std::exchange(s.kv, fork));
  s.window.fed(ids.first(static_cast<size_t>(length)));
}

Status ModelDrafter::begin(const Propose& propose) {
  const auto at = sequences_.find(propose.sequence);
  if (at == sequences_.end()) return not_found("sequence is not open");
  if (propose.q_kind == QKind::kHidden &&
      (!options_.head || propose.code_bits < kLeastHiddenBits || propose.code_bits > kMostHiddenBits))
    return unsupported(fmt::format("states of {} bits", propose.code_bits));
  Sequence& s = at->second;
  if ((propose.q_kind != QKind::kNone) != needs_q(effective_rule(s.sampling)))
    return unsupported(fmt::format("q of kind {} under the {} rule", static_cast<int>(propose.q_kind),
                                   rule_name(effective_rule(s.sampling))));
  if (!propose.tree.is_chain() && propose.q_kind != QKind::kNone &&
      (propose.tree.nodes > 0 || !is_tree_rule(effective_rule(s.sampling))))
    return unsupported(
        fmt::format("a tree of this shape under the {} rule; its q needs a fixed shape and a "
                    "rule for trees",
                    rule_name(effective_rule(s.sampling))));
  const bool repeated = s.job && s.job->propose.round == propose.round &&
                        s.job->propose.base == propose.base && s.job->propose.gamma == propose.gamma;
  if (repeated) return {};
  const auto known = s.window.committed().size();
  RETURN_IF_ERROR(s.window.advance(propose.base, propose.committed));
  if (needs_counts(s.sampling)) s.counts.add_output(s.window.committed().subspan(known));
  if (staged_) staged_->extend(propose.sequence, s.window.committed());
  learn_from_text(s);
  if (options_.kept_texts > 0 && s.window.cached() == 0) take_over(s);
  // The last drafted token needs no KV.
  const int64_t room = std::max<int64_t>(0, model_.max_positions() - propose.base.value() + 1);
  const auto limit = static_cast<int32_t>(std::min<int64_t>(propose.gamma, room));
  const bool is_tree = !propose.tree.is_chain() && limit > 0;
  const bool regrown = is_tree && regrow(s, propose);
  if (!regrown) drop_grown(s);
  // A block's branches are chains.
  if (!resume(s, propose) || is_tree) start_fresh(s, propose, regrown);
  s.job->strand.cut(limit);
  if (is_tree) begin_tree(s, propose, regrown);
  if (regrown) return {};
  // Never all of the committed text: its last token must be fed to get the distribution of the next.
  roll_back(s, std::min<int64_t>(s.window.cached(), propose.base.value() + s.job->strand.length() - 1));
  return {};
}

void ModelDrafter::start_fresh(Sequence& s, const Propose& propose, bool keeps_cache) {
  if (!s.job) s.job.emplace();
  s.job->propose = propose;
  Strand& strand = s.job->strand = storage_.take_strand();
  strand.key = {propose.round, propose.q_kind, propose.row_bytes, propose.code_bits};
  strand.base = propose.base;
  strand.stop = propose.stop;
  if (!keeps_cache) roll_back(s, s.window.keep());
}

void ModelDrafter::drop_job(Sequence& s) {
  if (s.job) {
    storage_.give_back(s.job->strand);
    s.job->tree.drop_forks(model_.kv());
  }
  s.job.reset();
}

int64_t ModelDrafter::ns_since(std::chrono::steady_clock::time_point start) const {
  return ns_between(start, options_.now());
}

void ModelDrafter::roll_back(Sequence& s, int64_t length) {
  s.window.kept(length);
  model_.kv().truncate(s.kv, length);
}

Resync ModelDrafter::held(SequenceId sequence) const {
  const auto at = sequences_.find(sequence);
  if (at == sequences_.end()) return {.sequence = sequence, .epoch = {}, .committed = {}};
  const DraftWindow& window = at->second.window;
  return {.sequence = sequence,
          .epoch = {},
          .committed = Position(static_cast<int32_t>(window.committed().size())),
          .hash = window.hash()};
}

bool ModelDrafter::work(std::vector<DraftAnswer>& answers) {
  return finish_done(answers) || (runner_ && run_jobs(answers)) || advance_jobs(answers) || grow_on() ||
         prepare();
}

// The committed tokens whose KV is missing, then the last drafted token. The last committed one only when
// something is to be drafted; a text longer than this model's context is not read further.
std::span<const TokenId> ModelDrafter::next_inputs(const Sequence& s, int64_t rows) const {
  const Strand& strand = s.job->strand;
  if (strand.length() > 0) return strand.drafted().last(1);
  auto pending = s.window.pending();
  if (strand.limit == 0 && !pending.empty()) pending = pending.first(pending.size() - 1);
  const int64_t readable = std::min(rows, model_.max_positions() - s.window.cached());
  return pending.first(
      static_cast<size_t>(std::clamp<int64_t>(readable, 0, static_cast<int64_t>(pending.size()))));
}

bool ModelDrafter::is_done(Sequence& s) const {
  if (s.job->branches) return s.job->tree.begun && s.job->tree.growth.next(1).empty();
  if (s.job->strand.limit > 0) return s.job->strand.complete();
  return next_inputs(s, model_.max_rows()).empty();
}

DraftAnswer ModelDrafter::finish(Sequence& s, Status status) {
  Job& job = *s.job;
  DraftAnswer answer{.status = std::move(status),
                     .draft = take_draft(job, s.window.hash()),
                     .wanted = job.propose.gamma > 0};
  if (answer.wanted && answer.status.ok()) {
    const auto now = options_.now();
    answer.draft.preparation.wasted_tokens = std::exchange(wasted_tokens_, 0);
    answer.draft.preparation.busy_ns = std::exchange(prepare_ns_, 0);
    if (job.previous_sent_at) policy_.round_took(job.was_prepared, ns_between(*job.previous_sent_at, now));
    if (job.branches)
      finish_tree(s, answer.draft, now);
    else if (!answer.draft.ids.empty())
      keep_block(s, answer.draft.ids, now);
  }
  drop_job(s);
  return answer;
}

Draft ModelDrafter::take_draft(Job& job, uint64_t hash) {
  Draft draft = storage_.take_draft();
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

// What may be prepared for while the draft is verified.
void ModelDrafter::keep_block(Sequence& s, std::span<const TokenId> ids,
                              std::chrono::steady_clock::time_point now) {
  const Propose& propose = s.job->propose;
  Block& block = s.block.emplace();
  block.key = s.job->strand.key;
  block.base = propose.base;
  block.ids.assign(ids.begin(), ids.end());
  block.pipeline = propose.pipeline;
  block.fanout = propose.fanout;
  block.gamma = propose.gamma;
  block.eos = s.job->strand.eos;
  block.prepare =
      propose.pipeline == Pipeline::kAuto ? policy_.prepare_next() : propose.pipeline != Pipeline::kLockstep;
  block.sent_at = now;
}

bool ModelDrafter::finish_done(std::vector<DraftAnswer>& answers) {
  const size_t before = answers.size();
  for (auto& [id, s] : sequences_)
    if (s.job && is_done(s)) answers.push_back(finish(s));
  return answers.size() > before;
}

// What a round reads next, of so many rows and rows of logits: one row where a token is drawn, two where the
// one before it is guessed, too.
BatchSlice ModelDrafter::next_slice(const Sequence& s, int64_t rows, int64_t logit_rows) const {
  const auto inputs = next_inputs(s, rows);
  const bool last = s.job->strand.length() > 0 || inputs.size() == s.window.pending().size();
  int64_t wanted = last && s.job->strand.limit > 0 ? 1 : 0;
  if (wanted == 1 && logit_rows > 1 && can_guess(s, static_cast<int64_t>(inputs.size()))) wanted = 2;
  return {.sequence = s.kv,
          .tokens = inputs,
          .logit_rows = wanted,
          .hidden_only = s.job->strand.key.q_kind == QKind::kHidden};
}

// One token of every round that is under way, or a level of a tree, or a part of a prompt.
bool ModelDrafter::advance_jobs(std::vector<DraftAnswer>& answers) {
  collect_slices();
  if (slices_.empty()) return false;

  const auto start = options_.now();
  auto logits = model_.forward(slices_);
  if (!logits.ok() && (texts_.forget_one() || give_up_branches() || stop_growth()))
    return true;  // room for another try
  if (logits.ok()) logits_ = *logits;
  const auto participants = static_cast<int64_t>(slices_.size());
  const int64_t share = ns_since(start) / participants;  // of the pass; what follows is a sequence's own
  const bool one_each = std::all_of(slices_.begin(), slices_.end(),
                                    [](const BatchSlice& slice) { return slice.tokens.size() == 1; });
  const bool reads_no_prompt = std::all_of(slices_.begin(), slices_.end(), [](const BatchSlice& slice) {
    return static_cast<int64_t>(slice.tokens.size()) <= slice.logit_rows + 1;
  });
  int64_t row = 0, drawn = 0;
  size_t at = 0;
  for (const JobPart& part : job_parts_) {
    Sequence& s = *part.sequence;
    const BatchSlice& slice = slices_[at];
    const bool grows = s.job->tree.begun;
    Status status = logits.status();
    if (status.ok()) {
      int64_t& busy_ns = grows || s.job->strand.length() > 0 ? s.job->draft_ns : s.job->ingest_ns;
      const auto own = options_.now();
      if (grows) {
        take_looks(s, s.job->tree, s.job->strand.key, row);
      } else {
        drawn += take_slice(s, slice, row, status);
      }
      busy_ns += share * static_cast<int64_t>(part.slices) + ns_since(own);
    }
    for (size_t i = 0; i < part.slices; ++i) row += slices_[at++].logit_rows;
    if (!status.ok()) answers.push_back(finish(s, std::move(status)));
  }
  if (one_each) policy_.pass_took(participants, ns_since(start));
  if (staged_ && logits.ok()) staged_->end_pass(drawn, ns_since(start), reads_no_prompt);
  return true;
}

// What came of a sequence's part of a pass: how many tokens were drawn. Those that were guessed and drawn are
// in the cache already, as if they had been fed one by one.
int32_t ModelDrafter::take_slice(Sequence& s, const BatchSlice& slice, int64_t row, Status& status) {
  Job& job = *s.job;
  const auto guessed = static_cast<int64_t>(job.guesses.size());
  const int64_t drawing = slice.logit_rows - guessed;  // rows in front of the guessed ones
  s.window.fed(slice.tokens.first(slice.tokens.size() - job.guesses.size()));
  if (drawing > 1) take_guess(s, row);
  if (drawing == 0) return 0;
  if (job.branches) {
    status = take_root(s, row + drawing - 1);
    return 0;
  }
  Strand& strand = job.strand;
  const int32_t before = strand.length();
  status = take_row(s, strand, row + drawing - 1);
  int32_t right = 0;
  while (status.ok() && right < guessed && !strand.complete() &&
         strand.tokens.back() == job.guesses[static_cast<size_t>(right)]) {
    s.window.fed(std::span(job.guesses).subspan(static_cast<size_t>(right), 1));
    status = take_row(s, strand, row + drawing + right++);
  }
  if (guessed > 0) {
    if (right == guessed || !strand.complete()) staged_->verified(job.propose.sequence, right);
    model_.kv().truncate(s.kv, s.window.cached());
  }
  return strand.length() - before;
}

// Behind a row from which a token is drawn, those that the model is expected to draw, each with a row of
// logits: if it does, the next token needs no pass. The last token of a draft is never read. All sequences
// share the rows.
void ModelDrafter::add_guesses(Sequence& s, BatchSlice& slice, int64_t rows, int64_t logit_rows) {
  Job& job = *s.job;
  job.guesses.clear();
  if (!staged_ || job.branches || slice.logit_rows == 0) return;
  const auto texts = static_cast<int64_t>(sequences_.size());
  const auto inputs = static_cast<int64_t>(slice.tokens.size());
  const int64_t most =
      std::min({int64_t{StagedDrafts::kMostGuesses}, int64_t{job.strand.limit - job.strand.length() - 1},
                std::min(rows, model_.max_rows() / texts) - inputs,
                std::min(logit_rows, model_.max_logit_rows() / texts) - slice.logit_rows,
                model_.max_positions() - s.window.cached() - inputs});
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
  job_parts_.clear();
  if (staged_) staged_->begin_pass();
  int64_t rows = model_.max_rows(), logit_rows = model_.max_logit_rows();
  for (auto& [id, s] : sequences_) {
    if (!s.job || rows == 0 || logit_rows == 0) continue;
    const size_t before = slices_.size();
    if (s.job->tree.begun)
      add_looks(s, s.job->tree, rows, logit_rows);
    else
      add_guesses(s, slices_.emplace_back(next_slice(s, rows, logit_rows)), rows, logit_rows);
    if (slices_.size() == before) continue;
    job_parts_.push_back({&s, slices_.size() - before});
    for (size_t i = before; i < slices_.size(); ++i) {
      rows -= static_cast<int64_t>(slices_[i].tokens.size());
      logit_rows -= slices_[i].logit_rows;
    }
  }
}

// Where the last two committed tokens are fed together, the row of the first says what would have been
// drafted in place of the second. Penalties have counted the second already.
bool ModelDrafter::can_guess(const Sequence& s, int64_t inputs) const {
  const Job& job = *s.job;
  return job.propose.wants_guess && job.guess.value() < 0 && job.strand.length() == 0 && inputs > 1 &&
         is_match_rule(s.sampling.rule) && !needs_counts(s.sampling);
}

void ModelDrafter::take_guess(Sequence& s, int64_t row) {
  s.job->guess = sampler_.sample(logits_row(row), guess_step(s), nullptr).value_or(TokenId(-1));
}

DraftStep ModelDrafter::guess_step(const Sequence& s) const {
  return {.sampling = &s.sampling,
          .counts = &s.counts,
          .drafted = {},
          .position = s.job->propose.base - 1,
          .round = s.job->propose.round,
          .row_bytes = 0};
}

DraftStep ModelDrafter::next_step(const Sequence& s, const Strand& strand) const {
  return {.sampling = &s.sampling,
          .counts = &s.counts,
          .drafted = strand.tokens,
          .position = strand.base + strand.length(),
          .round = strand.key.round,
          .row_bytes = strand.key.q_kind == QKind::kSparse ? strand.key.row_bytes : 0};
}

Status ModelDrafter::not_finite(const Strand& strand) const {
  return malformed(fmt::format("the draft model gave non-finite logits at position {}",
                               strand.base.value() + strand.length()));
}

// What tokens are drawn from: the model's own, or those of its quantised state, which is kept in hidden_. A
// state that is not finite has logits that are not.
std::span<float> ModelDrafter::logits_row(const StrandKey& key, int64_t row) {
  if (key.q_kind != QKind::kHidden) return logits_row(row);
  if (options_.head->quantize(logits_.hidden.row(row), key.code_bits, hidden_))
    options_.head->logits({&hidden_, 1}, {0, vocab_size_}, {head_logits_.data(), {1, vocab_size_}},
                          head_scratch_);
  else
    std::fill(head_logits_.begin(), head_logits_.end(), NAN);
  return head_logits_;
}

// Draws the next token of a strand from the logits of the token before it.
Status ModelDrafter::take_row(Sequence& s, Strand& strand, int64_t row) {
  const bool sends_q = strand.key.q_kind != QKind::kNone;
  const auto logits = logits_row(strand.key, row);
  const auto token = sampler_.sample(logits, next_step(s, strand), sends_q ? &q_ : nullptr);
  if (!token) return not_finite(strand);
  DraftConfidence confidence;
  if (strand.stop.kind == StopKind::kChances)
    confidence.margin = guesser_.margin(logits, s.sampling, strand.base + strand.length());
  else if (strand.stop.kind != StopKind::kNone)
    confidence = confidence_of(logits, *token);
  if (!add_token(s, strand, *token, confidence) || !sends_q) return {};
  if (strand.key.q_kind == QKind::kHidden) {
    hidden_.max = sampler_.max();
    std::swap(strand.hidden.emplace_back(storage_.take_hidden_row()), hidden_);
  } else {
    std::swap(strand.q.emplace_back(storage_.take_row()), q_);
  }
  return {};
}

// False: the stop rule ends the draft before it.
bool ModelDrafter::add_token(Sequence& s, Strand& strand, TokenId token, const DraftConfidence& confidence) {
  const auto place = static_cast<size_t>(strand.length());
  const double survival = strand.survival * chance_of(strand.stop, place, confidence.margin);
  if (stops_before(strand.stop, place, survival) ||
      (place > 0 && stops_before(strand.stop, confidence.entropy))) {
    // A draw is a function of its key, so to forget it and not to have drawn are the same. The last token of
    // a draft is never in the cache.
    strand.stopped = true;
    if (place > 0) roll_back(s, s.window.cached() - 1);
    return false;
  }
  strand.tokens.push_back(token);
  // A stopping time: it looks at tokens that are sent.
  strand.eos = std::find(options_.eos_ids.begin(), options_.eos_ids.end(), token) != options_.eos_ids.end();
  strand.stopped =
      stops_after(strand.stop, confidence.probability) || stops_after(strand.stop, place, survival);
  if (strand.stop.kind != StopKind::kChances) return true;
  strand.survival = survival;
  strand.margins.push_back(static_cast<float>(confidence.margin));
  return true;
}

std::unique_ptr<Drafter> make_model_drafter(Model& model, ModelDrafterOptions options) {
  return std::make_unique<ModelDrafter>(model, std::move(options));
}

}  // namespace outrider
