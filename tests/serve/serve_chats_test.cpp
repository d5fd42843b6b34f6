// Parsing of bodies with messages: templates, roles, answers that come back.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve_api_fixture.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::ServeApi;

TEST_F(ServeApi, ChatsCountTokensAndLogprobsInTheirOwnWay) {
  json body{{"messages", {{{"role", "user"}, {"content", "hello"}}}}};
  const auto chat = [&] { return read(body, ApiKind::kChat).value().requests[0]; };
  const Request plain = chat();
  EXPECT_EQ(plain.max_tokens, prepared_.max_model_len - static_cast<int64_t>(plain.prompt.size()));
  EXPECT_EQ(prepared_.tokenizer->decode(plain.prompt), "[user]hello");
  EXPECT_EQ(plain.sampling.logprobs, -1);
  body.update({{"logprobs", true}, {"max_completion_tokens", 7}});
  EXPECT_EQ(chat().sampling.logprobs, 0);
  EXPECT_EQ(chat().max_tokens, 7);
  body["top_logprobs"] = 5;
  EXPECT_EQ(chat().sampling.logprobs, 5);
  body["max_tokens"] = 8;
  EXPECT_NE(error(body, ApiKind::kChat).find("differ"), std::string::npos);
  body["max_tokens"] = 7;
  body["logprobs"] = false;
  EXPECT_NE(error(body, ApiKind::kChat).find("\"top_logprobs\" needs"), std::string::npos);
}

TEST_F(ServeApi, ChatsSayHowTheTemplateIsRendered) {
  chat_ = parse_chat_template(
      "{% for m in messages %}[{{ m.name or m.role }}]{{ m.content }}.{% endfor %}{{ mode }}"
      "{% if add_generation_prompt %}>{% endif %}",
      "", "");
  json body{{"messages",
             {{{"role", "user"}, {"content", "hello"}, {"name", "Ann"}},
              {{"role", "assistant"}, {"content", "Well"}}}}};
  const auto text = [&] {
    const auto api = read(body, ApiKind::kChat);
    return api.ok() ? prepared_.tokenizer->decode(api->requests[0].prompt) : api.status().message();
  };
  EXPECT_EQ(text(), "[Ann]hello.[assistant]Well.>");
  body["chat_template_kwargs"] = {{"mode", "fast"}};
  EXPECT_EQ(text(), "[Ann]hello.[assistant]Well.fast>");
  body["add_generation_prompt"] = false;
  EXPECT_EQ(text(), "[Ann]hello.[assistant]Well.fast");
  body["continue_final_message"] = true;
  EXPECT_EQ(text(), "[Ann]hello.[assistant]Well");
  body.erase("add_generation_prompt");
  EXPECT_EQ(text(), "[Ann]hello.[assistant]Well");
  body["add_generation_prompt"] = true;
  EXPECT_NE(text().find("exclude each other"), std::string::npos) << text();
  body["add_generation_prompt"] = false;
  body["chat_template_kwargs"] = 5;
  EXPECT_TRUE(text().starts_with("\"chat_template_kwargs\"")) << text();
  EXPECT_NE(error({{"prompt", "x"}, {"continue_final_message", true}}).find("continue_final_message"),
            std::string::npos);
}

TEST_F(ServeApi, MessagesAreTextsOrListsOfTexts) {
  const auto content = [&](json value) {
    return json{{"messages", {{{"role", "user"}, {"content", std::move(value)}, {"name", nullptr}}}}};
  };
  const json parts = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  const ApiRequest api = read(content(parts), ApiKind::kChat).value();
  EXPECT_EQ(prepared_.tokenizer->decode(api.requests[0].prompt), "[user]ab");
  for (const json& wrong :
       {json(5), json(nullptr), json{{{"type", "image_url"}}}, json{{{"type", "text"}}}, json{"a"}, json{1}})
    EXPECT_TRUE(error(content(wrong), ApiKind::kChat).starts_with("\"messages\"")) << wrong;
  json named = content("a");
  named["messages"][0]["function_call"] = json::object();
  EXPECT_NE(error(named, ApiKind::kChat).find("function_call"), std::string::npos);
  json later = content("a");
  later["messages"].push_back({{"role", "user"}, {"content", {{{"type", "image_url"}}}}});
  EXPECT_TRUE(
      error(later, ApiKind::kChat).starts_with("\"messages\"[1]: a content part is of type \"image_url\""))
      << error(later, ApiKind::kChat);
  for (const json& wrong : {json::array(), json("a"), json{1}, json{json::object()}})
    EXPECT_TRUE(error({{"messages", wrong}}, ApiKind::kChat).starts_with("\"messages\"")) << wrong;
}

