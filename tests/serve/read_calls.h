// The calls that a ToolCallParser finds in an answer, however the answer is cut into pieces.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "serve/api/tool_parser.h"

namespace outrider::testing {

struct ReadCalls {
  std::string text;
  using Calls = std::vector<std::pair<std::string, std::string>>;
  Calls calls;  // name, arguments
  bool operator==(const ReadCalls&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const ReadCalls& read) {
  out << "'" << read.text << "'";
  for (const auto& [name, arguments] : read.calls) out << " " << name << "(" << arguments << ")";
  return out;
}

// `ids`: gets the id of each call.
inline ReadCalls read_calls(const ToolReading& reading, const std::vector<std::string>& pieces,
                            std::vector<std::string>* ids = nullptr) {
  ToolCallParser parser(reading);
  std::vector<ToolEvent> all;
  for (const std::string& piece : pieces) {
    std::vector<ToolEvent> events;  // as a stream has them
    parser.append(piece, events);
    all.insert(all.end(), events.begin(), events.end());
  }
  parser.finish(all);
  ReadCalls out;
  for (const ToolEvent& event : all) {
    EXPECT_FALSE(event.text.empty());
    if (event.kind == ToolEvent::Kind::kText) out.text += event.text;
    if (event.kind == ToolEvent::Kind::kCall) {
      EXPECT_EQ(event.index, static_cast<int>(out.calls.size()));
      out.calls.emplace_back(event.text, "");
      if (ids) ids->push_back(event.id);
    }
    if (event.kind == ToolEvent::Kind::kArguments)
      out.calls.at(static_cast<size_t>(event.index)).second += event.text;
  }
  EXPECT_EQ(parser.calls(), static_cast<int>(out.calls.size()));
  return out;
}

// Whole, cut in two at every byte, and byte by byte.
inline void expect_read_calls(const ToolReading& reading, const std::string& text,
                              const ReadCalls& expected) {
  EXPECT_EQ(read_calls(reading, {text}), expected) << text;
  std::vector<std::string> bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    bytes.push_back(text.substr(i, 1));
    EXPECT_EQ(read_calls(reading, {text.substr(0, i), text.substr(i)}), expected) << text << "\ncut at " << i;
  }
  EXPECT_EQ(read_calls(reading, bytes), expected) << text << "\nbyte by byte";
}

}  // namespace outrider::testing
