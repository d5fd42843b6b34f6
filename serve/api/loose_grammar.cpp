#include "serve/api/loose_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json_text.h"
#include "requests/asked_form.h"
#include "serve/api/xml_grammar.h"

namespace outrider {
namespace {

using nlohmann::ordered_json;

std::string lark_text(std::string_view text) { return json_text(nlohmann::json(std::string(text))); }

// Writes the rules of one tool's arguments.
class ArgumentRules {
 public:
  ArgumentRules(size_t tool, Notation notation, const ordered_json& root, const Tokenizer& tokenizer)
      : tool_(tool), notation_(notation), root_(root), quote_(lark_of(kGemmaQuote, tokenizer)) {}

  // The keys of `object`, with their values, as a rule whose name is returned.
  Result<std::string> members(const ordered_json& object, int depth);
  // A key whose name no schema says.
  std::string any_member() const;
  std::string rules() const { return rules_; }

 private:
  Result<std::string> value(const ordered_json& schema, int depth);
  Result<std::string> nested(const ordered_json& schema, int depth);
  Result<std::string> as_json(const ordered_json& schema) const;
  std::string text_of(const std::string& text) const;
  const ordered_json& resolved(const ordered_json& schema) const;
  std::string rule(const std::string& body) {
    std::string name = fmt::format("v_{}_{}", tool_, next_++);
    rules_ += fmt::format("{}: {}\n", name, body);
    return name;
  }