// A template would skip or misread the message.
TEST_F(ServeApi, AnUnknownRoleIsRefusedByName) {
  const auto said_by = [](json role) {
    return json{{"messages", {{{"role", std::move(role)}, {"content", "a"}}}}, {"max_tokens", 5}};
  };
  for (const char* role : {"system", "developer", "user", "assistant", "tool", "function"})
    EXPECT_TRUE(read(said_by(role), ApiKind::kChat).ok()) << role;
  for (const json& role : {json("usr"), json("User"), json(""), json(5), json(nullptr)})
    for (const ApiKind kind : {ApiKind::kChat, ApiKind::kMessages}) {
      const std::string wrong = error(said_by(role), kind);
      EXPECT_TRUE(wrong.starts_with("\"messages\"")) << wrong;
      EXPECT_NE(wrong.find("system, developer, user, assistant, tool, function"), std::string::npos) << wrong;
      EXPECT_TRUE(role.is_null() || wrong.find(role.dump()) != std::string::npos) << wrong;
    }
  const json item{{"role", "usr"}, {"content", "a"}};
  EXPECT_TRUE(error({{"input", {item}}}, ApiKind::kResponses).starts_with("\"input\"[0]: \"usr\" is no"));
}

TEST_F(ServeApi, AMessageWithoutContentIsRefusedByItsRole) {
  const auto of = [](const char* role) {
    return json{{"messages", {{{"role", role}, {"content", nullptr}}}}};
  };
  EXPECT_NE(error(of("user"), ApiKind::kChat).find("role user has no \"content\""), std::string::npos);
  EXPECT_NE(error(of("assistant"), ApiKind::kChat).find("except beside \"tool_calls\""), std::string::npos);
  const json none{{"messages", json::array()}, {"max_tokens", 5}, {"system", "Be brief."}};
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kMessages}) {
    json body = none;
    if (kind == ApiKind::kChat) body.erase("system");
    EXPECT_TRUE(error(body, kind).starts_with("\"messages\" is empty")) << error(body, kind);
  }
  EXPECT_TRUE(error({{"input", json::array()}}, ApiKind::kResponses).starts_with("\"input\" is empty"));
}

// An assistant message that the server sent is accepted unchanged in the next turn of the conversation.
// The number in an error is that of the client's own list, though messages are split and added before.
TEST_F(ServeApi, ErrorsNameTheMessageOfTheClientsBody) {
  const json user{{"role", "user"}, {"content", "a"}}, wrong{{"role", "nobody"}, {"content", "a"}};
  const auto of_messages = [&](json list, const json& system = "s") {
    return error({{"max_tokens", 5}, {"system", system}, {"messages", std::move(list)}}, ApiKind::kMessages);
  };
  const json calls{{"role", "assistant"},
                   {"content",
                    {{{"type", "tool_use"}, {"id", "1"}, {"name", "f"}, {"input", json::object()}},
                     {{"type", "tool_use"}, {"id", "2"}, {"name", "f"}, {"input", json::object()}}}}};
  const json results{{"role", "user"},
                     {"content",
                      {{{"type", "tool_result"}, {"tool_use_id", "1"}, {"content", "x"}},
                       {{"type", "tool_result"}, {"tool_use_id", "2"}, {"content", "y"}}}}};
  EXPECT_TRUE(of_messages({user, wrong}).starts_with("\"messages\"[1]: ")) << of_messages({user, wrong});
  const std::string behind = of_messages({user, calls, results, wrong});
  EXPECT_TRUE(behind.starts_with("\"messages\"[3]: ")) << behind;
  EXPECT_TRUE(of_messages({user}, 5).starts_with("\"system\": ")) << of_messages({user}, 5);
  const std::string nameless =
      of_messages({user, {{"role", "user"}, {"content", {{{"type", "tool_result"}}}}}});
  EXPECT_TRUE(nameless.starts_with("\"messages\"[1]: a tool_result needs")) << nameless;

  const auto of_responses = [&](json list) {
    return error({{"instructions", "s"}, {"input", std::move(list)}}, ApiKind::kResponses);
  };
  EXPECT_TRUE(of_responses({user, wrong}).starts_with("\"input\"[1]: ")) << of_responses({user, wrong});
  const json call{{"type", "function_call"}, {"call_id", "1"}, {"name", "f"}, {"arguments", "{}"}};
  json strange = call;
  strange["arguments"] = 5;
  EXPECT_TRUE(of_responses({user, call, call, wrong}).starts_with("\"input\"[3]: "));
  EXPECT_TRUE(of_responses({user, call, strange, user}).starts_with("\"input\"[1 to 2]: "))
      << of_responses({user, call, strange, user});
  EXPECT_TRUE(of_responses({user, 5}).starts_with("\"input\"[1] must be a message"));
}

