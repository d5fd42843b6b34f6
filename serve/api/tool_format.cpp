#include "serve/api/tool_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/json_text.h"
#include "requests/asked_form.h"
#include "serve/api/channel_parser.h"
#include "serve/api/loose_grammar.h"
#include "serve/api/xml_grammar.h"

namespace outrider {
namespace {

using nlohmann::ordered_json;

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// The schema that the grammar library needs for parameters: an object; without described keys, an empty one.
ordered_json arguments_schema(ordered_json schema) {
  constexpr std::array<std::string_view, 12> kSayWhatItIs = {"type",
                                                             "$ref",
                                                             "anyOf",
                                                             "oneOf",
                                                             "allOf",
                                                             "const",
                                                             "enum",
                                                             "additionalProperties",
                                                             "patternProperties",
                                                             "not",
                                                             "if",
                                                             "$dynamicRef"};
  const auto says = [&](std::string_view key) { return schema.contains(key); };
  const bool is_plain = std::none_of(kSayWhatItIs.begin() + 1, kSayWhatItIs.end(), says);
  if (is_plain && !schema.contains("type")) schema["type"] = "object";
  const auto lacks = [&](const char* key) {
    const auto at = schema.find(key);
    return at == schema.end() || at->empty();
  };
  const bool has_none = lacks("properties") && lacks("required");
  if (is_plain && has_none && schema["type"] == "object") schema["additionalProperties"] = false;
  return schema;
}

// Rules of a grammar, joined by "or".
std::string any_of(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, " | "));
}

// An expression between slashes.
std::string lark_regex(std::string_view expression) {
  std::string out = "/";
  bool is_escaped = false;
  for (const char c : expression) {
    if (c == '/' && !is_escaped) out += '\\';
    if (c == '\n')
      out += is_escaped ? "n" : "\\n";
    else
      out += c;
    is_escaped = c == '\\' && !is_escaped;
  }
  return out + "/";
}

// The rule "form" for a text without calls.
Result<std::string> rule_of_form(const AskedGrammar& form) {
  switch (form.spec.kind) {
    case GrammarSpec::Kind::kJson:
      return fmt::format("form: %json {}\n", form.spec.text);
    case GrammarSpec::Kind::kRegex:
      return fmt::format("form: FORM\nFORM: {}\n", lark_regex(form.spec.text));
    case GrammarSpec::Kind::kChoice: {
      std::vector<std::string> texts;
      for (const std::string& choice : form.spec.choices) texts.push_back(json_text(nlohmann::json(choice)));
      return fmt::format("form: {}\n", any_of(texts));
    }
    case GrammarSpec::Kind::kLark:
      break;
  }
  return unsupported(fmt::format(
      "\"{}\": a grammar together with \"tools\" is not supported; leave one out, send \"tool_choice\": "
      "\"none\" or \"required\", or a schema, an expression or a choice",
      form.field));
}

// How calls, each of which is a "body", are combined: whether several may follow each other, and whether
// other text is allowed.
struct CallRules {
  ToolFormat format;
  bool are_several, may_have_text;
  std::string begin, end;  // as pieces of a grammar
  std::string call, call_end;  // of a format with tags

  // The rule "calls".
  std::string lark() const;

 private:
  std::string of_hermes() const;
  std::string of_tags() const;
  std::string of_list() const;
};

// Thoughts and what precedes a call, as messages of their own; then a call, which ends the answer, or text.
std::string channel_rules(bool may_have_text, bool has_form, const Tokenizer& tokenizer) {
  using namespace channel_marks;
  const auto mark = [&](std::string_view text) { return lark_of(text, tokenizer); };
  const std::string end = mark(kEnd);
  std::string out =
      fmt::format("before: {} (\"analysis\" | \"commentary\") {} inner {} \"assistant\"\ninner{}: TEXT {}\n",
                  mark(kChannel), mark(kMessage), mark(kStart), end.starts_with('<') ? "" : "[lazy]", end);
  out += "TEXT: /(.|\\n)*/\n";
  if (!may_have_text && !has_form) return out + "calls: before* body\n";
  return out + fmt::format("calls: before* body | before* {} \"final\" {} {}\n", mark(kChannel),
                           mark(kMessage), has_form ? "form" : "TEXT");
}

