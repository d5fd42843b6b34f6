#include "model/cuda/token_runner.h"

#include <algorithm>

#include "kernels/sampling/penalties.h"

namespace outrider::cuda {
namespace {

// Longer drafts are several runs.
constexpr int64_t kSteps = 16;
// Rows of q for each sequence, as long as they are few; with many sequences a run has fewer steps.
constexpr int64_t kQRows = 8, kMaxQRows = 128;
constexpr int64_t kBiases = 300;

bool weighs(const TokenRun& run) { return run.count > 0 && needs_q(effective_rule(*run.first.sampling)); }

// Its token comes from the device.
constexpr TokenId kUnknown(0);

}  // namespace

DrawLimits run_limits(int64_t sequences, int64_t vocab_size, int64_t kv_tokens) {
  const int64_t rows = 2 * sequences;  // each with a guess
  return {.rows = rows,
          .steps = kSteps,
          .width = vocab_size,
          .stride = vocab_size,
          .q_rows = std::min(kQRows * sequences, kMaxQRows),
          .counted = kv_tokens + rows * 8 * kSteps,  // committed tokens are in the cache; drafted ones
          .biases = kBiases * sequences};
}

DrawLimits look_limits(int64_t rows, int64_t vocab_size, int64_t kv_tokens) {
  constexpr int64_t kLongestPath = 8 * kSteps;
  return {.rows = rows,
          .steps = 1,
          .width = vocab_size,
          .stride = vocab_size,
          .counted = kv_tokens + rows * kLongestPath,
          .biases = kBiases * rows};
}

CudaTokenRunner::CudaTokenRunner(CudaModel& model, int64_t vocab_size)
    : model_((use_device(model.options_.device.index), model)),
      layers_(model.options_.exit_layer > 0 ? model.options_.exit_layer : model.config_.num_layers),
      limits_([&] {
        DrawLimits limits =
            run_limits(model.options_.run_sequences, vocab_size, model.kv_.num_blocks() * kBlockTokens);
        limits.stride = model.config_.vocab_size;
        return limits;
      }()),
      draws_(limits_, model.logits()),
      ranking_(
          [&] {
            DrawLimits limits =
                look_limits(model.max_logit_rows(), vocab_size, model.kv_.num_blocks() * kBlockTokens);
            limits.stride = model.config_.vocab_size;
            return limits;
          }(),
          model.logits()) {
  const auto rows = static_cast<size_t>(std::max(limits_.rows, model.max_logit_rows()));
  order_.reserve(rows);
  slices_.reserve(rows);
  rows_.reserve(rows);
  results_.reserve(rows);
  tokens_.reserve(rows * kSteps);
  warm_up();
  if (model_.group_->is_capturable()) capture_graphs();
}

// A first launch may load code, which is nothing to be captured.
void CudaTokenRunner::warm_up() {
  const SamplingParams params{
      .rule = Rule::kInvariant, .temperature = 1, .top_k = 1, .top_p = 0.5f, .min_p = 0.5f};
  const DrawRow row{.first = {.sampling = &params}};
  const StreamView stream = *model_.stream_;
  draws_.send({&row, 1}, true, stream);
  draws_.queue_step(1, stream);
  draws_.queue_feed(1, model_.inputs_.tokens(), model_.inputs_.positions(), stream);
  model_.group_->wait(stream);
  draws_.send({}, false, stream);
  ranking_.queue({&row, 1}, 1, stream);
  model_.group_->wait(stream);
}

void CudaTokenRunner::capture_graphs() {
  const int64_t last = std::min(
      {CudaModel::kGraphRows, model_.options_.run_sequences, model_.max_rows(), model_.max_logit_rows()});
  for (int64_t rows = 1; rows <= last; ++rows)
    graphs_[rows] = std::make_unique<Graph>(*model_.stream_, [&] {
      draws_.queue_feed(rows, model_.inputs_.tokens(), model_.inputs_.positions(), *model_.stream_);
      model_.queue_forward(layers_, rows, rows);
      draws_.queue_step(rows, *model_.stream_);
    });
}

bool CudaTokenRunner::takes(std::span<const TokenRun> runs) {
  if (steps_that_fit(runs) == 0) return false;
  order(runs);
  plan(runs);
  return draws_.takes(rows_);
}

// All rows of q that a run keeps stay on the device until it ends.
int32_t CudaTokenRunner::steps_that_fit(std::span<const TokenRun> runs) const {
  const auto weighing = std::count_if(runs.begin(), runs.end(), &weighs);
  return static_cast<int32_t>(weighing == 0 ? kSteps : std::min(kSteps, limits_.q_rows / weighing));
}

void CudaTokenRunner::order(std::span<const TokenRun> runs) {
  const int32_t most = steps_that_fit(runs);
  order_.clear();
  for (size_t i = 0; i < runs.size(); ++i) order_.push_back({i, std::min(runs[i].count, most)});
  std::sort(order_.begin(), order_.end(), [](const Run& a, const Run& b) {
    return a.count != b.count ? a.count > b.count : a.index < b.index;
  });
}

// The first pass, over all inputs, and what is drawn from it.
void CudaTokenRunner::plan(std::span<const TokenRun> runs) {
  slices_.clear();
  rows_.clear();
  int64_t rows = 0;
  for (const TokenRun& run : runs) rows += static_cast<int64_t>(run.inputs.size());
  // A graph has logits of every row.
  const bool has_graph = model_.has_graph(layers_, rows);
  int64_t logits = 0;
  for (const Run& r : order_) {
    const TokenRun& run = runs[r.index];
    const int64_t wanted = r.count == 0 ? 0 : run.guesses ? 2 : 1;
    slices_.push_back({.sequence = run.sequence,
                       .tokens = run.inputs,
                       .logit_rows = has_graph ? static_cast<int64_t>(run.inputs.size()) : wanted});
    logits += slices_.back().logit_rows;
    if (r.count > 0) rows_.push_back({.first = run.first, .logits_row = logits - 1, .steps = r.count});
  }
  for (size_t row = 0; row < order_.size() && order_[row].count > 0; ++row) {
    if (!runs[order_[row].index].guesses) continue;
    DrawRow guess{.first = rows_[row].first, .logits_row = rows_[row].logits_row - 1};
    guess.first.drafted = {};
    guess.first.position = guess.first.position - 1;
    rows_.push_back(guess);
  }
}

int64_t CudaTokenRunner::rows_of_step(int32_t step) const {
  return std::find_if(order_.begin(), order_.end(), [&](const Run& r) { return r.count <= step; }) -
         order_.begin();
}

Status CudaTokenRunner::run(std::span<const TokenRun> runs, bool measures) {
  const StreamView stream = *model_.stream_;
  order(runs);
  plan(runs);
  begun_.record(stream);
  RETURN_IF_ERROR(model_.forward_through(layers_, slices_).status());
  RETURN_IF_ERROR(make_room(runs));
  draws_.send(rows_, measures, stream);
  if (!rows_.empty()) draws_.queue_step(static_cast<int64_t>(rows_.size()), stream);
  first_drawn_.record(stream);
  queue_steps(runs);
  const bool wants_q =
      std::any_of(runs.begin(), runs.end(), [](const TokenRun& r) { return weighs(r) && !r.q_stays; });
  if (!order_.empty() && order_.front().count > 0) draws_.queue_fetch(order_.front().count, wants_q, stream);
  model_.group_->wait(stream);
  collect(runs);
  return {};
}

// Every token that will be fed, before its step is queued.
Status CudaTokenRunner::make_room(std::span<const TokenRun> runs) {
  for (size_t i = 0; i < order_.size() && order_[i].count > 1; ++i) {
    Status status = model_.kv_.append(runs[order_[i].index].sequence, order_[i].count - 1);
    if (status.ok()) continue;
    give_back(runs, i);
    return status;
  }
  return {};
}

// `made`: how many have room for their steps.
void CudaTokenRunner::give_back(std::span<const TokenRun> runs, size_t made) {
  for (size_t i = 0; i < order_.size(); ++i) {
    const TokenRun& run = runs[order_[i].index];
    const int64_t tokens = static_cast<int64_t>(run.inputs.size()) + (i < made ? order_[i].count - 1 : 0);
    model_.kv_.truncate(run.sequence, model_.kv_.length(run.sequence) - tokens);
  }
}

void CudaTokenRunner::queue_steps(std::span<const TokenRun> runs) {
  const int64_t rows = rows_of_step(1);
  if (rows == 0) return;
  slices_.clear();
  for (int64_t i = 0; i < rows; ++i)
    slices_.push_back({.sequence = runs[order_[static_cast<size_t>(i)].index].sequence,
                       .tokens = {&kUnknown, 1},
                       .logit_rows = 1});
  model_.inputs_.send(slices_, model_.kv_, *model_.stream_);
  for (int32_t step = 1; step < order_.front().count; ++step) queue_step(rows_of_step(step));
}

void CudaTokenRunner::queue_step(int64_t rows) {
  const StreamView stream = *model_.stream_;
  const auto graph = graphs_.find(rows);
  if (graph != graphs_.end() && draws_.is_plain()) return graph->second->launch(stream);
  draws_.queue_feed(rows, model_.inputs_.tokens(), model_.inputs_.positions(), stream);
  model_.queue_pass(layers_, rows, rows);
  draws_.queue_step(rows, stream);
}

void CudaTokenRunner::collect(std::span<const TokenRun> runs) {
  tokens_.clear();
  results_.assign(runs.size(), {});
  const int64_t drawing = rows_of_step(0);
  int64_t guess = drawing;
  for (int64_t row = 0; row < drawing; ++row) {
    const Run& r = order_[static_cast<size_t>(row)];
    Result& result = results_[r.index];
    result.row = row;
    result.first = tokens_.size();
    for (int32_t step = 0; step < r.count && !result.failed; ++step) {
      const TokenId token = draws_.token(row, step);
      result.failed = token.value() < 0;
      if (!result.failed) tokens_.push_back(token);
    }
    result.tokens = tokens_.size() - result.first;
    if (runs[r.index].guesses) result.guess = draws_.token(guess++, 0);
  }
}

std::span<const TokenId> CudaTokenRunner::tokens(size_t run) const {
  return std::span(tokens_).subspan(results_[run].first, results_[run].tokens);
}

DraftConfidence CudaTokenRunner::confidence(size_t run, size_t token) const {
  return draws_.confidence(results_[run].row, static_cast<int64_t>(token));
}

void CudaTokenRunner::read_q(size_t run, size_t token, QRow& q) const {
  draws_.read_q(results_[run].row, static_cast<int64_t>(token), q);
}

int64_t CudaTokenRunner::first_ns() const {
  return static_cast<int64_t>(first_drawn_.seconds_since(begun_) * 1e9);
}

void CudaTokenRunner::put_looks(std::span<const TokenLook> looks) {
  rows_.clear();
  wanted_.clear();
  for (const TokenLook& look : looks) {
    rows_.push_back({.first = look.step, .logits_row = look.row});
    wanted_.push_back(look.count);
  }
}

bool CudaTokenRunner::takes(std::span<const TokenLook> looks) {
  put_looks(looks);
  return ranking_.takes(rows_);
}

Status CudaTokenRunner::look(std::span<const BatchSlice> batch, std::span<const TokenLook> looks) {
  const StreamView stream = *model_.stream_;
  put_looks(looks);
  RETURN_IF_ERROR(model_.forward_through(layers_, batch).status());
  if (!looks.empty()) ranking_.queue(rows_, *std::max_element(wanted_.begin(), wanted_.end()), stream);
  model_.group_->wait(stream);
  return {};
}

std::span<const RankedToken> CudaTokenRunner::best(size_t look) const {
  const auto all = ranking_.best(static_cast<int64_t>(look));
  return all.first(std::min(all.size(), static_cast<size_t>(wanted_[look])));
}

}  // namespace outrider::cuda
