// The tiny committed models (tests/goldens/models), and loading them as one rank or as a group of threads.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/collectives.h"
#include "transformer/model.h"

namespace outrider::testing {

inline const std::vector<std::string> kGoldenModels{"llama2",  "llama3.1", "llama3.2",           "llama-bias", "mistral",
                                                    "qwen2",   "qwen3",    "llama-bias-sharded", "qwen3-bf16", "qwen3-fp16"};

inline std::filesystem::path golden_model(const std::string& name) {
  return std::filesystem::path(OUTRIDER_SOURCE_DIR) / "tests/goldens/models" / name;
}

inline std::unique_ptr<Model> load_or_die(const std::filesystem::path& directory, const ModelOptions& options,
                                          Collectives& collectives) {
  auto model = Model::load(directory, options, collectives);
  if (!model.ok()) throw std::runtime_error(model.status().message());
  return std::move(model).value();
}

// Runs `body(rank's collectives)` on tp_size threads; an exception of any rank fails the test.
inline void run_group(int tp_size, const std::function<void(Collectives&)>& body) {
  auto group = make_thread_collectives(tp_size);
  std::vector<std::thread> threads;
  std::vector<std::string> errors(static_cast<size_t>(tp_size));
  for (int r = 0; r < tp_size; ++r)
    threads.emplace_back([&, r] {
      try {
        body(*group[static_cast<size_t>(r)]);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(r)] = error.what();
        group[static_cast<size_t>(r)]->abort();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace outrider::testing
