// Reads bodies as a server with the demo pair would, without a server.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/api/request.h"
#include "start/describe.h"
#include "tests/support/source_dir.h"
#include "text/chat_template/chat_template.h"

namespace outrider::testing {

using nlohmann::json;

class ServeApi : public ::testing::Test {
 protected:
  ServeApi() {
    settings_.models.model = (source_dir() / "launch/demo_pair/target").string();
    params_.temperature = 0.5;  // what requests get that do not say
    prepared_ = prepare(settings_).value();
  }

  Result<ApiRequest> read(const json& body, ApiKind kind = ApiKind::kCompletion) const {
    const RequestBuilder builder(request_model(settings_.models, settings_.speculation, prepared_, chat_));
    return read_api_request(
        kind, body, {.params = params_, .models = models_, .synthetic_acceptance = {}, .seed = 77}, builder);
  }
  std::string error(const json& body, ApiKind kind = ApiKind::kCompletion) const {
    return read(body, kind).status().message();
  }
  TokenId id(const std::string& token) const { return prepared_.tokenizer->find(token).value(); }

  RoleSettings settings_;
  RequestParams params_;
  Preparation prepared_;
  std::vector<std::string> models_{"demo", "other"};
  Result<std::unique_ptr<ChatTemplate>> chat_ = parse_chat_template(
      "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}", "<s>", "</s>");
};

}  // namespace outrider::testing
