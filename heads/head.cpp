#include "heads/head.h"

#include "heads/block_drafter.h"
#include "heads/hydra_drafter.h"
#include "heads/medusa_drafter.h"
#include "heads/pair_drafter.h"

namespace outrider {

namespace {

template <class Kind>
Result<std::unique_ptr<Head>> load_as(const std::filesystem::path& directory,
                                      const std::filesystem::path& target_directory,
                                      const HeadOptions& options) {
  ASSIGN_OR_RETURN(auto head, Kind::load(directory, target_directory, options));
  return std::unique_ptr<Head>(std::move(head));
}

// Counts the buffers that a drafter, and a reader of the target's hidden states, keep where the head
// computes.
void count_beside(Head& head, HeadCompute& counting) {
  make_head_drafter(head, {.max_sequences = static_cast<int32_t>(head.options().max_sequences)});
  const int64_t hidden_states = static_cast<int64_t>(head.config().aux_layers.size()) * head.hidden_size();
  counting.rows(head.max_rows(), hidden_states + head.hidden_size());
}

}  // namespace

HeadOptions Head::complete(HeadOptions asked, const ModelConfig& target) {
  if (!asked.compute) asked.compute = make_host_compute(asked.threads, asked.bytes_per_thread);
  if (asked.max_positions == 0) asked.max_positions = target.max_position_embeddings;
  if (asked.kv_tokens == 0) asked.kv_tokens = asked.max_positions;
  return asked;
}

Result<std::unique_ptr<Head>> Head::load(const std::filesystem::path& directory,
                                         const std::filesystem::path& target_directory,
                                         const HeadOptions& options) {
  const auto load = options.kind == HeadKind::kMedusa   ? &load_as<MedusaHead>
                    : options.kind == HeadKind::kDFlash ? &load_as<BlockHead>
                    : options.kind == HeadKind::kHydra  ? &load_as<HydraHead>
                                                        : &load_as<PairHead>;
  if (const auto counting = options.compute ? options.compute->counting() : nullptr) {
    HeadOptions counted = options;
    counted.compute = counting;
    ASSIGN_OR_RETURN(const auto head, load(directory, target_directory, counted));
    count_beside(*head, *counting);
    RETURN_IF_ERROR(counting->room(options.notice));
  }
  return load(directory, target_directory, options);
}

std::unique_ptr<HeadDrafter> make_head_drafter(Head& head, HeadDrafterOptions options) {
  if (auto* const medusa = dynamic_cast<MedusaHead*>(&head))
    return std::make_unique<MedusaDrafter>(*medusa, std::move(options));
  if (auto* const hydra = dynamic_cast<HydraHead*>(&head))
    return std::make_unique<HydraDrafter>(*hydra, std::move(options));
  if (auto* const block = dynamic_cast<BlockHead*>(&head))
    return std::make_unique<BlockDrafter>(*block, std::move(options));
  return std::make_unique<PairDrafter>(dynamic_cast<PairHead&>(head), std::move(options));
}

}  // namespace outrider