  const size_t tool_;
  const Notation notation_;
  const ordered_json& root_;
  const std::string quote_;  // of Gemma
  std::string rules_;
  size_t next_ = 0;
};

constexpr int kMaxDepth = 8;  // deeper values are any of their kind

const ordered_json& ArgumentRules::resolved(const ordered_json& schema) const {
  const auto at = schema.is_object() ? schema.find("$ref") : schema.end();
  if (!schema.is_object() || at == schema.end() || !at->is_string()) return schema;
  const ordered_json* const target = target_of(at->get_ref<const std::string&>(), root_);
  return target ? *target : schema;
}

std::string ArgumentRules::text_of(const std::string& text) const {
  if (notation_ == Notation::kGemma) return fmt::format("{0} {1} {0}", quote_, lark_text(text));
  const std::string json = json_text(nlohmann::json(text));
  std::string single = json.substr(1, json.size() - 2);
  for (size_t at = 0; (at = single.find("\\\"", at)) != std::string::npos;) single.erase(at, 1);
  for (size_t at = 0; (at = single.find('\'', at)) != std::string::npos; at += 2) single.insert(at, 1, '\\');
  return fmt::format("({} | {})", lark_text(json), lark_text("'" + single + "'"));
}

std::string ArgumentRules::any_member() const {
  return notation_ == Notation::kGemma ? "any_member" : "/[a-zA-Z_][a-zA-Z0-9_]*/ \"=\" any_value";
}

Result<std::string> ArgumentRules::as_json(const ordered_json& schema) const {
  ordered_json whole = schema;
  for (const char* key : {"$defs", "definitions"})
    if (root_.contains(key) && !whole.contains(key)) whole[key] = root_[key];
  ASSIGN_OR_RETURN(whole, schema_for_library(std::move(whole)));
  const std::string text = json_text(whole);
  for (const char* outside : {R"("$ref":"#")", R"("$ref":"#/properties)"})
    if (text.find(outside) != std::string::npos)
      return unsupported(
          "a \"$ref\" to the whole schema is not supported for calls that are not written as JSON");
  return "%json " + text;
}

// An object or a list, in Gemma's notation.
Result<std::string> ArgumentRules::nested(const ordered_json& schema, int depth) {
  const auto items = schema.find("items");
  if (items != schema.end() && items->is_object() && depth < kMaxDepth) {
    ASSIGN_OR_RETURN(const std::string item, value(*items, depth + 1));
    return fmt::format("\"[\" ({0} (\",\" {0})*)? \"]\"", item);
  }
  const auto properties = schema.find("properties");
  if (properties != schema.end() && properties->is_object() && depth < kMaxDepth) {
    ASSIGN_OR_RETURN(const std::string inside, members(schema, depth + 1));
    return "\"{\" " + inside + " \"}\"";
  }
  const std::string type =
      schema.value("type", ordered_json()).is_string() ? schema["type"].get<std::string>() : "";
  return std::string(type == "array"    ? "any_list"
                     : type == "object" ? "any_object"
                                        : "(any_list | any_object)");
}

Result<std::string> ArgumentRules::value(const ordered_json& given, int depth) {
  const ordered_json& schema = resolved(given);
  const ordered_json holder{{"properties", {{"v", given}}},
                            {"$defs", root_.value("$defs", ordered_json::object())}};
  const uint8_t types = types_of(holder, "v");
  if (types == 0) return std::string("any_value");
  if (const auto choices = schema.find("enum");
      (types & kText) && choices != schema.end() && choices->is_array() && !choices->empty() &&
      std::all_of(choices->begin(), choices->end(),
                  [](const ordered_json& one) { return one.is_string(); })) {
    std::vector<std::string> texts;
    for (const ordered_json& choice : *choices) texts.push_back(text_of(choice.get<std::string>()));
    return rule(fmt::format("{}", fmt::join(texts, " | ")));
  }
  if ((types & kNumber) && !(types & ~kNumber)) {
    ASSIGN_OR_RETURN(const std::string json, as_json(given));
    return rule(json);
  }
  if ((types & kNested) && !(types & ~kNested)) {
    ASSIGN_OR_RETURN(const std::string json,
                     notation_ == Notation::kPython ? as_json(given) : nested(schema, depth));
    return rule(json);
  }
  std::vector<std::string> kinds;
  if (types & kText) kinds.emplace_back("any_text");
  if (types & kNumber) kinds.emplace_back("any_number");
  if (types & kBoolean) kinds.emplace_back("any_switch");
  if (types & kNull) kinds.emplace_back("nothing");
  if (types & kNested) kinds.emplace_back("any_list | any_object");
  return rule(fmt::format("{}", fmt::join(kinds, " | ")));
}

// first_K: the keys from K on, of which none was written yet. more_K: behind another key.
Result<std::string> ArgumentRules::members(const ordered_json& object, int depth) {
  const ordered_json required = object.value("required", ordered_json::array());
  const std::string comma = notation_ == Notation::kGemma ? "\",\"" : "\", \"";
  std::string first = rule("\"\""), more = first;
  const ordered_json& properties = object.at("properties");
  std::vector<std::string> keys;
  for (const auto& [key, schema] : properties.items()) keys.push_back(key);
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    const bool is_word =
        std::all_of(key->begin(), key->end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
    if (!is_word) return unsupported(fmt::format("\"{}\" is no name that a call can write", *key));
    ASSIGN_OR_RETURN(const std::string of_key, value(properties.at(*key), depth));
    const std::string pair =
        fmt::format("{} {}", lark_text(*key + (notation_ == Notation::kGemma ? ":" : "=")), of_key);
    const bool is_needed = std::find(required.begin(), required.end(), ordered_json(*key)) != required.end();
    first = rule(fmt::format("{} {}{}", pair, more, is_needed ? "" : " | " + first));
    more = rule(fmt::format("{} {} {}{}", comma, pair, more, is_needed ? "" : " | " + more));
  }
  return first;
}

// Values of any kind.
std::string value_rules(Notation notation, const std::string& quote) {
  const std::string common =
      "any_value: any_text | any_number | any_switch | nothing | any_list | any_object\n"
      "any_number: /-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?/\n";
  if (notation == Notation::kPython)
    return common +
           "any_text: /\"([^\"\\\\\\n]|\\\\[\"'\\\\nrt])*\"/ | /'([^'\\\\\\n]|\\\\[\"'\\\\nrt])*'/\n"
           "any_switch: \"True\" | \"False\"\nnothing: \"None\"\n"
           "any_list: %json {\"type\":\"array\"}\nany_object: %json {\"type\":\"object\"}\n";
  return common +
         fmt::format("any_text: {} text\ntext{}: TEXT {}\n", quote, quote.starts_with('<') ? "" : "[lazy]",
                     quote) +
         "any_switch: \"true\" | \"false\"\nnothing: \"null\"\n"
         "any_member: /[a-zA-Z_][a-zA-Z0-9_]*/ \":\" any_value\n"
         "any_list: \"[\" (any_value (\",\" any_value)*)? \"]\"\n"
         "any_object: \"{\" (any_member (\",\" any_member)*)? \"}\"\n";
}

}  // namespace

std::string loose_calls(const LooseCalls& calls, const Tokenizer& tokenizer) {
  const CallTags& tags = *tags_of(calls.format);
  const std::string begin = lark_of(tags.begin, tokenizer), end = lark_of(tags.end, tokenizer);
  std::string out = "TEXT: /(.|\\n)*/\n" + value_rules(tags.notation, lark_of(kGemmaQuote, tokenizer));
  const bool is_section = calls.format != ToolFormat::kGemma;  // all calls stand in one
  const bool is_lfm = calls.format == ToolFormat::kLfm;
  std::string inside = "body";
  if (is_section && calls.are_several) inside += is_lfm ? " (\", \" body)*" : " (\"\\n\" body)*";
  if (is_section) inside = is_lfm ? "\"[\" " + inside + " \"]\"" : "\"\\n\" " + inside + " \"\\n\"";
  const char* const times = calls.are_several && !is_section ? "*" : "";
  if (!calls.may_have_text)
    return out + fmt::format("one: {} {} {}\ncalls: one{}\n", begin, inside, end, *times ? " one*" : "");
  return out + fmt::format("head{}: TEXT {}\none: head {} {}\nrest: TEXT\ncalls: one{} rest\n",
                           begin.starts_with('<') ? "" : "[lazy]", begin, inside, end, *times ? times : "?");
}

Result<std::string> loose_call(size_t i, const std::string& name, const ordered_json& schema,
                               ToolFormat format, const Tokenizer& tokenizer) {
  const CallTags& tags = *tags_of(format);
  const ordered_json any = ordered_json::object();
  const ordered_json* root = schema.is_null() ? &any : &schema;
  if (const auto at = schema.find("$ref"); at != schema.end() && at->is_string())
    root = target_of(at->get_ref<const std::string&>(), schema);
  for (const char* key : {"anyOf", "oneOf", "allOf", "patternProperties"})
    if (!root || root->contains(key))
      return unsupported(fmt::format("\"{}\" is not supported for calls that are not written as JSON", key));
  const auto properties = root->find("properties");
  const bool has_some = properties != root->end() && properties->is_object() && !properties->empty();
  const bool is_open =
      schema.is_null() || (!has_some && root->value("additionalProperties", ordered_json()) != false);
  ArgumentRules rules(i, tags.notation, schema.is_null() ? any : schema, tokenizer);
  const bool is_gemma = tags.notation == Notation::kGemma;
  std::string inside;
  if (is_open) {
    inside = fmt::format("({0} ({1} {0})*)?", rules.any_member(), is_gemma ? "\",\"" : "\", \"");
  } else if (has_some) {
    ASSIGN_OR_RETURN(inside, rules.members(*root, 0));
  }
  return fmt::format("call_{}: {} {} {}\n{}", i,
                     lark_text(std::string(tags.call) + name + (is_gemma ? "{" : "(")), inside,
                     is_gemma ? "\"}\"" : "\")\"", rules.rules());
}

}  // namespace outrider
