#include "text/chat_template/evaluator.h"

#include <algorithm>

#include "text/chat_template/interpreter.h"
#include "text/chat_template/lexer.h"

namespace outrider::chat_template {
namespace {

using Kind = Expression::Kind;

std::string name_of(const Expression& e) { return e.name.empty() ? "the value" : e.name; }

Status undefined_error(const Value& value) {
  return invalid_argument(fmt::format("'{}' is undefined", value.as<Undefined>()->name));
}

}  // namespace

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer)
    if (const Value* value = scope->variables.find(name)) return value;
  return nullptr;
}

Status Evaluator::check_depth(int line) const {
  if (depth_ <= kMaxEvaluationDepth) return {};
  return resource_exhausted(fmt::format("line {}: the template nests too deeply", line));
}

// The innermost place that knows its line puts it in front.
Result<Value> Evaluator::evaluate(const Expression& expression, const Scope& scope) {
  const Nesting nesting(depth_);
  RETURN_IF_ERROR(check_depth(expression.line));
  RETURN_IF_ERROR(budget_.step());
  auto result = dispatch(expression, scope);
  Status status = result.ok() ? Budget::check_size(*result) : result.status();
  if (status.ok()) return result;
  return status.message().starts_with("line ") ? status : status.in(fmt::format("line {}", expression.line));
}

Result<Value> Evaluator::dispatch(const Expression& e, const Scope& scope) {
  switch (e.kind) {
    case Kind::kConstant:
      return e.constant;
    case Kind::kVariable: {
      const Value* value = scope.find(e.name);
      return value != nullptr ? *value : Value(Undefined{e.name});
    }
    case Kind::kList:
      return list(e, Sequence::kList, scope);
    case Kind::kTuple:
      return list(e, Sequence::kTuple, scope);
    case Kind::kDict:
      return dict(e, scope);
    case Kind::kAttribute:
      return attribute(e, scope);
    case Kind::kItem:
      return item(e, scope);
    case Kind::kSlice:
      return slice(e, scope);
    case Kind::kCall:
      return call(e, scope, nullptr);
    case Kind::kFilter: {
      ASSIGN_OR_RETURN(const Value value, operand(e, 0, scope));
      ASSIGN_OR_RETURN(const Arguments given, arguments(e, scope));
      return apply_filter(e.name, value, given, budget_);
    }
    case Kind::kTest: {
      ASSIGN_OR_RETURN(const Value value, operand(e, 0, scope));
      ASSIGN_OR_RETURN(const Arguments given, arguments(e, scope));
      ASSIGN_OR_RETURN(const bool passes, apply_test(e.name, value, given, budget_));
      return Value(passes);
    }
    case Kind::kNot: {
      ASSIGN_OR_RETURN(const Value value, operand(e, 0, scope));
      return Value(!value.is_true());
    }
    case Kind::kMinus:
      return negative(e, scope);
    case Kind::kPlus: {
      ASSIGN_OR_RETURN(Value value, operand(e, 0, scope));
      RETURN_IF_ERROR(to_number(value).status());
      if (const auto integer = as_integer(value)) return Value(*integer);  // +true is 1
      return value;
    }
    case Kind::kAnd:
    case Kind::kOr:
      return logic(e, scope);
    case Kind::kArithmetic:
      return arithmetic(e, scope);
    case Kind::kComparison:
      return comparison(e, scope);
    case Kind::kConcatenation:
      return concatenation(e, scope);
    case Kind::kConditional:
      return conditional(e, scope);
  }
  CHECK(false, "expression kind {}", static_cast<int>(e.kind));
}

Result<Value> Evaluator::operand(const Expression& e, size_t index, const Scope& scope) {
  return evaluate(*e.operands[index], scope);
}

Result<Value> Evaluator::list(const Expression& e, Sequence kind, const Scope& scope) {
  List out;
  for (size_t i = 0; i < e.operands.size(); ++i) {
    ASSIGN_OR_RETURN(Value value, operand(e, i, scope));
    out.push_back(std::move(value));
  }
  RETURN_IF_ERROR(budget_.bytes(out.size() * sizeof(Value)));
  return Value(std::move(out), kind);
}

