// Reports may be published, so they contain no keys.
#include "requests/provenance.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

TEST(Provenance, HidesApiKeys) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(without_secrets({"outrider", "serve", "--api-key", "k", "--api-key=k", "--api-key-file", "f"}),
            (Words{"outrider", "serve", "--api-key", "***", "--api-key=***", "--api-key-file", "f"}));
  EXPECT_EQ(without_secrets({"outrider", "--api-key"}), (Words{"outrider", "--api-key"}));
  setenv("OUTRIDER_API_KEY", "hidden-one", 1);
  setenv("OUTRIDER_API_KEY_FILE", "told", 1);
  const std::string text = provenance({}).dump();
  unsetenv("OUTRIDER_API_KEY");
  unsetenv("OUTRIDER_API_KEY_FILE");
  EXPECT_EQ(text.find("hidden-one"), std::string::npos);
  EXPECT_NE(text.find("told"), std::string::npos);
}

}  // namespace
}  // namespace outrider
