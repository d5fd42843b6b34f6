// The places where the loader looks for a model's chat template.
#include "tests/text/tokenizer_fixtures.h"
#include "text/chat_template/chat_template.h"

namespace outrider {
namespace {

std::string render(const ModelFiles& files) {
  const auto loaded = load_chat_template(files.path());
  if (!loaded.ok()) return "error: " + loaded.status().message();
  const auto text = (*loaded)->render({{"user", "Hi"}}, {.add_generation_prompt = true});
  return text.ok() ? *text : "error: " + text.status().message();
}

TEST(ChatTemplateFile, ReadsAString) {
  EXPECT_EQ(render({{"tokenizer_config.json", R"({"chat_template": "{{ bos_token }}{{ messages[0].content }}",
                                                   "bos_token": {"content": "<b>"}})"}}),
            "<b>Hi");
}

TEST(ChatTemplateFile, ReadsTheDefaultOfAList) {
  EXPECT_EQ(render({{"tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "T"},
                                                                    {"name": "default", "template": "D"}]})"}}),
            "D");
  EXPECT_NE(
      render({{"tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "T"}]})"}})
          .find("'default'"),
      std::string::npos);
}

TEST(ChatTemplateFile, TheFileWins) {
  EXPECT_EQ(render({{"chat_template.jinja", "{{ eos_token }}F\n"},
                    {"tokenizer_config.json", R"({"chat_template": "C", "eos_token": "</s>"})"}}),
            "</s>F");
}

TEST(ChatTemplateFile, AbsenceIsNotFound) {
  const ModelFiles none({});
  EXPECT_EQ(load_chat_template(none.path()).status().code(), StatusCode::kNotFound);
  const ModelFiles without({{"tokenizer_config.json", "{}"}});
  EXPECT_EQ(load_chat_template(without.path()).status().code(), StatusCode::kNotFound);
}

TEST(ChatTemplateFile, ErrorsNameFileAndLine) {
  const std::string broken = render({{"chat_template.jinja", "a\n{% if %}"}});
  EXPECT_NE(broken.find("chat_template.jinja: line 2"), std::string::npos) << broken;
  const std::string wrong_type = render({{"tokenizer_config.json", R"({"chat_template": 5})"}});
  EXPECT_NE(wrong_type.find("tokenizer_config.json: chat_template"), std::string::npos) << wrong_type;
  const std::string pointer =
      render({{"chat_template.jinja", "version https://git-lfs.github.com/spec/v1\n"}});
  EXPECT_NE(pointer.find("git lfs pull"), std::string::npos) << pointer;
}

}  // namespace
}  // namespace outrider
