#include "heads/head.h"

#include "heads/block_drafter.h"
#include "heads/hydra_drafter.h"
#include "heads/medusa_drafter.h"
#include "heads/pair_drafter.h"

namespace outrider {

Result<std::unique_ptr<Head>> Head::load(const std::filesystem::path& directory,
                                         const std::filesystem::path& target_directory,
                                         const HeadOptions& options) {
  if (options.kind == HeadKind::kMedusa) {
    ASSIGN_OR_RETURN(auto head, MedusaHead::load(directory, target_directory, options));
    return std::unique_ptr<Head>(std::move(head));
  }
  if (options.kind == HeadKind::kDFlash) {
    ASSIGN_OR_RETURN(auto head, BlockHead::load(directory, target_directory, options));
    return std::unique_ptr<Head>(std::move(head));
  }
  if (options.kind == HeadKind::kHydra) {
    ASSIGN_OR_RETURN(auto head, HydraHead::load(directory, target_directory, options));
    return std::unique_ptr<Head>(std::move(head));
  }
  ASSIGN_OR_RETURN(auto head, PairHead::load(directory, target_directory, options));
  return std::unique_ptr<Head>(std::move(head));
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
