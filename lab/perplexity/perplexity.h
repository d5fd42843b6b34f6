// `outrider perplexity`: how well a model predicts a text, and what a quantised model, or another number
// format, changes against a base model. Chunks and scored positions are those of llama.cpp's
// llama-perplexity, so figures of the same file and text can be compared.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "start/settings.h"

namespace CLI {
class App;
}

namespace outrider {

struct PerplexityOptions {
  ModelSettings model;
  // A second model, or the same one in other formats: what is compared with. Empty path: none, unless a
  // format is given; then the path of `model`.
  ModelSettings base;
  std::string file;       // of text, UTF-8
  std::string file_flag = "--file";  // that names it; another command has no other flags for the text
  int64_t context = 512;  // tokens of a chunk
  int64_t chunks = 0;     // from the text's beginning; 0: all
  std::string report;     // JSON; empty: none
  bool quiet = false;
};

void add_perplexity_options(CLI::App& app, PerplexityOptions& options);
// Whether the model can score the text; reads no weights.
Status check_perplexity(const PerplexityOptions& options);
// Returns the exit code.
int run_perplexity(const PerplexityOptions& options);

}  // namespace outrider
