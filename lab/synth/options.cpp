#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "lab/synth/synth.h"

namespace outrider {

void add_synth_options(CLI::App& app, SynthOptions& o) {
  app.footer(
      "Example:\n"
      "  outrider synth --shape 1.1b --output pair\n"
      "  outrider bench --model pair/target --draft-model pair/draft\n"
      "The draft is the target's first layers with the same embedding and head; the layers above them are "
      "scaled so\nthat both choose the same token as often as --acceptance says.");
  app.add_option("-o,--output", o.output, "Directory to create; it will hold target/ and draft/");
  app.add_option("--shape", o.shape, fmt::format("One of {}", fmt::join(synth_shape_names(), ", ")))
      ->capture_default_str();
  const std::string group = "Shape, where it differs from --shape";
  app.add_option("--hidden", o.hidden, "Width of the residual stream")->group(group);
  app.add_option("--layers", o.layers, "Layers of the target")->group(group);
  app.add_option("--heads", o.heads, "Query heads")->group(group);
  app.add_option("--kv-heads", o.kv_heads, "Key and value heads")->group(group);
  app.add_option("--head-dim", o.head_dim, "Width of a head; default: hidden / heads")->group(group);
  app.add_option("--ffn", o.ffn, "Intermediate size of the MLP, or of an expert")->group(group);
  app.add_option("--experts", o.experts, "Experts in each layer, as in Mixtral, in place of an MLP; 0: none")
      ->group(group);
  app.add_option("--experts-per-token", o.experts_per_token, "Experts that each token goes through")
      ->group(group);
  app.add_option("--kv-rank", o.kv_rank,
                 "Latent attention, as in DeepSeek-V3, beside --experts: numbers that keys and values of all "
                 "heads are made of; 0: none")
      ->group(group);
  app.add_option("--q-rank", o.q_rank, "Numbers that its queries are made of; 0: they have no latent")
      ->group(group);
  app.add_option("--dense-layers", o.dense_layers, "Its first layers, which have an MLP and no experts")
      ->group(group);
  app.add_option("--vocab", o.vocab, "Tokens of the vocabulary")->group(group);
  app.add_option("--max-positions", o.max_positions, "Longest text the models support")->group(group);
  app.add_flag("--tied", o.tied, "Head and embedding are one matrix")->group(group);
  app.add_option(
         "--head", o.head,
         "eagle3, mtp, dflash, medusa or hydra: also writes a head of the target's widths, in a directory of "
         "that "
         "name, for --drafter of that name. Its weights are random: measure it with --synthetic-acceptance")
      ->check(CLI::IsMember({"none", "eagle3", "mtp", "dflash", "medusa", "hydra"}))
      ->capture_default_str();
  app.add_option(
      "--draft-vocab", o.draft_vocab,
      "Tokens that a head which is eagle3 or dflash knows; default: 32000, or all if fewer, and of "
      "dflash all");
  app.add_option("--head-layers", o.head_layers, "Layers of a head that is dflash")->capture_default_str();
  app.add_option("--block-size", o.block_size, "Rows of its block, one more than it drafts")
      ->capture_default_str();
  app.add_option("--head-branches", o.head_branches,
                 "Branches of a head that is medusa or hydra, one for each token that it drafts")
      ->capture_default_str();
  app.add_option("--draft-layers", o.draft_layers, "Layers of the draft")->capture_default_str();
  app.add_option("--acceptance", o.acceptance,
                 "Share of draft tokens that the target accepts, at --temperature and under the default rule")
      ->capture_default_str();
  app.add_option("-t,--temperature", o.temperature, "0: greedy")->capture_default_str();
  app.add_option(
         "--entropy", o.entropy,
         "Nats of the target's distributions at --temperature (at 1 if that is 0), on average. Trained "
         "models on text have about 2 to 3")
      ->capture_default_str();
  app.add_option("-s,--seed", o.seed, "The same seed and flags give the same files")->capture_default_str();
  app.add_option("--threads", o.threads, "0: one per core")->capture_default_str();
  app.add_option("--device", o.device,
                 "Where the pair runs while it is tuned: cpu, cuda or cuda:N. What it measures there differs "
                 "in the last digits, and so do its files")
      ->capture_default_str();
  app.add_flag("--force", o.force, "Replace an --output that an earlier synth wrote");
  app.add_flag("-q,--quiet", o.quiet, "No progress on standard error");
}

Result<SynthShape> check_synth_options(const SynthOptions& o) {
  if (o.output.empty()) return invalid_argument("--output is missing: name a directory to create");
  ASSIGN_OR_RETURN(SynthShape shape, synth_shape(o.shape));
  if (o.hidden || o.heads) shape.head_dim = 0;
  shape.hidden = o.hidden.value_or(shape.hidden);
  shape.layers = o.layers.value_or(shape.layers);
  shape.heads = o.heads.value_or(shape.heads);
  shape.kv_heads = o.kv_heads.value_or(shape.kv_heads);
  shape.head_dim = o.head_dim.value_or(shape.head_dim);
  shape.ffn = o.ffn.value_or(shape.ffn);
  shape.experts = o.experts.value_or(shape.experts);
  shape.kv_rank = o.kv_rank.value_or(shape.kv_rank);
  if (!shape.is_latent() && ((o.q_rank && *o.q_rank > 0) || (o.dense_layers && *o.dense_layers > 0)))
    return invalid_argument(fmt::format("{}: there is no latent attention; add --kv-rank",
                                        o.q_rank.value_or(0) > 0 ? "--q-rank" : "--dense-layers"));
  shape.q_rank = o.q_rank.value_or(shape.q_rank);
  shape.dense_layers = o.dense_layers.value_or(shape.dense_layers);
  if (o.ffn) shape.dense_ffn = 0;  // as wide as what a token goes through of a mixture
  if (o.experts_per_token && shape.experts == 0)
    return invalid_argument("--experts-per-token: there are no experts; add --experts");
  shape.experts_per_token = o.experts_per_token.value_or(shape.experts_per_token);
  shape.vocab = o.vocab.value_or(shape.vocab);
  shape.max_positions = o.max_positions.value_or(shape.max_positions);
  shape.tied |= o.tied;
  RETURN_IF_ERROR(check_synth_shape(shape));
  if (o.draft_layers < 1 || o.draft_layers >= shape.layers)
    return invalid_argument(fmt::format("--draft-layers {}: must be 1 to {}, below the target's {} layers",
                                        o.draft_layers, shape.layers - 1, shape.layers));
  const bool has_head = o.head != "none";
  if (has_head && shape.layers < 4)
    return invalid_argument(
        fmt::format("--head {}: the target has {} layers; it needs 4 or more", o.head, shape.layers));
  const bool chooses_tokens = o.head == "eagle3" || o.head == "dflash";
  if (o.draft_vocab && (!chooses_tokens || *o.draft_vocab < 2 || *o.draft_vocab > shape.vocab))
    return invalid_argument(fmt::format(
        "--draft-vocab {}: must be 2 to {}, and needs --head eagle3 or dflash", *o.draft_vocab, shape.vocab));
  if (o.head_branches < 1 || o.head_branches > 16)
    return invalid_argument(fmt::format("--head-branches {}: must be 1 to 16", o.head_branches));
  if (o.head_layers < 1 || o.head_layers > 64)
    return invalid_argument(fmt::format("--head-layers {}: must be 1 to 64", o.head_layers));
  if (o.block_size < 2 || o.block_size > 64)
    return invalid_argument(fmt::format("--block-size {}: must be 2 to 64", o.block_size));
  if (!(o.acceptance >= 0.05 && o.acceptance <= 0.99))
    return invalid_argument(fmt::format("--acceptance {}: must be 0.05 to 0.99", o.acceptance));
  if (!(o.temperature >= 0 && o.temperature <= 10))
    return invalid_argument(fmt::format("--temperature {}: must be 0 to 10", o.temperature));
  const double uniform = std::log(static_cast<double>(shape.vocab));
  if (!(o.entropy >= 0.1 && o.entropy <= 0.95 * uniform))
    return invalid_argument(
        fmt::format("--entropy {}: must be 0.1 to {:.2f} nats; {} equally likely tokens have {:.2f}",
                    o.entropy, 0.95 * uniform, shape.vocab, uniform));
  if (o.threads < 0 || o.threads > 1024)
    return invalid_argument(fmt::format("--threads {}: must be 0 to 1024", o.threads));
  return shape;
}

}  // namespace outrider
