// Statements: what stands between {% and %}.
#include <initializer_list>

#include "text/chat_template/expression_parser.h"
#include "text/chat_template/syntax.h"

namespace outrider::chat_template {
namespace {

using StatementKind = Statement::Kind;
using StatementPtr = std::unique_ptr<Statement>;

StatementPtr make(StatementKind kind, int line) {
  return std::make_unique<Statement>(Statement{.kind = kind, .line = line});
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  Result<Block> whole_template() {
    ASSIGN_OR_RETURN(Block block, block_until({}));
    if (in_.peek().kind != Token::Kind::kEnd) return in_.unexpected();
    return block;
  }

 private:
  // Statements up to a tag with one of the names, whose name is the next token then; or, without names, to
  // the end.
  Result<Block> block_until(std::initializer_list<const char*> names) {
    const Nesting nesting(in_.depth());
    RETURN_IF_ERROR(in_.check_depth());
    Block block;
    for (;;) {
      const Token token = in_.peek();
      if (token.kind == Token::Kind::kEnd) {
        if (names.size() == 0) return block;
        return error_at(token.line,
                        fmt::format("the template ends where {{% {} %}} is needed", *(names.end() - 1)));
      }
      in_.take();
      if (token.kind == Token::Kind::kTagBegin)
        for (const char* name : names)
          if (in_.peek().is_name(name)) return block;
      ASSIGN_OR_RETURN(StatementPtr statement, statement_from(token));
      block.push_back(std::move(statement));
    }
  }

  Result<StatementPtr> statement_from(const Token& token) {
    if (token.kind == Token::Kind::kText) {
      StatementPtr text = make(StatementKind::kText, token.line);
      text->text = token.text;
      return text;
    }
    if (token.kind == Token::Kind::kTagBegin) return tag(token.line);
    StatementPtr print = make(StatementKind::kPrint, token.line);
    ASSIGN_OR_RETURN(print->expression, in_.expression());
    if (in_.peek().kind != Token::Kind::kPrintEnd) return in_.unexpected();
    in_.take();
    return print;
  }

  Status end_of_tag() {
    if (in_.peek().kind != Token::Kind::kTagEnd) return in_.unexpected();
    in_.take();
    return {};
  }

  // After the name of the closing tag was seen.
  Status closing_tag() {
    in_.take();
    return end_of_tag();
  }

  Result<StatementPtr> tag(int line) {
    ASSIGN_OR_RETURN(const std::string name, in_.expect_identifier());
    if (name == "if") return if_statement(line);
    if (name == "for") return for_statement(line);
    if (name == "set") return set_statement(line);
    if (name == "macro") return macro(line);
    if (name == "break" || name == "continue")
      return loop_control(name == "break" ? StatementKind::kBreak : StatementKind::kContinue, line);
    if (name == "generation") return wrapper(StatementKind::kBlock, "endgeneration", line);
    if (name == "filter") return filter_block(line);
    if (name == "call") return call_block(line);
    if (name == "with") return with_statement(line);
    return unsupported_at(line, fmt::format("{{% {} %}} here", name));
  }

  Result<StatementPtr> if_statement(int line) {
    StatementPtr out = make(StatementKind::kIf, line);
    for (;;) {
      Statement::Branch branch;
      ASSIGN_OR_RETURN(branch.condition, in_.expression());
      RETURN_IF_ERROR(end_of_tag());
      ASSIGN_OR_RETURN(branch.body, block_until({"elif", "else", "endif"}));
      out->branches.push_back(std::move(branch));
      if (!in_.accept_name("elif")) break;
    }
    if (in_.accept_name("else")) {
      RETURN_IF_ERROR(end_of_tag());
      Statement::Branch branch;
      ASSIGN_OR_RETURN(branch.body, block_until({"endif"}));
      out->branches.push_back(std::move(branch));
    }
    RETURN_IF_ERROR(closing_tag());
    return out;
  }

  // The left side of an assignment: "a" or "a, (b, c)".
  Result<Target> targets() {
    const Nesting nesting(in_.depth());
    RETURN_IF_ERROR(in_.check_depth());
    Target several;
    bool is_tuple = false;
    do {
      if (several.parts.size() > 0 &&
          (in_.peek().is_name("in") || in_.peek().is_operator(")") || in_.peek().is_operator("=")))
        break;
      Target one;
      if (in_.accept_operator("(")) {
        ASSIGN_OR_RETURN(one, targets());
        RETURN_IF_ERROR(in_.expect_operator(")"));
      } else {
        ASSIGN_OR_RETURN(one.name, in_.expect_identifier());
      }
      several.parts.push_back(std::move(one));
      is_tuple = is_tuple || in_.peek().is_operator(",");
    } while (in_.accept_operator(","));
    if (is_tuple) return several;
    Target only = std::move(several.parts.front());
    return only;
  }

  Result<StatementPtr> for_statement(int line) {
    StatementPtr out = make(StatementKind::kFor, line);
    ASSIGN_OR_RETURN(out->target, targets());
    if (!in_.accept_name("in")) return in_.unexpected();
    ASSIGN_OR_RETURN(out->expression, in_.disjunction());
    if (in_.accept_name("if")) {
      ASSIGN_OR_RETURN(out->condition, in_.expression());
    }
    if (in_.peek().is_name("recursive")) return unsupported_at(line, "a recursive for");
    RETURN_IF_ERROR(end_of_tag());
    ++loops_;
    ASSIGN_OR_RETURN(out->body, block_until({"else", "endfor"}));
    --loops_;
    if (in_.accept_name("else")) {
      RETURN_IF_ERROR(end_of_tag());
      ASSIGN_OR_RETURN(out->alternative, block_until({"endfor"}));
    }
    RETURN_IF_ERROR(closing_tag());
    return out;
  }

  Result<StatementPtr> set_statement(int line) {
    StatementPtr out = make(StatementKind::kSet, line);
    ASSIGN_OR_RETURN(out->target, targets());
    if (out->target.parts.empty() && in_.accept_operator(".")) {
      out->kind = StatementKind::kSetField;
      ASSIGN_OR_RETURN(out->text, in_.expect_identifier());
    }
    if (in_.accept_operator("=")) {
      ASSIGN_OR_RETURN(out->expression, in_.expression_list());
      RETURN_IF_ERROR(end_of_tag());
      return out;
    }
    if (out->kind == StatementKind::kSetField || !out->target.parts.empty()) return in_.unexpected();
    out->kind = StatementKind::kSetBlock;
    if (in_.peek().is_operator("|")) {
      ASSIGN_OR_RETURN(out->expression, in_.filters_of(kBlockText));
    }
    RETURN_IF_ERROR(rest_of(*out, "endset"));
    return out;
  }

  // The end of the tag, the body, and the closing tag.
  Status rest_of(Statement& statement, const char* closing) {
    RETURN_IF_ERROR(end_of_tag());
    const int outer_loops = std::exchange(loops_, 0);  // no break out of a block that is captured
    ASSIGN_OR_RETURN(statement.body, block_until({closing}));
    loops_ = outer_loops;
    return closing_tag();
  }

  Result<StatementPtr> filter_block(int line) {
    StatementPtr out = make(StatementKind::kFilterBlock, line);
    ASSIGN_OR_RETURN(out->expression, in_.filters_of(kBlockText));
    RETURN_IF_ERROR(rest_of(*out, "endfilter"));
    return out;
  }

  Result<StatementPtr> with_statement(int line) {
    StatementPtr out = make(StatementKind::kWith, line);
    while (in_.peek().kind != Token::Kind::kTagEnd) {
      if (!out->settings.empty() && !in_.accept_operator(",")) return in_.unexpected();
      Target target;
      ASSIGN_OR_RETURN(target.name, in_.expect_identifier());
      RETURN_IF_ERROR(in_.expect_operator("="));
      ASSIGN_OR_RETURN(ExpressionPtr value, in_.expression());
      out->settings.emplace_back(std::move(target), std::move(value));
    }
    RETURN_IF_ERROR(end_of_tag());
    ASSIGN_OR_RETURN(out->body, block_until({"endwith"}));
    RETURN_IF_ERROR(closing_tag());
    return out;
  }

  // The parameters after "(", up to and with ")".
  Status parameters(Macro& macro) {
    while (!in_.accept_operator(")")) {
      ASSIGN_OR_RETURN(std::string parameter, in_.expect_identifier());
      ExpressionPtr value;
      if (in_.accept_operator("=")) {
        ASSIGN_OR_RETURN(value, in_.expression());
      } else if (!macro.defaults.empty() && macro.defaults.back()) {
        return in_.unexpected().in("a parameter without a default after one with");
      }
      macro.parameters.push_back(std::move(parameter));
      macro.defaults.push_back(std::move(value));
      if (!in_.accept_operator(",") && !in_.peek().is_operator(")")) return in_.unexpected();
    }
    return {};
  }

  Status macro_body(Macro& macro, const char* closing) {
    RETURN_IF_ERROR(end_of_tag());
    const int outer_loops = std::exchange(loops_, 0);
    const size_t begin = in_.position();
    ASSIGN_OR_RETURN(macro.body, block_until({closing}));
    loops_ = outer_loops;
    macro.takes_varargs = in_.names_since(begin, "varargs");
    macro.takes_kwargs = in_.names_since(begin, "kwargs");
    macro.takes_caller = in_.names_since(begin, "caller");
    return closing_tag();
  }

  Result<StatementPtr> macro(int line) {
    StatementPtr out = make(StatementKind::kMacro, line);
    out->macro = std::make_unique<Macro>();
    ASSIGN_OR_RETURN(out->macro->name, in_.expect_identifier());
    RETURN_IF_ERROR(in_.expect_operator("("));
    RETURN_IF_ERROR(parameters(*out->macro));
    RETURN_IF_ERROR(macro_body(*out->macro, "endmacro"));
    return out;
  }

  Result<StatementPtr> call_block(int line) {
    StatementPtr out = make(StatementKind::kCallBlock, line);
    out->macro = std::make_unique<Macro>();
    out->macro->name = "caller";
    if (in_.accept_operator("(")) RETURN_IF_ERROR(parameters(*out->macro));
    ASSIGN_OR_RETURN(out->expression, in_.expression());
    if (out->expression->kind != Expression::Kind::kCall) return error_at(line, "{% call %} needs a call");
    RETURN_IF_ERROR(macro_body(*out->macro, "endcall"));
    return out;
  }

  Result<StatementPtr> loop_control(StatementKind kind, int line) {
    if (loops_ == 0) return error_at(line, "break or continue outside of a for");
    RETURN_IF_ERROR(end_of_tag());
    return make(kind, line);
  }

  // {% generation %} marks the assistant's text for training; renders as its content.
  Result<StatementPtr> wrapper(StatementKind kind, const char* closing, int line) {
    StatementPtr out = make(kind, line);
    RETURN_IF_ERROR(rest_of(*out, closing));
    return out;
  }

  ExpressionParser in_;
  int loops_ = 0;  // around the statement being read
};

}  // namespace

Result<Block> parse(const std::string& source) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).whole_template();
}

}  // namespace outrider::chat_template
