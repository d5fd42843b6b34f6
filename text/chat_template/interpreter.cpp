#include "text/chat_template/interpreter.h"

#include <algorithm>

#include "text/chat_template/evaluator.h"

namespace outrider::chat_template {
namespace {

// The effect of a statement on the loop around it.
enum class Flow { kNext, kBreak, kContinue };

class Interpreter : public Evaluator {
 public:
  Interpreter(const Fields& variables, std::chrono::system_clock::time_point now) : Evaluator(now) {
    builtins_.variables.entries = {{"namespace", Builtin::kNamespace},
                                   {"strftime_now", Builtin::kStrftimeNow},
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
      case Statement::Kind::kText:
        return print(s.text, s.line, out);
      case Statement::Kind::kPrint:
        return print_value(evaluate(*s.expression, scope), s.line, out);
      case Statement::Kind::kIf:
        return if_statement(s, scope, out);
      case Statement::Kind::kFor:
        return for_statement(s, scope, out);
      case Statement::Kind::kSet:
        return set_statement(s, scope);
      case Statement::Kind::kSetBlock:
        return set_block(s, scope);
      case Statement::Kind::kSetField:
        return set_field(s, scope);
      case Statement::Kind::kMacro:
        return define_macro(s, scope);
      case Statement::Kind::kCallBlock:
        return call_block(s, scope, out);
      case Statement::Kind::kFilterBlock: {
        ASSIGN_OR_RETURN(const Value text, captured(s, scope));
        return print_value(filtered(s, text, scope), s.line, out);
      }
      case Statement::Kind::kWith:
        return with_statement(s, scope, out);
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        return Flow::kContinue;
      case Statement::Kind::kBlock: {
        Scope inner{.outer = &scope};
        return block(s.body, inner, out);
      }
    }
    CHECK(false, "statement kind {}", static_cast<int>(s.kind));
  }

