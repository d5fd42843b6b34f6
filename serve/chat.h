// `outrider chat`: a conversation with a model in a terminal, or with standard input that is a pipe.
#pragma once

#include <string>

#include "requests/request_params.h"
#include "requests/run_files.h"
#include "start/settings.h"

namespace CLI {
class App;
}

namespace outrider {

struct ChatSettings {
  ClusterSettings cluster;
  RequestParams request;  // how every answer is sampled
  std::string generation_config = "auto";
  std::string chat_template;  // a file; empty: the model's own
  std::string system;         // the system message; empty: the template's own
  std::string first_message;  // asked before the first line is read; empty: none
  RunFiles files;
};

// Sets the defaults of a conversation where `generate` has others.
void add_chat_options(CLI::App& app, ChatSettings& settings);

// Returns when the user leaves. The exit code; errors were printed.
int run_chat(const ChatSettings& settings);

}  // namespace outrider
