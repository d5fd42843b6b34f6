// Where generated text goes. Standard output carries only continuations (or JSON lines); a file appears under
// its name when it is complete. Until then, and when the run ends before, its finished results are in a file
// whose name says that there should be more.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/program/temporary_file.h"
#include "coordinator/events.h"
#include "coordinator/trace.h"
#include "requests/requests.h"

namespace outrider {

// One request's result so far.
struct Generated {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<PositionLogprobs> logprobs;
  FinishReason reason = FinishReason::kStop;
  Status error;
  RequestMetrics metrics;
};

class Output {
 public:
  // The output file, if any, is opened under a temporary name at once, and the paths of the reports are
  // tried, so that a bad path is told before any work.
  static Result<Output> open(const RunOptions& options, const Tokenizer& tokenizer);

  // Text of the only request, as it comes (not with --output or --prompts).
  void stream(const std::string& text);
  // Results in the order of the requests, each as soon as all before it are there.
  void result(size_t index, const PromptRequest& request, const Generated& generated);
  // The same of a result that an earlier run left, as its line.
  void finished_line(size_t index, std::string line);
  // Whether a write failed: nobody reads any more, or the disk is full. More work would be in vain.
  bool failed() const { return error_ != 0; }
  // Gives the output file its name. An error if any text did not get out.
  Status close();
  // Instead, or after close() failed: leaves what is finished under the temporary name, and tells it.
  void give_up(size_t requests);

 private:
  Output(const RunOptions& options, const Tokenizer& tokenizer)
      : options_(&options), tokenizer_(&tokenizer) {}
  // Plain text instead of JSON lines.
  bool is_streamed() const { return options_->prompt && options_->output_file.empty(); }
  bool keeps_results() const { return file_ && file_->is_temporary(); }
  void write(const std::string& text);
  void add_line(size_t index, std::string line, bool finished);
  void keep_results();
  nlohmann::json line_of(size_t index, const PromptRequest& request, const Generated& generated) const;

  const RunOptions* options_;
  const Tokenizer* tokenizer_;
  std::optional<TemporaryFile> file_;  // empty: standard output
  std::map<size_t, std::string> waiting_;
  size_t next_ = 0;
  size_t finished_ = 0;  // without errors
  int64_t bytes_ = 0;    // written, whole lines
  bool marked_ = false;  // a streamed synthetic text says so first
  int error_ = 0;        // errno of the first write that failed
};

// Writes a whole file, or none.
Status write_file(const std::string& path, const std::string& content);
// The same for a trace.
Status write_trace(const std::string& path, const Trace& trace);

}  // namespace outrider
