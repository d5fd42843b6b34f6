// Random messages of every type, from a seed. Lists may be empty; numbers take extreme values now and then.
#pragma once

#include <limits>
#include <random>
#include <string>
#include <type_traits>

#include "base/bfloat16.h"
#include "comm/messages.h"
#include "comm/q_rows.h"

namespace outrider {

class RandomMessages {
 public:
  explicit RandomMessages(uint64_t seed) : engine_(seed) {}

  Message of_type(size_t type) {
    Message message;
    fill_alternative(message, type, std::make_index_sequence<std::variant_size_v<Message>>{});
    return message;
  }

 private:
  template <size_t... I>
  void fill_alternative(Message& message, size_t type, std::index_sequence<I...>) {
    (void)((type == I && (fill(message.emplace<I>()), true)) || ...);
  }

  uint64_t below(uint64_t end) { return engine_() % end; }

  template <class T>
  requires std::is_integral_v<T>
  void fill(T& value) {
    constexpr T kExtremes[] = {0, 1, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
    value = below(4) == 0 ? kExtremes[below(4)] : static_cast<T>(engine_());
  }
  void fill(bool& value) { value = below(2) == 1; }
  void fill(float& value) { value = static_cast<float>(static_cast<int64_t>(engine_())) * 1e-12f; }
  void fill(std::string& value) {
    value.resize(below(40));
    for (char& c : value) c = static_cast<char>(' ' + below(95));  // text arrives printable
  }
  void fill(Role& value) { value = static_cast<Role>(below(3)); }
  void fill(QKind& value) { value = static_cast<QKind>(below(5)); }
  void fill(Pipeline& value) { value = static_cast<Pipeline>(below(4)); }
  void fill(StopKind& value) { value = static_cast<StopKind>(below(5)); }
  void fill(VerdictStatus& value) { value = static_cast<VerdictStatus>(below(2)); }
  void fill(Rule& value) { value = static_cast<Rule>(below(5)); }
  template <class Tag, class Rep>
  void fill(StrongInt<Tag, Rep>& id) {
    Rep value{};
    fill(value);
    id = StrongInt<Tag, Rep>(value);
  }
  template <class A, class B>
  void fill(std::pair<A, B>& pair) {
    fill_all(pair.first, pair.second);
  }
  template <class T>
  void fill(std::vector<T>& values) {
    values.resize(below(6));
    for (T& value : values) fill(value);
  }

  void fill(ModelInfo& m) {
    fill_all(m.name, m.vocab_size, m.vocabulary_fingerprint, m.fingerprint, m.max_context, m.isa);
  }
  void fill(SamplingParams& m) {
    fill_all(m.rule, m.temperature, m.top_k, m.top_p, m.min_p, m.repetition_penalty, m.presence_penalty,
             m.frequency_penalty, m.logit_bias, m.ends_from, m.ends, m.seed.value, m.logprobs);
  }
  // Dense or sparse, with and without a rest, and well-formed: others have no form on the wire.
  void fill(QRow& m) {
    fill(m.weights);
    if (!m.weights.empty() && below(2) == 0) {
      const uint32_t step = static_cast<uint32_t>(1) << below(12), unit = 1 + static_cast<uint32_t>(below(9));
      uint32_t next = 0;
      for (uint32_t& weight : m.weights) {
        m.ids.push_back(next + static_cast<uint32_t>(below(step)));
        next = m.ids.back() + 1;
        weight = unit * (1 + static_cast<uint32_t>(below(20)));
      }
      if (below(2) == 0)
        m.rest = 1 + static_cast<uint32_t>(below(3)), m.id_end = next + static_cast<uint32_t>(below(999));
    }
    m.sum = sum_of(m);
  }
  void fill(std::vector<HiddenRow>& rows) {
    rows.resize(below(6));
    const auto width = 1 + below(80), levels = uint64_t{2} << below(7);
    for (HiddenRow& row : rows) {
      row.scale = to_float(to_bf16(0x1p-20f * static_cast<float>(1 + below(1 << 24))));
      fill(row.max);
      row.codes.resize(width);
      for (int8_t& code : row.codes) code = static_cast<int8_t>(2 * below(levels) + 1 - levels);
    }
  }
  // Nodes of a tree, or none, for a chain.
  void fill_nodes(std::vector<int32_t>& nodes, size_t count) {
    if (below(2) == 0) return;
    nodes.resize(count);
    for (int32_t& node : nodes) fill(node);
  }
  // In the form that the kind has.
  template <class M>
  void fill_q(M& m) {
    fill(m.q_kind);
    m.q_kind == QKind::kHidden ? fill(m.hidden) : fill(m.q);
  }
  void fill(TokenMask& m) {
    fill(m.row);
    m.allowed.form = static_cast<TokenSet::Form>(below(3));
    m.allowed.form == TokenSet::Form::kBits ? fill(m.allowed.bits) : fill(m.allowed.ids);
  }
  void fill(PlanEntry& m) {
    fill_all(m.sequence, m.epoch, m.round, m.base, m.first_input, m.input_count, m.draft);
    fill_nodes(m.parents, m.draft.size());
    fill_q(m);
    fill_all(m.worker, m.next_gamma, m.next_round, m.next_stop, m.prompt_logprobs, m.masks, m.successors);
    if (below(2) == 0) fill(m.next_tree);
  }
  void fill(TokenLogprob& m) { fill_all(m.id, m.logprob); }
  void fill(PositionLogprobs& m) { fill_all(m.chosen, m.top); }
  void fill(Verdict& m) {
    fill_all(m.sequence, m.epoch, m.round, m.base, m.status, m.draft_lost, m.link_lost, m.next, m.logprobs,
             m.successors);
    m.accepted_count = static_cast<int32_t>(below(6));
    fill_nodes(m.path, static_cast<size_t>(m.accepted_count));
  }

  void fill(SliceEndpoint& m) { fill_all(m.endpoint, m.gpu); }
  void fill(SliceEndpoints& m) { fill_all(m.of_rank, m.cluster, m.server_key, m.public_key, m.secret_key); }
  void fill(RowCost& m) { fill_all(m.rows, m.passes); }
  void fill(PassTimes& m) { fill_all(m.row_ns, m.by_rows, m.prefill_token_ns); }
  void fill(Hello& m) {
    fill_all(m.role, m.generation, m.model, m.vocabulary_beginnings, m.max_sequences, m.slices,
             m.head_fingerprint, m.co_located_drafter, m.kv_blocks, m.hidden_state_head, m.hidden_state_width,
             m.successors, m.finds_text, m.drafts_blocks, m.max_prefill, m.pass_times, m.process,
             m.only_prefills, m.block_inbox);
  }
  void fill(Welcome& m) {
    fill_all(m.accepted, m.reason);
    if (m.accepted) fill_all(m.target, m.eos_ids, m.slices);
  }
  void fill(Heartbeat& m) { fill(m.generation); }
  void fill(Failure& m) { fill(m.message); }
  void fill(Shutdown&) {}
  void fill(Open& m) {
    fill_all(m.sequence, m.ids, m.prompt_length, m.sampling, m.salt, m.prefix, m.prefix_length, m.epoch);
  }
  void fill(Close& m) { fill(m.sequence); }
  void fill(StopRule& m) {
    fill_all(m.kind, m.threshold, m.scale);
    if (m.kind == StopKind::kChances) fill(m.places);
  }
  void fill(PlaceRule& m) { fill_all(m.slope, m.offset, m.least_sent, m.least_extended); }
  void fill(Propose& m) {
    fill_all(m.sequence, m.epoch, m.round, m.base, m.committed, m.gamma, m.q_kind, m.row_bytes, m.code_bits,
             m.sent_after_us, m.pipeline, m.fanout, m.stop, m.wants_guess, m.successors, m.text_gamma,
             m.pass_ns, m.row_ns);
    if (below(2) == 0) fill(m.tree);
  }
  void fill(TokenSuccessors& m) {
    fill(m.tokens);
    m.best.resize(m.tokens.size() * kSuccessors);
    for (TokenId& id : m.best) fill(id);
  }
  void fill(TreeShape& m) {
    fill_all(m.widths, m.parents, m.nodes, m.node_price, m.pass_price);
    if (m.is_chain()) m = {};
  }
  void fill(PreparationReport& m) {
    fill_all(m.looked_up, m.hit, m.used_tokens, m.wasted_tokens, m.outcomes, m.busy_ns);
  }
  void fill(Draft& m) {
    fill_all(m.sequence, m.epoch, m.round, m.base, m.ids);
    fill_nodes(m.parents, m.ids.size());
    fill(m.prefix_hash);
    fill_q(m);
    fill_all(m.slice_bytes, m.link_bytes, m.eos, m.from_text, m.guess);
    if (below(2) == 0) m.margins.resize(m.ids.size());
    for (float& margin : m.margins) fill(margin);
    fill_all(m.sent_after_us, m.ingest_ns, m.draft_ns, m.preparation);
  }
  void fill(PrefixChange::Kind& value) { value = static_cast<PrefixChange::Kind>(below(2)); }
  void fill(PrefixChange& m) { fill_all(m.kind, m.prefix, m.sequence, m.length); }
  void fill(StepPlan& m) {
    fill_all(m.step, m.state_hash, m.exports, m.prefixes, m.closes, m.opens, m.entries, m.imports,
             m.hidden_states);
  }
  void fill(HiddenStateRequest& m) { fill_all(m.sequence, m.first, m.count, m.worker); }
  void fill(PromptScores& m) { fill_all(m.sequence, m.logprobs); }
  void fill(StepResult& m) {
    fill_all(m.step, m.verdicts, m.scores, m.forward_ns, m.verify_ns, m.commit_ns, m.drafts, m.draft_ns,
             m.hidden_states, m.exported, m.imported);
  }
  void fill(BlockExport& m) { fill_all(m.sequence, m.transfer, m.first, m.count, m.inbox); }
  void fill(BlockImport& m) { fill_all(m.sequence, m.transfer, m.first, m.count); }
  void fill(KvBlocks& m) { fill_all(m.transfer, m.first, m.count, m.name, m.bytes); }
  void fill(QSlice& m) { fill_all(m.sequence, m.round, m.worker, m.rows, m.weights); }
  void fill(LinkOffer& m) { fill_all(m.worker, m.id, m.hidden_states); }
  void fill(QTransfer& m) { fill_all(m.sequence, m.round, m.worker, m.number, m.sums, m.drafted); }
  void fill(Resync& m) { fill_all(m.sequence, m.epoch, m.committed, m.hash, m.hidden_state_rows); }
  void fill(Unload& m) { fill(m.pause_ms); }
  void fill(HiddenStateRows& m) {
    fill_all(m.sequence, m.first, m.ids, m.width, m.values, m.transfer, m.count);
  }
  void fill(HiddenStateTransfer& m) { fill_all(m.number, m.rows); }

  template <class... Fields>
  void fill_all(Fields&... fields) {
    (fill(fields), ...);
  }

  std::mt19937_64 engine_;
};

}  // namespace outrider
