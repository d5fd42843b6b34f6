// Hydra (Ankner et al. 2024, 2402.05109): Medusa's branches, each of which knows the tokens in front of the
// one that it says. Branch i reads one state, of the last token but one, and the embeddings of the last token
// and of the i tokens drafted behind it. In its later form (Hydra++) the state has been through a layer of
// the head's own first, which sees the states of all positions before. One thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "heads/head.h"
#include "heads/head_tensors.h"
#include "heads/pair_head.h"

namespace outrider {

class HydraHead final : public Head {
 public:
  static Result<std::unique_ptr<HydraHead>> load(const std::filesystem::path& directory,
                                                 const std::filesystem::path& target_directory,
                                                 const HeadOptions& options);

  int64_t weight_bytes() const override { return bytes_ / heads(); }
  int64_t own_vocab() const { return parts_.branches.front().head.n; }
  int64_t heads() const { return static_cast<int64_t>(parts_.branches.size()); }

  // The layer that states go through, with keys and values of their positions; null: they are read as they
  // are.
  PairHead* prefix() { return parts_.prefix.get(); }

  // Columns of a branch's input: the hidden state, then token embeddings, the last token's first.
  int64_t input_width(int64_t branch) const { return hidden_size() * (config_.grounded ? branch + 2 : 1); }
  void embed(TokenId token, std::span<float> to) const { parts_.tokens->read(token, to); }
  const HeadTable& embeddings_there() const { return parts_.tokens->there(); }
  int64_t max_input_rows() const { return logits_.capacity; }
  // Logits of a branch, where the head computes: [rows, own vocabulary] from rows of input_width(branch)
  // numbers or more there. Valid until the next call; may be overwritten.
  FloatRows logits(int64_t branch, FloatRows inputs);

 private:
  struct Linear {
    HeadMatrix weight;
    HeadVector bias;
  };
  // residual(x) + silu(linear(x)); the residual of a layer that keeps the width is x itself.
  struct Layer {
    Linear linear;
    std::optional<Linear> residual;
  };
  struct Branch {
    std::vector<Layer> layers;
    HeadMatrix head;  // [own vocabulary, hidden]
    HeadVector head_bias;
  };
  struct Parts {
    std::vector<Branch> branches;
    std::optional<TokenTable> tokens;
    std::unique_ptr<PairHead> prefix;
    HeadVector final_norm;  // of the target
  };
  static Result<std::vector<Branch>> load_branches(HeadTensors& tensors, const HeadConfig& config);
  HydraHead(HeadConfig config, const HeadOptions& options, Parts parts);

  Parts parts_;
  int64_t bytes_ = 0;
  RowBuffer state_, inner_, logits_;
  OperandBuffer inputs_;  // [rows, the longest input]
};

}  // namespace outrider
