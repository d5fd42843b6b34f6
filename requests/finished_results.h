// Results that an earlier run of the same requests left behind (--resume): recognised by what their text
// depends on, not by their place in a file.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <unordered_map>

#include "requests/requests.h"

namespace outrider {

// What tells a request's text apart: the prompt's ids, every parameter of the request, and the model with its
// numerics. Requests with equal fingerprints have equal texts, or under rules whose text depends on drafts,
// texts of one law.
class RequestFingerprints {
 public:
  // `model`: of the target, and of all that its numerics and --synthetic-acceptance do to a text.
  explicit RequestFingerprints(uint64_t model) : model_(model) {}
  uint64_t operator()(const PromptRequest& asked) const;

 private:
  uint64_t model_;
};

// As results show it.
std::string format_fingerprint(uint64_t fingerprint);

// A result as a line of --output, with a checksum of all the rest of it: a text that was damaged, or edited,
// is not taken over.
std::string result_line(nlohmann::json result);

class FinishedResults {
 public:
  FinishedResults() = default;
  // Lines of --output, or of what is left of it. Those that ended with an error are not finished, nor is a
  // last line without its end. Errors name the file and the line: also of one whose checksum is wrong
  // or, as in files of older versions, missing.
  static Result<FinishedResults> read(const std::string& path);

  size_t size() const { return line_of_.size(); }
  bool has(uint64_t fingerprint) const { return line_of_.contains(fingerprint); }
  // The result as a line for place `index` of a new file; empty: there is none.
  std::optional<std::string> line_for(const PromptRequest& request, size_t index) const;

 private:
  std::unordered_map<uint64_t, std::string> line_of_;
};

}  // namespace outrider
