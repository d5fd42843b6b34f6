// Runs a template's syntax tree, within a budget.
#pragma once

#include <string>

#include "base/status.h"
#include "transformer/chat_template/syntax.h"

namespace outrider::chat_template {

constexpr size_t kMaxOutputBytes = 4 << 20;
constexpr int kMaxMacroCalls = 64;  // inside of each other
constexpr int kMaxEvaluationDepth =
    1000;  // statements and expressions inside of each other, through macros too

// `variables` are the template's globals, beside namespace(), range(), dict() and raise_exception().
Result<std::string> render(const Block& whole_template, const Map& variables);

}  // namespace outrider::chat_template
