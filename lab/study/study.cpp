#include "lab/study/study.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/json_text.h"
#include "base/printable.h"
#include "base/program/exit_codes.h"
#include "base/shell_text.h"
#include "comm/cores.h"
#include "lab/bench/machine.h"
#include "lab/report/html.h"
#include "lab/report/terminal.h"
#include "lab/study/cell_store.h"
#include "lab/study/expected_time.h"
#include "lab/study/precision.h"
#include "lab/study/study_report.h"
#include "requests/output.h"
#include "start/flags/number_range.h"
#include "start/own_program.h"

namespace outrider {
namespace {

struct Run {
  const Cell* cell;
  int repeat;
};

// Every other repeat runs backwards, so that slow drift of the machine does not favour the cells in front.
std::vector<Run> one_repeat(const std::vector<Cell>& cells, int repeat) {
  std::vector<Run> runs;
  for (size_t i = 0; i < cells.size(); ++i)
    runs.push_back({&cells[repeat % 2 == 0 ? i : cells.size() - 1 - i], repeat});
  return runs;
}

// Repeat by repeat, so that slow drift of the machine meets every cell.
std::vector<Run> schedule(const StudyFile& study) {
  std::vector<Run> runs;
  for (int repeat = 0; repeat < study.repeats; ++repeat)
    for (const Run& run : one_repeat(study.cells, repeat)) runs.push_back(run);
  return runs;
}

// Those of the file, and those that --until has added.
int stored_repeats(const StudyFile& study, const CellStore& store) {
  int repeats = study.repeats;
  while (std::any_of(study.cells.begin(), study.cells.end(),
                     [&](const Cell& cell) { return store.load(cell, repeats).has_value(); }))
    ++repeats;
  return repeats;
}

// A command for each cell, as it can be pasted into a shell in the present directory.
std::string list_cells(const StudyFile& study) {
  std::error_code none;
  const std::string own = own_program();
  const auto program = std::filesystem::read_symlink(own, none);
  const std::string command = shell_word(none ? own : program.string());
  const bool is_here = study.directory() == ".";
  const std::string begin =
      is_here ? command : fmt::format("(cd {} && {}", shell_word(study.directory()), command);
  std::string out;
  for (const Cell& cell : study.cells) {
    out += fmt::format("{}  {}\n    {} generate", cell.id, cell.label(), begin);
    for (const std::string& argument : cell.arguments) out.append(" ").append(shell_word(argument));
    out += is_here ? "\n" : ")\n";
  }
  const std::string place = study.directory() == "." ? "this directory" : study.directory();
  return out + fmt::format("{} cells x {} repeats = {} runs, which start in {}\n", study.cells.size(),
                           study.repeats, study.cells.size() * static_cast<size_t>(study.repeats), place);
}

std::string outcome_of(const nlohmann::json& record) {
  const RunFigures run = figures_of(record);
  if (!run.ok) return "FAILED: " + run.error;
  return run.speedup > 0 ? fmt::format("{:.1f} tokens/s, speed-up {:.2f}", run.tokens_per_second, run.speedup)
                         : fmt::format("{:.1f} tokens/s", run.tokens_per_second);
}

// How fast memory is read, probed again when the last probe is some runs old: it takes a third of a second.
class Bandwidth {
 public:
  double recent() {
    constexpr std::chrono::seconds kOld{10};
    const auto now = std::chrono::steady_clock::now();
    if (value_ > 0 && now - probed_ < kOld) return value_;
    ReadProbe probe(usable_cores());
    probed_ = now;
    return value_ = probe.measure();
  }

