// Templates against Jinja as transformers sets it up (tests/goldens/make_tokenizer_goldens.py).
#include <cstdlib>
#include <ctime>

#include "tests/text/tokenizer_fixtures.h"
#include "text/chat_template/chat_template.h"

namespace outrider {
namespace {

using nlohmann::json;

json goldens() { return read_json(golden_directory() / "chat_templates.json"); }

std::vector<ChatMessage> messages_of(const json& conversation) {
  std::vector<ChatMessage> messages;
  for (const auto& message : conversation) messages.push_back({message[0], message[1]});
  return messages;
}

Result<std::string> render(const std::string& source, const json& conversation, bool add_generation_prompt) {
  ASSIGN_OR_RETURN(const auto parsed, parse_chat_template(source, "<s>", "</s>"));
  return parsed->render(messages_of(conversation), {.add_generation_prompt = add_generation_prompt});
}

// null stands for an error.
void expect_same(const Result<std::string>& got, const json& want, const std::string& what) {
  if (want.is_null()) {
    EXPECT_FALSE(got.ok()) << what << "\ngave: " << (got.ok() ? *got : "");
    return;
  }
  ASSERT_TRUE(got.ok()) << what << "\n" << got.status().message();
  EXPECT_EQ(*got, want.get<std::string>()) << what;
}

void expect_all(const std::string& source, const json& conversations, const json& texts) {
  ASSERT_EQ(conversations.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    expect_same(render(source, conversations[i], false), texts[i][0], fmt::format("conversation {}", i));
    expect_same(render(source, conversations[i], true), texts[i][1],
                fmt::format("conversation {} with prompt", i));
  }
}

class RealTemplate : public testing::TestWithParam<const char*> {};

TEST_P(RealTemplate, RendersLikeJinja) {
  const auto path = test_data() / "templates" / GetParam();
  SKIP_WITHOUT(path);
  const json all = goldens();
  expect_all(read_file(path), all["conversations"], all["real"].at(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Families, RealTemplate,
                         testing::Values("Qwen-Qwen2.5-7B-Instruct.jinja", "Qwen-Qwen3-0.6B.jinja",
                                         "google-gemma-4-31B-it.jinja",
                                         "meta-llama-Llama-3.1-8B-Instruct.jinja"),
                         [](const auto& file) {
                           std::string name = file.param;
                           std::erase_if(name,
                                         [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                           return name;
                         });

TEST(ChatTemplate, RendersChatMlLikeJinja) {
  const json all = goldens();
  expect_all(all["chatml"]["source"], all["conversations"], all["chatml"]["texts"]);
}

TEST(ChatTemplate, RendersEveryConstructLikeJinja) {
  const json all = goldens();
  ASSERT_GT(all["snippets"].size(), 70u);
  for (const auto& snippet : all["snippets"])
    expect_same(render(snippet["source"], all["conversations"][1], true), snippet["text"], snippet["source"]);
}

TEST(ChatTemplate, RefusesBrokenSyntaxNamingTheLine) {
  const json all = goldens();
  ASSERT_EQ(all["broken"].size(), 19u);
  for (const std::string source : all["broken"]) {
    const auto got = render("\n" + source, all["conversations"][1], true);
    ASSERT_FALSE(got.ok()) << source;
    EXPECT_NE(got.status().message().find("line 2"), std::string::npos)
        << source << ": " << got.status().message();
  }
}

TEST(ChatTemplate, NamesWhatItDoesNotSupport) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% include 'x' %}", "include"},
      {"{% for x in [1] recursive %}{% endfor %}", "recursive"},
      {"{{ x | urlize }}", "filter 'urlize'"},
      {"{{ 1 is nosuch }}", "test 'nosuch'"},
      {"{{ 'a'.encode() }}", "method 'encode'"},
      {"{{ 'a'.nosuch() }}", "method 'nosuch'"},
      {"{{ cycler('a') }}", "function 'cycler'"},
      {"{{ messages | select }}", "text of a generator"},
      {"{{ f(*x) }}", "unpacking"},
  };
  for (const auto& [source, named] : cases) {
    const auto got = render(source, goldens()["conversations"][1], true);
    ASSERT_FALSE(got.ok()) << source;
    EXPECT_EQ(got.status().code(), StatusCode::kUnsupported) << source << ": " << got.status().message();
    EXPECT_NE(got.status().message().find(named), std::string::npos) << got.status().message();
    EXPECT_NE(got.status().message().find("line 1"), std::string::npos) << got.status().message();
  }
}

// tests/goldens/make_chat_template_goldens.py
class Differential : public testing::Test {
 protected:
  Differential() {
    setenv("TZ", "UTC", 1);
    tzset();
  }
  Result<std::string> render(const json& source, const json& messages, const json& given) const {
    std::vector<ChatMessage> list;
    for (const json& m : messages) {
      ChatMessage message{m["role"], {}};
      if (m["content"].is_string()) message.content = m["content"];
      if (m["content"].is_array())
        for (const json& part : m["content"]) message.parts.push_back(part["text"]);
      if (m.contains("name")) message.name = m["name"].get<std::string>();
      list.push_back(std::move(message));
    }
    ChatOptions options{.add_generation_prompt = given.value("add_generation_prompt", false),
                        .continue_final_message = given.value("continue_final_message", false),
                        .now = std::chrono::system_clock::time_point(
                            std::chrono::microseconds(goldens_["now_microseconds"].get<int64_t>()))};
    if (given.contains("variables")) options.variables = given["variables"];
    ASSIGN_OR_RETURN(const auto parsed, parse_chat_template(source, "<s>", "</s>"));
    return parsed->render(list, options);
  }
  const json goldens_ = read_json(source_dir() / "tests/goldens/chat_templates.json");
};

TEST_F(Differential, EveryConstructIsJinjas) {
  ASSERT_GT(goldens_["snippets"].size(), 800u);
  for (const json& snippet : goldens_["snippets"]) {
    const auto got = render(snippet["source"], goldens_["messages"], {{"add_generation_prompt", true}});
    expect_same(got, snippet["text"], snippet["source"]);
    if (!got.ok()) {
      EXPECT_NE(got.status().message().find("line "), std::string::npos)
          << snippet["source"] << ": " << got.status().message();
    }
  }
}

TEST_F(Differential, NamesPartsVariablesAndOpenMessagesAreTransformers) {
  ASSERT_GT(goldens_["conversations"].size(), 40u);
  for (const json& talk : goldens_["conversations"])
    expect_same(render(talk["source"], talk["messages"], talk["options"]), talk["text"],
                talk["source"].get<std::string>() + talk["messages"].dump() + talk["options"].dump());
}

TEST_F(Differential, ErrorsNameTheTemplatesLine) {
  for (const char* source :
       {"a\nb\n{{ 1 + 'x' }}", "\n\n{{ missing.x }}", "\n\n{{ messages | tojson | nosuch }}",
        "\n\n{% set a, b = [1] %}", "\n\n{% for x in 5 %}{% endfor %}", "\n\n{{ 1 // 0 }}"}) {
    const auto got = render(source, goldens_["messages"], json::object());
    ASSERT_FALSE(got.ok()) << source;
    EXPECT_NE(got.status().message().find("line 3"), std::string::npos) << got.status().message();
  }
}

TEST(ChatTemplate, ContinuingExcludesANewTurn) {
  const auto parsed = parse_chat_template("{{ messages[0].content }}", "", "");
  const auto both =
      (*parsed)->render({{"user", "x"}}, {.add_generation_prompt = true, .continue_final_message = true});
  EXPECT_EQ(both.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(both.status().message().find("exclude each other"), std::string::npos) << both.status().message();
  const auto reserved = (*parsed)->render({{"user", "x"}}, {.variables = {{"messages", 1}}});
  EXPECT_NE(reserved.status().message().find("\"messages\""), std::string::npos);
}

TEST(ChatTemplate, TheDateIsTodays) {
  const auto parsed = parse_chat_template("{{ strftime_now('%Y-%m-%d %H') }}", "", "");
  char before[32], after[32];
  const auto now = [](char* out) {
    const std::time_t time = std::time(nullptr);
    std::strftime(out, 32, "%Y-%m-%d %H", std::localtime(&time));
  };
  now(before);
  const auto text = (*parsed)->render({}, {});
  now(after);
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_TRUE(*text == before || *text == after) << *text;
}

TEST(ChatTemplate, TellsWhyATemplateRefuses) {
  const auto got = render("{{ raise_exception('roles must alternate') }}", json::array(), false);
  EXPECT_EQ(got.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(got.status().message().find("roles must alternate"), std::string::npos);
}

TEST(ChatTemplate, RefusesMessagesThatAreNotUtf8) {
  const auto parsed = parse_chat_template("{{ messages[0].content }}", "", "");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ((*parsed)->render({{"user", "\xFF"}}, {.add_generation_prompt = false}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace outrider
