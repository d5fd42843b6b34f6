// Runs a template's syntax tree, within a budget.
#pragma once

#include <chrono>
#include <string>

#include "base/status.h"
#include "text/chat_template/syntax.h"

namespace outrider::chat_template {

constexpr size_t kMaxOutputBytes = 4 << 20;
constexpr int kMaxMacroCalls = 64;  // inside of each other
constexpr int kMaxEvaluationDepth =
    1000;  // statements and expressions inside of each other, through macros too

// `variables` are the template's globals, beside those of globals.cpp. strftime_now() tells `now`, in local
// time.
Result<std::string> render(const Block& whole_template, const Fields& variables,
                           std::chrono::system_clock::time_point now);

}  // namespace outrider::chat_template