std::string CallRules::of_hermes() const {
  if (!may_have_text)
    return fmt::format("calls: one{}\none: {} \"\\n\" body \"\\n\" {}\n",
                       are_several ? " (\"\\n\" one)*" : "", begin, end);
  // Text before, between and after calls. If the mark is not a token of its own, text ends at the mark's
  // first occurrence.
  const bool is_token = begin.starts_with('<');
  return fmt::format(
      "calls: one{} rest\none: head \"\\n\" body \"\\n\" {}\nrest: TEXT\nhead{}: TEXT {}\nTEXT: /(.|\\n)*/\n",
      are_several ? "*" : "?", end, is_token ? "" : "[lazy]", begin);
}

// A section of calls. Text may stand before it, up to its mark.
std::string CallRules::of_tags() const {
  const char* const break_line = format == ToolFormat::kDeepSeekV3 ? "\"\\n\" " : "";
  std::string out = fmt::format("one: {} body {}\nsection: one{} {}\n", call, call_end,
                                are_several ? fmt::format(" ({}one)*", break_line) : "", end);
  if (!may_have_text) return out + fmt::format("calls: {} section\n", begin);
  const bool is_token = begin.starts_with('<');
  return out + fmt::format("calls: head section | TEXT\nhead{}: TEXT {}\nTEXT: /(.|\\n)*/\n",
                           is_token ? "" : "[lazy]", begin);
}

// A section of calls that are JSON. Text may stand before it, up to its mark.
std::string CallRules::of_list() const {
  const bool is_command = format == ToolFormat::kCommand || format == ToolFormat::kCommandPlus;
  const bool are_lines = format == ToolFormat::kToolCallLines;
  const char *const open = are_lines    ? "\"\\n\""
                           : is_command ? "\"[\" BLANKS?"
                                        : "\"[\"",
                    *const close = are_lines    ? "\"\\n\""
                                   : is_command ? "BLANKS? \"]\""
                                                : "\"]\"",
                    *const comma = are_lines    ? "\"\\n\""
                                   : is_command ? "\",\" BLANKS?"
                                                : "\", \"";
  std::string out = fmt::format("section: {} body{} {} {}\n", open,
                                are_several ? fmt::format(" ({} body)*", comma) : "", close, end);
  if (is_command) out += "BLANKS: /[ \\n]+/\n";
  if (!may_have_text) return out + fmt::format("calls: {} section\n", begin);
  const bool is_token = begin.starts_with('<');
  return out + fmt::format("calls: head section | TEXT\nhead{}: TEXT {}\nTEXT: /(.|\\n)*/\n",
                           is_token ? "" : "[lazy]", begin);
}

std::string CallRules::lark() const {
  const char* const or_text = may_have_text ? " | TEXT\nTEXT: /(.|\\n)*/\n" : "\n";
  switch (format) {
    case ToolFormat::kHermes:
      return of_hermes();
    case ToolFormat::kLlama:
      return may_have_text ? "calls: body | TEXT | \"\"\nTEXT: /[^{](.|\\n)*/\n" : "calls: body\n";
    case ToolFormat::kMistral:
      return fmt::format("calls: {} \"[\" body{} \"]\"{}", begin, are_several ? " (\", \" body)*" : "",
                         or_text);
    case ToolFormat::kMistralNamed:
    case ToolFormat::kMistralIds:
      return fmt::format("one: {} body\ncalls: one{}{}", begin, are_several ? " one*" : "", or_text);
    default:
      return json_calls_of(format) ? of_list() : of_tags();
  }
  return {};
}

std::string_view call_end(ToolFormat format) {
  if (const CallTags* const tags = tags_of(format)) return tags->end;
  if (const JsonCalls* const calls = json_calls_of(format)) return calls->end;
  return {};
}

