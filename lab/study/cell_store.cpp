#include "lab/study/cell_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/json_text.h"
#include "base/version.h"
#include "lab/bench/machine.h"
#include "lab/study/cell_process.h"
#include "lab/study/timeline.h"
#include "requests/output.h"

namespace outrider {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string path_of(const std::string& directory, const Cell& cell, int repeat) {
  return fmt::format("{}/runs/{}.{}.json", directory, cell.id, repeat);
}

}  // namespace

Result<CellStore> CellStore::open(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path root = fs::absolute(directory, error);
  fs::create_directories(root / "runs", error);
  fs::create_directories(root / "running", error);
  const int lock = ::open((root / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (error || lock < 0)
    return unavailable(fmt::format("--output {}: cannot be written ({})", directory,
                                   error ? error.message() : std::strerror(errno)));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    close(lock);
    return unavailable(fmt::format("--output {}: another study works there", directory));
  }
  CellStore store(root.string(), lock);
  for (const auto& leftover : fs::directory_iterator(root / "running", error))
    fs::remove_all(leftover.path(), error);
  return store;
}

CellStore::CellStore(CellStore&& other) noexcept
    : directory_(std::move(other.directory_)), lock_(std::exchange(other.lock_, -1)) {}

CellStore::~CellStore() {
  if (lock_ >= 0) close(lock_);
}

std::string rounds_path(const std::string& directory, const Cell& cell, int repeat) {
  return fmt::format("{}/runs/{}.{}.rounds.csv", directory, cell.id, repeat);
}

std::optional<nlohmann::json> load_record(const std::string& directory, const Cell& cell, int repeat) {
  auto record = nlohmann::json::parse(content_of(path_of(directory, cell, repeat)), nullptr, false);
  if (!record.is_object() || !record.contains("status")) return std::nullopt;
  return record;
}

std::optional<nlohmann::json> CellStore::load(const Cell& cell, int repeat) const {
  return load_record(directory_, cell, repeat);
}

Result<nlohmann::json> CellStore::run(const Cell& cell, int repeat, const StudyFile& study,
                                      double read_bandwidth) const {
  const std::string report = directory_ + "/running/report.json", err = directory_ + "/running/stderr",
                    trace = directory_ + "/running/trace.json", round_file = directory_ + "/running/rounds.csv";
  for (const std::string& old : {report, trace, round_file}) std::filesystem::remove(old);
  std::vector<std::string> arguments{"outrider", "generate"};
  arguments.insert(arguments.end(), cell.arguments.begin(), cell.arguments.end());
  arguments.insert(arguments.end(), {"--quiet", "--compare-turns=1", "--report=" + report, "--trace=" + trace,
                                     "--rounds=" + round_file});
  const LoadWatch watch;
  const CellEnd end = run_cell_process(arguments, study.directory(), err, study.cell_timeout_s);
  nlohmann::json machine = cpu_load_json(watch.load());
  machine["read_bandwidth_bytes_per_s"] = read_bandwidth;

  nlohmann::json record{{"cell", cell.id},        {"repeat", repeat},
                        {"values", cell.values},  {"version", kVersion},
                        {"seconds", end.seconds}, {"arguments", cell.arguments},
                        {"study", study.name},    {"machine", std::move(machine)}};
  record["report"] = nlohmann::json::parse(content_of(report), nullptr, false);
  const bool ok = end.succeeded() && record["report"].is_object();
  if (!ok) record.erase("report");
  const auto rounds = nlohmann::json::parse(content_of(trace), nullptr, false);
  if (ok && rounds.is_object()) record["timeline"] = condensed_trace(rounds);
  std::error_code none;
  if (ok) std::filesystem::rename(round_file, rounds_path(directory_, cell, repeat), none);
  record["status"] = ok ? "ok" : "failed";
  if (!ok) {
    const std::string words = last_words(err);
    record["error"] = words.empty() ? end.describe() : end.describe() + ": " + words;
  }
  // Bytes that are no UTF-8 can only come from standard error.
  const std::string text = json_text(record);
  RETURN_IF_ERROR(write_file(path_of(directory_, cell, repeat), text + "\n"));
  return record;
}

}  // namespace outrider
