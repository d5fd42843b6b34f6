// Published workloads in their original formats: a line of each format becomes a line of --prompts.
//
//   Spec-Bench, MT-bench (question.jsonl)   {"question_id": 81, "category": "writing", "turns": [...]}
//   SPEED-Bench                             the same; or, as NeMo-Skills prepares it, for the chat template:
//                                           {"question_id": "...", "category": "coding", "messages": [...]}
//   HumanEval                               {"task_id": "HumanEval/0", "prompt": "...", ...}
//   GSM8K                                   {"question": "...", "answer": "..."}
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
  std::string category;  // from the file, or the name of the benchmark
  std::string id;        // the line's own, as JSON text; empty without one
  // Further turns of a conversation; each follows the model's answer to the turn before.
  std::vector<std::string> later_turns;
  bool is_chat = false;  // turns are messages of the user, whatever --chat says
};

// Empty: the object has no known format. Fields for graders only are skipped.
std::optional<PublishedLine> published_line(const nlohmann::json& object);

struct TraceLine {
  int64_t prompt_tokens = 0, output_tokens = 0;
};

// Whether a file that begins with this line is such a trace, with or without a carriage return.
bool is_trace_header(std::string_view line);
// An error names the fault of the line.
Result<TraceLine> trace_line(std::string_view line);

// Advice for a compressed file that begins with these bytes; empty if it is not compressed.
std::string how_to_unpack(std::string_view first_bytes, std::string_view path);

}  // namespace outrider
