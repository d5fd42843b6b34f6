// Medusa (Cai et al. 2024, 2401.10774): several heads that all read the same state, what the target's own
// output head read for the last token but one. Head i gives the distribution of the token i places behind the
// last one, whatever stands between. No keys and values, no recursion. One thread.
#pragma once

#include <memory>
#include <vector>

#include "heads/head.h"

namespace outrider {

class MedusaHead final : public Head {
 public:
  static Result<std::unique_ptr<MedusaHead>> load(const std::filesystem::path& directory,
                                                  const std::filesystem::path& target_directory,
                                                  const HeadOptions& options);

  int64_t weight_bytes() const override { return bytes_ / heads(); }
  std::span<const TokenId> target_ids() const override { return parts_.target_ids; }
  int64_t own_vocab() const { return parts_.heads.front().n; }
  int64_t heads() const { return static_cast<int64_t>(parts_.branches.size()); }

  // Logits of branch i, where the head computes: [rows, own vocabulary] from states [rows, hidden] there, for
  // at most max_sequences rows. Valid until the next call.
  FloatRows logits(int64_t branch, FloatRows hidden_states);

 private:
  struct Layer {
    HeadMatrix weight;  // [hidden, hidden]
    HeadVector bias;
  };
  using Branch = std::vector<Layer>;
  struct Parts {
    std::vector<Branch> branches;
    std::vector<HeadMatrix> heads;    // [own vocabulary, hidden], of each branch, or one of all
    std::vector<TokenId> target_ids;  // of the own vocabulary; empty: the target's ids
  };
  MedusaHead(HeadConfig config, const HeadOptions& options, Parts parts, HeadVector final_norm);

  const Parts parts_;
  int64_t bytes_ = 0;
  RowBuffer state_, inner_, logits_;
  OperandBuffer inputs_;
};

}  // namespace outrider
