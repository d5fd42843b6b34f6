#include "lab/simulate/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "base/parse_number.h"
#include "coordinator/rounds/pool_limits.h"
#include "lab/simulate/head_presets.h"
#include "lab/simulate/parallel.h"

namespace outrider {
namespace {

constexpr size_t kLayoutsRefined = 4, kLayoutsOfSmallerBatches = 6, kRowsOfSeveralSeeds = 8;
constexpr double kTie = 0.01;  // figures so near decide nothing

// Where rows are alike up to pipeline, policy and batch.
bool same_layout(const PlanRow& a, const PlanRow& b) {
  return a.run.hardware == b.run.hardware && a.run.draft_hardware == b.run.draft_hardware &&
         a.run.place == b.run.place && a.run.groups == b.run.groups && a.run.drafters == b.run.drafters;
}

SimulatedRun base_run(const PlanOptions& o) {
  SimulatedRun run{.costs = o.costs, .head_share = o.head_share, .delay_ms = o.delay_ms, .gbit = o.gbit};
  run.acceptance = o.acceptance;
  run.arrivals = o.arrivals;
  run.requests = o.requests;
  run.prompt_tokens = o.prompt_tokens;
  run.output_tokens = o.output_tokens;
  run.prefix_tokens = o.prefix_tokens;
  run.prefix_groups = o.prefix_groups;
  run.max_num_seqs = o.max_num_seqs;
  run.seed = o.seed;
  return run;
}

// As many texts at once as the memory holds. An error says why there is room for none.
Status fit_texts(const PlanOptions& options, PlanRow& row) {
  const int text = options.prompt_tokens + options.output_tokens;
  Result<DescribedJob> job = describe_job(row.run, text);
  while (!job.ok() && row.run.max_num_seqs > 1) {
    --row.run.max_num_seqs;
    job = describe_job(row.run, text);
  }
  RETURN_IF_ERROR(job.status());
  if (job->memory.usable > 0) row.memory = job->memory.text();
  return {};
}

// The numbers of draft workers to try: with devices of their own, powers of two up to the limit; else one for
// each group, or for each socket.
std::vector<int> drafters_of(const PlanOptions& o, int tp, DraftPlace place) {
  const int groups = o.devices / tp;
  std::vector<int> counts;
  switch (place) {
    case DraftPlace::kOwn:
    case DraftPlace::kHeadWorkers:
      for (int drafters = 1; drafters + tp <= o.devices && drafters <= kMostDraftWorkers; drafters *= 2)
        counts.push_back(drafters);
      return counts;
    case DraftPlace::kCpu:
      if (o.cpus > 0 && groups > 0) counts = {std::min(o.cpus, kMostDraftWorkers)};
      if (o.cpus > 0 && groups > o.cpus && groups <= kMostDraftWorkers) counts.push_back(groups);
      return counts;
    case DraftPlace::kColocated:
      return {groups};
    default:
      return {1};
  }
}

// One coordinator with `drafters` draft workers and as many target groups as the devices allow. Empty if none
// fits.
std::optional<PlanRow> layout_of(const PlanOptions& o, int tp, DraftPlace place, int drafters) {
  const bool has_devices = place == DraftPlace::kOwn || place == DraftPlace::kHeadWorkers;
  const bool is_head = place == DraftPlace::kHeads || place == DraftPlace::kHeadWorkers;
  const int to_draft = has_devices ? drafters : 0;
  PlanRow row{.run = base_run(o), .tp = tp};
  row.run.place = place;
  row.run.groups = (o.devices - to_draft) / tp;
  if (row.run.groups == 0 || drafters > o.max_num_seqs * row.run.groups) return std::nullopt;
  row.devices = row.run.groups * tp + to_draft;
  if (o.costs.empty()) row.run.hardware = fmt::format("{}:{}:tp{}", o.gpu, o.model, tp);
  if (place == DraftPlace::kNone) {
    row.run.gamma_policy = "fixed:gamma=0";
    return row;
  }
  row.run.drafters = drafters;
  if (is_head) row.run.draft_head = o.draft_head;
  if (is_head && !o.draft_head.empty()) row.run.acceptance = head_preset(o.draft_head)->acceptance;
  if (is_head && !o.head_acceptance.empty()) row.run.acceptance = o.head_acceptance;
  if (is_head || !o.costs.empty()) return row;
  row.run.draft_hardware = fmt::format("{}:{}", o.gpu, o.draft_model);
  if (place != DraftPlace::kCpu) return row;
  // Drafters share the sockets evenly.
  const int parts = (drafters + o.cpus - 1) / o.cpus;
  if (parts > 64) return std::nullopt;
  row.run.draft_hardware = fmt::format("{}:{}:1/{}", o.cpu, o.draft_model, parts);
  return row;
}

Result<std::vector<DraftPlace>> places_of(const PlanOptions& options) {
  std::vector<DraftPlace> places;
  for (const std::string& name : options.places.empty() ? draft_place_names() : options.places) {
    ASSIGN_OR_RETURN(const DraftPlace place, parse_draft_place(name));
    // Measured costs have none for CPUs. The rows that a head reads are known for presets only.
    if (place == DraftPlace::kCpu && !options.costs.empty()) continue;
    if (place == DraftPlace::kHeadWorkers && options.draft_head.empty() && options.places.empty()) continue;
    places.push_back(place);
  }
  if (places.empty()) return invalid_argument("--draft-placements cpu has no costs in the file of --costs");
  return places;
}

// Reports misspelt names before any simulation runs.
Status check_names(const PlanOptions& options, const std::vector<DraftPlace>& places) {
  if (options.objective != "throughput" && options.objective != "latency")
    return invalid_argument(fmt::format("--objective '{}': choose throughput or latency", options.objective));
  if (!options.draft_head.empty()) RETURN_IF_ERROR(head_preset(options.draft_head).status());
  if (!options.draft_head.empty() && !options.costs.empty())
    return invalid_argument(fmt::format(
        "--draft-head {} and --costs: a head's size follows from --model; drop one", options.draft_head));
  if (!options.costs.empty()) return {};
  for (const DraftPlace place : places)
    if (place == DraftPlace::kOwn || place == DraftPlace::kColocated || place == DraftPlace::kCpu)
      RETURN_IF_ERROR(
          hardware_cost(fmt::format("{}:{}", place == DraftPlace::kCpu ? options.cpu : options.gpu,
                                    options.draft_model))
              .status());
  return {};
}

Result<std::vector<PlanRow>> layouts(const PlanOptions& options, std::vector<std::string>& impossible) {
  ASSIGN_OR_RETURN(const auto places, places_of(options));
  RETURN_IF_ERROR(check_names(options, places));
  std::vector<PlanRow> rows;
  const std::vector<int> sizes =
      options.costs.empty() ? std::vector<int>{1, 2, 4, 8} : std::vector<int>{options.target_devices};
  Status last;
  for (const int tp : sizes)
    for (const DraftPlace place : places)
      for (const int drafters : drafters_of(options, tp, place)) {
        std::optional<PlanRow> row = layout_of(options, tp, place, drafters);
        if (!row) continue;
        const Status fits = fit_texts(options, *row);
        if (fits.ok()) {
          rows.push_back(std::move(*row));
          continue;
        }
        last = fits;
        if (std::find(impossible.begin(), impossible.end(), last.message()) == impossible.end())
          impossible.push_back(last.message());
      }
  if (!rows.empty()) return rows;
  return last.ok()
             ? invalid_argument(fmt::format("{} devices are fewer than one target group needs; ask for {}",
                                            options.devices, sizes.front()))
             : last;
}

double logarithmic_step(double value) { return std::floor(std::log(std::max(value, 1e-9)) / kTie + 0.5); }

// The objective in steps of the tie, then the other figure so, then no draft, then fewer devices.
class Better {
 public:
  Better(const PlanOptions& options, const ServiceLevel& level)
      : latency_(options.objective == "latency"), level_(level) {}
  bool operator()(const PlanRow& a, const PlanRow& b) const {
    const auto key = [&](const PlanRow& row) {
      const double strain = level_.any() ? std::max(1.0, level_.strain(row.figures)) : 1.0;
      const double rate = row.figures.tokens_per_second, pace = row.figures.ms_per_token;
      const double first = latency_ ? logarithmic_step(pace) : -logarithmic_step(rate);
      const double second = latency_ ? -logarithmic_step(rate) : logarithmic_step(pace);
      const bool is_plain = row.run.place == DraftPlace::kNone;
      return std::tuple(strain, first, second, is_plain ? 0 : 1, row.devices, latency_ ? pace : -rate);
    };
    return key(a) < key(b);
  }

