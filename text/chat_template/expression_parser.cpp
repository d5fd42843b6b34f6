#include "text/chat_template/expression_parser.h"

#include <optional>

namespace outrider::chat_template {
namespace {

using Kind = Expression::Kind;

ExpressionPtr make(Kind kind, int line, std::string name = {}) {
  return std::make_unique<Expression>(Expression{.kind = kind, .line = line, .name = std::move(name)});
}

ExpressionPtr make_with(Kind kind, ExpressionPtr operand, std::string name = {}) {
  ExpressionPtr out = make(kind, operand->line, std::move(name));
  out->operands.push_back(std::move(operand));
  return out;
}

ExpressionPtr constant(int line, Value value) {
  ExpressionPtr out = make(Kind::kConstant, line);
  out->constant = std::move(value);
  return out;
}

}  // namespace

bool ExpressionParser::accept_name(const char* name) {
  if (!peek().is_name(name)) return false;
  take();
  return true;
}

bool ExpressionParser::accept_operator(const char* symbol) {
  if (!peek().is_operator(symbol)) return false;
  take();
  return true;
}

Status ExpressionParser::expect_operator(const char* symbol) {
  if (accept_operator(symbol)) return {};
  return unexpected().in(fmt::format("'{}' is needed", symbol));
}

Result<std::string> ExpressionParser::expect_identifier() {
  if (peek().kind != Token::Kind::kName) return unexpected();
  return take().text;
}

Status ExpressionParser::unexpected() const {
  const Token& token = peek();
  switch (token.kind) {
    case Token::Kind::kText:
      return error_at(token.line, "unexpected text");
    case Token::Kind::kTagBegin:
    case Token::Kind::kPrintBegin:
      return error_at(token.line, "unexpected start of a tag");
    case Token::Kind::kTagEnd:
    case Token::Kind::kPrintEnd:
      return error_at(token.line, "unexpected end of the tag");
    case Token::Kind::kEnd:
      return error_at(token.line, "unexpected end of the template");
    default:
      return error_at(token.line, fmt::format("unexpected '{}'", token.text));
  }
}

Status ExpressionParser::check_depth() const {
  if (depth_ <= kMaxSyntaxDepth) return {};
  return error_at(peek().line, fmt::format("nested deeper than {} levels", kMaxSyntaxDepth));
}

Result<ExpressionPtr> ExpressionParser::expression() {
  const Nesting nesting(depth_);
  RETURN_IF_ERROR(check_depth());
  ASSIGN_OR_RETURN(ExpressionPtr value, disjunction());
  if (!accept_name("if")) return value;
  ExpressionPtr conditional = make_with(Kind::kConditional, std::move(value));
  ASSIGN_OR_RETURN(ExpressionPtr condition, disjunction());
  conditional->operands.push_back(std::move(condition));
  ExpressionPtr alternative;
  if (accept_name("else")) {
    ASSIGN_OR_RETURN(alternative, expression());
  }
  conditional->operands.push_back(std::move(alternative));
  return conditional;
}

Result<ExpressionPtr> ExpressionParser::expression_list() {
  ASSIGN_OR_RETURN(ExpressionPtr first, expression());
  if (!peek().is_operator(",")) return first;
  ExpressionPtr tuple = make_with(Kind::kTuple, std::move(first));
  while (accept_operator(",")) {
    if (peek().kind == Token::Kind::kTagEnd || peek().is_operator(")")) break;
    ASSIGN_OR_RETURN(ExpressionPtr next, expression());
    tuple->operands.push_back(std::move(next));
  }
  return tuple;
}

Result<ExpressionPtr> ExpressionParser::filters_of(const char* variable) {
  ExpressionPtr operand = make(Kind::kVariable, peek().line, variable);
  if (!peek().is_operator("|")) {
    ASSIGN_OR_RETURN(operand, filter(std::move(operand)));
  }
  return add_filters(std::move(operand));
}

bool ExpressionParser::names_since(size_t position, const char* name) const {
  for (size_t i = position; i < at_; ++i)
    if (tokens_[i].is_name(name)) return true;
  return false;
}

Result<ExpressionPtr> ExpressionParser::joined_by_name(Kind kind, const char* name, Rule operand) {
  ASSIGN_OR_RETURN(ExpressionPtr first, (this->*operand)());
  if (!peek().is_name(name)) return first;
  ExpressionPtr joined = make_with(kind, std::move(first));
  while (accept_name(name)) {
    ASSIGN_OR_RETURN(ExpressionPtr next, (this->*operand)());
    joined->operands.push_back(std::move(next));
  }
  return joined;
}

// One node for a whole chain, however long: the tree stays flat.
Result<ExpressionPtr> ExpressionParser::joined_by_operators(Kind kind,
                                                            const std::vector<const char*>& symbols,
                                                            Rule operand) {
  ASSIGN_OR_RETURN(ExpressionPtr first, (this->*operand)());
  ExpressionPtr joined;
  for (;;) {
    const char* found = nullptr;
    for (const char* symbol : symbols)
      if (peek().is_operator(symbol)) found = symbol;
    if (found == nullptr) return joined ? std::move(joined) : std::move(first);
    take();
    if (!joined) joined = make_with(kind, std::move(first));
    ASSIGN_OR_RETURN(ExpressionPtr next, (this->*operand)());
    joined->operators.emplace_back(found);
    joined->operands.push_back(std::move(next));
  }
}

Result<ExpressionPtr> ExpressionParser::disjunction() {
  return joined_by_name(Kind::kOr, "or", &ExpressionParser::conjunction);
}
Result<ExpressionPtr> ExpressionParser::conjunction() {
  return joined_by_name(Kind::kAnd, "and", &ExpressionParser::negation);
}

Result<ExpressionPtr> ExpressionParser::negation() {
  if (!accept_name("not")) return comparison();
  const Nesting nesting(depth_);
  RETURN_IF_ERROR(check_depth());
  ASSIGN_OR_RETURN(ExpressionPtr operand, negation());
  return make_with(Kind::kNot, std::move(operand));
}

std::optional<std::string> ExpressionParser::comparison_operator() {
  for (const char* symbol : {"==", "!=", "<=", ">=", "<", ">"})
    if (accept_operator(symbol)) return symbol;
  if (accept_name("in")) return "in";
  if (peek().is_name("not") && at_ + 1 < tokens_.size() && tokens_[at_ + 1].is_name("in")) {
    take();
    take();
    return "not in";
  }
  return std::nullopt;
}

Result<ExpressionPtr> ExpressionParser::comparison() {
  ASSIGN_OR_RETURN(ExpressionPtr first, sum());
  auto symbol = comparison_operator();
  if (!symbol) return first;
  ExpressionPtr chain = make_with(Kind::kComparison, std::move(first));
  for (; symbol; symbol = comparison_operator()) {
    ASSIGN_OR_RETURN(ExpressionPtr next, sum());
    chain->operators.push_back(*symbol);
    chain->operands.push_back(std::move(next));
  }
  return chain;
}

Result<ExpressionPtr> ExpressionParser::sum() {
  return joined_by_operators(Kind::kArithmetic, {"+", "-"}, &ExpressionParser::concatenation);
}
Result<ExpressionPtr> ExpressionParser::concatenation() {
  return joined_by_operators(Kind::kConcatenation, {"~"}, &ExpressionParser::product);
}
Result<ExpressionPtr> ExpressionParser::product() {
  return joined_by_operators(Kind::kArithmetic, {"*", "/", "//", "%"}, &ExpressionParser::power);
}
Result<ExpressionPtr> ExpressionParser::power() {
  return joined_by_operators(Kind::kArithmetic, {"**"}, &ExpressionParser::unary);
}

// Filters bind looser than signs: -x|abs is (-x)|abs.
Result<ExpressionPtr> ExpressionParser::unary() {
  ASSIGN_OR_RETURN(ExpressionPtr operand, signed_operand());
  return add_filters(std::move(operand));
}

Result<ExpressionPtr> ExpressionParser::signed_operand() {
  for (const auto& [symbol, kind] : {std::pair("-", Kind::kMinus), std::pair("+", Kind::kPlus)}) {
    if (!accept_operator(symbol)) continue;
    const Nesting nesting(depth_);
    RETURN_IF_ERROR(check_depth());
    ASSIGN_OR_RETURN(ExpressionPtr operand, signed_operand());
    return make_with(kind, std::move(operand));
  }
  return postfix();
}

Result<ExpressionPtr> ExpressionParser::postfix() {
  ASSIGN_OR_RETURN(ExpressionPtr operand, primary());
  return add_postfixes(std::move(operand));
}

Result<ExpressionPtr> ExpressionParser::add_postfixes(ExpressionPtr operand) {
  for (int links = 0;; ++links) {
    if (links > kMaxSyntaxDepth) return error_at(peek().line, "too long a chain of '.', '[...]' and calls");
    if (accept_operator(".")) {
      ASSIGN_OR_RETURN(operand, attribute(std::move(operand)));
    } else if (accept_operator("[")) {
      ASSIGN_OR_RETURN(operand, subscript(std::move(operand)));
    } else if (accept_operator("(")) {
      ASSIGN_OR_RETURN(operand, call(std::move(operand)));
    } else {
      return operand;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::add_filters(ExpressionPtr operand) {
  for (int links = 0;; ++links) {
    if (links > kMaxSyntaxDepth) return error_at(peek().line, "too long a chain of filters and tests");
    if (accept_operator("|")) {
      ASSIGN_OR_RETURN(operand, filter(std::move(operand)));
    } else if (accept_name("is")) {
      ASSIGN_OR_RETURN(operand, test(std::move(operand)));
    } else if (accept_operator("(")) {
      ASSIGN_OR_RETURN(operand, call(std::move(operand)));
    } else {
      return operand;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::attribute(ExpressionPtr operand) {
  if (peek().kind == Token::Kind::kInteger) {  // a.0 is a[0]
    ExpressionPtr item = make_with(Kind::kItem, std::move(operand));
    const Token index = take();
    item->operands.push_back(constant(index.line, Value(index.integer)));
    return item;
  }
  ASSIGN_OR_RETURN(std::string name, expect_identifier());
  return make_with(Kind::kAttribute, std::move(operand), std::move(name));
}

Result<ExpressionPtr> ExpressionParser::subscript(ExpressionPtr operand) {
  std::vector<ExpressionPtr> parts(1);
  while (!peek().is_operator("]")) {
    if (accept_operator(":")) {
      parts.emplace_back();
      if (parts.size() > 3) return unexpected();
    } else {
      if (parts.back()) return unexpected();
      ASSIGN_OR_RETURN(parts.back(), expression());
    }
  }
  if (parts.size() == 1 && !parts[0]) return unexpected();
  take();
  ExpressionPtr out = make_with(parts.size() == 1 ? Kind::kItem : Kind::kSlice, std::move(operand));
  if (out->kind == Kind::kSlice) parts.resize(3);
  for (ExpressionPtr& part : parts) out->operands.push_back(std::move(part));
  return out;
}

Result<ExpressionPtr> ExpressionParser::filter(ExpressionPtr operand) {
  ASSIGN_OR_RETURN(std::string name, expect_identifier());
  ExpressionPtr out = make_with(Kind::kFilter, std::move(operand), std::move(name));
  if (accept_operator("(")) RETURN_IF_ERROR(arguments(*out));
  return out;
}

// A test takes one argument without parentheses: "x is divisibleby 3".
bool ExpressionParser::starts_test_argument() const {
  switch (peek().kind) {
    case Token::Kind::kName:
      for (const char* other : {"else", "or", "and", "is", "if"})
        if (peek().is_name(other)) return false;
      return true;
    case Token::Kind::kString:
    case Token::Kind::kInteger:
    case Token::Kind::kFloat:
      return true;
    default:
      return peek().is_operator("[") || peek().is_operator("{");
  }
}

Result<ExpressionPtr> ExpressionParser::test(ExpressionPtr operand) {
  const bool negated = accept_name("not");
  ASSIGN_OR_RETURN(std::string name, expect_identifier());
  ExpressionPtr out = make_with(Kind::kTest, std::move(operand), std::move(name));
  if (accept_operator("(")) {
    RETURN_IF_ERROR(arguments(*out));
  } else if (starts_test_argument() && !(peek().is_name("not") || peek().is_name("in"))) {
    ASSIGN_OR_RETURN(ExpressionPtr argument, postfix());
    out->operands.push_back(std::move(argument));
  }
  return negated ? make_with(Kind::kNot, std::move(out)) : std::move(out);
}

Result<ExpressionPtr> ExpressionParser::call(ExpressionPtr callee) {
  ExpressionPtr out = make_with(Kind::kCall, std::move(callee));
  RETURN_IF_ERROR(arguments(*out));
  return out;
}

Status ExpressionParser::arguments(Expression& call) {
  while (!accept_operator(")")) {
    if (peek().is_operator("*") || peek().is_operator("**"))
      return unsupported_at(peek().line, "unpacking of arguments");
    if (peek().kind == Token::Kind::kName && at_ + 1 < tokens_.size() && tokens_[at_ + 1].is_operator("=")) {
      std::string name = take().text;
      take();
      ASSIGN_OR_RETURN(ExpressionPtr value, expression());
      call.keywords.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.keywords.empty()) return unexpected().in("an argument after keyword arguments");
      ASSIGN_OR_RETURN(ExpressionPtr value, expression());
      call.operands.push_back(std::move(value));
    }
    if (!accept_operator(",") && !peek().is_operator(")")) return unexpected();
  }
  return {};
}

Result<ExpressionPtr> ExpressionParser::primary() {
  const int line = peek().line;
  switch (peek().kind) {
    case Token::Kind::kString: {
      std::string text;
      while (peek().kind == Token::Kind::kString) text += take().text;  // neighbours are one string
      return constant(line, Value(std::move(text)));
    }
    case Token::Kind::kInteger:
      return constant(line, Value(take().integer));
    case Token::Kind::kFloat:
      return constant(line, Value(take().number));
    case Token::Kind::kName: {
      std::string name = take().text;
      if (name == "true" || name == "True") return constant(line, Value(true));
      if (name == "false" || name == "False") return constant(line, Value(false));
      if (name == "none" || name == "None") return constant(line, Value(None{}));
      return make(Kind::kVariable, line, std::move(name));
    }
    default:
      break;
  }
  if (accept_operator("(")) return parenthesised();
  if (accept_operator("[")) return list();
  if (accept_operator("{")) return dict();
  return unexpected();
}

Result<ExpressionPtr> ExpressionParser::parenthesised() {
  if (accept_operator(")")) return make(Kind::kTuple, peek().line);
  ASSIGN_OR_RETURN(ExpressionPtr inner, expression_list());
  RETURN_IF_ERROR(expect_operator(")"));
  return inner;
}

Result<ExpressionPtr> ExpressionParser::list() {
  ExpressionPtr out = make(Kind::kList, peek().line);
  while (!accept_operator("]")) {
    ASSIGN_OR_RETURN(ExpressionPtr element, expression());
    out->operands.push_back(std::move(element));
    if (!accept_operator(",") && !peek().is_operator("]")) return unexpected();
  }
  return out;
}

Result<ExpressionPtr> ExpressionParser::dict() {
  ExpressionPtr out = make(Kind::kDict, peek().line);
  while (!accept_operator("}")) {
    ASSIGN_OR_RETURN(ExpressionPtr key, expression());
    RETURN_IF_ERROR(expect_operator(":"));
    ASSIGN_OR_RETURN(ExpressionPtr value, expression());
    out->operands.push_back(std::move(key));
    out->operands.push_back(std::move(value));
    if (!accept_operator(",") && !peek().is_operator("}")) return unexpected();
  }
  return out;
}

}  // namespace outrider::chat_template
