// Results of an earlier run of the same requests (--resume). They are recognised by everything that their
// text depends on, not by their place in a file.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <unordered_map>

#include "requests/requests.h"

namespace outrider {

// Identifies a request's text: the prompt's ids, every parameter of the request, and the model with its
// numerics. Equal fingerprints mean equal texts; under rules whose text depends on drafts, texts of the same
// distribution.
class RequestFingerprints {
 public:
  // `model`: of the target, with its numerics and --synthetic-acceptance.
  explicit RequestFingerprints(uint64_t model) : model_(model) {}
  uint64_t operator()(const PromptRequest& asked) const;

 private:
  uint64_t model_;
};

// The format in results.
std::string format_fingerprint(uint64_t fingerprint);

// A result as a line of --output, with a checksum of its other fields: a damaged or edited line is not taken
// over.
std::string result_line(nlohmann::json result);

class FinishedResults {
 public:
  FinishedResults() = default;
  // Reads lines of --output, or of its partial file. Lines that ended with an error count as unfinished, and
  // so does an incomplete last line. Errors name the file and the line; a checksum that is wrong or missing
  // (files of older versions) is an error.
  static Result<FinishedResults> read(const std::string& path);

  size_t size() const { return line_of_.size(); }
  bool has(uint64_t fingerprint) const { return line_of_.contains(fingerprint); }
  // The result as a line for place `index` of a new file; empty: none.
  std::optional<std::string> line_for(const PromptRequest& request, size_t index) const;

 private:
  std::unordered_map<uint64_t, std::string> line_of_;
};

}  // namespace outrider
