#include "requests/asked_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json_file.h"
#include "base/json_text.h"

namespace outrider {
namespace {

using nlohmann::ordered_json;
using AskedForm = std::optional<AskedGrammar>;

// A flag as it is, a field in quotes.
std::string shown_name(std::string_view name) {
  return name.starts_with("--") ? std::string(name) : fmt::format("\"{}\"", name);
}

Status form_must_be(std::string_view name, const char* what) {
  return invalid_argument(fmt::format("{} must be {}", shown_name(name), what));
}

const ordered_json* form_field(const ordered_json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

// "format" names that the grammar library supports. Other names, of JSON Schema or made up, are annotations
// that forbid nothing.
constexpr std::array<std::string_view, 10> kFormats = {"date-time", "time", "date", "duration", "email",
                                                       "hostname",  "ipv4", "ipv6", "uuid",     "uri"};
constexpr std::array<std::string_view, 14> kHoldSchema = {"items",
                                                          "additionalItems",
                                                          "additionalProperties",
                                                          "unevaluatedItems",
                                                          "unevaluatedProperties",
                                                          "not",
                                                          "if",
                                                          "then",
                                                          "else",
                                                          "contains",
                                                          "anyOf",
                                                          "oneOf",
                                                          "allOf",
                                                          "prefixItems"};
constexpr std::array<std::string_view, 5> kHoldNamedSchemas = {"properties", "patternProperties", "$defs",
                                                               "definitions", "dependentSchemas"};
constexpr std::array<std::string_view, 4> kBounds = {"minimum", "exclusiveMinimum", "maximum",
                                                     "exclusiveMaximum"};
constexpr int64_t kMostExact = int64_t{1} << 53;  // all whole numbers up to it are exact doubles

template <class Names>
bool is_one_of(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_exact(const ordered_json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= static_cast<uint64_t>(kMostExact);
  if (value.is_number_integer()) return value.get<int64_t>() >= -kMostExact;
  return !value.is_structured() || std::all_of(value.begin(), value.end(), is_exact);
}

// A bound that is not a double becomes the next double within it, because the library rounds bounds and may
// go beyond them. So does a lower bound of -2^63, which it does not take. From 2^63 on it never writes a
// number beyond an upper bound, and ignores a lower one, which is refused here.
Status narrow_bound(std::string_view key, ordered_json& bound) {
  if (!bound.is_number_integer() || is_exact(bound)) return {};
  const bool is_most = key == "maximum" || key == "exclusiveMaximum";
  const Status too_high = unsupported(fmt::format(
      "\"{}\" is beyond the whole numbers of 64 bits with a sign, up to which the grammar library "
      "holds lower bounds; lower it",
      key));
  if (bound.is_number_unsigned() && bound.get<uint64_t>() > uint64_t{INT64_MAX})
    return is_most ? Status() : too_high;
  const auto value = bound.get<int64_t>();
  constexpr double kEnd = 0x1p63;
  auto within = static_cast<double>(value);
  if (within >= kEnd) return is_most ? Status() : too_high;
  if (is_most && static_cast<int64_t>(within) > value) within = std::nextafter(within, -kEnd);
  if (!is_most && (static_cast<int64_t>(within) < value || value == INT64_MIN))
    within = std::nextafter(within, kEnd);
  if (within >= kEnd) return too_high;
  bound = static_cast<int64_t>(within);
  return {};
}

// Whether a keyword with this value forbids nothing, although the library refuses it.
bool is_without_effect(std::string_view key, const ordered_json& value) {
  if (key == "format") return value.is_string() && !is_one_of(kFormats, value.get_ref<const std::string&>());
  if (key == "uniqueItems") return value == false;
  if (key == "dependentRequired" || key == "dependentSchemas" || key == "dependencies")
    return value.is_object() && value.empty();
  if (key == "unevaluatedItems" || key == "unevaluatedProperties" || key == "propertyNames")
    return value == true ||
           (value.is_object() && (value.empty() || value == ordered_json{{"type", "string"}}));
  return key == "not" && value == false;
}

// Recursion depth is bounded, because parse_ordered_json() read the schema.
Status adapt_schema(ordered_json& schema) {
  if (schema.is_array()) {
    for (ordered_json& item : schema) RETURN_IF_ERROR(adapt_schema(item));
    return {};
  }
  if (!schema.is_object()) return {};
  std::vector<std::string> dropped;
  for (auto item = schema.begin(); item != schema.end(); ++item) {
    const std::string& key = item.key();
    ordered_json& value = item.value();
    if (is_without_effect(key, value)) {
      dropped.push_back(key);
    } else if (is_one_of(kHoldSchema, key)) {
      RETURN_IF_ERROR(adapt_schema(value));
    } else if (is_one_of(kHoldNamedSchemas, key) && value.is_object()) {
      for (ordered_json& one : value) RETURN_IF_ERROR(adapt_schema(one));
    } else if (is_one_of(kBounds, key)) {
      RETURN_IF_ERROR(narrow_bound(key, value));
    } else if ((key == "const" || key == "enum") && !is_exact(value)) {
      return unsupported(
          fmt::format("\"{}\" has a whole number beyond 2^53, which the grammar library would write as "
                      "another; make it a text",
                      key));
    }
  }
  for (const std::string& key : dropped) schema.erase(key);
  return {};
}

Result<AskedGrammar> form_of_schema(const ordered_json& schema, std::string_view name) {
  auto adapted = schema_for_library(schema);
  if (!adapted.ok()) return adapted.status().in(shown_name(name));
  return AskedGrammar{.spec = {.kind = GrammarSpec::Kind::kJson, .text = json_text(*adapted), .choices = {}},
                      .field = std::string(name)};
}

AskedGrammar any_object(std::string_view name) { return form_of_schema({{"type", "object"}}, name).value(); }

Result<AskedGrammar> read_schema(const ordered_json* schema, std::string_view name) {
  if (!schema) return form_must_be(name, "an object with a \"schema\"");
  if (!schema->is_object() && !schema->is_boolean())
    return form_must_be(name, "an object with a JSON schema");
  return form_of_schema(*schema, name);
}

Result<AskedGrammar> read_choices(const ordered_json& list, std::string_view name) {
  AskedGrammar asked{.spec = {.kind = GrammarSpec::Kind::kChoice, .text = {}, .choices = {}},
                     .field = std::string(name)};
  if (!list.is_array()) return form_must_be(name, "a list of texts");
  for (const ordered_json& item : list) {
    if (!item.is_string()) return form_must_be(name, "a list of texts");
    asked.spec.choices.push_back(item.get<std::string>());
  }
  return asked;
}

Result<AskedGrammar> read_form_text(const ordered_json& text, GrammarSpec::Kind kind, std::string_view name) {
  if (!text.is_string() || text.get_ref<const std::string&>().empty()) return form_must_be(name, "a text");
  return AskedGrammar{.spec = {.kind = kind, .text = text.get<std::string>(), .choices = {}},
                      .field = std::string(name)};
}

Result<AskedGrammar> read_expression(const ordered_json& value, std::string_view name) {
  return read_form_text(value, GrammarSpec::Kind::kRegex, name);
}

Result<AskedGrammar> read_grammar(const ordered_json& value, std::string_view name) {
  return read_form_text(value, GrammarSpec::Kind::kLark, name);
}

// A schema, as an object or as its text.
Result<AskedGrammar> read_json_form(const ordered_json& value, std::string_view name) {
  if (!value.is_string()) return read_schema(&value, name);
  auto schema = parse_ordered_json(value.get_ref<const std::string&>(), "its text is no JSON schema",
                                   {.whole_numbers_fit = true});
  if (!schema.ok()) return invalid_argument(schema.status().in(shown_name(name)).message());
  return read_schema(&*schema, name);
}

// vLLM's field.
Result<AskedForm> read_structured_outputs(const ordered_json& object, std::string_view name) {
  if (!object.is_object()) return form_must_be(name, "an object");
  AskedForm asked;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || value == false) continue;
    Result<AskedGrammar> one = unsupported(fmt::format(
        "{}: \"{}\" is not supported; send \"json\", \"json_object\", \"regex\", \"choice\" or \"grammar\"",
        shown_name(name), key.substr(0, 40)));
    if (key == "json") one = read_json_form(value, name);
    if (key == "json_object" && value == true) one = any_object(name);
    if (key == "regex") one = read_expression(value, name);
    if (key == "grammar") one = read_grammar(value, name);
    if (key == "choice") one = read_choices(value, name);
    if (!one.ok()) return one.status();
    if (asked)
      return invalid_argument(fmt::format("{} asks for two forms at once; send one", shown_name(name)));
    asked = std::move(*one);
  }
  return asked;
}

// Parses the JSON of a flag; errors name the flag.
Result<ordered_json> parse_flag(const std::string& text, std::string_view flag) {
  auto parsed = parse_ordered_json(text, std::string(flag), {.whole_numbers_fit = true});
  const bool names_it = parsed.ok() || parsed.status().message().starts_with(flag);
  return names_it ? std::move(parsed) : parsed.status().in(std::string(flag));
}

Result<std::string> text_or_file(const std::string& text, std::string_view flag) {
  if (!text.starts_with('@')) return text;
  auto read = read_text_file(text.substr(1), kMaxGrammarBytes);
  if (!read.ok()) return read.status().in(std::string(flag));
  return read;
}

}  // namespace

Result<ordered_json> schema_for_library(ordered_json schema) {
  RETURN_IF_ERROR(adapt_schema(schema));
  if (!schema.is_object()) return schema;
  // Its own options are kept; options that it leaves out are set here.
  ordered_json& options = schema["x-guidance"];
  if (options.is_null()) options = ordered_json::object();
  if (!options.is_object()) return schema;
  const auto add = [&](const char* key, ordered_json value) {
    if (!options.contains(key)) options[key] = std::move(value);
  };
  const bool says_blanks = options.contains("whitespace_flexible") || options.contains("whitespace_pattern");
  if (says_blanks) return schema;
  add("whitespace_flexible", false);
  add("item_separator", ", ");
  add("key_separator", ": ");
  return schema;
}

Result<AskedForm> read_format(const ordered_json& format, std::string_view name, SchemaPlace place) {
  const ordered_json* const stated = form_field(format, "type");
  const std::string type = stated && stated->is_string() ? stated->get<std::string>() : std::string();
  if (type == "text" || type == "json_object")
    for (const auto& [key, value] : format.items())
      if (!value.is_null() && key != "type" && !(type == "json_object" && key == "schema"))
        return unsupported(fmt::format("{}: \"{}\" has no meaning beside \"type\": \"{}\"; leave it out",
                                       shown_name(name), key.substr(0, 40), type));
  if (type == "text") return AskedForm();
  // llama.cpp's and others' form: {"type": "json_object", "schema": ...}.
  if (const ordered_json* const schema = form_field(format, "schema"); type == "json_object" && schema) {
    ASSIGN_OR_RETURN(AskedGrammar asked, read_schema(schema, name));
    return AskedForm(std::move(asked));
  }
  if (type == "json_object") return AskedForm(any_object(name));
  if (type != "json_schema")
    return invalid_argument(fmt::format(
        "{}: its \"type\" must be \"text\", \"json_object\" or \"json_schema\"", shown_name(name)));
  const ordered_json* const holder =
      place == SchemaPlace::kNested ? form_field(format, "json_schema") : &format;
  ASSIGN_OR_RETURN(AskedGrammar asked, read_schema(holder ? form_field(*holder, "schema") : nullptr, name));
  return AskedForm(std::move(asked));
}

Status add_form(AskedForm more, AskedForm& to) {
  if (!more) return {};
  if (to)
    return invalid_argument(fmt::format("{} and {} both say what the text looks like; leave one out",
                                        shown_name(to->field), shown_name(more->field)));
  to = std::move(more);
  return {};
}

Result<AskedForm> take_form(const ordered_json& object) {
  AskedForm out;
  if (const ordered_json* const format = form_field(object, "response_format")) {
    ASSIGN_OR_RETURN(out, read_format(*format, "response_format", SchemaPlace::kNested));
  }
  const auto add_field = [&](std::string_view name, auto read) -> Status {
    const ordered_json* const value = form_field(object, name);
    if (!value) return {};
    auto one = read(*value, name);
    RETURN_IF_ERROR(one.status());
    return add_form(std::move(*one), out);
  };
  RETURN_IF_ERROR(add_field("structured_outputs", read_structured_outputs));
  RETURN_IF_ERROR(add_field("guided_json", read_json_form));
  RETURN_IF_ERROR(add_field("guided_choice", read_choices));
  RETURN_IF_ERROR(add_field("guided_regex", read_expression));
  RETURN_IF_ERROR(add_field("guided_grammar", read_grammar));
  return out;
}

Result<AskedForm> form_of(const FormFlags& flags) {
  AskedForm out;
  if (!flags.response_format.empty()) {
    constexpr std::string_view kFlag = "--response-format";
    ASSIGN_OR_RETURN(const std::string text, text_or_file(flags.response_format, kFlag));
    ordered_json format{{"type", text}};
    if (text.find('{') != std::string::npos) {
      ASSIGN_OR_RETURN(format, parse_flag(text, kFlag));
    }
    ASSIGN_OR_RETURN(out, read_format(format, kFlag, SchemaPlace::kNested));
  }
  if (!flags.json.empty()) {
    constexpr std::string_view kFlag = "--structured-outputs-json";
    ASSIGN_OR_RETURN(const std::string text, text_or_file(flags.json, kFlag));
    ASSIGN_OR_RETURN(const ordered_json schema, parse_flag(text, kFlag));
    ASSIGN_OR_RETURN(AskedGrammar asked, read_schema(&schema, kFlag));
    RETURN_IF_ERROR(add_form(std::move(asked), out));
  }
  if (!flags.regex.empty()) {
    ASSIGN_OR_RETURN(AskedGrammar asked, read_expression(flags.regex, "--structured-outputs-regex"));
    RETURN_IF_ERROR(add_form(std::move(asked), out));
  }
  if (!flags.grammar.empty()) {
    constexpr std::string_view kFlag = "--structured-outputs-grammar";
    ASSIGN_OR_RETURN(const std::string text, text_or_file(flags.grammar, kFlag));
    ASSIGN_OR_RETURN(AskedGrammar asked, read_grammar(text, kFlag));
    RETURN_IF_ERROR(add_form(std::move(asked), out));
  }
  if (!flags.choices.empty()) {
    ASSIGN_OR_RETURN(AskedGrammar asked, read_choices(flags.choices, "--structured-outputs-choice"));
    RETURN_IF_ERROR(add_form(std::move(asked), out));
  }
  return out;
}

}  // namespace outrider