  Result<Flow> print_value(const Result<Value>& value, int line, std::string& out) {
    if (!value.ok()) return value.status();
    const auto text = to_text(*value);
    if (!text.ok()) return text.status().in(fmt::format("line {}", line));
    return print(*text, line, out);
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

  Status assign(const Target& target, const Value& value, int line, Scope& scope) {
    // Scopes are searched linearly.
    if (scope.variables.entries.size() > 1024)
      return resource_exhausted("more than 1024 variables in one scope");
    if (target.parts.empty()) {
      scope.variables.set(target.name, value);
      return {};
    }
    const std::string where = fmt::format("line {}", line);
    if (value.is_undefined())
      return invalid_argument(fmt::format("{}: '{}' is undefined", where, value.as<Undefined>()->name));
    auto elements = elements_of(value, budget_);
    if (!elements.ok()) return elements.status().in(where);
    if (elements->size() != target.parts.size())
      return invalid_argument(
          fmt::format("{}: {} values are needed, not {}", where, target.parts.size(), elements->size()));
    for (size_t i = 0; i < target.parts.size(); ++i)
      RETURN_IF_ERROR(assign(target.parts[i], (*elements)[i], line, scope));
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
      RETURN_IF_ERROR(assign(s.target, element, s.line, inner));
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
      RETURN_IF_ERROR(assign(s.target, (*items)[i], s.line, inner));
      inner.variables.set("loop", Value(Loop{items, i}));
      ASSIGN_OR_RETURN(const Flow flow, block(s.body, inner, out));
      if (flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  Result<Flow> set_statement(const Statement& s, Scope& scope) {
    ASSIGN_OR_RETURN(const Value value, evaluate(*s.expression, scope));
    RETURN_IF_ERROR(assign(s.target, value, s.line, scope));
    return Flow::kNext;
  }

  Result<Value> captured(const Statement& s, Scope& scope) {
    Scope inner{.outer = &scope};
    std::string text;
    RETURN_IF_ERROR(block(s.body, inner, text).status());
    return Value(std::move(text));
  }

  Result<Value> filtered(const Statement& s, const Value& text, Scope& scope) {
    Scope inner{.outer = &scope};
    inner.variables.set(kBlockText, text);
    return evaluate(*s.expression, inner);
  }

  Result<Flow> set_block(const Statement& s, Scope& scope) {
    ASSIGN_OR_RETURN(Value value, captured(s, scope));
    if (s.expression) {
      ASSIGN_OR_RETURN(value, filtered(s, value, scope));
    }
    RETURN_IF_ERROR(assign(s.target, value, s.line, scope));
    return Flow::kNext;
  }

  Result<Flow> set_field(const Statement& s, Scope& scope) {
    const Value* target = scope.find(s.target.name);
    if (target == nullptr || target->fields() == nullptr)
      return invalid_argument(fmt::format("line {}: only fields of a namespace can be set, and '{}' is none",
                                          s.line, s.target.name));
    if (s.text.starts_with('_'))
      return invalid_argument(fmt::format("line {}: fields of a namespace must not begin with '_'", s.line));
    Fields* const fields = *target->as<Fields*>();
    ASSIGN_OR_RETURN(Value value, evaluate(*s.expression, scope));
    if (fields->entries.size() > 1024) return resource_exhausted("more than 1024 fields in a namespace");
    fields->set(s.text, std::move(value));
    return Flow::kNext;
  }

  Result<Flow> with_statement(const Statement& s, Scope& scope, std::string& out) {
    Scope inner{.outer = &scope};
    for (const auto& [target, expression] : s.settings) {
      ASSIGN_OR_RETURN(const Value value, evaluate(*expression, scope));
      RETURN_IF_ERROR(assign(target, value, s.line, inner));
    }
    return block(s.body, inner, out);
  }

  Result<Flow> call_block(const Statement& s, Scope& scope, std::string& out) {
    ASSIGN_OR_RETURN(const Value caller, macro_value(*s.macro, scope));
    const Nesting nesting(depth_);
    auto value = call(*s.expression, scope, &caller);
    if (!value.ok() && !value.status().message().starts_with("line "))
      return value.status().in(fmt::format("line {}", s.line));
    return print_value(value, s.line, out);
  }

  // A macro sees the template's own variables as they are when it is called, those of blocks around it as
  // they are now.
  Result<Value> macro_value(const Macro& macro, const Scope& scope) {
    std::shared_ptr<Fields> closure;
    for (const Scope* at = &scope; at != nullptr && at != &globals_; at = at->outer) {
      if (!closure) closure = std::make_shared<Fields>();
      for (const auto& [name, value] : at->variables.entries) {
        RETURN_IF_ERROR(budget_.work(64 * closure->entries.size()));
        if (closure->find(name) == nullptr) closure->set(name, value);
      }
    }
    return Value(MacroRef{&macro, std::move(closure)});
  }

  Result<Flow> define_macro(const Statement& s, Scope& scope) {
    ASSIGN_OR_RETURN(Value macro, macro_value(*s.macro, scope));
    scope.variables.set(s.macro->name, std::move(macro));
    return Flow::kNext;
  }

  Result<Value> call_macro(const MacroRef& ref, const Arguments& given, int line) override {
    const Macro& macro = *ref.macro;
    const std::string where = fmt::format("line {}: macro {}", line, macro.name);
    if (macro_calls_ >= kMaxMacroCalls)
      return resource_exhausted(where + ": macros call each other too deeply");
    const Nesting nesting(macro_calls_);
    Scope around{.outer = &globals_}, inner{.outer = &around};
    if (ref.closure) {
      RETURN_IF_ERROR(budget_.work(64 * ref.closure->entries.size()).in(where));
      around.variables = *ref.closure;
    }
    RETURN_IF_ERROR(take_extra_arguments(macro, given, inner).in(where));
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

  // Arguments beyond the macro's parameters become varargs and kwargs.
  Status take_extra_arguments(const Macro& macro, const Arguments& given, Scope& inner) {
    const size_t count = macro.parameters.size();
    List more;
    for (size_t i = count; i < given.positional.size(); ++i) more.push_back(given.positional[i]);
    if (!more.empty() && !macro.takes_varargs)
      return invalid_argument(fmt::format("takes at most {} arguments", count));
    Map named;
    Value caller = Undefined{"caller"};
    for (const auto& [name, value] : given.keywords) {
      const auto at = std::find(macro.parameters.begin(), macro.parameters.end(), name);
      if (at != macro.parameters.end()) {
        if (static_cast<size_t>(at - macro.parameters.begin()) < given.positional.size())
          return invalid_argument("got '" + name + "' twice");
      } else if (name == "caller" && macro.takes_caller) {
        caller = value;
      } else if (macro.takes_kwargs && name != "caller") {
        named.set(name, value);
      } else {
        return invalid_argument("no parameter " + name);
      }
    }
    if (macro.takes_varargs) inner.variables.set("varargs", Value(std::move(more), Sequence::kTuple));
    if (macro.takes_kwargs) inner.variables.set("kwargs", Value(std::move(named)));
    if (macro.takes_caller) inner.variables.set("caller", caller);
    return {};
  }

  Scope builtins_, globals_;
  int macro_calls_ = 0;
};

}  // namespace

Result<std::string> render(const Block& whole_template, const Fields& variables,
                           std::chrono::system_clock::time_point now) {
  return Interpreter(variables, now).run(whole_template);
}

}  // namespace outrider::chat_template
