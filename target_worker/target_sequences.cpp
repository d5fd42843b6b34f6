#include "target_worker/target_sequences.h"

#include <map>
#include <stdexcept>
#include <utility>

#include "base/hash.h"
#include "comm/message_check.h"
#include "kernels/sampling/penalties.h"

namespace outrider {

TargetSequences::~TargetSequences() {
  for (const auto& [id, s] : sequences_) model_.kv().release(s.kv);
  for (const auto& [id, prefix] : prefixes_) model_.kv().cut(prefix, 0);
}

void TargetSequences::change(const PrefixChange& change) {
  KvCache& kv = model_.kv();
  if (change.kind == PrefixChange::Kind::kKeep) {
    const KvPrefix kept = kv.keep(at(change.sequence).kv, change.length);
    const auto [held, is_new] = prefixes_.try_emplace(change.prefix, kept);
    if (!is_new) kv.cut(std::exchange(held->second, kept), 0);
    return;
  }
  const auto at = prefixes_.find(change.prefix);
  kv.cut(at->second, change.length);
  if (change.length == 0) prefixes_.erase(at);
}

void TargetSequences::open(const Open& open) {
  KvCache& kv = model_.kv();
  Sequence s{
      .ids = open.ids,
      .sampling = open.sampling,
      .kv = open.prefix_length > 0 ? kv.create(prefixes_.at(open.prefix), open.prefix_length) : kv.create(),
      .epoch = open.epoch};
  s.ids.reserve(static_cast<size_t>(model_.max_positions()));
  if (needs_counts(s.sampling)) {
    const auto prompt = static_cast<size_t>(open.prompt_length);
    s.counts.add_prompt(std::span(open.ids).first(prompt));
    s.counts.add_output(std::span(open.ids).subspan(prompt));
  }
  sequences_.emplace(open.sequence, std::move(s));
}

void TargetSequences::close(SequenceId id) {
  model_.kv().release(at(id).kv);
  sequences_.erase(id);
}

Status TargetSequences::check_prefixes(const StepPlan& plan) const {
  const KvCache& kv = model_.kv();
  std::map<PrefixId, int64_t> changed;  // lengths; 0: forgotten
  const auto length_of = [&](PrefixId id) -> int64_t {
    if (const auto at = changed.find(id); at != changed.end()) return at->second;
    const auto held = prefixes_.find(id);
    return held == prefixes_.end() ? 0 : kv.length(held->second);
  };
  for (const PrefixChange& change : plan.prefixes) {
    const uint64_t name = change.prefix.value();
    if (change.kind == PrefixChange::Kind::kKeep) {
      const auto at = sequences_.find(change.sequence);
      if (at == sequences_.end())
        return malformed(
            fmt::format("keeps prefix {} of sequence {}, which is not open", name, change.sequence.value()));
      if (change.length > kv.length(at->second.kv))
        return malformed(fmt::format("keeps prefix {} of {} tokens of sequence {}, which has {}", name,
                                     change.length, change.sequence.value(), kv.length(at->second.kv)));
    } else if (change.length >= length_of(change.prefix)) {
      return malformed(fmt::format("cuts prefix {} to {} tokens; it has {}", name, change.length,
                                   length_of(change.prefix)));
    }
    changed[change.prefix] = change.length;
  }
  for (const Open& open : plan.opens)
    if (open.prefix_length > length_of(open.prefix))
      return malformed(fmt::format("opens sequence {} with {} tokens of prefix {}, which has {}",
                                   open.sequence.value(), open.prefix_length, open.prefix.value(),
                                   length_of(open.prefix)));
  return {};
}

void TargetSequences::commit(const PlanEntry& entry, DraftTreeView draft, const VerifyResult& verdict) {
  Sequence& s = mutable_at(entry.sequence);
  if (verdict.status != VerdictStatus::kOk) {
    model_.kv().truncate(
        s.kv, entry.first_input.value());  // as if the pass had not been; the coordinator closes it
    return;
  }
  for (size_t i = 0; i < static_cast<size_t>(verdict.accepted_count); ++i)
    s.ids.push_back(draft.ids[verdict.path.empty() ? i : static_cast<size_t>(verdict.path[i])]);
  s.ids.push_back(verdict.next);
  if (needs_counts(s.sampling))
    s.counts.add_output(std::span(s.ids).last(static_cast<size_t>(verdict.accepted_count) + 1));
  if (draft.parents.empty())
    model_.kv().truncate(s.kv, static_cast<int64_t>(s.ids.size()) - 1);
  else if (const Status kept = model_.kv().keep_path(s.kv, entry.base.value(), verdict.path); !kept.ok())
    throw std::runtime_error(kept.message());  // nothing but this sequence holds these blocks
  if (verdict.accepted_count < draft.size()) ++s.epoch;
}

const TargetSequences::Sequence& TargetSequences::at(SequenceId id) const {
  const auto found = sequences_.find(id);
  CHECK(found != sequences_.end(), "sequence {} is not open", id.value());
  return found->second;
}

uint64_t TargetSequences::state_hash() const {
  uint64_t hash = 0;
  for (const auto& [id, s] : sequences_)
    hash += state_hash_term(id, static_cast<int64_t>(s.ids.size()), model_.kv().length(s.kv), s.epoch);
  for (const auto& [id, prefix] : prefixes_) hash += prefix_hash_term(id.value(), model_.kv().length(prefix));
  return hash;
}

std::string TargetSequences::describe() const {
  std::string held;
  for (const auto& [id, s] : sequences_)
    held += fmt::format("[sequence {}: committed {}, kv {}, epoch {}] ", id.value(), s.ids.size(),
                        model_.kv().length(s.kv), s.epoch.value());
  return held + fmt::format("{} prefixes", prefixes_.size());
}

}  // namespace outrider
