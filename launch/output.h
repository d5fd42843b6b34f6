// Where generated text goes. Standard output carries only continuations (or JSON lines); a file appears complete or
// not at all.
#pragma once

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/events.h"
#include "launch/requests.h"

namespace outrider {

// One request's result so far.
struct Generated {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<PositionLogprobs> logprobs;
  FinishReason reason = FinishReason::kStop;
  Status error;
  RequestMetrics metrics;
  bool finished = false;
};

class Output {
 public:
  // The output file, if any, is opened under a temporary name at once, so that a bad path is told before any work.
  static Result<Output> open(const RunOptions& options, const Tokenizer& tokenizer);
  Output(Output&&) = default;
  Output& operator=(Output&&) = default;
  ~Output();

  // Text of the only request, as it comes (not with --output or --prompts).
  void stream(const std::string& text);
  // Results in the order of the requests, each as soon as all before it are there.
  void result(size_t index, const PromptRequest& request, const Generated& generated);
  // Gives the output file its name.
  Status close();

 private:
  Output(const RunOptions& options, const Tokenizer& tokenizer) : options_(&options), tokenizer_(&tokenizer) {}
  nlohmann::json line_of(size_t index, const PromptRequest& request, const Generated& generated) const;

  const RunOptions* options_;
  const Tokenizer* tokenizer_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, &std::fclose};
  std::string temporary_;
  std::map<size_t, std::string> waiting_;
  size_t next_ = 0;
  bool failed_ = false;
  bool ends_with_newline_ = true;
};

// Writes a whole file: to a temporary name beside it, then renamed.
Status write_file(const std::string& path, const std::string& content);

}  // namespace outrider
