// A directory of model files for one test, and where the optional large test data lie.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/support/source_dir.h"

namespace outrider {

// Removed with everything in it at the end of the test.
class ModelDirectory {
 public:
  ModelDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "outrider-model-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~ModelDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ModelDirectory(const ModelDirectory&) = delete;
  ModelDirectory& operator=(const ModelDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// Real configs, weights and tokenizers, too large for the repository.
inline std::filesystem::path test_data() {
  const char* variable = std::getenv("OUTRIDER_TEST_DATA");
  return variable != nullptr ? std::filesystem::path(variable)
                             : outrider::source_dir() / ".." / "shared" / "data";
}

inline std::filesystem::path golden_models() {
  return outrider::source_dir() / "tests" / "goldens" / "models";
}

}  // namespace outrider

// A test that cannot run says which file it wanted.
#define SKIP_WITHOUT(path)            \
  if (!std::filesystem::exists(path)) \
  GTEST_SKIP() << "NOT CHECKED: " << (path) << " is absent; set OUTRIDER_TEST_DATA"