Result<Value> Evaluator::dict(const Expression& e, const Scope& scope) {
  if (e.operands.size() > 512) return resource_exhausted("a dict of more than 256 entries");
  Map out;
  for (size_t i = 0; i < e.operands.size(); i += 2) {
    ASSIGN_OR_RETURN(const Value key, operand(e, i, scope));
    RETURN_IF_ERROR(check_key(key));
    ASSIGN_OR_RETURN(Value value, operand(e, i + 1, scope));
    out.set_key(key, std::move(value));
  }
  RETURN_IF_ERROR(budget_.bytes(out.entries.size() * sizeof(Value)));
  return Value(std::move(out));
}

Result<Value> Evaluator::attribute(const Expression& e, const Scope& scope) {
  ASSIGN_OR_RETURN(const Value object, operand(e, 0, scope));
  if (object.is_undefined()) return undefined_error(object);
  if (object.fields() != nullptr) RETURN_IF_ERROR(budget_.work(64 * object.fields()->entries.size()));
  if (object.map() != nullptr) RETURN_IF_ERROR(budget_.work(64 * object.map()->entries.size()));
  return attribute_of(object, e.name);
}

Result<Value> Evaluator::item(const Expression& e, const Scope& scope) {
  ASSIGN_OR_RETURN(const Value object, operand(e, 0, scope));
  if (object.is_undefined()) return undefined_error(object);
  if (object.map() != nullptr) RETURN_IF_ERROR(budget_.work(64 * object.map()->entries.size()));
  ASSIGN_OR_RETURN(const Value key, operand(e, 1, scope));
  return item_of(object, key, budget_);
}

Result<Value> Evaluator::slice(const Expression& e, const Scope& scope) {
  ASSIGN_OR_RETURN(const Value object, operand(e, 0, scope));
  if (object.is_undefined()) return undefined_error(object);
  Value parts[3];
  const Value* given[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (!e.operands[i + 1]) continue;
    ASSIGN_OR_RETURN(parts[i], operand(e, i + 1, scope));
    given[i] = &parts[i];
  }
  return slice_of(object, given[0], given[1], given[2], budget_);
}

// The first operand that decides, itself.
Result<Value> Evaluator::logic(const Expression& e, const Scope& scope) {
  const bool decides = e.kind == Kind::kOr;
  Value value;
  for (size_t i = 0; i < e.operands.size(); ++i) {
    ASSIGN_OR_RETURN(value, operand(e, i, scope));
    if (value.is_true() == decides) break;
  }
  return value;
}

Result<Value> Evaluator::arithmetic(const Expression& e, const Scope& scope) {
  ASSIGN_OR_RETURN(Value value, operand(e, 0, scope));
  for (size_t i = 0; i < e.operators.size(); ++i) {
    ASSIGN_OR_RETURN(const Value right, operand(e, i + 1, scope));
    ASSIGN_OR_RETURN(value, calculate(e.operators[i], value, right, budget_));
    RETURN_IF_ERROR(Budget::check_size(value));
  }
  return value;
}

Result<bool> Evaluator::holds(const std::string& symbol, const Value& left, const Value& right) {
  if (symbol == "in") return contains(right, left, budget_);
  if (symbol == "not in") {
    ASSIGN_OR_RETURN(const bool is_in, contains(right, left, budget_));
    return !is_in;
  }
  RETURN_IF_ERROR(budget_.work(left.weight()));
  if (symbol == "==") return equal(left, right);
  if (symbol == "!=") return !equal(left, right);
  ASSIGN_OR_RETURN(const int order, compare(left, right));
  if (symbol == "<") return order < 0;
  if (symbol == "<=") return order <= 0;
  if (symbol == ">") return order > 0;
  return order >= 0;
}

