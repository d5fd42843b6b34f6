// The python clients of OpenAI and Anthropic, as they come from PyPI: their main calls against a server.
#include <gtest/gtest.h>

#include <cstdlib>

#include "served_program.h"
#include "tests/support/source_dir.h"

namespace outrider::testing {
namespace {

TEST(PythonClients, MakeTheirMainCalls) {
  const char* const named = std::getenv("OUTRIDER_TEST_PYTHON");
  const std::string python = named ? named : "python3";
  const Outcome has = run_program({python, "-c", "import anthropic, openai"});
  if (!has.succeeded())
    GTEST_SKIP() << python
                 << " has not both of anthropic and openai; name one that has as OUTRIDER_TEST_PYTHON";
  const TemporaryDirectory directory;
  const std::string chat = directory.write(
      "chat.jinja",
      "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}<tool_call>{% endif %}"
      "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}"
      "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}");
  std::vector<std::string> flags{"--drafter",       "ngram", "--api-key", "secret",
                                 "--chat-template", chat,    "--quiet"};
  const char* const libraries = std::getenv("OUTRIDER_TEST_GRAMMAR_LIBRARY");
  if (libraries) flags.insert(flags.end(), {"--grammar-library", libraries});
  ServedProgram server(flags);
  const Outcome outcome = run_program({python, source_dir() / "tests/serve/python_clients.py",
                                       "http://127.0.0.1:" + std::to_string(server.port()),
                                       libraries ? "--grammars" : "--no-grammars"});
  EXPECT_TRUE(outcome.succeeded()) << outcome.describe();
}

}  // namespace
}  // namespace outrider::testing
