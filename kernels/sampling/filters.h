// Top-k, then top-p, then min-p, on sharded rows, in place: what does not survive becomes -inf. Exactly the
// tokens an unsharded filter would keep, ties by id. Top-k and top-p both keep a prefix of the order (logit
// desc, id asc), so both come down to one cut: the last token that stays.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/collectives.h"
#include "kernels/sampling/shard_row.h"
#include "kernels/sampling/token_math.h"
#include "kernels/sampling/top_tokens.h"

namespace outrider {

class ShardFilters {
 public:
  explicit ShardFilters(Collectives& group) : group_(group) {}

  // Rows with temperature applied, `max` and chunk_max set; chunk_max is kept up to date. All rows share each
  // collective: one for rows whose cut lies among the best few, up to twelve more for wide ones.
  void apply(std::span<ShardRow* const> rows);

 private:
  // Where one row's cut is being looked for, most significant byte of the logit's key first.
  struct Search {
    ShardRow* row = nullptr;
    bool by_mass = false;   // top-p; else top-k
    uint64_t need = 0;      // what the kept prefix must still reach: mass or count
    uint32_t prefix = 0;    // of the key, `rounds` bytes are known
    bool keep_all = false;  // there are fewer than k tokens
    size_t first = 0;       // candidates_[first, first + count): this rank's tokens with the first byte
    size_t count = 0;
    RankedToken cut{};
  };
  struct Candidate {
    uint32_t key;
    uint64_t weight;
  };
  struct List {
    ShardRow* row = nullptr;
    size_t offset = 0;  // in a rank's part of the gathered lists
    size_t length = 0;
  };

  void cut_by_lists(std::span<ShardRow* const> rows);
  RankedToken cut_of(const List& list, bool& found);
  void radix_search();
  void add_to_histogram(Search& search, int round, std::span<uint64_t> bins);
  template <class Use>
  void for_each_token(const Search& search, Use use);
  void descend(Search& search, int round, std::span<const uint64_t> bins);
  void cut_ties();
  void cut(ShardRow& row, RankedToken last);
  void apply_min_p(ShardRow& row);

  static constexpr size_t kBins = 256;
  static constexpr size_t kBlockTokens = 1024;

  Collectives& group_;
  TopTokens top_;
  std::vector<List> lists_;
  std::vector<Search> searches_;
  std::vector<ShardRow*> wide_top_p_;
  std::vector<uint64_t> mine_, all_;
  std::vector<Candidate> candidates_;
  std::array<uint64_t, kBlockTokens> weights_;
  std::array<uint32_t, kBlockTokens> keys_;
};

}  // namespace outrider