TEST_F(ServeApi, AnswersComeBackAsTheyWere) {
  const json user{{"role", "user"}, {"content", "a"}};
  const json plain{{"role", "assistant"}, {"content", "b"}};
  json answer = plain;
  answer.update({{"refusal", nullptr},
                 {"annotations", json::array()},
                 {"audio", nullptr},
                 {"function_call", nullptr},
                 {"reasoning_content", "I thought"},
                 {"tool_calls", nullptr}});
  EXPECT_EQ(read({{"messages", {user, answer, user}}}, ApiKind::kChat).value().requests[0].prompt,
            read({{"messages", {user, plain, user}}}, ApiKind::kChat).value().requests[0].prompt);
  json wrong = user;
  wrong["annotations"] = json::array();
  EXPECT_NE(error({{"messages", {wrong}}}, ApiKind::kChat).find("annotations"), std::string::npos);
}

// The second turn of an agent: what the server answered comes back. Templates look into the content of such a
// message, print calls only where it is none, or print it as it is.
TEST_F(ServeApi, AnAnswerThatCalledComesBackWithoutAText) {
  const auto turn = [](json content, json arguments) {
    json answer{{"role", "assistant"},
                {"tool_calls",
                 {{{"id", "c"},
                   {"type", "function"},
                   {"function", {{"name", "now"}, {"arguments", std::move(arguments)}}}}}}};
    if (content != 5) answer["content"] = std::move(content);  // 5: left out
    return json{{"messages", {{{"role", "user"}, {"content", "time?"}}, std::move(answer)}}};
  };
  const auto text = [&](const json& body) {
    const auto api = read(body, ApiKind::kChat);
    return api.ok() ? prepared_.tokenizer->decode(api->requests[0].prompt) : api.status().message();
  };
  const std::pair<const char*, const char*> templates[] = {
      {"{% for m in messages %}{% if '</think>' in m.content %}!{% endif %}{{ m.content }}", "time?now{}"},
      {"{% for m in messages %}{% if m.content is none %}none{% else %}{{ m.content }}{% endif %}",
       "time?now{}"},
      {"{% for m in messages %}{% if m.content is not none %}{{ m.content }}{% elif 1 %}call:",
       "time?call:now{}"}};
  for (const auto& [chat_template, expected] : templates) {
    const bool only_none = std::string_view(expected).find("call:") != std::string_view::npos;
    const std::string calls =
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor "
        "%}";
    chat_ = parse_chat_template(chat_template + calls + (only_none ? "{% endif %}" : "") + "{% endfor %}", "",
                                "");
    ASSERT_TRUE(chat_.ok()) << chat_.status().message();
    for (const json& content : {json(nullptr), json(""), json(5)})
      EXPECT_EQ(text(turn(content, "{}")), expected) << chat_template << " " << content;
  }
  chat_ = parse_chat_template(
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor "
      "%}{% endfor %}",
      "", "");
  // Arguments that models write for functions without parameters, and arguments that a length limit cut.
  const std::pair<json, const char*> all[] = {
      {json(""), "{}"},
      {json(" "), "{}"},
      {json("null"), "{}"},
      {json(nullptr), "{}"},
      {json::object(), "{}"},
      {json(R"({"b": 1, "a": [2]})"), R"({"b": 1, "a": [2]})"},
      {json(R"({"n": 18446744073709551615})"), R"({"n": 18446744073709551615})"},
      {json(R"({"city": "Par)"), R"({"city": "Par"})"},
      {json(R"({"city": "Par\)"), R"({"city": "Par"})"},
      {json(R"({"city": "Par\u00e)"), R"({"city": "Par"})"},
      {json(R"({"a": [1, {"b": tr)"), R"({"a": [1, {}]})"},
      {json(R"({"a": 1, "b": )"), R"({"a": 1})"},
      {json("{"), "{}"},
      {json("Paris"), R"("Paris")"},
      {json("[1]"), R"("[1]")"},
      {json(R"({"a": 1}})"), R"("{\"a\": 1}}")"},
      {json(std::string(1000, '[')), nullptr}};
  for (const auto& [arguments, expected] : all) {
    const auto api = read(turn(nullptr, arguments), ApiKind::kChat);
    if (!expected) continue;  // a long text, or too long for the context
    ASSERT_TRUE(api.ok()) << arguments << ": " << api.status().message();
    EXPECT_EQ(prepared_.tokenizer->decode(api->requests[0].prompt), expected) << arguments;
  }
  EXPECT_NE(error(turn(nullptr, R"({"n": 18446744073709551616})"), ApiKind::kChat)
                .find("\"n\": 1844674407370955161"),
            std::string::npos);
  EXPECT_TRUE(error(turn(nullptr, 5), ApiKind::kChat).starts_with("\"messages\""));
}

TEST_F(ServeApi, CountsTheTokensThatAMessageWouldSend) {
  const RequestBuilder builder(request_model(settings_.models, settings_.speculation, prepared_, chat_));
  const json body{{"system", "One"}, {"messages", {{{"role", "user"}, {"content", "day"}}}}};
  const auto counted = read_count_tokens(body, body.dump(), builder);
  ASSERT_TRUE(counted.ok()) << counted.status().message();
  json message = body;
  message["max_tokens"] = 3;
  EXPECT_EQ(*counted, read(message, ApiKind::kMessages)->requests[0].prompt);
  EXPECT_FALSE(read_count_tokens(message, message.dump(), builder).ok()) << "it counts no answer";
  // A tool is part of the prompt, as its template writes it; this template has none.
  json with_tools{{"messages", body["messages"]},
                  {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}};
  EXPECT_NE(
      read_tokenize(with_tools, with_tools.dump(), builder).status().message().find("chat template has none"),
      std::string::npos);
  with_tools["tools"] = json::array();
  EXPECT_EQ(read_tokenize(with_tools, with_tools.dump(), builder).value(),
            read({{"messages", body["messages"]}}, ApiKind::kChat)->requests[0].prompt);
}

TEST_F(ServeApi, AnErrorOfTheTemplateNamesTheFieldThatItRead) {
  chat_ = parse_chat_template(
      "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | tojson }}<tool_call>", "", "");
  json properties = json::object();
  for (int i = 0; i < 1025; ++i) properties[std::to_string(i)] = {{"type", "string"}};
  const json body{
      {"messages", {{{"role", "user"}, {"content", "day"}}}},
      {"tools",
       {{{"type", "function"},
         {"function", {{"name", "f"}, {"parameters", {{"type", "object"}, {"properties", properties}}}}}}}}};
  const RequestBuilder builder(request_model(settings_.models, settings_.speculation, prepared_, chat_));
  EXPECT_EQ(read_tokenize(body, body.dump(), builder).status().message(),
            "\"tools\": an object of more than 1024 keys");
  const json variable{{"messages", body["messages"]}, {"chat_template_kwargs", {{"tools", 1}}}};
  EXPECT_TRUE(error(variable, ApiKind::kChat).starts_with("\"chat_template_kwargs\": \"tools\" is"))
      << error(variable, ApiKind::kChat);
}

}  // namespace
}  // namespace outrider
