#include "http_test_server.h"

#include <nlohmann/json.hpp>

namespace outrider::testing {

void expect_error(const HttpAnswer& answer, int status, const std::string& text) {
  EXPECT_EQ(answer.status, status) << text;
  EXPECT_EQ(answer.headers.count("content-type"), 1u);
  const auto body = nlohmann::json::parse(answer.body, nullptr, false);
  ASSERT_TRUE(body.is_object()) << answer.body;
  EXPECT_NE(body["error"]["message"].get<std::string>().find(text), std::string::npos) << answer.body;
  for (const char* key : {"type", "param", "code"}) EXPECT_TRUE(body["error"].contains(key)) << key;
}

}  // namespace outrider::testing