 private:
  bool latency_;
  ServiceLevel level_;
};

class Planner {
 public:
  Planner(const PlanOptions& options, const ServiceLevel& level)
      : options_(options), better_(options, level), level_(level) {}

  Result<Plan> plan() {
    ASSIGN_OR_RETURN(const auto first, layouts(options_, plan_.impossible));
    RETURN_IF_ERROR(play_all(first, "layouts"));
    RETURN_IF_ERROR(play_all(refined(), "pipelines and policies"));
    RETURN_IF_ERROR(play_all(smaller_batches(), "smaller batches"));
    std::stable_sort(plan_.rows.begin(), plan_.rows.end(), better_);
    mark_front();
    RETURN_IF_ERROR(play_more_seeds());
    for (PlanRow& row : plan_.rows) {
      row.keeps_level = !level_.any() || level_.strain(row.figures) <= 1;
      row.reason = explain(row, plan_.rows.front());
    }
    return std::move(plan_);
  }

 private:
  Status play_all(std::vector<PlanRow> rows, const char* what) {
    std::vector<std::vector<CostSource>> sources(rows.size());
    RETURN_IF_ERROR(for_each_in_parallel(
        rows.size(), options_.threads, options_.progress ? what : "", [&](size_t i) -> Status {
          ASSIGN_OR_RETURN(const PlayedRun played, outrider::play(rows[i].run));
          rows[i].figures = played.figures;
          sources[i] = played.job.sources;
          return {};
        }));
    for (const auto& of_row : sources)
      for (const CostSource& source : of_row) add_source(source);
    plan_.rows.insert(plan_.rows.end(), rows.begin(), rows.end());
    return {};
  }

