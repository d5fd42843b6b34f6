#include "target_worker/successor_ranks.h"

namespace outrider {
namespace {

constexpr auto kListed = static_cast<size_t>(kSuccessors);
constexpr auto kStride = static_cast<size_t>(kRankedWords);

}  // namespace

void SuccessorRanks::begin(std::span<const int64_t> rows, const PlacedLogits& logits, Verifier& verifier) {
  rows_ = rows.size();
  if (rows.empty()) return;
  const auto* here = std::get_if<LogitsShard>(&logits);
  on_device_ = !here;
  if (here)
    rank_here(rows, *here);
  else
    verifier.rank_rows(rows, logits);
}

void SuccessorRanks::rank_here(std::span<const int64_t> rows, const LogitsShard& logits) {
  const Chunks chunks{logits.vocab_range};
  chunk_max_.resize(static_cast<size_t>(chunks.count()));
  mine_.assign(rows.size() * kStride, 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<float> row = logits.logits.row(rows[i]);
    uint64_t* out = mine_.data() + i * kStride;
    if (scale_and_scan(row, chunks, 1.0f, chunk_max_)) {
      out[kListed] = 1;
      continue;
    }
    for (const RankedToken token : top_.local(row, chunks, chunk_max_, kListed)) *out++ = token.packed;
  }
}

std::span<const TokenId> SuccessorRanks::finish(const Verifier& verifier) {
  best_.clear();
  if (rows_ == 0) return best_;
  const std::span<const uint64_t> mine = on_device_ ? verifier.ranked_rows() : mine_;
  const auto ranks = static_cast<size_t>(group_.size());
  all_.resize(mine.size() * ranks);
  group_.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all_)));
  for (size_t i = 0; i < rows_; ++i) {
    bool finite = true;
    for (size_t r = 0; r < ranks; ++r) finite &= all_[r * mine.size() + i * kStride + kListed] == 0;
    const auto merged = top_.merge(all_, i * kStride, mine.size(), ranks, kListed);
    finite &= !merged.empty() && merged.front().is_finite();
    for (size_t k = 0; k < kListed; ++k)
      best_.push_back(finite && k < merged.size() && merged[k].is_finite() ? merged[k].id() : TokenId(-1));
  }
  return best_;
}

}  // namespace outrider
