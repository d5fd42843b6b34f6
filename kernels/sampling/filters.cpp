#include "kernels/sampling/filters.h"

#include <algorithm>

namespace outrider {
namespace {

// Longer lists cost more than the radix search. Top-p first tries the best 256.
constexpr int32_t kLongestList = 1024;
constexpr size_t kTopPList = 256;

bool has_list(const SamplingParams& params) {
  return params.top_k > 0 ? params.top_k <= kLongestList : params.top_p < 1;
}
size_t list_length(const SamplingParams& params) {
  return params.top_k > 0 ? static_cast<size_t>(params.top_k) : kTopPList;
}

}  // namespace

void ShardFilters::apply(std::span<ShardRow* const> rows) {
  wide_top_p_.clear();
  cut_by_lists(rows);

  searches_.clear();
  for (ShardRow* row : rows)
    if (row->params->top_k > kLongestList)
      searches_.push_back({.row = row, .need = static_cast<uint64_t>(row->params->top_k)});
  radix_search();

  searches_.clear();
  for (ShardRow* row : rows)
    if (row->params->top_k > kLongestList && row->params->top_p < 1)
      searches_.push_back({.row = row, .by_mass = true});
  for (ShardRow* row : wide_top_p_) searches_.push_back({.row = row, .by_mass = true});
  radix_search();

  for (ShardRow* row : rows)
    if (row->params->min_p > 0) apply_min_p(*row);
}

// Gathers every rank's best tokens, and its mass where top-p needs the total.
void ShardFilters::cut_by_lists(std::span<ShardRow* const> rows) {
  lists_.clear();
  mine_.clear();
  for (ShardRow* row : rows) {
    if (!has_list(*row->params)) continue;
    const size_t length = list_length(*row->params);
    lists_.push_back({row, mine_.size(), length});
    const auto best = top_.local(row->logits, row->chunks, row->chunk_max, length);
    for (RankedToken token : best) mine_.push_back(token.packed);
    mine_.resize(lists_.back().offset + length, 0);
    mine_.push_back(row->params->top_k > 0 ? 0 : sum_weights(row->logits, row->max));
  }
  if (lists_.empty()) return;
  all_.resize(mine_.size() * static_cast<size_t>(group_.size()));
  group_.all_gather(std::as_bytes(std::span(mine_)), std::as_writable_bytes(std::span(all_)));
  for (const List& list : lists_) {
    bool found = false;
    const RankedToken last = cut_of(list, found);
    if (found)
      cut(*list.row, last);
    else
      wide_top_p_.push_back(list.row);
  }
}

// The last token that survives top-k and top-p, if the list reaches that far.
RankedToken ShardFilters::cut_of(const List& list, bool& found) {
  const ShardRow& row = *list.row;
  const size_t stride = mine_.size();
  const auto ranks = static_cast<size_t>(group_.size());
  const auto best = top_.merge(all_, list.offset, stride, ranks, list.length);
  found = true;
  if (row.params->top_p >= 1) return best.back();
  uint64_t total = 0;
  if (row.params->top_k > 0) {
    for (RankedToken token : best) total += weight_of(token.value(), row.max);
  } else {
    for (size_t r = 0; r < ranks; ++r) total += all_[r * stride + list.offset + list.length];
  }
  const uint64_t need = top_p_mass(row.params->top_p, total);
  uint64_t mass = 0;
  for (RankedToken token : best) {
    mass += weight_of(token.value(), row.max);
    if (mass >= need) return token;
  }
  found = false;
  return {};
}

// Finds the cut of every search byte by byte of the key: four reductions of 256 bins each, then ties by id.
void ShardFilters::radix_search() {
  if (searches_.empty()) return;
  candidates_.clear();
  for (int round = 0; round < 4; ++round) {
    mine_.assign(searches_.size() * kBins, 0);
    for (size_t s = 0; s < searches_.size(); ++s)
      add_to_histogram(searches_[s], round, std::span(mine_).subspan(s * kBins, kBins));
    group_.all_reduce_sum(std::span(mine_));
    for (size_t s = 0; s < searches_.size(); ++s)
      descend(searches_[s], round, std::span(mine_).subspan(s * kBins, kBins));
  }
  cut_ties();
  for (const Search& search : searches_)
    if (!search.keep_all) cut(*search.row, search.cut);
}

// Calls use(key, weight) for this rank's whole slice; masked tokens weigh 0.
template <class Use>
void ShardFilters::for_each_token(const Search& search, Use use) {
  const std::span<const float> logits = search.row->logits;
  for (size_t begin = 0; begin < logits.size(); begin += kBlockTokens) {
    const auto block = logits.subspan(begin, std::min(kBlockTokens, logits.size() - begin));
    fill_keys(block, std::span(keys_).first(block.size()));
    if (search.by_mass) {
      fill_weights(block, search.row->max, std::span(weights_).first(block.size()));
    } else {
      for (size_t i = 0; i < block.size(); ++i) weights_[i] = block[i] != kMinusInfinity;
    }
    for (size_t i = 0; i < block.size(); ++i) use(keys_[i], weights_[i]);
  }
}

// Rounds 0 and 1 read the whole slice; round 1 sets the tokens aside that share the first byte, the rest read
// those.
void ShardFilters::add_to_histogram(Search& search, int round, std::span<uint64_t> bins) {
  if (search.keep_all) return;
  if (round == 0) {
    for_each_token(search, [&](uint32_t key, uint64_t weight) { bins[key >> 24] += weight; });
    return;
  }
  if (round == 1) {
    search.first = candidates_.size();
    for_each_token(search, [&](uint32_t key, uint64_t weight) {
      if (key >> 24 == search.prefix && weight > 0) candidates_.push_back({key, weight});
    });
    search.count = candidates_.size() - search.first;
  }
  const int shift = 24 - 8 * round;
  for (const Candidate& candidate : std::span(candidates_).subspan(search.first, search.count))
    if (candidate.key >> (shift + 8) == search.prefix) bins[candidate.key >> shift & 255] += candidate.weight;
}

void ShardFilters::descend(Search& search, int round, std::span<const uint64_t> bins) {
  if (round == 0) {
    uint64_t total = 0;
    for (uint64_t bin : bins) total += bin;
    if (search.by_mass) search.need = top_p_mass(search.row->params->top_p, total);
    search.keep_all = total < search.need;
  }
  if (search.keep_all) return;
  size_t bin = kBins - 1;
  while (bins[bin] < search.need) search.need -= bins[bin--];
  search.prefix = search.prefix << 8 | static_cast<uint32_t>(bin);
}

// Tokens at the cut have equal logits and so equal weights: keeps only the number needed, lowest ids first.
void ShardFilters::cut_ties() {
  const size_t count = searches_.size();
  mine_.assign(count, 0);
  for (size_t s = 0; s < count; ++s) {
    const auto& logits = searches_[s].row->logits;
    if (!searches_[s].keep_all)
      mine_[s] =
          static_cast<uint64_t>(std::count(logits.begin(), logits.end(), value_of_key(searches_[s].prefix)));
  }
  all_.resize(count * static_cast<size_t>(group_.size()));
  group_.all_gather(std::as_bytes(std::span(mine_)), std::as_writable_bytes(std::span(all_)));

  mine_.assign(count, 0);
  for (size_t s = 0; s < count; ++s) {
    Search& search = searches_[s];
    if (search.keep_all) continue;
    const float logit = value_of_key(search.prefix);
    const uint64_t weight = search.by_mass ? weight_of(logit, search.row->max) : 1;
    uint64_t wanted = (search.need + weight - 1) / weight;
    size_t owner = 0;
    while (wanted > all_[owner * count + s]) wanted -= all_[owner++ * count + s];
    if (static_cast<int>(owner) != group_.rank()) continue;
    const auto& logits = search.row->logits;
    size_t i = 0;
    while (logits[i] != logit || --wanted > 0) ++i;
    mine_[s] = RankedToken::of(logit, search.row->chunks.range.begin + static_cast<int64_t>(i)).packed;
  }
  group_.all_reduce_max(std::span(mine_));
  for (size_t s = 0; s < count; ++s) searches_[s].cut = {mine_[s]};
}

void ShardFilters::cut(ShardRow& row, RankedToken last) {
  const IndexRange range = row.chunks.range;
  const int64_t tie_end = std::clamp<int64_t>(last.id().value() + 1, range.begin, range.end) - range.begin;
  mask_below(row.logits, last.value(), tie_end);
  scale_and_scan(row.logits, row.chunks, 1.0f, row.chunk_max);
}

// p >= min_p * p_max: the best token weighs 2^44, and renormalising changes no ratio.
void ShardFilters::apply_min_p(ShardRow& row) {
  const double bound = static_cast<double>(row.params->min_p) * 0x1p44;
  for (size_t begin = 0; begin < row.logits.size(); begin += kBlockTokens) {
    const auto block = row.logits.subspan(begin, std::min(kBlockTokens, row.logits.size() - begin));
    fill_weights(block, row.max, std::span(weights_).first(block.size()));
    for (size_t i = 0; i < block.size(); ++i)
      if (static_cast<double>(weights_[i]) < bound) block[i] = kMinusInfinity;
  }
  scale_and_scan(row.logits, row.chunks, 1.0f, row.chunk_max);
}

}  // namespace outrider
