#include "serve/api/xml_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json_text.h"
#include "requests/asked_form.h"
#include "text/grammar/grammar_compiler.h"

namespace outrider {
namespace {

using nlohmann::ordered_json;

// A line break where models of the format write one; families differ, so some may leave it out.
std::string line_break(ToolFormat format) {
  return format == ToolFormat::kQwenXml || format == ToolFormat::kSeed ? R"("\n")" : R"("\n"?)";
}

std::string value_end(ToolFormat format) {
  const CallTags& tags = *tags_of(format);
  return (tags.has_lines ? "\n" : "") + std::string(tags.value_end);
}

// Whether all calls of an answer stand between one begin and one end.
bool has_section(ToolFormat format) { return format == ToolFormat::kMiniMax || tags_of(format)->is_typed; }

// A value without a type is a text.
bool may_be_text(uint8_t types) { return types == 0 || (types & kText); }

// The beginning of a parameter, up to its value. `key`: a piece of a grammar.
std::string key_piece(const std::string& key, uint8_t types, ToolFormat format, const Tokenizer& tokenizer) {
  const CallTags& tags = *tags_of(format);
  const std::string type(tags.is_typed ? may_be_text(types) ? kIsText : kIsJson : std::string_view());
  std::string out = fmt::format("{} {} {}", lark_of(tags.key, tokenizer), key,
                                lark_of(type + std::string(tags.key_end), tokenizer));
  if (!tags.value.empty()) out += fmt::format(" {} {}", line_break(format), lark_of(tags.value, tokenizer));
  if (tags.has_lines) out += R"( "\n")";
  return out;
}

// The rules of a value, as VALUE and its end.
Result<std::string> value_rule(const std::string& rule, const ordered_json& property, uint8_t types,
                               const ordered_json& root, const std::string& end) {
  if (may_be_text(types)) {
    const auto choices = property.find("enum");
    const auto is_text = [](const ordered_json& value) { return value.is_string(); };
    if (choices == property.end() || !choices->is_array() || choices->empty() ||
        !std::all_of(choices->begin(), choices->end(), is_text))
      return fmt::format("{}: text\n", rule);
    std::vector<std::string> texts;
    for (const ordered_json& choice : *choices) texts.push_back(json_text(choice));
    return fmt::format("{}: ({}) {}\n", rule, fmt::join(texts, " | "), end);
  }
  ASSIGN_OR_RETURN(const std::string json, json_value(property, root, "written as XML"));
  return fmt::format("{0}: {0}_json {1}\n{0}_json: {2}\n", rule, end, json);
}

}  // namespace

Result<std::string> json_value(const ordered_json& schema, const ordered_json& root, const char* how) {
  ordered_json whole = schema;
  // References may only lead to these.
  if (json_text(schema).find("\"$ref\"") != std::string::npos)
    for (const char* key : {"$defs", "definitions"})
      if (root.contains(key) && !whole.contains(key)) whole[key] = root[key];
  ASSIGN_OR_RETURN(whole, schema_for_library(std::move(whole)));
  std::string text = json_text(whole);
  for (const char* outside : {R"("$ref":"#")", R"("$ref":"#/properties)"})
    if (text.find(outside) != std::string::npos)
      return unsupported(
          fmt::format("a \"$ref\" to the whole schema is not supported for calls that are {}", how));
  return "%json " + text;
}

Status check_rules(std::string_view rules) {
  if (rules.size() <= kMaxGrammarBytes) return {};
  return invalid_argument(
      fmt::format("the schema makes a grammar of more than {} bytes; describe fewer values, or name a "
                  "repeated schema with a \"$ref\"",
                  kMaxGrammarBytes));
}

std::set<std::string> required_keys(const ordered_json& object) {
  std::set<std::string> keys;
  const auto at = object.find("required");
  if (at != object.end() && at->is_array())
    for (const ordered_json& key : *at)
      if (key.is_string()) keys.insert(key.get<std::string>());
  return keys;
}

Result<const ordered_json*> named_arguments(const ordered_json& schema, const char* how) {
  const ordered_json* root = &schema;
  if (const auto at = schema.find("$ref"); at != schema.end() && at->is_string()) {
    root = target_of(at->get_ref<const std::string&>(), schema);
    if (!root || !root->is_object())
      return invalid_argument(
          fmt::format("its \"$ref\" {} leads to no object", at->get_ref<const std::string&>().substr(0, 64)));
  }
  for (const char* key : {"anyOf", "oneOf", "allOf", "patternProperties"})
    if (root->contains(key))
      return unsupported(fmt::format("\"{}\" is not supported for calls that are {}", key, how));
  return root;
}

std::string xml_calls(const XmlCalls& calls, const Tokenizer& tokenizer) {
  const CallTags& tags = *tags_of(calls.format);
  const std::string begin = lark_of(tags.begin, tokenizer),
                    text_end = lark_of(value_end(calls.format), tokenizer);
  const bool is_glm = tags.end.empty(), is_section = has_section(calls.format);
  const std::string end = lark_of(is_glm ? tags.call_end : tags.end, tokenizer);
  std::string inside = is_glm ? "body " + end : R"("\n" body "\n" )" + end;
  if (is_section && calls.are_several) inside = R"("\n" body ("\n" body)* "\n" )" + end;
  const bool are_several = calls.are_several && !is_section;
  const auto lazy = [](const std::string& piece) { return piece.starts_with('<') ? "" : "[lazy]"; };
  std::string out = fmt::format("TEXT: /(.|\\n)*/\ntext{}: TEXT {}\n", lazy(text_end), text_end);
  if (!calls.may_have_text)
    return out + fmt::format("one: {} {}\ncalls: one{}\n", begin, inside,
                             are_several ? fmt::format(" ({} one)*", line_break(calls.format)) : "");
  return out + fmt::format("head{}: TEXT {}\none: head {}\nrest: TEXT\ncalls: one{} rest\n", lazy(begin),
                           begin, inside, are_several ? "*" : "?");
}

Result<std::string> xml_call(size_t i, const std::string& name, const ordered_json& schema, ToolFormat format,
                             const Tokenizer& tokenizer) {
  const CallTags& tags = *tags_of(format);
  const bool is_glm = tags.end.empty();
  const std::string pause = line_break(format), end = lark_of(value_end(format), tokenizer);
  std::string call = fmt::format(
      "call_{}: {} {}", i,
      json_text(nlohmann::json(std::string(tags.call) + name + std::string(tags.name_end))), pause);
  std::string rules;
  const ordered_json any = ordered_json::object();
  ASSIGN_OR_RETURN(const ordered_json* const root,
                   named_arguments(schema.is_null() ? any : schema, "written as XML"));
  const auto properties = root->find("properties");
  const bool has_some = properties != root->end() && properties->is_object() && !properties->empty();
  const bool is_open =
      schema.is_null() || (!has_some && root->value("additionalProperties", ordered_json()) != false);
  if (is_open) {
    rules =
        fmt::format("any_{}: {} text {}\n", i, key_piece("/[a-zA-Z0-9_.-]+/", 0, format, tokenizer), pause);
    call += fmt::format(" any_{}*", i);
  }
  const std::set<std::string> required = required_keys(*root);
  size_t next = 0;
  if (has_some)
    for (const auto& [key, property] : properties->items()) {
      const std::string rule = fmt::format("p_{}_{}", i, next++);
      const uint8_t types = types_of_value(property, schema);
      ASSIGN_OR_RETURN(const std::string value, value_rule(rule + "_value", property, types, schema, end));
      rules += fmt::format("{0}: {1} {0}_value {2}\n{3}", rule,
                           key_piece(json_text(nlohmann::json(key)), types, format, tokenizer), pause, value);
      call += fmt::format(" {}{}", rule, required.contains(key) ? "" : "?");
      RETURN_IF_ERROR(check_rules(rules));
    }
  if (!is_glm) call += ' ' + lark_of(tags.call_end, tokenizer);
  return call + '\n' + rules;
}

}  // namespace outrider
