// Hostile templates: each limit is an error, none a crash or a long wait.
#include <chrono>

#include "tests/support/mutations.h"
#include "tests/text/tokenizer_fixtures.h"
#include "text/chat_template/chat_template.h"

namespace outrider {
namespace {

Status run(const std::string& source) {
  auto parsed = parse_chat_template(source, "<s>", "</s>");
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->render({{"user", "hello"}}, {.add_generation_prompt = true}).status();
}

std::string repeat(const std::string& unit, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += unit;
  return out;
}

struct Hostile {
  const char* name;
  std::string source;
};
// Without this gtest prints the bytes of the sources.
void PrintTo(const Hostile& hostile, std::ostream* out) { *out << hostile.name; }

class HostileTemplate : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileTemplate, IsStopped) {
  const auto start = std::chrono::steady_clock::now();
  const Status status = run(GetParam().source);
  EXPECT_FALSE(status.ok());
  // A second or so in practice; the rest is room for sanitizers on a busy machine.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60)) << status.message();
}

const std::string kDoubling = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(64) %}";

const Hostile kHostile[] = {
    {"EndlessLoops", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"},
    {"HugeRange", "{% for a in range(1000000000000) %}{% endfor %}"},
    {"HugeOutput", "{% for a in range(99999) %}" + std::string(1000, 'x') + "{% endfor %}"},
    {"DoublingString", kDoubling + "{% set ns.x = ns.x + ns.x %}{% endfor %}"},
    {"DoublingJoin", kDoubling + "{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}"},
    {"DoublingReplace", kDoubling + "{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}"},
    {"DoublingList",
     "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"},
    {"SharedList",
     "{% set ns = namespace(x=[1]) %}{% for i in range(50) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
     "ns.x | tojson }}"},
    {"DeepList",
     "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}"},
    {"HugeJson", "{% set x = ('a' * 100000).split('a') %}{{ [[[[x]]]] | tojson(indent=16) }}"},
    {"HugeRepeat", "{{ 'a' * 100000000000 }}"},
    {"QuadraticFind", "{% set a = 'a' * 2000000 %}{% set b = 'a' * 1000000 + 'b' %}{{ b in a }}"},
    {"EndlessMacro", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"},
    {"DeepMacro",
     "{% macro m(n) %}{{ " + repeat("(", 30) + "m(n + 1)" + repeat(")", 30) + " }}{% endmacro %}{{ m(0) }}"},
    {"DeepParentheses", "{{ " + repeat("(", 10000) + "1" + repeat(")", 10000) + " }}"},
    {"DeepList2", "{{ " + repeat("[", 10000) + repeat("]", 10000) + " }}"},
    {"DeepNot", "{{ " + repeat("not ", 10000) + "1 }}"},
    {"DeepMinus", "{{ " + repeat("-", 10000) + "1 }}"},
    {"DeepIf", repeat("{% if 1 %}", 10000) + repeat("{% endif %}", 10000)},
    {"DeepInlineIf", "{{ " + repeat("1 if 0 else ", 10000) + "1 }}"},
    {"LongChain", "{{ a" + repeat(".b", 10000) + " }}"},
    {"LongFilters", "{{ 'a'" + repeat("|trim", 10000) + " }}"},
    {"LargeSource", std::string(300'000, 'x')},
    {"SelfReference", "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns.x | tojson }}"},
    {"Overflow", "{{ 9223372036854775807 + 1 }}"},
    {"DivideOverflow", "{{ (-9223372036854775807 - 1) // -1 }}"},
    {"HugeNumber", "{{ 99999999999999999999 }}"},
    {"NotUtf8", "\xC3("},
    {"EndlessCallBlock", "{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}"},
    {"DoublingText",
     "{% set ns = namespace(x=[1]) %}{% for i in range(50) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
     "{{ ns.x }}"},
    {"DoublingFormat", kDoubling + "{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}"},
    {"DoublingBraces", kDoubling + "{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}"},
    {"DoublingBlock", kDoubling + "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}"},
    {"HugePower", "{{ 10 ** 10000000000 }}"},
    {"HugeWidth", "{{ '%999999999d' % 1 }}"},
    {"HugePadding", "{{ 'a'.center(999999999) }}"},
    {"HugeIndent", "{{ 'a'|indent(999999999, true) }}"},
    {"HugeSlices", "{{ [1]|slice(999999999)|list }}"},
    {"QuadraticUnique", "{% set a = range(99999)|list %}{{ a|unique|list|length }}"},
    {"DeepTarget", "{% for " + repeat("(", 10000) + "a in x %}{% endfor %}"},
    {"SetsMessageField", "{% set messages.x = 1 %}"},
};

INSTANTIATE_TEST_SUITE_P(Cases, HostileTemplate, ::testing::ValuesIn(kHostile),
                         [](const auto& hostile) { return std::string(hostile.param.name); });

TEST(ChatTemplateLimits, AllowLongFlatExpressions) {
  EXPECT_TRUE(run("{{ 'a'" + repeat(" + 'a'", 10000) + " }}").ok());
  EXPECT_TRUE(run("{{ 'a'" + repeat(" ~ 'a'", 10000) + " }}").ok());
  EXPECT_TRUE(run("{{ 1" + repeat(" and 1", 10000) + " }}").ok());
  EXPECT_TRUE(run(repeat("{% if 1 %}{% elif 0 %}x{% endif %}", 5000)).ok());
}

TEST(ChatTemplateLimits, VariablesOfARequestAreFew) {
  const auto parsed = parse_chat_template("{{ x | length }}", "", "");
  ASSERT_TRUE(parsed.ok());
  nlohmann::json many;
  for (int i = 0; i < 2000; ++i) many[std::to_string(i)] = i;
  nlohmann::json deep = 1;
  for (int i = 0; i < 100; ++i) deep = nlohmann::json::array({deep});
  for (const nlohmann::json& variables :
       {many, nlohmann::json{{"x", many}}, nlohmann::json{{"x", deep}}, nlohmann::json{{"x", "\xFF"}},
        nlohmann::json{{"x", {{"\xFF", 1}}}}})
    EXPECT_FALSE((*parsed)->render({{"user", "x"}}, {.variables = variables}).ok());
  EXPECT_EQ((*parsed)->render({{"user", "x"}}, {.variables = {{"x", {1, 2}}}}).value(), "2");
}

TEST(ChatTemplateLimits, AllowLargeConversations) {
  const auto parsed = parse_chat_template(
      "{% for m in messages %}{{ m.role + ': ' + m.content.strip() + '\\n' }}{% if '</think>' in m.content "
      "%}x{% endif %}{% endfor %}",
      "", "");
  ASSERT_TRUE(parsed.ok());
  const std::vector<ChatMessage> messages(100, {"user", std::string(30'000, 'y')});
  const auto text = (*parsed)->render(messages, {.add_generation_prompt = false});
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(text->size(), 100u * 30'007);
}

TEST(Fuzz, ChatTemplates) {
  std::vector<std::string> good;
  const auto own = read_json(source_dir() / "tests/goldens/chat_templates.json"),
             others = read_json(golden_directory() / "chat_templates.json");
  for (const auto& snippet : own["snippets"]) good.push_back(snippet["source"].get<std::string>());
  for (const auto& snippet : others["snippets"])
    good.push_back(snippet["source"].get<std::string>().substr(0, 1500));
  testing::Mutations mutations(3, std::move(good),
                               {"{{",
                                "}}",
                                "{%",
                                "%}",
                                "{%-",
                                "-%}",
                                "{#",
                                "#}",
                                "{% for m in messages %}",
                                "{% endfor %}",
                                "{% if ",
                                "{% endif %}",
                                "{% set ",
                                "{% macro m(a) %}",
                                "{% endmacro %}",
                                "range(",
                                "namespace(x=",
                                " is ",
                                " | ",
                                "tojson",
                                "~",
                                "'",
                                "(",
                                ")",
                                "[",
                                "]",
                                "**",
                                "messages",
                                "loop.",
                                ".items()",
                                ".split(",
                                "* 99999999"});
  testing::fuzz(200, [&] {
    const std::string source = mutations.next();
    EXPECT_LT(run(source).message().size(), 20'000u);
  });
}

// Any prefix, and any byte changed, of a template full of constructs: parsed or refused.
TEST(ChatTemplateLimits, DamagedTemplatesNeverCrash) {
  std::string source;
  const auto goldens = read_json(golden_directory() / "chat_templates.json");
  for (const auto& snippet : goldens["snippets"])
    source += snippet["source"].get<std::string>().substr(0, 120);
  source.resize(3000);
  const auto constructs = read_json(source_dir() / "tests/goldens/chat_templates.json");
  for (const auto& snippet : constructs["snippets"]) {
    const std::string whole = snippet["source"];
    for (size_t size = 0; size < whole.size(); size += 2) (void)run(whole.substr(0, size));
  }
  for (size_t size = 0; size < source.size(); size += 3) (void)run(source.substr(0, size));
  std::string damaged = source.substr(0, 600);
  for (size_t i = 0; i < damaged.size(); ++i)
    for (const char c : {'{', '}', '%', '\'', '(', '\xFF', '|'}) {
      const char original = std::exchange(damaged[i], c);
      (void)run(damaged);
      damaged[i] = original;
    }
}

}  // namespace
}  // namespace outrider
