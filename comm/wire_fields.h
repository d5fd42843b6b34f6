// The order of each message's fields on the wire, and the limit of each list. Only codec.cpp includes this,
// and tests that go through all fields.
#pragma once

#include <utility>

#include "comm/hidden_row_fields.h"
#include "comm/messages.h"
#include "comm/q_row_fields.h"
#include "comm/wire_archive.h"

namespace outrider {

// ---- joining and leaving
// -------------------------------------------------------------------------------------

template <class Archive>
void serialize(Archive& archive, ModelInfo& m) {
  archive(TextField{m.name}, m.vocab_size, m.vocabulary_fingerprint, m.fingerprint, m.max_context,
          TextField{m.isa});
}

template <class Archive>
void serialize(Archive& archive, SliceEndpoint& m) {
  const uint64_t text = archive.limits().string_bytes;
  archive(Capped{m.endpoint, text}, Capped{m.gpu, text});
}

template <class Archive>
void serialize(Archive& archive, SliceEndpoints& m) {
  constexpr uint64_t kMaxRanks = 64;
  const uint64_t text = archive.limits().string_bytes;
  archive(Capped{m.of_rank, kMaxRanks}, m.cluster, Capped{m.server_key, text}, Capped{m.public_key, text},
          Capped{m.secret_key, text});
}

template <class Archive>
void serialize(Archive& archive, RowCost& m) {
  archive(m.rows, FiniteField{m.passes});
}

template <class Archive>
void serialize(Archive& archive, PassTimes& m) {
  archive(m.row_ns, Capped{m.by_rows, kMaxRowCosts}, m.prefill_token_ns);
}

template <class Archive>
void serialize(Archive& archive, Hello& m) {
  archive(m.protocol_version);
  if (m.protocol_version != kProtocolVersion) return archive.skip_rest();
  archive(EnumField<Role>{m.role, Role::kTarget}, m.generation, m.model,
          Capped{m.vocabulary_beginnings, kMaxVocabularyBeginnings}, m.max_sequences, m.slices,
          m.head_fingerprint, m.co_located_drafter, m.kv_blocks, m.hidden_state_head, m.hidden_state_width,
          m.successors, m.finds_text, m.drafts_blocks, m.max_prefill, m.pass_times, m.process,
          m.only_prefills, m.block_inbox);
}

template <class Archive>
void serialize(Archive& archive, Welcome& m) {
  archive(m.accepted, TextField{m.reason});
  if (m.accepted) archive(m.target, Capped{m.eos_ids, archive.limits().ids}, m.slices);
}

template <class Archive>
void serialize(Archive& archive, Heartbeat& m) {
  archive(m.generation);
}

template <class Archive>
void serialize(Archive& archive, Failure& m) {
  archive(TextField{m.message});
}

template <class Archive>
void serialize(Archive&, Shutdown&) {}

// ---- drafting
// ------------------------------------------------------------------------------------------------

template <class Archive>
void serialize(Archive& archive, std::pair<TokenId, float>& bias) {
  archive(bias.first, FiniteField{bias.second});
}

template <class Archive>
void serialize(Archive& archive, SamplingParams& m) {
  archive(EnumField<Rule>{m.rule, kLastRule}, FiniteField{m.temperature}, m.top_k, FiniteField{m.top_p},
          FiniteField{m.min_p}, FiniteField{m.repetition_penalty}, FiniteField{m.presence_penalty},
          FiniteField{m.frequency_penalty}, Capped{m.logit_bias, archive.limits().ids}, m.ends_from,
          Capped{m.ends, archive.limits().ids}, m.seed.value, m.logprobs);
}

template <class Archive>
void serialize(Archive& archive, Open& m) {
  archive(m.sequence, Capped{m.ids, archive.limits().ids}, m.prompt_length, m.sampling, m.salt, m.prefix,
          m.prefix_length, m.epoch);
}

template <class Archive>
void serialize(Archive& archive, Close& m) {
  archive(m.sequence);
}

// A chain is one flag.
struct TreeShapeField {
  TreeShape& shape;
};
template <class Archive>
void serialize(Archive& archive, TreeShapeField& field) {
  TreeShape& m = field.shape;
  bool branches = !m.is_chain();
  archive(branches);
  if (!branches) return;
  const uint64_t tokens = archive.limits().draft_tokens;
  archive(Capped{m.widths, tokens}, Capped{m.parents, tokens}, m.nodes, FiniteField{m.node_price},
          FiniteField{m.pass_price});
}

// A list as long as another field's tokens, or empty, which is one flag.
template <class T>
struct PerTokenField {
  std::vector<T>& values;
  size_t count;
};
template <class T>
void save(WireWriter& writer, const PerTokenField<T>& field) {
  writer.require(field.values.empty() || field.values.size() == field.count,
                 "numbers that are not of its tokens");
  writer(!field.values.empty());
  if (writer.ok()) writer.put(field.values.data(), field.values.size() * sizeof(T));
}
template <class T>
void load(WireReader& reader, PerTokenField<T>& field) {
  bool any = false;
  reader(any);
  if (!any) return;
  reader.require(field.count > 0 && field.count <= reader.remaining() / sizeof(T),
                 "numbers that are not of its tokens");
  if (!reader.ok()) return;
  field.values.resize(field.count);
  reader.get(field.values.data(), field.count * sizeof(T));
  if constexpr (std::is_floating_point_v<T>)
    for (const T value : field.values) reader.require(std::isfinite(value), "a number that is not finite");
}

template <class Archive>
void serialize(Archive& archive, PlaceRule& m) {
  archive(FiniteField{m.slope}, FiniteField{m.offset}, FiniteField{m.least_sent},
          FiniteField{m.least_extended});
}

struct StopRuleField {
  StopRule& rule;
};
template <class Archive>
void serialize(Archive& archive, StopRuleField& field) {
  StopRule& m = field.rule;
  archive(EnumField<StopKind>{m.kind, StopKind::kChances}, FiniteField{m.threshold}, FiniteField{m.scale});
  if (m.kind == StopKind::kChances) archive(Capped{m.places, archive.limits().draft_tokens});
}

template <class Archive>
void serialize(Archive& archive, TokenSuccessors& m) {
  const uint64_t rows = kMaxSuccessorRows;
  archive(Capped{m.tokens, rows}, Capped{m.best, rows * kSuccessors});
  archive.require(m.best.size() == m.tokens.size() * kSuccessors, "successors that are not of its tokens");
}

template <class Archive>
void serialize(Archive& archive, Propose& m) {
  archive(m.sequence, m.epoch, m.round, m.base, Capped{m.committed, archive.limits().ids}, m.gamma,
          EnumField<QKind>{m.q_kind, QKind::kHidden}, m.row_bytes, m.code_bits, m.sent_after_us,
          EnumField<Pipeline>{m.pipeline, Pipeline::kAuto}, m.fanout, StopRuleField{m.stop}, m.wants_guess,
          TreeShapeField{m.tree}, m.successors, m.text_gamma, m.pass_ns, m.row_ns);
}

// The rows of a draft, in the form of its kind.
template <class Message>
struct QRowsField {
  Message& m;
};
template <class Archive, class Message>
void serialize(Archive& archive, QRowsField<Message>& field) {
  const uint64_t tokens = archive.limits().draft_tokens;
  auto& m = field.m;
  archive(EnumField<QKind>{m.q_kind, QKind::kHidden});
  archive.require(m.q_kind == QKind::kHidden ? m.q.empty() : m.hidden.empty(), "rows of another kind of q");
  m.q_kind == QKind::kHidden ? archive(HiddenRowsField{m.hidden}) : archive(Capped{m.q, tokens});
}

template <class Archive>
void serialize(Archive& archive, PreparationReport& m) {
  archive(m.looked_up, m.hit, m.used_tokens, m.wasted_tokens, m.outcomes, m.busy_ns);
}

template <class Archive>
void serialize(Archive& archive, Draft& m) {
  const uint64_t tokens = archive.limits().draft_tokens;
  archive(m.sequence, m.epoch, m.round, m.base, Capped{m.ids, tokens});
  archive(PerTokenField{m.parents, m.ids.size()}, m.prefix_hash, QRowsField<Draft>{m}, m.slice_bytes,
          m.link_bytes, m.eos, m.from_text, m.guess, PerTokenField{m.margins, m.ids.size()}, m.sent_after_us,
          m.ingest_ns, m.draft_ns, m.preparation);
}

// ---- verification
// --------------------------------------------------------------------------------------------

template <class Archive>
void serialize(Archive& archive, TokenSet& m) {
  archive(EnumField<TokenSet::Form>{m.form, TokenSet::Form::kBits});
  const bool has_bits = m.form == TokenSet::Form::kBits;
  archive.require(has_bits ? m.ids.empty() : m.bits.empty(), "tokens in two forms");
  has_bits ? archive(Capped{m.bits, archive.limits().ids / 32 + 1})
           : archive(Capped{m.ids, archive.limits().ids});
}

template <class Archive>
void serialize(Archive& archive, TokenMask& m) {
  archive(m.row, m.allowed);
}

template <class Archive>
void serialize(Archive& archive, PlanEntry& m) {
  const uint64_t tokens = archive.limits().draft_tokens;
  archive(m.sequence, m.epoch, m.round, m.base, m.first_input, m.input_count, Capped{m.draft, tokens});
  archive(PerTokenField{m.parents, m.draft.size()}, QRowsField<PlanEntry>{m}, m.worker, m.next_gamma,
          m.next_round, StopRuleField{m.next_stop}, TreeShapeField{m.next_tree}, m.prompt_logprobs,
          Capped{m.masks, tokens + 1}, m.successors);
}

template <class Archive>
void serialize(Archive& archive, QSlice& m) {
  archive(m.sequence, m.round, m.worker, m.rows, Capped{m.weights, archive.limits().frame_bytes / 2});
}

template <class Archive>
void serialize(Archive& archive, LinkOffer& m) {
  archive(m.worker, Capped{m.id, archive.limits().string_bytes}, m.hidden_states);
}

template <class Archive>
void serialize(Archive& archive, QTransfer& m) {
  const uint64_t tokens = archive.limits().draft_tokens;
  archive(m.sequence, m.round, m.worker, m.number, Capped{m.sums, tokens}, Capped{m.drafted, tokens});
}

template <class Archive>
void serialize(Archive& archive, HiddenStateRows& m) {
  archive(m.sequence, m.first, Capped{m.ids, archive.limits().ids}, m.width,
          Capped{m.values, archive.limits().frame_bytes / 2}, m.transfer, m.count);
}

template <class Archive>
void serialize(Archive& archive, HiddenStateTransfer& m) {
  archive(m.number, m.rows);
}

template <class Archive>
void serialize(Archive& archive, PrefixChange& m) {
  archive(EnumField<PrefixChange::Kind>{m.kind, PrefixChange::Kind::kCut}, m.prefix, m.sequence, m.length);
}

template <class Archive>
void serialize(Archive& archive, HiddenStateRequest& m) {
  archive(m.sequence, m.first, m.count, m.worker);
}

template <class Archive>
void serialize(Archive& archive, BlockExport& m) {
  archive(m.sequence, m.transfer, m.first, m.count, m.inbox);
}

template <class Archive>
void serialize(Archive& archive, BlockImport& m) {
  archive(m.sequence, m.transfer, m.first, m.count);
}

template <class Archive>
void serialize(Archive& archive, KvBlocks& m) {
  archive(m.transfer, m.first, m.count, m.name, Capped{m.bytes, archive.limits().frame_bytes});
}

template <class Archive>
void serialize(Archive& archive, StepPlan& m) {
  const uint64_t sequences = archive.limits().sequences;
  archive(m.step, m.state_hash, Capped{m.prefixes, archive.limits().ids}, Capped{m.closes, sequences},
          Capped{m.opens, sequences}, Capped{m.entries, sequences}, Capped{m.hidden_states, sequences},
          Capped{m.exports, sequences}, Capped{m.imports, sequences});
}

template <class Archive>
void serialize(Archive& archive, TokenLogprob& m) {
  // Minus infinity is a logprob: the token is impossible.
  archive(m.id, m.logprob);
  archive.require(!std::isnan(m.logprob), "a logprob that is not a number");
}

template <class Archive>
void serialize(Archive& archive, PositionLogprobs& m) {
  archive(m.chosen, Capped{m.top, archive.limits().logprobs});
}

template <class Archive>
void serialize(Archive& archive, Verdict& m) {
  archive(m.sequence, m.epoch, m.round, m.base, EnumField<VerdictStatus>{m.status, VerdictStatus::kNonFinite},
          m.draft_lost, m.link_lost, m.accepted_count);
  archive.require(m.accepted_count >= 0 || m.path.empty(), "a path of a negative length");
  archive(PerTokenField{m.path, static_cast<size_t>(std::max(m.accepted_count, 0))}, m.next,
          Capped{m.logprobs, archive.limits().draft_tokens + 1},
          Capped{m.successors, (archive.limits().draft_tokens + 1) * kSuccessors});
}

template <class Archive>
void serialize(Archive& archive, PromptScores& m) {
  archive(m.sequence, Capped{m.logprobs, archive.limits().ids});
}

template <class Archive>
void serialize(Archive& archive, StepResult& m) {
  const uint64_t sequences = archive.limits().sequences;
  archive(m.step, Capped{m.verdicts, sequences}, Capped{m.scores, sequences}, m.forward_ns, m.verify_ns,
          m.commit_ns, Capped{m.drafts, sequences}, m.draft_ns, Capped{m.hidden_states, sequences},
          Capped{m.exported, sequences}, Capped{m.imported, sequences});
}

template <class Archive>
void serialize(Archive& archive, Unload& m) {
  archive(m.pause_ms);
}

template <class Archive>
void serialize(Archive& archive, Resync& m) {
  archive(m.sequence, m.epoch, m.committed, m.hash, m.hidden_state_rows);
}

}  // namespace outrider
