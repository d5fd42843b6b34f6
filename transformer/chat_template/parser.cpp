// Statements: what stands between {% and %}.
#include <initializer_list>

#include "transformer/chat_template/expression_parser.h"
#include "transformer/chat_template/syntax.h"

namespace outrider::chat_template {
namespace {

using Kind = Statement::Kind;
using StatementPtr = std::unique_ptr<Statement>;

StatementPtr make(Kind kind, int line) {
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
      StatementPtr text = make(Kind::kText, token.line);
      text->text = token.text;
      return text;
    }
    if (token.kind == Token::Kind::kTagBegin) return tag(token.line);
    StatementPtr print = make(Kind::kPrint, token.line);
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
      return loop_control(name == "break" ? Kind::kBreak : Kind::kContinue, line);
    if (name == "generation") return generation(line);
    return unsupported_at(line, fmt::format("{{% {} %}} here", name));
  }

  Result<StatementPtr> if_statement(int line) {
    StatementPtr out = make(Kind::kIf, line);
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

  // Names to assign to: "a" or "a, b".
  Status targets(Statement& statement) {
    do {
      ASSIGN_OR_RETURN(std::string name, in_.expect_identifier());
      statement.targets.push_back(std::move(name));
    } while (in_.accept_operator(","));
    return {};
  }

  Result<StatementPtr> for_statement(int line) {
    StatementPtr out = make(Kind::kFor, line);
    RETURN_IF_ERROR(targets(*out));
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
    StatementPtr out = make(Kind::kSet, line);
    RETURN_IF_ERROR(targets(*out));
    if (in_.accept_operator(".")) {
      out->kind = Kind::kSetField;
      ASSIGN_OR_RETURN(out->text, in_.expect_identifier());
    }
    if (in_.accept_operator("=")) {
      ASSIGN_OR_RETURN(out->expression, in_.expression_list());
      RETURN_IF_ERROR(end_of_tag());
      return out;
    }
    if (in_.peek().is_operator("|")) return unsupported_at(line, "a filtered {% set %} block");
    if (out->kind == Kind::kSetField || out->targets.size() > 1) return in_.unexpected();
    RETURN_IF_ERROR(end_of_tag());
    ASSIGN_OR_RETURN(out->body, block_until({"endset"}));
    RETURN_IF_ERROR(closing_tag());
    return out;
  }

  Result<StatementPtr> macro(int line) {
    StatementPtr out = make(Kind::kMacro, line);
    out->macro = std::make_unique<Macro>();
    ASSIGN_OR_RETURN(out->macro->name, in_.expect_identifier());
    RETURN_IF_ERROR(in_.expect_operator("("));
    while (!in_.accept_operator(")")) {
      ASSIGN_OR_RETURN(std::string parameter, in_.expect_identifier());
      ExpressionPtr value;
      if (in_.accept_operator("=")) {
        ASSIGN_OR_RETURN(value, in_.expression());
      }
      out->macro->parameters.push_back(std::move(parameter));
      out->macro->defaults.push_back(std::move(value));
      if (!in_.accept_operator(",") && !in_.peek().is_operator(")")) return in_.unexpected();
    }
    RETURN_IF_ERROR(end_of_tag());
    const int outer_loops = std::exchange(loops_, 0);
    ASSIGN_OR_RETURN(out->macro->body, block_until({"endmacro"}));
    loops_ = outer_loops;
    RETURN_IF_ERROR(closing_tag());
    return out;
  }

  Result<StatementPtr> loop_control(Kind kind, int line) {
    if (loops_ == 0) return error_at(line, "break or continue outside of a for");
    RETURN_IF_ERROR(end_of_tag());
    return make(kind, line);
  }

  // Marks the assistant's text for training; renders as its content.
  Result<StatementPtr> generation(int line) {
    StatementPtr out = make(Kind::kBlock, line);
    RETURN_IF_ERROR(end_of_tag());
    ASSIGN_OR_RETURN(out->body, block_until({"endgeneration"}));
    RETURN_IF_ERROR(closing_tag());
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
