// Where the files of models lie that tests read, the optional large ones too.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/source_dir.h"

namespace outrider {

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
