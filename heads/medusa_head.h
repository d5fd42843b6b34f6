// Medusa (Cai et al. 2024, 2401.10774): several heads that all read the same state, what the target's own
// output head read for the last token but one. Head i gives the distribution of the token i places behind the
// last one, whatever stands between. No keys and values, no recursion. One thread.
#pragma once

#include <memory>
#include <vector>

#include "heads/head.h"
#include "transformer/model/activations.h"
#include "transformer/model/weights.h"

namespace outrider {

class MedusaHead final : public Head {
 public:
  static Result<std::unique_ptr<MedusaHead>> load(const std::filesystem::path& directory,
                                                  const std::filesystem::path& target_directory,
                                                  const HeadOptions& options);

  int64_t weight_bytes() const override { return bytes_ / heads(); }
  int64_t heads() const { return static_cast<int64_t>(branches_.size()); }

  // Logits of branch i: out [rows, vocabulary] from states [rows, hidden], for at most max_sequences rows.
  // Valid until the next call.
  TensorView<float, 2> logits(int64_t branch, TensorView<const float, 2> states);

 private:
  struct Layer {
    PackedMatrix weight;  // [hidden, hidden]
    std::vector<float> bias;
  };
  struct Branch {
    std::vector<Layer> layers;
    PackedMatrix head;  // [vocabulary, hidden]
  };
  MedusaHead(HeadConfig config, const HeadOptions& options, std::vector<Branch> branches,
             std::vector<float> final_norm);

  std::vector<Branch> branches_;
  int64_t bytes_ = 0;
  ThreadPool pool_;
  MatmulScratch scratch_;
  ActivationRows state_, inner_, ones_, logits_;
};

}  // namespace outrider
