// Output of generated text. Standard output carries only continuations (or JSON lines). A file appears under
// its name when it is complete; before that, and if the run ends early, its finished results are in a file
// whose name marks it as partial.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/program/temporary_file.h"
#include "coordinator/rounds/events.h"
#include "coordinator/trace.h"
#include "requests/requests.h"
#include "requests/run_files.h"

namespace outrider {

// One request's result so far.
struct Generated {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<PositionLogprobs> logprobs, prompt_logprobs;
  FinishReason reason = FinishReason::kStop;
  Status error;

  // The model's probabilities of `count` tokens from the one at `begin`; empty where they are not known.
  std::vector<float> chances(size_t begin, size_t count) const;
  // Their mean over the prompt.
  std::optional<float> prompt_chance() const;
};

struct OutputOptions {
  RunFiles files;
  bool has_one_prompt = false;       // its text is streamed, unless there is an output file
  std::string synthetic_acceptance;  // not empty: texts are meaningless, and are marked so
  bool quiet = false;
};

class Output {
 public:
  // Opens the output file, if any, under a temporary name at once, and tries the paths of the reports, so
  // that a bad path is reported before any work.
  static Result<Output> open(OutputOptions options, const Tokenizer& tokenizer);

  // Streams text of the only request (not with --output or --prompts).
  void stream(const std::string& text);
  // Results in the order of the requests; each is written as soon as all before it are.
  void result(size_t index, const PromptRequest& request, const Generated& generated);
  // Plain text instead of JSON lines.
  bool is_streamed() const { return options_.has_one_prompt && options_.files.output.empty(); }
  // A result of an earlier run, as its line; it is written in its turn, too.
  void finished_line(size_t index, std::string line);
  // Whether a write failed: the reader is gone, or the disk is full. Further work would be useless.
  bool failed() const { return error_ != 0; }
  // Renames the output file to its final name. An error if any text could not be written.
  Status close();
  // Alternative to close(), or after close() failed: keeps finished results under the temporary name, and
  // reports it.
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
  size_t finished_ = 0, kept_ = 0;  // results without errors; the part that is complete in the file
  int64_t bytes_ = 0;               // written, whole lines
  bool marked_ = false;             // a streamed synthetic text is marked at its beginning
  int error_ = 0;                   // errno of the first write that failed
};

// An error if two files, named by their flags, are the same regular file: the last write would destroy the
// other's contents.
Status check_distinct(std::span<const std::pair<const char*, std::string>> files);

// An error if the output is an existing regular file, unless it may be overwritten, or is the file of resumed
// results.
Status check_overwritten(const char* flag, const std::string& file, bool overwrite,
                         const std::string& resume = {});

// Writes a whole file, or nothing.
Status write_file(const std::string& path, const std::string& content);
// Writes a whole trace, or nothing.
Status write_trace(const std::string& path, const Trace& trace);

}  // namespace outrider
