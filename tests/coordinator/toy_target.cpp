#include "toy_target.h"

#include "base/hash.h"
#include "toy_model.h"

namespace outrider {

ModelInfo toy_info() {
  return {
      .name = "toy", .vocab_size = kToyVocab, .vocabulary_fingerprint = 7, .max_context = 96, .isa = "none"};
}

class ToyTarget::Storage final : public KvStorage {
 public:
  explicit Storage(int64_t blocks) : hashes_(static_cast<size_t>(blocks * kBlockTokens)) {}
  uint64_t& at(const KvSlot& slot) {
    return hashes_[static_cast<size_t>(slot.block * kBlockTokens + slot.slot)];
  }
  void copy_block(int32_t from, int32_t to) override {
    for (int64_t slot = 0; slot < kBlockTokens; ++slot) at({to, slot}) = at({from, slot});
  }
  void copy_slots(std::span<const KvMove> moves) override {
    for (const KvMove& move : moves) at(move.to) = at(move.from);
  }
  uint64_t content_hash(std::span<const int32_t>, int64_t) const override { return 0; }

 private:
  std::vector<uint64_t> hashes_;
};

ToyTarget::ToyTarget(int32_t max_rows, int64_t kv_blocks)
    : max_rows_(max_rows),
      storage_(new Storage(kv_blocks)),
      kv_(std::unique_ptr<KvStorage>(storage_), kv_blocks) {}

void ToyTarget::check(bool condition, const char* what) {
  if (!condition && error_.empty()) error_ = what;
}

StepResult ToyTarget::handle(const StepPlan& plan, const std::set<SequenceId>& lost) {
  check(!last_step_ || plan.step == *last_step_ + 1, "steps must count up");
  last_step_ = plan.step;
  uint64_t hash = 0;
  for (const auto& [id, held] : sequences_)
    hash += state_hash_term(id, static_cast<int64_t>(held.ids.size()), kv_.length(held.kv), held.epoch);
  for (const auto& [id, prefix] : prefixes_) hash += prefix_hash_term(id.value(), kv_.length(prefix));
  check(hash == plan.state_hash, "state hash");
  StepResult result{.step = plan.step, .verdicts = {}, .forward_ns = 1000, .verify_ns = 100, .commit_ns = 10};
  for (const BlockExport& blocks : plan.exports) export_blocks(blocks, &result);
  for (const PrefixChange& c : plan.prefixes) change(c);
  for (const SequenceId id : plan.closes) {
    const auto at = sequences_.find(id);
    check(at != sequences_.end(), "closed what was not open");
    if (at == sequences_.end()) continue;
    kv_.release(at->second.kv);
    sequences_.erase(at);
  }
  for (const Open& o : plan.opens) open(o);
  check(sequences_.size() <= max_sequences, "more sequences than it holds");
  std::set<SequenceId> seen;
  int32_t rows = 0;
  for (const PlanEntry& entry : plan.entries) {
    check(seen.insert(entry.sequence).second, "two entries of one sequence");
    rows += entry.input_count + static_cast<int32_t>(entry.draft.size());
    if (sequences_.contains(entry.sequence))
      handle_entry(entry, lost.contains(entry.sequence), &result);
    else
      check(false, "entry of an unknown sequence");
  }
  check(rows <= max_rows_, "too many rows");
  for (const BlockImport& blocks : plan.imports) {
    check(seen.insert(blocks.sequence).second, "an import beside an entry");
    import_blocks(blocks, &result);
  }
  for (const HiddenStateRequest& ask : plan.hidden_states) tell(ask, &result);
  check(kv_.check_invariants().ok(), "the cache is broken");
  return result;
}

void ToyTarget::tell(const HiddenStateRequest& ask, StepResult* result) {
  const auto held = sequences_.find(ask.sequence);
  check(held != sequences_.end() && ask.count > 0, "states of what is not open");
  if (held == sequences_.end()) return;
  HiddenStateRows rows{.sequence = ask.sequence, .first = ask.first, .ids = {}, .width = 1, .values = {}};
  const int64_t end = std::min(kv_.length(held->second.kv), int64_t{ask.first.value()} + ask.count);
  for (int64_t at = ask.first.value(); at < end; ++at)
    rows.values.push_back(toy_state(known(held->second, at)));
  told_ += static_cast<int64_t>(rows.values.size());
  if (!rows.values.empty()) result->hidden_states.push_back(std::move(rows));
}

void ToyTarget::change(const PrefixChange& change) {
  const auto at = prefixes_.find(change.prefix);
  if (change.kind == PrefixChange::Kind::kCut) {
    check(at != prefixes_.end() && change.length < kv_.length(at->second), "cut of what is not there");
    if (at == prefixes_.end()) return;
    kv_.cut(at->second, change.length);
    if (change.length == 0) prefixes_.erase(at);
    return;
  }
  const auto held = sequences_.find(change.sequence);
  check(held != sequences_.end() && change.length <= kv_.length(held->second.kv), "kept what is not there");
  if (held == sequences_.end()) return;
  const KvPrefix kept = kv_.keep(held->second.kv, change.length);
  if (at != prefixes_.end()) kv_.cut(at->second, 0);
  prefixes_.insert_or_assign(change.prefix, kept);
}

void ToyTarget::open(const Open& open) {
  check(open.prompt_length <= static_cast<int32_t>(open.ids.size()), "a prompt longer than its text");
  const auto prefix = prefixes_.find(open.prefix);
  const bool known = prefix != prefixes_.end() && open.prefix_length <= kv_.length(prefix->second);
  check(open.prefix_length == 0 || known, "opened with a prefix that is not there");
  check(open.prefix_length < static_cast<int32_t>(open.ids.size()), "nothing is left to be fed");
  const KvHandle kv =
      known && open.prefix_length > 0 ? kv_.create(prefix->second, open.prefix_length) : kv_.create();
  check(sequences_
            .emplace(open.sequence,
                     Held{.ids = open.ids, .kv = kv, .epoch = open.epoch, .sampling = open.sampling})
            .second,
        "opened twice");
  prefix_tokens_ += open.prefix_length;
}

// Hash of the text up to a slot, as stored in the cache. Slot -1 gives the hash of the empty text.
uint64_t ToyTarget::known(const Held& held, int64_t slot) const {
  return slot < 0 ? kEmptyPrefixHash : storage_->at(kv_.slot(held.kv, slot));
}

// A token behind that in slot `before`.
void ToyTarget::feed(Held& held, int64_t before, TokenId token) {
  check(kv_.append(held.kv, 1).ok(), "there are no blocks left");
  storage_->at(kv_.slot(held.kv, kv_.length(held.kv) - 1)) = extend_prefix_hash(known(held, before), token);
}

void ToyTarget::handle_entry(const PlanEntry& entry, bool lost, StepResult* result) {
  Held& held = sequences_.at(entry.sequence);
  const auto committed = static_cast<int32_t>(held.ids.size());
  const auto kv_length = static_cast<int32_t>(kv_.length(held.kv));
  check(entry.epoch == held.epoch, "epoch");
  check(entry.base == Position(committed), "base");
  check(entry.first_input == Position(kv_length), "first input");
  check(entry.input_count > 0 && kv_length + entry.input_count <= committed, "input count");
  for (int32_t i = kv_length; i < kv_length + entry.input_count; ++i)
    feed(held, i - 1, held.ids[static_cast<size_t>(i)]);
  if (entry.prompt_logprobs >= 0) {
    PromptScores& scores =
        result->scores.emplace_back(PromptScores{.sequence = entry.sequence, .logprobs = {}});
    const int32_t end = std::min(kv_length + entry.input_count, committed - 1);
    for (int32_t i = kv_length; i < end; ++i)
      scores.logprobs.push_back({.chosen = {held.ids[static_cast<size_t>(i) + 1], -1}, .top = {}});
  }
  if (kv_length + entry.input_count < committed) {
    check(entry.draft.empty(), "draft in a prefill chunk");
    return;
  }
  check(int64_t{entry.round.value()} > held.last_round, "a round number came twice");
  held.last_round = entry.round.value();
  check(entry.base.value() + static_cast<int32_t>(entry.draft.size()) < toy_info().max_context,
        "no room for the draft");
  const bool has_q = needs_q(held.sampling.rule) && entry.q_kind != QKind::kSlices;
  check(entry.q.size() == (has_q ? entry.draft.size() : 0), "q rows");
  const auto gamma = lost ? 0 : static_cast<int32_t>(entry.draft.size());
  if (random && std::uniform_real_distribution<>()(*random) < nonfinite_chance) {
    kv_.truncate(held.kv, kv_length);
    result->verdicts.push_back({.sequence = entry.sequence,
                                .epoch = entry.epoch,
                                .round = entry.round,
                                .base = entry.base,
                                .status = VerdictStatus::kNonFinite,
                                .next = {},
                                .logprobs = {}});
    return;
  }
  check(check_tree(entry.tree(), {}).ok(), "the draft is no tree");
  const DraftTreeView tree = entry.tree();
  for (int32_t node = 0; node < static_cast<int32_t>(entry.draft.size()); ++node)
    feed(held, committed + tree.parent(node), tree.id(node));  // the root is the last committed token
  std::vector<int32_t> path;
  int32_t last = kTreeRoot;
  while (gamma > 0) {
    const int32_t node = child_with(tree, last, toy_next(known(held, committed + last)));
    if (node == kTreeRoot) break;
    path.push_back(node);
    held.ids.push_back(tree.id(node));
    last = node;
  }
  const auto accepted = static_cast<int32_t>(path.size());
  held.ids.push_back(toy_next(known(held, committed + last)));
  if (entry.parents.empty() || lost)
    kv_.truncate(held.kv, committed + accepted);
  else
    check(kv_.keep_path(held.kv, committed, path).ok(), "there are no blocks left for a path");
  if (entry.parents.empty() || lost) path.clear();
  if (accepted < gamma) ++held.epoch;
  result->verdicts.push_back({.sequence = entry.sequence,
                              .epoch = entry.epoch,
                              .round = entry.round,
                              .base = entry.base,
                              .draft_lost = lost,
                              .accepted_count = accepted,
                              .path = path,
                              .next = held.ids.back(),
                              .logprobs = {}});
  if (entry.successors)  // as any target does; no test here reads their values
    result->verdicts.back().successors.assign(static_cast<size_t>((gamma + 1) * kSuccessors), TokenId(0));
  draft_next(entry, held, result);
}

void ToyTarget::export_blocks(const BlockExport& blocks, StepResult* result) {
  const auto held = sequences_.find(blocks.sequence);
  const bool there = held != sequences_.end() &&
                     blocks.first.value() + blocks.count <= static_cast<int32_t>(kv_.length(held->second.kv));
  check(there && only_prefills, "exports blocks that are not there");
  check(blocks.first.value() % kBlockTokens == 0 && blocks.count > 0 && blocks.count % kBlockTokens == 0,
        "exports a part of a block");
  result->exported.push_back(int64_t{8} * blocks.count);
  if (!there) return;
  Blocks out{.transfer = blocks.transfer, .inbox = blocks.inbox, .first = blocks.first.value(), .hashes = {}};
  for (int32_t i = 0; i < blocks.count; ++i)
    out.hashes.push_back(known(held->second, blocks.first.value() + i));
  exports_.push_back(std::move(out));
}

void ToyTarget::import_blocks(const BlockImport& blocks, StepResult* result) {
  const auto held = sequences_.find(blocks.sequence);
  const bool fits = held != sequences_.end() && kv_.length(held->second.kv) == blocks.first.value() &&
                    blocks.first.value() + blocks.count < static_cast<int32_t>(held->second.ids.size());
  check(fits && !only_prefills, "imports blocks that do not fit");
  check(takes_blocks, "imports blocks without an inbox");
  const auto arrived = arrived_.find(blocks.transfer);
  const bool here = fits && arrived != arrived_.end() && arrived->second.first <= blocks.first.value() &&
                    arrived->second.first + static_cast<int32_t>(arrived->second.hashes.size()) ==
                        blocks.first.value() + blocks.count;
  result->imported.push_back(here);
  if (!here) return;
  check(kv_.append(held->second.kv, blocks.count).ok(), "there are no blocks left for an import");
  const auto skipped = blocks.first.value() - arrived->second.first;
  for (int32_t i = 0; i < blocks.count; ++i)
    storage_->at(kv_.slot(held->second.kv, blocks.first.value() + i)) =
        arrived->second.hashes[static_cast<size_t>(skipped + i)];
  arrived_.erase(arrived);
}

void ToyTarget::draft_next(const PlanEntry& entry, const Held& held, StepResult* result) {
  check(entry.next_gamma == 0 || drafts, "asked for a draft that it cannot make");
  if (!drafts || entry.next_gamma == 0 || needs_q(held.sampling.rule)) return;
  Draft draft{.sequence = entry.sequence,
              .epoch = held.epoch,
              .round = entry.next_round,
              .base = Position(static_cast<int32_t>(held.ids.size())),
              .prefix_hash = prefix_hash(held.ids)};
  uint64_t hash = draft.prefix_hash;
  while (static_cast<int32_t>(draft.ids.size()) < entry.next_gamma) {
    const bool right = !random || std::uniform_real_distribution<>()(*random) < accuracy;
    const TokenId next = toy_next(hash);
    draft.ids.push_back(right ? next : TokenId((next.value() + 1) % kToyVocab));
    hash = extend_prefix_hash(hash, draft.ids.back());
  }
  result->drafts.push_back(std::move(draft));
}

}  // namespace outrider
