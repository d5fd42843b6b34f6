// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/chat_template/value.h"

namespace outrider::chat_template {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    kConstant,   // constant
    kVariable,   // name
    kList,       // operands
    kTuple,      // operands
    kDict,       // operands: key, value, key, value, ...
    kAttribute,  // operands[0].name
    kItem,       // operands[0][operands[1]]
    kSlice,      // operands[0][operands[1]:operands[2]:operands[3]], null where left out
    kCall,       // operands[0](operands[1..], keywords)
    kFilter,     // operands[0] | name(operands[1..], keywords)
    kTest,       // operands[0] is name(operands[1..])
    kNot,
    kMinus,
    kPlus,  // operands[0]
    kAnd,
    kOr,             // operands, at least two
    kArithmetic,     // operands, operators between them, left to right
    kComparison,     // operands, operators between them, chained as in Python
    kConcatenation,  // operands
    kConditional,    // operands[0] if operands[1] else operands[2], null where left out
  };
  Kind kind;
  int line;
  std::string name = {};
  Value constant = {};
  std::vector<ExpressionPtr> operands = {};
  std::vector<std::string> operators = {};
  std::vector<std::pair<std::string, ExpressionPtr>> keywords = {};
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Macro {
  std::string name;
  // Its body reads varargs or kwargs, what is given beyond the parameters, or caller, the body of a call
  // block.
  bool takes_varargs = false, takes_kwargs = false, takes_caller = false;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // by parameter, null where there is none
  Block body;
};

// The left side of an assignment: a name, or several targets for the elements of a value.
struct Target {
  std::string name;
  std::vector<Target> parts = {};
};

// The variable that stands for the text of a block in the filters of {% set x | f %} and {% filter f %}.
constexpr const char* kBlockText = "the text of the block";

struct Statement {
  enum class Kind {
    kText,         // text
    kPrint,        // expression
    kIf,           // branches; a null condition is the else
    kFor,          // for target in expression if condition: body, else: alternative
    kSet,          // target = expression
    kSetBlock,     // target = what body prints; then, unless null, expression of it
    kSetField,     // target.text = expression
    kMacro,        // macro
    kCallBlock,    // prints expression, a call whose callee's caller() is macro
    kFilterBlock,  // prints expression of what body prints
    kWith,         // body, with settings
    kBreak,
    kContinue,
    kBlock,  // body, with variables of its own: {% generation %}
  };
  struct Branch {
    ExpressionPtr condition;
    Block body;
  };
  Kind kind;
  int line;
  std::string text = {};
  ExpressionPtr expression = {}, condition = {};
  Target target = {};
  std::vector<std::pair<Target, ExpressionPtr>> settings = {};
  std::vector<Branch> branches = {};
  Block body = {}, alternative = {};
  std::unique_ptr<Macro> macro = {};
};

constexpr int kMaxSyntaxDepth = 64;

// Errors name the line and what is wrong or not supported.
Result<Block> parse(const std::string& source);

}  // namespace outrider::chat_template