  void add_source(CostSource source) {
    if (source.kind == CostSource::Kind::kFlag && source.figure == "draft links" && !options_.links_given) {
      source.kind = CostSource::Kind::kAssumption;
      source.from = "default of --delay-ms and --gbit";
    }
    const auto same = [&](const CostSource& s) {
      return s.figure == source.figure && s.value == source.value;
    };
    if (std::none_of(plan_.sources.begin(), plan_.sources.end(), same)) plan_.sources.push_back(source);
  }

  // The best row of each layout, best first.
  std::vector<PlanRow> best_of_layouts(size_t at_most, bool that_draft) const {
    std::vector<PlanRow> rows = plan_.rows, best;
    std::stable_sort(rows.begin(), rows.end(), better_);
    for (const PlanRow& row : rows) {
      if (best.size() == at_most) break;
      if (that_draft && row.run.place == DraftPlace::kNone) continue;
      if (std::none_of(best.begin(), best.end(), [&](const PlanRow& b) { return same_layout(b, row); }))
        best.push_back(row);
    }
    return best;
  }

  bool is_played(const SimulatedRun& run) const {
    return std::any_of(plan_.rows.begin(), plan_.rows.end(),
                       [&](const PlanRow& row) { return row.run == run; });
  }

  // Heads draft after each commit; a draft that shares the target's devices holds it up while it prepares.
  static std::vector<std::string> pipelines_of(DraftPlace place) {
    if (place == DraftPlace::kHeads || place == DraftPlace::kHeadWorkers) return {"lockstep"};
    if (place == DraftPlace::kColocated) return {"lockstep", "fanout"};
    return {"lockstep", "ahead", "fanout", "auto"};
  }

  std::vector<PlanRow> refined() const {
    std::vector<PlanRow> more;
    for (PlanRow row : best_of_layouts(kLayoutsRefined, true))
      for (const std::string& pipeline : pipelines_of(row.run.place))
        for (const char* policy : {"ewma", "goodput", "fixed:gamma=2", "fixed:gamma=4", "fixed:gamma=7"}) {
          row.run.pipeline = pipeline;
          row.run.gamma_policy = policy;
          if (!is_played(row.run)) more.push_back(row);
        }
    return more;
  }

