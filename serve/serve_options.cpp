// The flags of `outrider serve`, and the file with its key.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/program/temporary_file.h"
#include "serve/serve.h"
#include "start/flags/options.h"
#include "start/tree_option.h"

namespace outrider {
namespace {

constexpr int kMaxDrainTimeout = 24 * 3600;
constexpr size_t kMaxKeyBytes = 4096;

void add_server_options(CLI::App& app, ServeOptions& o) {
  app.add_option("--host", o.host,
                 "Address to listen on. Others than loopback let other machines ask: give --api-key-file "
                 "then, and put a proxy with TLS in front")
      ->group("Server")
      ->capture_default_str();
  app.add_option("--port", o.port, "0: any that is free; the address is told on standard error")
      ->check(CLI::Range(0, 65535))
      ->group("Server")
      ->capture_default_str();
  app.add_option("--served-model-name", o.served_model_names,
                 "What clients call the model; may be repeated, the first is what answers say. Default: "
                 "--model as it was written")
      ->group("Server");
  app.add_option("--api-key-file", o.api_key_file,
                 "A file with one line, the key that clients must send as `Authorization: Bearer KEY`; only "
                 "you may be able to read it. /health needs none")
      ->group("Server");
  app.add_option("--max-queued-requests", o.max_queued_requests,
                 "Requests that may wait for one of the --max-num-seqs places; more are refused with 429")
      ->check(CLI::Range(0, 1 << 20))
      ->group("Server")
      ->capture_default_str();
  app.add_option("--max-queued-tokens", o.max_queued_tokens,
                 "Tokens that the prompts of waiting requests may have together")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->group("Server")
      ->capture_default_str();
  app.add_option("--drain-timeout", o.drain_timeout_s,
                 "Seconds that requests have to finish after SIGTERM or SIGINT; a second signal ends at once")
      ->check(CLI::Range(0, kMaxDrainTimeout))
      ->group("Server")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--metrics-compat", [&o](const std::string&) { o.metrics_compat_vllm = true; },
         "vllm: /metrics has the common numbers also under vLLM's names, for tools that know only those")
      ->check(CLI::IsMember({"vllm"}))
      ->group("Server");
}

}  // namespace

bool is_loopback(const std::string& host) {
  in_addr address{};
  if (inet_pton(AF_INET, host.c_str(), &address) == 1) return ntohl(address.s_addr) >> 24 == 127;
  return host == "localhost" || host == "::1";
}

void add_serve_options(CLI::App& app, ServeOptions& o) {
  add_model_options(app, o.cluster);
  add_pool_options(app, o.cluster.pool);
  add_server_options(app, o);
  o.defaults.temperature = 1;  // what clients of such an API expect
  add_sampling_options(app, o.defaults, o.generation_config);
  add_speculation_options(app, o.cluster.speculation, o.defaults.rule);
  add_report_options(app, o.files, o.cluster.quiet);
}

Status check_serve_options(const ServeOptions& o) {
  const auto& names = o.served_model_names;
  if (std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.empty(); }))
    return invalid_argument("--served-model-name must not be empty");
  RETURN_IF_ERROR(check_rule_of_trees(o.cluster.speculation.speculative_tree, o.defaults.rule));
  // They are written at the end, perhaps in weeks.
  if (!o.files.report.empty()) RETURN_IF_ERROR(TemporaryFile::check(o.files.report).in("--report"));
  if (!o.files.trace.empty()) RETURN_IF_ERROR(TemporaryFile::check(o.files.trace).in("--trace"));
  return {};
}

Result<std::string> read_api_key(const std::string& file) {
  if (file.empty()) return std::string();
  const auto wrong = [&file](const std::string& what) {
    return invalid_argument(fmt::format("--api-key-file {}: {}", file, what));
  };
  struct stat info {};
  std::ifstream in(file);
  if (!in || stat(file.c_str(), &info) != 0) return wrong(std::strerror(errno));
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return wrong("others may read this key; run chmod 600 " + file);
  std::string key, more;
  std::getline(in, key);
  if (key.ends_with('\r')) key.pop_back();
  const bool can_be_sent =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < '\x7f'; });  // a header's value
  if (key.empty() || key.size() > kMaxKeyBytes || !can_be_sent || std::getline(in, more))
    return wrong("it must hold one line of visible ASCII characters, as `openssl rand -hex 32` makes");
  return key;
}

std::string explain_exposure(const ServeOptions& o) {
  if (is_loopback(o.host) || !o.api_key_file.empty()) return {};
  return fmt::format(
      "outrider: WARNING: --host {} lets everybody who reaches this machine ask, read the metrics and fill "
      "the queue: there is no --api-key-file\n",
      o.host);
}

}  // namespace outrider
