// Templates against Jinja as transformers sets it up (tests/goldens/make_tokenizer_goldens.py).
#include "tests/transformer/tokenizer/tokenizer_fixtures.h"
#include "transformer/chat_template/chat_template.h"

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
  return parsed->render(messages_of(conversation), add_generation_prompt);
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
      {"{% call m() %}{% endcall %}", "call"},
      {"{% raw %}{% endraw %}", "raw"},
      {"{{ x | sort }}", "filter 'sort'"},
      {"{{ 1 is callable }}", "test 'callable'"},
      {"{{ 'a'.swapcase() }}", "method 'swapcase'"},
      {"{{ strftime_now('%Y') }}", "function 'strftime_now'"},
      {"{{ messages }}", "text of a list"},
      {"{{ 2 ** 3 }}", "'**'"},
  };
  for (const auto& [source, named] : cases) {
    const auto got = render(source, goldens()["conversations"][1], true);
    ASSERT_FALSE(got.ok()) << source;
    EXPECT_EQ(got.status().code(), StatusCode::kUnsupported) << source << ": " << got.status().message();
    EXPECT_NE(got.status().message().find(named), std::string::npos) << got.status().message();
    EXPECT_NE(got.status().message().find("line 1"), std::string::npos) << got.status().message();
  }
}

TEST(ChatTemplate, TellsWhyATemplateRefuses) {
  const auto got = render("{{ raise_exception('roles must alternate') }}", json::array(), false);
  EXPECT_EQ(got.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(got.status().message().find("roles must alternate"), std::string::npos);
}

TEST(ChatTemplate, RefusesMessagesThatAreNotUtf8) {
  const auto parsed = parse_chat_template("{{ messages[0].content }}", "", "");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ((*parsed)->render({{"user", "\xFF"}}, false).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace outrider