// One call, as the rule "call_I", whose arguments are "args_I".
std::string call_rule(size_t i, const std::string& name, ToolFormat format, const Tokenizer& tokenizer) {
  const CallTags* const tags = tags_of(format);
  const std::string separator = tags ? lark_of(tags->name_end, tokenizer) : "";
  switch (format) {
    case ToolFormat::kDeepSeek:
      return fmt::format("call_{}: \"{}\" {} args_{}\n", i, name, separator, i);
    case ToolFormat::kDeepSeekV3:
      return fmt::format(R"(call_{}: "function" {} "{}\n```json\n" args_{} "\n```")", i, separator, name, i) +
             '\n';
    case ToolFormat::kChannels:
      return fmt::format("call_{}: {} \"commentary to=functions.{} \" {} \"json\" {} args_{}\n", i,
                         lark_of(channel_marks::kChannel, tokenizer), name,
                         lark_of(channel_marks::kConstrain, tokenizer),
                         lark_of(channel_marks::kMessage, tokenizer), i);
    case ToolFormat::kKimi:
      return fmt::format("call_{}: \"functions.{}:\" /[0-9]+/ {} args_{}\n", i, name, separator, i);
    case ToolFormat::kCommand:
      return fmt::format(
                 R"(call_{}: "{{" "\"tool_call_id\"" ": " /"[0-9]+"/ ", " "\"tool_name\"" ": " "\"{}\"" ", " "\"parameters\"" ": " args_{} "}}")",
                 i, name, i) +
             '\n';
    case ToolFormat::kCommandPlus:
      return fmt::format(
                 R"(call_{0}: "{{" BLANKS? "\"tool_name\": " "\"{1}\"" "," BLANKS? "\"parameters\": " args_{0} BLANKS? "}}")",
                 i, name) +
             '\n';
    case ToolFormat::kMistralNamed:
      return fmt::format("call_{}: \"{}\" {} args_{}\n", i, name, lark_of("[ARGS]", tokenizer), i);
    case ToolFormat::kMistralIds:
      return fmt::format("call_{}: \"{}\" {} /[a-zA-Z0-9]{{9}}/ {} args_{}\n", i, name,
                         lark_of("[CALL_ID]", tokenizer), lark_of("[ARGS]", tokenizer), i);
    default:
      // In the pieces in which the library reads JSON, because a JSON form may begin with the same pieces.
      return fmt::format(R"(call_{}: "{{" "\"name\"" ": " "\"{}\"" ", " "\"{}\"" ": " args_{} "}}")", i, name,
                         json_calls_of(format)->arguments, i) +
             '\n';
  }
}

// Call formats that this engine does not support, recognised by parts of their templates.
struct OtherFormat {
  std::string_view mark, name;
};
constexpr OtherFormat kOtherFormats[] = {
    {"minimax[", "]<]minimax[>[ (MiniMax-M3)"},
    {"<function=", "<function=NAME> (Functionary)"},
    {"<|action_start|>", "<|action_start|> (InternLM)"},
    {"<tool_calls{}>", "<tool_calls:...> (Hy3)"},
    {"<|tools_prefix|>", "<|tools_prefix|> (Apertus)"},
    {"<start_function_call>", "<start_function_call> (FunctionGemma)"},
    {"```tool_code", "tool_code (Gemma)"},
};

// A format whose calls are a list of JSON objects.
std::optional<ToolFormat> list_format(std::string_view chat_template) {
  if (has(chat_template, "<|START_ACTION|>")) return ToolFormat::kCommand;
  if (has(chat_template, "Write \\'Action:\\'") || has(chat_template, "Write 'Action:'"))
    return ToolFormat::kCommandPlus;
  if (has(chat_template, "<TOOLCALL>")) return ToolFormat::kNemotron;
  if (has(chat_template, "functools[")) return ToolFormat::kFunctools;
  if (has(chat_template, "<|tool_call|>")) return ToolFormat::kGranite;
  if (has(chat_template, "'<|tool|>' + message['tools']")) return ToolFormat::kPhi;
  if (has(chat_template, "<tool_calls>\\n{\"name\"")) return ToolFormat::kToolCallLines;
  if (has(chat_template, "<tool_calls>")) return ToolFormat::kToolCalls;
  return {};
}

// A format of tagged_calls.h.
std::optional<ToolFormat> tagged_format(std::string_view chat_template) {
  if (has(chat_template, "\uFF5CDSML\uFF5C"))
    return has(chat_template, "function_calls") ? ToolFormat::kDsml : ToolFormat::kDsmlTools;
  if (has(chat_template, "<arg_key>")) return ToolFormat::kGlm;
  if (has(chat_template, "<minimax:tool_call>")) return ToolFormat::kMiniMax;
  if (has(chat_template, "<function=") && has(chat_template, "<parameter="))
    return has(chat_template, "<seed:tool_call>") ? ToolFormat::kSeed : ToolFormat::kQwenXml;
  if (has(chat_template, tags_of(ToolFormat::kKimi)->begin)) return ToolFormat::kKimi;
  if (has(chat_template, tags_of(ToolFormat::kGemma)->begin) && has(chat_template, "<|\"|>"))
    return ToolFormat::kGemma;
  if (has(chat_template, tags_of(ToolFormat::kOlmo)->begin)) return ToolFormat::kOlmo;
  // Most templates of LFM2 show tools and no call.
  if (has(chat_template, tags_of(ToolFormat::kLfm)->begin) || has(chat_template, "<|tool_list_start|>") ||
      (has(chat_template, "List of tools: [") && has(chat_template, "<|im_start|>")))
    return ToolFormat::kLfm;
  if (has(chat_template, tags_of(ToolFormat::kDeepSeek)->begin))
    return has(chat_template, "```json") ? ToolFormat::kDeepSeekV3 : ToolFormat::kDeepSeek;
  return {};
}

}  // namespace

std::string lark_of(std::string_view text, const Tokenizer& tokenizer) {
  const auto id = tokenizer.find(text);
  return id && tokenizer.is_special(*id) ? fmt::format("<[{}]>", id->value())
                                         : json_text(nlohmann::json(text));
}

Result<ToolFormat> tool_format_of(std::string_view chat_template) {
  constexpr const char* kKnown = "docs/structured-output.md lists those that are";
  const auto tagged = tagged_format(chat_template);
  // DeepSeek V3.1 has tools in its system message (shown_tools.h).
  if (!has(chat_template, "tools") && tagged != ToolFormat::kDeepSeek)
    return unsupported("\"tools\": the model's chat template has none; leave them out");
  if (has(chat_template, "[TOOL_CALLS]"))
    return has(chat_template, "[CALL_ID]") ? ToolFormat::kMistralIds
           : has(chat_template, "[ARGS]")  ? ToolFormat::kMistralNamed
                                           : ToolFormat::kMistral;
  if (has_channels(chat_template)) return ToolFormat::kChannels;
  if (tagged) return *tagged;
  const bool is_hermes = has(chat_template, "<tool_call>");
  const bool is_llama = has(chat_template, "\"parameters\": ") && has(chat_template, "ipython");
  for (const OtherFormat& other : kOtherFormats)
    if (has(chat_template, other.mark) && !is_llama)
      return unsupported(
          fmt::format("\"tools\": the model's chat template writes calls as {}, which is not supported; {}",
                      other.name, kKnown));
  if (const auto list = list_format(chat_template); list && !is_llama) return *list;
  if (is_hermes) return ToolFormat::kHermes;
  if (is_llama) return ToolFormat::kLlama;
  return unsupported(fmt::format(
      "\"tools\": the model's chat template writes calls in a way that is not known here; {}", kKnown));
}

std::vector<std::string_view> call_marks(ToolFormat format) {
  if (format == ToolFormat::kGemma) return {tags_of(format)->begin, tags_of(format)->end, kGemmaQuote};
  if (const CallTags* const tags = tags_of(format))
    return {tags->begin, tags->call,      tags->name_end, tags->key, tags->key_end,
            tags->value, tags->value_end, tags->call_end, tags->end};
  if (format == ToolFormat::kChannels) return {channel_marks::kAll.begin(), channel_marks::kAll.end()};
  return {call_begin(format), json_calls_of(format)->end, "[ARGS]", "[CALL_ID]", "<|python_tag|>"};
}

std::string_view call_begin(ToolFormat format) {
  if (const CallTags* const tags = tags_of(format)) return tags->begin;
  if (const JsonCalls* const calls = json_calls_of(format)) return calls->begin;
  return channel_marks::kChannel;
}

Result<std::optional<AskedGrammar>> tool_grammar(const ToolUse& use, const std::optional<AskedGrammar>& form,
                                                 ToolFormat format, const Tokenizer& tokenizer) {
  using Asked = std::optional<AskedGrammar>;
  const bool is_required = use.choice == ToolUse::Choice::kRequired;
  const auto is_strict = [](const Tool& tool) { return tool.strict; };
  if (!is_required && !form && std::none_of(use.tools.begin(), use.tools.end(), is_strict)) return Asked();
  const CallTags* const tags = tags_of(format);
  const bool is_xml = tags && !tags->key.empty();
  const bool is_loose = tags && tags->notation != Notation::kJson;
  const bool has_form = form && !is_required;  // false: the text consists of calls only
  std::string lark = "%llguidance {}\nstart: calls";
  const bool has_channels = format == ToolFormat::kChannels;  // a channel holds the form
  if (has_form) {
    ASSIGN_OR_RETURN(const std::string rule, rule_of_form(*form));
    lark += (has_channels ? "\n" : " | form\n") + rule;
  } else {
    lark += '\n';
  }
  const CallRules rules{.format = format,
                        .are_several = use.is_parallel && use.named.empty(),
                        .may_have_text = !is_required && !has_form,
                        .begin = lark_of(call_begin(format), tokenizer),
                        .end = lark_of(call_end(format), tokenizer),
                        .call = tags ? lark_of(tags->call, tokenizer) : "",
                        .call_end = tags ? lark_of(tags->call_end, tokenizer) : ""};
  if (has_channels)
    lark += channel_rules(rules.may_have_text, has_form, tokenizer);
  else if (is_loose)
    lark += loose_calls(
        {.format = format, .are_several = rules.are_several, .may_have_text = rules.may_have_text},
        tokenizer);
  else
    lark +=
        is_xml
            ? xml_calls(
                  {.format = format, .are_several = rules.are_several, .may_have_text = rules.may_have_text},
                  tokenizer)
            : rules.lark();
  std::vector<std::string> names;
  for (size_t i = 0; i < use.tools.size(); ++i) {
    const Tool& tool = use.tools[i];
    if (!use.named.empty() && tool.name != use.named) continue;
    const bool is_checked = is_required || tool.strict;
    if (is_xml || is_loose) {
      const ordered_json schema = is_checked ? arguments_schema(tool.parameters) : ordered_json();
      auto call = is_xml ? xml_call(i, tool.name, schema, format, tokenizer)
                         : loose_call(i, tool.name, schema, format, tokenizer);
      if (!call.ok()) return call.status().in(fmt::format("\"tools\": the \"parameters\" of {}", tool.name));
      names.push_back(fmt::format("call_{}", i));
      lark += *call;
      continue;
    }
    auto schema =
        schema_for_library(is_checked ? arguments_schema(tool.parameters) : ordered_json{{"type", "object"}});
    if (!schema.ok())
      return schema.status().in(fmt::format("\"tools\": the \"parameters\" of {}", tool.name));
    names.push_back(fmt::format("call_{}", i));
    // The schema is a grammar of its own, in which "#" is the schema itself.
    lark += call_rule(i, tool.name, format, tokenizer) +
            fmt::format("args_{}: %json {}\n", i, json_text(*schema));
  }
  lark += fmt::format("body: {}\n", any_of(names));
  return Asked(
      AskedGrammar{.spec = {.kind = GrammarSpec::Kind::kLark, .text = std::move(lark), .choices = {}},
                   .field = has_form ? form->field : "tools"});
}

}  // namespace outrider