  std::vector<PlanRow> smaller_batches() const {
    std::vector<PlanRow> more;
    for (PlanRow row : best_of_layouts(kLayoutsOfSmallerBatches, false))
      for (const int texts : {1, 2, 4, 8, 16}) {
        if (texts >= row.run.max_num_seqs) break;
        PlanRow smaller = row;
        smaller.run.max_num_seqs = texts;
        if (!fit_texts(options_, smaller).ok() || is_played(smaller.run)) continue;
        more.push_back(std::move(smaller));
      }
    return more;
  }

  void mark_front() {
    for (PlanRow& row : plan_.rows)
      row.on_front = std::none_of(plan_.rows.begin(), plan_.rows.end(), [&](const PlanRow& other) {
        const double rate = other.figures.tokens_per_second, pace = other.figures.ms_per_token;
        return rate >= row.figures.tokens_per_second && pace <= row.figures.ms_per_token &&
               (rate > row.figures.tokens_per_second || pace < row.figures.ms_per_token);
      });
  }

  // The best and the front with more seeds: how much of a figure is the seed.
  Status play_more_seeds() {
    std::vector<PlanRow*> rows{&plan_.rows.front()};
    for (PlanRow& row : plan_.rows)
      if (row.on_front && rows.size() < kRowsOfSeveralSeeds && &row != rows.front()) rows.push_back(&row);
    constexpr size_t kMore = kPlanSeeds - 1;
    std::vector<double> rates(rows.size() * kMore);
    RETURN_IF_ERROR(for_each_in_parallel(rates.size(), options_.threads,
                                         options_.progress ? "further seeds" : "", [&](size_t i) -> Status {
                                           SimulatedRun run = rows[i / kMore]->run;
                                           run.seed += 1 + i % kMore;
                                           ASSIGN_OR_RETURN(const PlayedRun played, outrider::play(run));
                                           rates[i] = played.figures.tokens_per_second;
                                           return {};
                                         }));
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r]->low = rows[r]->high = rows[r]->figures.tokens_per_second;
      for (size_t i = r * kMore; i < (r + 1) * kMore; ++i) {
        rows[r]->low = std::min(rows[r]->low, rates[i]);
        rows[r]->high = std::max(rows[r]->high, rates[i]);
      }
    }
    return {};
  }

  const PlanOptions& options_;
  Better better_;
  ServiceLevel level_;
  Plan plan_;
};

// "20", "20ms" or "0.02s".
std::optional<double> milliseconds_of(std::string_view text) {
  double unit = 1;
  if (text.ends_with("ms")) {
    text.remove_suffix(2);
  } else if (text.ends_with("s")) {
    text.remove_suffix(1);
    unit = 1e3;
  }
  const auto value = parse_number<double>(text);
  if (!value || !(*value > 0) || *value > 1e9) return std::nullopt;
  return *value * unit;
}

}  // namespace

double ServiceLevel::strain(const SimulatedFigures& f) const {
  double strain = 0;
  for (const auto& [limit, figure] : {std::pair(ttft, f.ttft_p95_ms), std::pair(itl, f.itl_p95_ms),
                                      std::pair(pause, f.pause_p95_ms), std::pair(token, f.ms_per_token)})
    if (limit > 0) strain = std::max(strain, figure / limit);
  return strain;
}

Result<ServiceLevel> parse_service_level(std::string_view text) {
  ServiceLevel level;
  const std::map<std::string_view, double ServiceLevel::*> limits{{"ttft", &ServiceLevel::ttft},
                                                                  {"itl", &ServiceLevel::itl},
                                                                  {"pause", &ServiceLevel::pause},
                                                                  {"token", &ServiceLevel::token}};
  std::string_view left = text;
  while (!left.empty()) {
    const std::string_view part = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), part.size() + 1));
    const size_t equals = part.find('=');
    const auto limit = limits.find(part.substr(0, equals));
    const auto value =
        equals == part.npos ? std::optional<double>() : milliseconds_of(part.substr(equals + 1));
    if (limit == limits.end() || !value)
      return invalid_argument(fmt::format(
          "--slo '{}': '{}' is not understood; write ttft=500ms,itl=20ms, pause=.. or token=..", text, part));
    level.*limit->second = *value;
  }
  return level;
}

Result<Plan> make_plan(const PlanOptions& options) {
  ASSIGN_OR_RETURN(const ServiceLevel level, parse_service_level(options.service_level));
  return Planner(options, level).plan();
}

}  // namespace outrider
