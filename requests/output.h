// Where generated text goes. Standard output carries only continuations (or JSON lines); a file appears under
// its name when it is complete. Until then, and when the run ends before, its finished results are in a file
// whose name says that there should be more.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/program/temporary_file.h"
#include "coordinator/events.h"
#include "coordinator/trace.h"
#include "requests/requests.h"
#include "requests/run_files.h"

namespace outrider {

// One request's result so far.
struct Generated {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<PositionLogprobs> logprobs;
  FinishReason reason = FinishReason::kStop;
  Status error;
};

struct OutputOptions {
  RunFiles files;
  bool has_one_prompt = false;       // its text is written as it comes, unless there is an output file
  std::string synthetic_acceptance;  // not empty: texts mean nothing, and say so
  bool quiet = false;
};

class Output {
 public:
  // The output file, if any, is opened under a temporary name at once, and the paths of the reports are
  // tried, so that a bad path is told before any work.
  static Result<Output> open(OutputOptions options, const Tokenizer& tokenizer);

  // Text of the only request, as it comes (not with --output or --prompts).
  void stream(const std::string& text);
  // Results in the order of the requests, each as soon as all before it are there.
  void result(size_t index, const PromptRequest& request, const Generated& generated);
  // Plain text instead of JSON lines.
  bool is_streamed() const { return options_.has_one_prompt && options_.files.output.empty(); }
  // A result that an earlier run left, as its line; it is written in its turn too.
  void finished_line(size_t index, std::string line);
  // Whether a write failed: nobody reads any more, or the disk is full. More work would be in vain.
  bool failed() const { return error_ != 0; }
  // Gives the output file its name. An error if any text did not get out.
  Status close();
  // Instead, or after close() failed: leaves what is finished under the temporary name, and tells it.
  void give_up(size_t requests);

 private:
  Output(OutputOptions options, const Tokenizer& tokenizer)
      : options_(std::move(options)), tokenizer_(&tokenizer) {}
  bool keeps_results() const { return file_ && file_->is_temporary(); }
  void write(const std::string& text);
  struct Line {
    std::string text;
    bool finished;  // without an error
  };
  void write_line(const Line& line);
  void add_line(size_t index, std::string line, bool finished);
  void keep_results();
  nlohmann::json line_of(size_t index, const PromptRequest& request, const Generated& generated) const;

  OutputOptions options_;
  const Tokenizer* tokenizer_;
  std::optional<TemporaryFile> file_;  // empty: standard output
  std::map<size_t, Line> waiting_;
  size_t next_ = 0;
  size_t finished_ = 0, kept_ = 0;  // without errors; of these, whole in the file
  int64_t bytes_ = 0;               // written, whole lines
  bool marked_ = false;             // a streamed synthetic text says so first
  int error_ = 0;                   // errno of the first write that failed
};

// An error where two of these, by flag, are one regular file: what is read, or written twice, would be lost
// under what is written last.
Status check_distinct(std::span<const std::pair<const char*, std::string>> files);

// An error where the output is a regular file that exists, unless it may be overwritten, or is the file whose
// results are taken over.
Status check_overwritten(const std::string& output, bool overwrite, const std::string& resume = {});

// Writes a whole file, or none.
Status write_file(const std::string& path, const std::string& content);
// Writes a trace, whole or not at all.
Status write_trace(const std::string& path, const Trace& trace);

}  // namespace outrider
