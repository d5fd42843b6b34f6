// Tokens to expressions, with Jinja's precedence. Used by the parser of statements.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/chat_template/lexer.h"
#include "text/chat_template/nesting.h"
#include "text/chat_template/syntax.h"

namespace outrider::chat_template {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek() const { return tokens_[at_]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool accept_name(const char* name);
  bool accept_operator(const char* symbol);
  Status expect_operator(const char* symbol);
  Result<std::string> expect_identifier();
  Status unexpected() const;  // names the token here

  // a if b else c
  Result<ExpressionPtr> expression();
  Result<ExpressionPtr> disjunction();      // without the inline if: what `for x in` takes
  Result<ExpressionPtr> expression_list();  // "a, b" is a tuple
  // "trim | upper" or "| trim | upper", of the variable.
  Result<ExpressionPtr> filters_of(const char* variable);

  size_t position() const { return at_; }
  bool names_since(size_t position,
                   const char* name) const;  // whether a token from there to here is the name

  int& depth() { return depth_; }
  Status check_depth() const;

 private:
  using Rule = Result<ExpressionPtr> (ExpressionParser::*)();
  Result<ExpressionPtr> joined_by_name(Expression::Kind kind, const char* name, Rule operand);
  Result<ExpressionPtr> joined_by_operators(Expression::Kind kind, const std::vector<const char*>& symbols,
                                            Rule operand);
  Result<ExpressionPtr> conjunction();
  Result<ExpressionPtr> negation();
  Result<ExpressionPtr> comparison();
  Result<ExpressionPtr> sum();
  Result<ExpressionPtr> concatenation();
  Result<ExpressionPtr> product();
  Result<ExpressionPtr> power();
  Result<ExpressionPtr> unary();
  Result<ExpressionPtr> signed_operand();
  Result<ExpressionPtr> postfix();
  Result<ExpressionPtr> primary();
  Result<ExpressionPtr> parenthesised();
  Result<ExpressionPtr> list();
  Result<ExpressionPtr> dict();

  Result<ExpressionPtr> add_postfixes(ExpressionPtr operand);
  Result<ExpressionPtr> add_filters(ExpressionPtr operand);
  Result<ExpressionPtr> attribute(ExpressionPtr operand);
  Result<ExpressionPtr> subscript(ExpressionPtr operand);
  Result<ExpressionPtr> filter(ExpressionPtr operand);
  Result<ExpressionPtr> test(ExpressionPtr operand);
  bool starts_test_argument() const;
  Result<ExpressionPtr> call(ExpressionPtr callee);
  Status arguments(Expression& call);  // after "(", up to and with ")"
  std::optional<std::string> comparison_operator();

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace outrider::chat_template
