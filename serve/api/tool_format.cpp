#include "serve/api/tool_format.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json_text.h"
#include "requests/asked_form.h"

namespace outrider {
namespace {

using nlohmann::ordered_json;

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

ordered_json call_schema(const Tool& tool, const char* arguments, bool is_checked) {
  const ordered_json parameters = is_checked ? tool.parameters : ordered_json{{"type", "object"}};
  return {{"type", "object"},
          {"properties", {{"name", {{"const", tool.name}}}, {arguments, parameters}}},
          {"required", {"name", arguments}},
          {"additionalProperties", false}};
}

std::string text_of(ordered_json schema) { return json_text(with_fixed_blanks(std::move(schema))); }

// A piece of text in a Lark grammar; a special token by its id.
std::string lark_of(std::string_view text, const Tokenizer& tokenizer) {
  const auto id = tokenizer.find(text);
  return id && tokenizer.is_special(*id) ? fmt::format("<[{}]>", id->value())
                                         : json_text(nlohmann::json(text));
}

}  // namespace

std::optional<ToolFormat> tool_format_of(std::string_view chat_template) {
  if (!has(chat_template, "tools")) return std::nullopt;
  if (has(chat_template, "[TOOL_CALLS]")) return ToolFormat::kMistral;
  if (has(chat_template, "<tool_call>")) return ToolFormat::kHermes;
  if (has(chat_template, "\"parameters\": ") && has(chat_template, "ipython")) return ToolFormat::kLlama;
  return std::nullopt;
}

std::string_view call_begin(ToolFormat format) {
  return format == ToolFormat::kHermes ? "<tool_call>" : format == ToolFormat::kMistral ? "[TOOL_CALLS]" : "";
}

std::optional<GrammarSpec> tool_grammar(const ToolUse& use, ToolFormat format, const Tokenizer& tokenizer) {
  const bool is_required = use.choice == ToolUse::Choice::kRequired;
  const auto is_strict = [](const Tool& tool) { return tool.strict; };
  if (!is_required && std::none_of(use.tools.begin(), use.tools.end(), is_strict)) return std::nullopt;
  const char* const arguments = format == ToolFormat::kLlama ? "parameters" : "arguments";
  std::string names, rules;
  ordered_json any = ordered_json::array();
  for (size_t i = 0; i < use.tools.size(); ++i) {
    if (!use.named.empty() && use.tools[i].name != use.named) continue;
    const ordered_json schema = call_schema(use.tools[i], arguments, is_required || use.tools[i].strict);
    names += fmt::format("{}call_{}", names.empty() ? "" : " | ", i);
    rules += fmt::format("call_{}: %json {}\n", i, text_of(schema));
    any.push_back(schema);
  }
  const std::string begin = lark_of(call_begin(format), tokenizer);
  const bool is_token = begin.starts_with('<');
  std::string lark = "%llguidance {}\n";
  switch (format) {
    case ToolFormat::kHermes: {
      const std::string end = lark_of("</tool_call>", tokenizer);
      if (is_required) {
        lark += fmt::format("start: one{}\none: {} \"\\n\" body \"\\n\" {}\n",
                            use.is_parallel ? " (\"\\n\" one)*" : "", begin, end);
      } else {
        lark += fmt::format("start: one{} rest\none: head \"\\n\" body \"\\n\" {}\nrest: TEXT\n",
                            use.is_parallel ? "*" : "?", end);
        lark +=
            is_token ? fmt::format("head: TEXT {}\n", begin) : fmt::format("head[lazy]: TEXT {}\n", begin);
        lark += "TEXT: /(.|\\n)*/\n";
      }
      lark += fmt::format("body: {}\n{}", names, rules);
      break;
    }
    case ToolFormat::kLlama:
      lark += is_required ? "start: body\n" : "start: body | TEXT | \"\"\nTEXT: /[^{](.|\\n)*/\n";
      lark += fmt::format("body: {}\n{}", names, rules);
      break;
    case ToolFormat::kMistral: {
      ordered_json list{{"type", "array"}, {"items", {{"anyOf", any}}}, {"minItems", 1}};
      if (!use.is_parallel) list["maxItems"] = 1;
      lark += is_required ? fmt::format("start: {} list\n", begin)
                          : fmt::format("start: {} list | TEXT\nTEXT: /(.|\\n)*/\n", begin);
      lark += fmt::format("list: %json {}\n", text_of(list));
      break;
    }
  }
  return GrammarSpec{.kind = GrammarSpec::Kind::kLark, .text = std::move(lark), .choices = {}};
}

}  // namespace outrider