 private:
  double value_ = 0;
  std::chrono::steady_clock::time_point probed_;
};

// Runs those of `all` that are not there yet.
Status run_missing(const std::vector<Run>& all, const StudyFile& study, const CellStore& store,
                   const StudyOptions& options) {
  std::vector<Run> missing;
  for (const Run& run : all) {
    const auto record = store.load(*run.cell, run.repeat);
    if (!record || (options.retry_failed && (*record)["status"] != "ok")) missing.push_back(run);
  }
  if (!options.quiet && missing.size() < all.size())
    fmt::print(stderr, "{} of {} runs are there already\n", all.size() - missing.size(), all.size());
  double seconds = 0;
  Bandwidth bandwidth;
  for (size_t i = 0; i < missing.size(); ++i) {
    const double read = bandwidth.recent();
    ASSIGN_OR_RETURN(const auto record, store.run(*missing[i].cell, missing[i].repeat, study, read));
    seconds += record["seconds"].get<double>();
    const double left = seconds / static_cast<double>(i + 1) * static_cast<double>(missing.size() - i - 1);
    if (!options.quiet)
      fmt::print(stderr, "[{}/{}] {}, repeat {}: {}; {} left\n", i + 1, missing.size(),
                 missing[i].cell->label(), missing[i].repeat + 1, outcome_of(record), clock_of(left));
  }
  return {};
}

// Repeats the cells of --until, and adds its sentence to the conclusions. `study.repeats` grows.
Status run_until(double precision, StudyFile& study, const CellStore& store, const StudyOptions& options,
                 StudySummary& summary) {
  while (study.repeats < options.max_repeats) {
    const std::vector<Cell> cells = imprecise_cells(summary, precision);
    if (cells.empty()) break;
    const int repeat = study.repeats++;
    RETURN_IF_ERROR(run_missing(one_repeat(cells, repeat), study, store, options));
    summary = summarise(study, store);
  }
  summary.conclusions.push_back(precision_line(summary, precision));
  return {};
}

Status write_reports(const StudySummary& summary, const CellStore& store) {
  const std::string& dir = store.directory();
  const report::Report report = study_report(summary);
  RETURN_IF_ERROR(write_file(dir + "/runs.csv", study_csv(summary)));
  RETURN_IF_ERROR(write_file(dir + "/rounds.csv", study_rounds(summary.study, dir)));
  RETURN_IF_ERROR(write_file(dir + "/study.json", json_text(study_json(summary), 1) + "\n"));
  RETURN_IF_ERROR(write_file(dir + "/report.html", report::html_page(report)));
  const auto screen = report::Screen::of(stdout);
  for (const report::Conclusion& conclusion : report.conclusions)
    fmt::print("{}", report::wrapped(conclusion.text, screen));
  fmt::print("\n{}\n", report::on_screen(overview_table(summary), screen));
  fmt::print("{0}/report.html\n{0}/runs.csv\n{0}/rounds.csv\n{0}/study.json\n", dir);
  return {};
}

int refuse(const Status& status, int code) {
  tell_error(status.message());
  return code;
}

}  // namespace

void add_study_options(CLI::App& app, StudyOptions& o) {
  app.footer(
      "Examples:\n"
      "  outrider study lab/study/policies_demo_pair.toml --dry-run   # what it would run\n"
      "  outrider study lab/study/policies_demo_pair.toml             # the same command goes on after an "
      "interruption\n"
      "  outrider study compare before.study after.study              # what got faster, with intervals\n"
      "  outrider study plot NAME.study/rounds.csv                    # acceptance by position, tokens a "
      "round: "
      "SVG\n"
      "Results: report.html, runs.csv, rounds.csv and study.json in the --output directory.");
  app.add_option("file", o.file, "Study file (TOML); lab/study/policies_demo_pair.toml is one");
  app.add_option("-o,--output", o.output,
                 "Directory of results; an unfinished study there goes on. Default: NAME.study");
  app.add_flag(
      "--dry-run", o.dry_run,
      "List the cells and tell how long they take, by the runs that are there, else by one run of two "
      "of them; write nothing");
  app.add_option(
      "--until", o.until,
      "Repeat cells, more often than the file's repeats, until the 95 % intervals of their ratios are "
      "within this of the value, e.g. 2%; or say that they are not");
  app.add_option("--max-repeats", o.max_repeats, "At most so many repeats of a cell with --until")
      ->check(number_in(2, 1000))
      ->capture_default_str();
  app.add_flag("--report-only", o.report_only, "Write the reports of what is there; run nothing");
  app.add_flag("--retry-failed", o.retry_failed, "Run failed cells again");
  app.add_flag("-q,--quiet", o.quiet, "No progress on standard error");
  o.compare_app = app.add_subcommand("compare", "Two sets of results, cell by cell, with intervals");
  add_compare_options(*o.compare_app, o.compare);
  o.plot_app = app.add_subcommand("plot", "Figures of a file of rounds, as SVG");
  add_study_plot_options(*o.plot_app, o.plot);
  app.require_subcommand(0, 1);
}

int run_study(const StudyOptions& options) {
  if (*options.compare_app) {
    const Status compared = run_compare(options.compare);
    return compared.ok() ? kExitOk : refuse(compared, kExitUsage);
  }
  if (*options.plot_app) {
    const Status plotted = run_study_plot(options.plot);
    return plotted.ok() ? kExitOk : refuse(plotted, kExitUsage);
  }
  if (options.file.empty())
    return refuse(invalid_argument("study: name a study file, or write `outrider study compare A B`"),
                  kExitUsage);
  auto study = read_study_file(options.file);
  if (!study.ok()) return refuse(study.status(), kExitUsage);
  std::optional<double> precision;
  if (!options.until.empty()) {
    const auto parsed = parse_precision(options.until);
    const Status checked = parsed.ok() ? check_precision(study.value()) : parsed.status();
    if (!checked.ok()) return refuse(checked, kExitUsage);
    precision = parsed.value();
  }
  const std::string output = options.output.empty() ? study.value().name + ".study" : options.output;
  if (options.dry_run) {
    const Result<std::string> time = expected_time(study.value(), output);
    fmt::print("{}", list_cells(study.value()));
    if (!time.ok()) return refuse(time.status(), kExitRequestFailed);
    fmt::print("{}\n", time.value());
    return kExitOk;
  }
  const auto store = CellStore::open(output);
  if (!store.ok()) return refuse(store.status(), kExitUsage);
  if (!options.report_only)
    if (const Status ran = run_missing(schedule(study.value()), study.value(), store.value(), options);
        !ran.ok())
      return refuse(ran, kExitRuntime);
  study.value().repeats = stored_repeats(study.value(), store.value());
  StudySummary summary = summarise(study.value(), store.value());
  if (precision && !options.report_only)
    if (const Status ran = run_until(*precision, study.value(), store.value(), options, summary); !ran.ok())
      return refuse(ran, kExitRuntime);
  if (const Status written = write_reports(summary, store.value()); !written.ok())
    return refuse(written, kExitRuntime);
  const int failed = summary.failed();
  if (failed > 0) fmt::print(stderr, "outrider: {} runs failed; the report has the reasons\n", failed);
  return failed > 0 ? kExitRequestFailed : kExitOk;
}

}  // namespace outrider
