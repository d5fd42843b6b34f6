#include "transformer/chat_template/evaluator.h"

#include <algorithm>

#include "transformer/chat_template/interpreter.h"
#include "transformer/chat_template/lexer.h"

namespace outrider::chat_template {
namespace {

using Kind = Expression::Kind;

constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox

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
      return list(e, scope);
    case Kind::kDict:
      return dict(e, scope);
    case Kind::kAttribute:
      return attribute(e, scope);
    case Kind::kItem:
      return item(e, scope);
    case Kind::kSlice:
      return slice(e, scope);
    case Kind::kCall:
      return call(e, scope);
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

Result<Value> Evaluator::list(const Expression& e, const Scope& scope) {
  List out;
  for (size_t i = 0; i < e.operands.size(); ++i) {
    ASSIGN_OR_RETURN(Value value, operand(e, i, scope));
    out.push_back(std::move(value));
  }
  RETURN_IF_ERROR(budget_.bytes(out.size() * sizeof(Value)));
  return Value(std::move(out));
}

Result<Value> Evaluator::dict(const Expression& e, const Scope& scope) {
  if (e.operands.size() > 512) return resource_exhausted("a dict of more than 256 entries");
  Map out;
  for (size_t i = 0; i < e.operands.size(); i += 2) {
    ASSIGN_OR_RETURN(const Value key, operand(e, i, scope));
    if (key.string() == nullptr) return unsupported("a dict key that is no string");
    ASSIGN_OR_RETURN(Value value, operand(e, i + 1, scope));
    out.set(*key.string(), std::move(value));
  }
  RETURN_IF_ERROR(budget_.bytes(out.entries.size() * sizeof(Value)));
  return Value(std::move(out));
}

Result<Value> Evaluator::attribute(const Expression& e, const Scope& scope) {
  ASSIGN_OR_RETURN(const Value object, operand(e, 0, scope));
  if (object.is_undefined()) return undefined_error(object);
  if (object.fields() != nullptr) RETURN_IF_ERROR(budget_.work(64 * object.fields()->entries.size()));
  return attribute_of(object, e.name);
}

Result<Value> Evaluator::item(const Expression& e, const Scope& scope) {
  ASSIGN_OR_RETURN(const Value object, operand(e, 0, scope));
  if (object.is_undefined()) return undefined_error(object);
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

Result<Value> Evaluator::call(const Expression& e, const Scope& scope) {
  const Expression& callee = *e.operands[0];
  Value object;
  if (callee.kind == Kind::kAttribute) {
    ASSIGN_OR_RETURN(object, operand(callee, 0, scope));
    // A field that was set to a macro, else a method.
    const Map* fields = object.as<Map*>() != nullptr ? object.fields() : nullptr;
    if (fields == nullptr || fields->find(callee.name) == nullptr) {
      ASSIGN_OR_RETURN(const Arguments given, arguments(e, scope));
      return call_method(object, callee.name, given, budget_);
    }
  }
  ASSIGN_OR_RETURN(const Value function, operand(e, 0, scope));
  ASSIGN_OR_RETURN(const Arguments given, arguments(e, scope));
  if (const auto* macro = function.as<const Macro*>()) return call_macro(**macro, given, e.line);
  if (const auto* builtin = function.as<Builtin>()) return call_builtin(*builtin, given);
  if (function.is_undefined()) return unsupported(fmt::format("function '{}' is not known", name_of(callee)));
  return invalid_argument(fmt::format("'{}' is a {}, not a function", name_of(callee), function.type_name()));
}

Result<Value> Evaluator::call_builtin(Builtin builtin, const Arguments& given) {
  if (builtin == Builtin::kRange) return range(given);
  if (builtin == Builtin::kRaiseException) {
    ASSIGN_OR_RETURN(const std::string message, given.text(0, "message"));
    return invalid_argument("the chat template refuses: " + message);
  }
  if (!given.positional.empty()) return unsupported("positional arguments of namespace() or dict()");
  if (given.keywords.size() > 256) return resource_exhausted("more than 256 arguments");
  Map fields;
  for (const auto& [name, value] : given.keywords) fields.set(name, value);
  RETURN_IF_ERROR(budget_.bytes(fields.entries.size() * sizeof(Value) + sizeof(Map)));
  if (builtin == Builtin::kDict) return Value(std::move(fields));
  return Value::of_namespace(&namespaces_.emplace_back(std::move(fields)));
}

Result<Value> Evaluator::range(const Arguments& given) {
  int64_t bounds[3] = {0, 0, 1};
  if (given.positional.empty() || given.positional.size() > 3)
    return invalid_argument("range() takes 1 to 3 integers");
  for (size_t i = 0; i < given.positional.size(); ++i) {
    ASSIGN_OR_RETURN(bounds[i], given.integer_or(i, "", 0));
  }
  if (given.positional.size() == 1) std::swap(bounds[0], bounds[1]);
  const auto [start, stop, step] = bounds;
  if (step == 0) return invalid_argument("range() with step 0");
  if (std::max({std::abs(start / 2), std::abs(stop / 2), std::abs(step / 2)}) > INT64_MAX / 8)
    return resource_exhausted("range() of numbers that large");
  if ((step > 0 ? stop - start : start - stop) / std::abs(step) >= kMaxRange)
    return resource_exhausted(fmt::format("range() of more than {} numbers", kMaxRange));
  List out;
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) out.emplace_back(i);
  RETURN_IF_ERROR(budget_.bytes(out.size() * sizeof(Value)));
  return Value(std::move(out));
}

}  // namespace outrider::chat_template