Result<Value> Evaluator::comparison(const Expression& e, const Scope& scope) {
  ASSIGN_OR_RETURN(Value left, operand(e, 0, scope));
  for (size_t i = 0; i < e.operators.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, operand(e, i + 1, scope));
    ASSIGN_OR_RETURN(const bool passes, holds(e.operators[i], left, right));
    if (!passes) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Evaluator::concatenation(const Expression& e, const Scope& scope) {
  std::string out;
  for (size_t i = 0; i < e.operands.size(); ++i) {
    ASSIGN_OR_RETURN(const Value value, operand(e, i, scope));
    ASSIGN_OR_RETURN(const std::string text, to_text(value));
    RETURN_IF_ERROR(budget_.bytes(text.size()));
    out += text;
  }
  return Value(std::move(out));
}

Result<Value> Evaluator::conditional(const Expression& e, const Scope& scope) {
  ASSIGN_OR_RETURN(const Value condition, operand(e, 1, scope));
  if (condition.is_true()) return operand(e, 0, scope);
  if (!e.operands[2]) return Value(Undefined{"an inline if without else"});
  return operand(e, 2, scope);
}

Result<Value> Evaluator::negative(const Expression& e, const Scope& scope) {
  ASSIGN_OR_RETURN(const Value value, operand(e, 0, scope));
  if (const double* number = value.as<double>()) return Value(-*number);
  return calculate("-", Value(int64_t{0}), value, budget_);
}

Result<Arguments> Evaluator::arguments(const Expression& e, const Scope& scope) {
  Arguments out;
  for (size_t i = 1; i < e.operands.size(); ++i) {
    ASSIGN_OR_RETURN(Value value, operand(e, i, scope));
    out.positional.push_back(std::move(value));
  }
  for (const auto& [name, expression] : e.keywords) {
    ASSIGN_OR_RETURN(Value value, evaluate(*expression, scope));
    out.keywords.emplace_back(name, std::move(value));
  }
  return out;
}

Result<Value> Evaluator::call(const Expression& e, const Scope& scope, const Value* caller) {
  const Expression& callee = *e.operands[0];
  ASSIGN_OR_RETURN(const Value function, operand(e, 0, scope));
  ASSIGN_OR_RETURN(Arguments given, arguments(e, scope));
  if (caller != nullptr) given.keywords.emplace_back("caller", *caller);
  if (const auto* macro = function.as<MacroRef>()) return call_macro(*macro, given, e.line);
  if (const auto* method = function.as<Method>())
    return call_method(*method->object, method->name, given, budget_);
  if (const auto* builtin = function.as<Builtin>())
    return *builtin == Builtin::kNamespace ? make_namespace(given)
                                           : call_function(*builtin, given, now_, budget_);
  if (function.is_undefined() && callee.kind == Kind::kAttribute) {
    ASSIGN_OR_RETURN(const Value object, operand(callee, 0, scope));
    if (hides_method(object, callee.name))
      return invalid_argument(fmt::format("method '{}' would change a {}, and templates may not", callee.name,
                                          object.type_name()));
    return unsupported(fmt::format("method '{}' of a {}", callee.name, object.type_name()));
  }
  if (function.is_undefined()) return unsupported(fmt::format("function '{}' is not known", name_of(callee)));
  return invalid_argument(fmt::format("'{}' is a {}, not a function", name_of(callee), function.type_name()));
}

Result<Value> Evaluator::make_namespace(const Arguments& given) {
  ASSIGN_OR_RETURN(const Map map, dict_of(given, budget_));
  Fields fields;
  for (const auto& [key, value] : map.entries) {
    if (key.string() == nullptr) return unsupported("a field of a namespace that is no name");
    if (key.string()->starts_with('_'))
      return invalid_argument("fields of a namespace must not begin with '_'");
    fields.set(*key.string(), value);
  }
  return Value::of_namespace(&namespaces_.emplace_back(std::move(fields)));
}

}  // namespace outrider::chat_template
