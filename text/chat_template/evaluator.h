// Expressions to values, and the scopes they are evaluated in.
#pragma once

#include <chrono>
#include <deque>
#include <string>

#include "text/chat_template/builtins.h"
#include "text/chat_template/nesting.h"
#include "text/chat_template/syntax.h"

namespace outrider::chat_template {

// Variables of one block; inner scopes see outer ones, but set only their own.
struct Scope {
  const Scope* outer = nullptr;
  Fields variables = {};
  const Value* find(const std::string& name) const;
};

class Evaluator {
 public:
  explicit Evaluator(std::chrono::system_clock::time_point now) : now_(now) {}
  virtual ~Evaluator() = default;
  Result<Value> evaluate(const Expression& expression, const Scope& scope);

 protected:
  // The text that the macro's body prints; implemented by what runs statements.
  virtual Result<Value> call_macro(const MacroRef& macro, const Arguments& arguments, int line) = 0;
  // `caller`: what a macro finds under that name, if not null.
  Result<Value> call(const Expression& e, const Scope& scope, const Value* caller);

  Status check_depth(int line) const;

  Budget budget_;
  int depth_ = 0;

 private:
  Result<Value> dispatch(const Expression& e, const Scope& scope);
  Result<Value> operand(const Expression& e, size_t index, const Scope& scope);
  Result<Value> list(const Expression& e, Sequence kind, const Scope& scope);
  Result<Value> dict(const Expression& e, const Scope& scope);
  Result<Value> slice(const Expression& e, const Scope& scope);
  Result<Value> attribute(const Expression& e, const Scope& scope);
  Result<Value> item(const Expression& e, const Scope& scope);
  Result<Value> logic(const Expression& e, const Scope& scope);
  Result<Value> arithmetic(const Expression& e, const Scope& scope);
  Result<Value> comparison(const Expression& e, const Scope& scope);
  Result<Value> concatenation(const Expression& e, const Scope& scope);
  Result<Value> conditional(const Expression& e, const Scope& scope);
  Result<Value> negative(const Expression& e, const Scope& scope);
  Result<Value> make_namespace(const Arguments& arguments);
  Result<Arguments> arguments(const Expression& e, const Scope& scope);
  Result<bool> holds(const std::string& symbol, const Value& left, const Value& right);

  const std::chrono::system_clock::time_point now_;
  std::deque<Fields> namespaces_;  // values refer to them, so they live as long as the rendering
};

}  // namespace outrider::chat_template
