#include "serve/api/loose_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/json_text.h"
#include "requests/asked_form.h"
#include "serve/api/xml_grammar.h"
#include "text/grammar/grammar_compiler.h"

namespace outrider {
namespace {

using nlohmann::ordered_json;

constexpr const char* kNotJson = "not written as JSON";

std::string lark_text(std::string_view text) { return json_text(nlohmann::json(std::string(text))); }

// Writes the rules of one tool's arguments. A schema has one rule, however often it is named: schemas may
// refer to each other, and to themselves.
class ArgumentRules {
 public:
  ArgumentRules(size_t tool, Notation notation, const ordered_json& root, const Tokenizer& tokenizer)
      : tool_(tool), notation_(notation), root_(root), quote_(lark_of(kGemmaQuote, tokenizer)) {}

  // The keys of `object`, with their values, as a rule whose name is returned.
  Result<std::string> members(const ordered_json& object);
  // Writes the rules of all values that members() named.
  Status write_values();
  // A key whose name no schema says.
  std::string any_member() const;
  std::string rules() const { return rules_; }

 private:
  std::string value(const ordered_json& given);
  Result<std::string> value_body(const ordered_json& said);
  Result<std::string> nested(const ordered_json& schema);
  std::string text_of(const std::string& text) const;
  const ordered_json& resolved(const ordered_json& schema) const;
  std::string next_name() { return fmt::format("v_{}_{}", tool_, next_++); }
  std::string rule(const std::string& body) {
    std::string name = next_name();
    rules_ += fmt::format("{}: {}\n", name, body);
    return name;
  }

  const size_t tool_;
  const Notation notation_;
  const ordered_json& root_;
  const std::string quote_;  // of Gemma
  std::string rules_;
  size_t next_ = 0;
  std::unordered_map<const ordered_json*, std::string> values_, members_;  // names of rules
  std::vector<const ordered_json*> unwritten_;                             // of values_
};

// The schema that a reference leads to. Of references in a circle the result is one.
const ordered_json& ArgumentRules::resolved(const ordered_json& schema) const {
  constexpr int kMaxSteps = 8;
  const ordered_json* from = &schema;
  for (int i = 0; i < kMaxSteps; ++i) {
    const auto at = from->is_object() ? from->find("$ref") : from->end();
    if (at == from->end() || !at->is_string()) break;
    const ordered_json* const target = target_of(at->get_ref<const std::string&>(), root_);
    if (!target || !target->is_object()) break;
    from = target;
  }
  return *from;
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

// An object or a list, in Gemma's notation.
Result<std::string> ArgumentRules::nested(const ordered_json& schema) {
  const auto items = schema.find("items");
  if (items != schema.end() && items->is_object())
    return fmt::format("\"[\" ({0} (\",\" {0})*)? \"]\"", value(*items));
  const auto properties = schema.find("properties");
  if (properties != schema.end() && properties->is_object()) {
    ASSIGN_OR_RETURN(const std::string inside, members(schema));
    return "\"{\" " + inside + " \"}\"";
  }
  const auto type = schema.find("type");
  const bool has_type = type != schema.end() && type->is_string();
  return std::string(has_type && *type == "array"    ? "any_list"
                     : has_type && *type == "object" ? "any_object"
                                                     : "(any_list | any_object)");
}

// The name of a rule, which write_values() writes. What stands beside a reference counts only in JSON.
std::string ArgumentRules::value(const ordered_json& given) {
  const ordered_json& said = given.size() == 1 ? resolved(given) : given;
  const auto [at, is_new] = values_.try_emplace(&said);
  if (!is_new) return at->second;
  if (types_of_value(said, root_) == 0) return at->second = "any_value";
  unwritten_.push_back(&said);
  return at->second = next_name();
}

Status ArgumentRules::write_values() {
  while (!unwritten_.empty()) {
    const ordered_json& said = *unwritten_.back();
    unwritten_.pop_back();
    ASSIGN_OR_RETURN(const std::string body, value_body(said));
    rules_ += fmt::format("{}: {}\n", values_.at(&said), body);
    RETURN_IF_ERROR(check_rules(rules_));
  }
  return {};
}

Result<std::string> ArgumentRules::value_body(const ordered_json& said) {
  const ordered_json& schema = resolved(said);
  const uint8_t types = types_of_value(said, root_);
  if (const auto choices = schema.find("enum");
      (types & kText) && choices != schema.end() && choices->is_array() && !choices->empty() &&
      std::all_of(choices->begin(), choices->end(),
                  [](const ordered_json& one) { return one.is_string(); })) {
    std::vector<std::string> texts;
    for (const ordered_json& choice : *choices) texts.push_back(text_of(choice.get<std::string>()));
    return fmt::format("{}", fmt::join(texts, " | "));
  }
  if ((types & kNumber) && !(types & ~kNumber)) return json_value(said, root_, kNotJson);
  if ((types & kNested) && !(types & ~kNested))
    return notation_ == Notation::kPython ? json_value(said, root_, kNotJson) : nested(schema);
  std::vector<std::string> kinds;
  if (types & kText) kinds.emplace_back("any_text");
  if (types & kNumber) kinds.emplace_back("any_number");
  if (types & kBoolean) kinds.emplace_back("any_switch");
  if (types & kNull) kinds.emplace_back("nothing");
  if (types & kNested) kinds.emplace_back("any_list | any_object");
  return fmt::format("{}", fmt::join(kinds, " | "));
}

// first_K: the keys from K on, of which none was written yet. more_K: behind another key.
Result<std::string> ArgumentRules::members(const ordered_json& object) {
  if (const auto at = members_.find(&object); at != members_.end()) return at->second;
  const std::set<std::string> required = required_keys(object);
  const std::string comma = notation_ == Notation::kGemma ? "\",\"" : "\", \"";
  std::string first = rule("\"\""), more = first;
  std::vector<std::pair<std::string, const ordered_json*>> properties;
  for (const auto& [key, schema] : object.at("properties").items()) properties.emplace_back(key, &schema);
  std::reverse(properties.begin(), properties.end());
  for (const auto& [key, schema] : properties) {
    const bool is_word =
        std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
    if (!is_word) return unsupported(fmt::format("\"{}\" is no name that a call can write", key));
    const std::string pair =
        fmt::format("{} {}", lark_text(key + (notation_ == Notation::kGemma ? ":" : "=")), value(*schema));
    const bool is_needed = required.contains(key);
    first = rule(fmt::format("{} {}{}", pair, more, is_needed ? "" : " | " + first));
    more = rule(fmt::format("{} {} {}{}", comma, pair, more, is_needed ? "" : " | " + more));
  }
  return members_[&object] = first;
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
  ASSIGN_OR_RETURN(const ordered_json* const root,
                   named_arguments(schema.is_null() ? any : schema, kNotJson));
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
    ASSIGN_OR_RETURN(inside, rules.members(*root));
    RETURN_IF_ERROR(rules.write_values());
  }
  return fmt::format("call_{}: {} {} {}\n{}", i,
                     lark_text(std::string(tags.call) + name + (is_gemma ? "{" : "(")), inside,
                     is_gemma ? "\"}\"" : "\")\"", rules.rules());
}

}  // namespace outrider
