#include "transformer/chat_template/interpreter.h"

#include <algorithm>

#include "transformer/chat_template/evaluator.h"

namespace outrider::chat_template {
namespace {

using Kind = Statement::Kind;

// What a statement did to the loop around it.
enum class Flow { kNext, kBreak, kContinue };

class Interpreter : public Evaluator {
 public:
  explicit Interpreter(const Map& variables) {
    builtins_.variables.entries = {{"namespace", Builtin::kNamespace},
                                   {"range", Builtin::kRange},
                                   {"dict", Builtin::kDict},
                                   {"raise_exception", Builtin::kRaiseException}};
    for (const auto& [name, value] : variables.entries) builtins_.variables.set(name, value);
    globals_.outer = &builtins_;
  }

  Result<std::string> run(const Block& whole_template) {
    std::string out;
    RETURN_IF_ERROR(block(whole_template, globals_, out).status());
    return out;
  }

 private:
  Result<Flow> block(const Block& statements, Scope& scope, std::string& out) {
    for (const auto& each : statements) {
      ASSIGN_OR_RETURN(const Flow flow, statement(*each, scope, out));
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Result<Flow> statement(const Statement& s, Scope& scope, std::string& out) {
    const Nesting nesting(depth_);
    RETURN_IF_ERROR(check_depth(s.line));
    RETURN_IF_ERROR(budget_.step());
    switch (s.kind) {
      case Kind::kText:
        return print(s.text, s.line, out);
      case Kind::kPrint: {
        ASSIGN_OR_RETURN(const Value value, evaluate(*s.expression, scope));
        const auto text = to_text(value);
        if (!text.ok()) return text.status().in(fmt::format("line {}", s.line));
        return print(*text, s.line, out);
      }
      case Kind::kIf:
        return if_statement(s, scope, out);
      case Kind::kFor:
        return for_statement(s, scope, out);
      case Kind::kSet:
        return set_statement(s, scope);
      case Kind::kSetField:
        return set_field(s, scope);
      case Kind::kMacro:
        scope.variables.set(s.macro->name, Value(s.macro.get()));
        return Flow::kNext;
      case Kind::kBreak:
        return Flow::kBreak;
      case Kind::kContinue:
        return Flow::kContinue;
      case Kind::kBlock:
        return block(s.body, scope, out);
    }
    CHECK(false, "statement kind {}", static_cast<int>(s.kind));
  }

  Result<Flow> print(const std::string& text, int line, std::string& out) {
    RETURN_IF_ERROR(budget_.bytes(text.size()).in(fmt::format("line {}", line)));
    if (out.size() + text.size() > kMaxOutputBytes)
      return resource_exhausted(
          fmt::format("line {}: the template prints more than {} bytes", line, kMaxOutputBytes));
    out += text;
    return Flow::kNext;
  }

  Result<Flow> if_statement(const Statement& s, Scope& scope, std::string& out) {
    for (const Statement::Branch& branch : s.branches) {
      if (branch.condition) {
        ASSIGN_OR_RETURN(const Value condition, evaluate(*branch.condition, scope));
        if (!condition.is_true()) continue;
      }
      return block(branch.body, scope, out);
    }
    return Flow::kNext;
  }

  Status assign(const Statement& s, const Value& value, Scope& scope) {
    // Scopes are searched linearly.
    if (scope.variables.entries.size() > 1024)
      return resource_exhausted("more than 1024 variables in one scope");
    if (s.targets.size() == 1) {
      scope.variables.set(s.targets[0], value);
      return {};
    }
    if (value.list() == nullptr || value.list()->size() != s.targets.size())
      return invalid_argument(fmt::format("line {}: {} values are needed", s.line, s.targets.size()));
    for (size_t i = 0; i < s.targets.size(); ++i) scope.variables.set(s.targets[i], (*value.list())[i]);
    return {};
  }

  // The elements to loop over: filtered first, so that loop.last is right.
  Result<List> loop_items(const Statement& s, Scope& scope) {
    ASSIGN_OR_RETURN(const Value value, evaluate(*s.expression, scope));
    auto all = elements_of(value, budget_);
    if (!all.ok()) return all.status().in(fmt::format("line {}", s.line));
    if (!s.condition) return all;
    List kept;
    for (const Value& element : *all) {
      Scope inner{.outer = &scope};
      RETURN_IF_ERROR(assign(s, element, inner));
      ASSIGN_OR_RETURN(const Value keeps, evaluate(*s.condition, inner));
      if (keeps.is_true()) kept.push_back(element);
    }
    return kept;
  }

  Result<Flow> for_statement(const Statement& s, Scope& scope, std::string& out) {
    ASSIGN_OR_RETURN(List list, loop_items(s, scope));
    if (list.empty()) return block(s.alternative, scope, out);
    const auto items = std::make_shared<const List>(std::move(list));
    for (size_t i = 0; i < items->size(); ++i) {
      RETURN_IF_ERROR(budget_.step().in(fmt::format("line {}", s.line)));
      Scope inner{.outer = &scope};
      RETURN_IF_ERROR(assign(s, (*items)[i], inner));
      inner.variables.set("loop", Value(Loop{items, i}));
      ASSIGN_OR_RETURN(const Flow flow, block(s.body, inner, out));
      if (flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  Result<Flow> set_statement(const Statement& s, Scope& scope) {
    Value value;
    if (s.expression) {
      ASSIGN_OR_RETURN(value, evaluate(*s.expression, scope));
    } else {
      std::string captured;
      ASSIGN_OR_RETURN(const Flow flow, block(s.body, scope, captured));
      if (flow != Flow::kNext) return flow;
      value = Value(std::move(captured));
    }
    RETURN_IF_ERROR(assign(s, value, scope));
    return Flow::kNext;
  }

  Result<Flow> set_field(const Statement& s, Scope& scope) {
    const Value* target = scope.find(s.targets[0]);
    if (target == nullptr || target->as<Map*>() == nullptr)
      return invalid_argument(fmt::format("line {}: only fields of a namespace can be set, and '{}' is none",
                                          s.line, s.targets[0]));
    Map* const fields = *target->as<Map*>();
    ASSIGN_OR_RETURN(Value value, evaluate(*s.expression, scope));
    if (fields->entries.size() > 1024) return resource_exhausted("more than 1024 fields in a namespace");
    fields->set(s.text, std::move(value));
    return Flow::kNext;
  }

  Result<Value> call_macro(const Macro& macro, const Arguments& given, int line) override {
    const std::string where = fmt::format("line {}: macro {}", line, macro.name);
    if (given.positional.size() > macro.parameters.size())
      return invalid_argument(where + ": too many arguments");
    for (const auto& [name, value] : given.keywords)
      if (std::find(macro.parameters.begin(), macro.parameters.end(), name) == macro.parameters.end())
        return invalid_argument(where + ": no parameter " + name);
    if (macro_calls_ >= kMaxMacroCalls)
      return resource_exhausted(where + ": macros call each other too deeply");
    const Nesting nesting(macro_calls_);
    Scope inner{.outer = &globals_};  // not the caller's variables
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      Value value = Undefined{macro.parameters[i]};
      if (const Value* argument = given.find(i, macro.parameters[i])) {
        value = *argument;
      } else if (macro.defaults[i]) {
        ASSIGN_OR_RETURN(value, evaluate(*macro.defaults[i], inner));
      }
      inner.variables.set(macro.parameters[i], std::move(value));
    }
    std::string out;
    RETURN_IF_ERROR(block(macro.body, inner, out).status());
    return Value(std::move(out));
  }

  Scope builtins_, globals_;
  int macro_calls_ = 0;
};

}  // namespace

Result<std::string> render(const Block& whole_template, const Map& variables) {
  return Interpreter(variables).run(whole_template);
}

}  // namespace outrider::chat_template
