// Workloads as they were published, read as they are: a line of each format becomes a line of --prompts.
//
//   Spec-Bench, MT-bench (question.jsonl)   {"question_id": 81, "category": "writing", "turns": ["...",
//   "..."]} HumanEval                               {"task_id": "HumanEval/0", "prompt": "...",
//   "canonical_solution": ...} GSM8K                                   {"question": "...", "answer": "..."}
//   Azure's traces, CSV                     TIMESTAMP,ContextTokens,GeneratedTokens
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace outrider {

struct PublishedLine {
  std::string prompt;
  std::string category;  // as the file has it, or the name of the benchmark
  std::string id;        // its own as JSON text; empty without one
  // Further turns of a conversation: each answers to what a model said to the one before.
  std::vector<std::string> later_turns;
};

// Empty: the object is in none of these formats. Fields that only graders need are passed over.
std::optional<PublishedLine> published_line(const nlohmann::json& object);

struct TraceLine {
  int64_t prompt_tokens = 0, output_tokens = 0;
};

// Whether a file that begins with this line is such a trace, with or without a carriage return.
bool is_trace_header(std::string_view line);
// An error says what is wrong with the line.
Result<TraceLine> trace_line(std::string_view line);

// What to do with a file that begins so, if it is compressed; else empty.
std::string how_to_unpack(std::string_view first_bytes, std::string_view path);

}  // namespace outrider
