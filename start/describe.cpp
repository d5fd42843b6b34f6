#include "start/describe.h"

#include <fmt/format.h>

#include "base/text_hash.h"
#include "comm/cores.h"
#include "kernels/cpu/cpu_ops.h"
#include "start/device.h"
#include "start/make_coordinator.h"
#include "start/model_fingerprint.h"

namespace outrider {

namespace {

std::string why_no_masks(const SpeculationSettings& speculation) {
  if (!speculation.synthetic_acceptance.empty())
    return "--synthetic-acceptance makes verdicts up, which no form limits; leave it out";
  return {};
}

}  // namespace

RequestModel request_model(const ModelSettings& models, const SpeculationSettings& speculation,
                           const Preparation& prepared, const Result<std::unique_ptr<ChatTemplate>>& chat) {
  std::vector<TokenId> eos = prepared.target.eos;  // some models name ids beyond their vocabulary
  std::erase_if(eos, [&](TokenId id) { return id.value() < 0 || id.value() >= prepared.target.vocab_size; });
  return {.tokenizer = *prepared.tokenizer,
          .chat = chat,
          .directory = models.model,
          .max_context = prepared.max_model_len,
          .vocab_size = prepared.target.vocab_size,
          .context_may_grow = models.max_model_len > 0 || prepared.max_model_len == kDefaultMaxModelLen,
          .synthetic_acceptance = !speculation.synthetic_acceptance.empty(),
          .eos_ids = std::move(eos),
          .why_no_masks = why_no_masks(speculation)};
}

Result<std::unique_ptr<GrammarCompiler>> make_grammars(const Preparation& prepared,
                                                       const std::vector<std::string>& libraries) {
  return make_grammar_compiler(*prepared.tokenizer,
                               {.libraries = libraries,
                                .ends = prepared.target.eos,
                                .vocab_size = static_cast<int32_t>(prepared.target.vocab_size)});
}

Result<RequestFingerprints> request_fingerprints(const ModelSettings& models,
                                                 const SpeculationSettings& speculation) {
  const bool on_host = models.device->kind == Device::Kind::kCpu;
  const uint64_t numerics = fingerprint_of_text(fmt::format(
      "{} {} {} {} {} {}", isa_name(), models.weight_format.text(), models.activation_format.text(),
      models.kv_dtype.text(), on_host ? "cpu" : "cuda", speculation.synthetic_acceptance));
  ASSIGN_OR_RETURN(const uint64_t model,
                   whole_fingerprint_of_model(models.model, numerics,
                                              models.threads > 0 ? models.threads : usable_cores()));
  return RequestFingerprints(model);
}

RunDescription describe_run(const ClusterSettings& settings, const Preparation& prepared) {
  const ModelSettings& models = settings.models;
  const SpeculationSettings& speculation = settings.speculation;
  const Device device = device_of_worker(models, 0);
  const QFormat& q = *speculation.q_format;
  const int64_t vocab_size = prepared.target.vocab_size;
  const bool on_host = device.kind == Device::Kind::kCpu;
  return {.target = prepared.target_info.name,
          .drafter = models.has_drafter() ? prepared.draft_info.name : "joined",
          .vocab_size = vocab_size,
          .tensor_parallel_size = models.tensor_parallel_size,
          .data_parallel_size = models.data_parallel_size,
          .prefill_groups = models.prefill_groups,
          .isa = isa_name(),
          .device = on_host ? "cpu" : fmt::format("cuda:{}", device.index),
          .max_model_len = prepared.max_model_len,
          .max_num_seqs = models.max_num_seqs,
          .threads = models.threads > 0 ? models.threads : usable_cores(),
          .speculates = settings.speculates(),
          .one_process = is_one_process(settings),
          .drafts_from_text_alone = models.drafts_from_text() && settings.pool.listen.empty(),
          .weighs_places = models.is_head_beside_target() && models.is_head_at_workers(),
          .pinned_zero = speculation.num_speculative_tokens == 0,
          .gamma_policy = speculation.policy(),
          .synthetic_acceptance = speculation.synthetic_acceptance,
          .emulated_link = speculation.emulate_link.text(),
          .q_kind = q.kind,
          .row_bytes = q.row_bytes(vocab_size),
          .code_bits = q.kind == QKind::kHidden ? q.code_bits(vocab_size, prepared.draft->hidden_size) : 0,
          .drafts_on_host = on_host};
}

}  // namespace outrider
