// A job that draft workers may join, and draft workers, as processes of their own. Tests use them to inject
// faults.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "tests/support/background_process.h"

namespace outrider::testing {

using Arguments = std::vector<std::string>;

constexpr int kRequests = 16;
constexpr int kTokens = 240;
constexpr int kLongJobTokens = 160;

class Pool : public ::testing::Test {
 protected:
  // Each request's text goes on to `max_tokens`, and is long enough that faults happen in the middle.
  Arguments job(const Arguments& more, int max_tokens = kTokens) const;
  // A job where workers may join; waits until it can be joined.
  BackgroundProcess& start_job(const Arguments& more, int max_tokens = kTokens);
  // Starts a job whose steps take at least 10 ms, so that some 300 steps outlast the test's actions on any
  // machine. This does not slow down workers' links.
  BackgroundProcess& start_long_job(const Arguments& more, int max_tokens = kLongJobTokens);
  Arguments worker_arguments(const Arguments& more) const;
  BackgroundProcess worker(const std::string& name, const Arguments& more = {"--draft-model", demo_draft()});

  nlohmann::json metrics() const { return nlohmann::json::parse(read_file(dir_ / "report.json"))["metrics"]; }
  // The job ended well, and wrote what plain decoding writes.
  void expect_plain_text(const std::string& plain);
  static const std::string& plain(int max_tokens = kTokens);
  // That a job with draft workers was about as fast as one without any, whose steps take as long. A third
  // leaves room for a machine whose load changes; who is waited for at every deadline costs ten times more.
  void expect_speed_of_plain() const;

  TemporaryDirectory dir_;
  std::string prompts_ = dir_.write("prompts.jsonl", prompts(kRequests));
  std::string endpoint_;
  std::optional<BackgroundProcess> job_;

  // Prompts of different lengths.
  static std::string prompts(int count);
};

void print_drafters(const nlohmann::json& metrics);

}  // namespace outrider::testing
