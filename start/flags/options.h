// The flags of commands that run models, and the structs they fill: those of start/settings.h and requests/.
#pragma once

#include <string>

#include "base/log_level.h"
#include "base/status.h"
#include "requests/asked_form.h"
#include "requests/request_params.h"
#include "requests/run_files.h"
#include "start/settings.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace outrider {

// All options of `outrider generate`, from flags, environment and config file. Only the command uses the
// whole; it passes on the parts.
struct RunOptions {
  ClusterSettings cluster;
  RequestParams request;                     // --prompt, and the defaults of lines of --prompts
  FormFlags form;                            // of request.grammar
  std::vector<std::string> grammar_library;  // GrammarOptions::libraries
  std::string generation_config = "none";    // auto: generation_config.json sets defaults that no flag sets
  RunFiles files;
  bool compare_plain = false;
  int compare_turns = 0;  // 0: up to nine, within two seconds
};

// The option takes a path, or the hub's name of a model in its cache (model_path.h), which `name_of_hub`
// gets. Returns it.
CLI::Option* finds_model(CLI::Option* option, std::string* name_of_hub = nullptr);
// The name of the target in answers and on screens: the hub's, with the quantisation that was asked for, or
// the path.
std::string model_display_name(const ModelSettings& settings);
void add_text_drafter_options(CLI::App& app, ModelSettings& settings);  // a part of the model options
void add_model_options(CLI::App& app, ClusterSettings& settings);
void add_pool_options(CLI::App& app, PoolSettings& settings);
void add_sampling_options(CLI::App& app, RequestParams& request, std::string& generation_config);
// `rule`: of the requests.
void add_speculation_options(CLI::App& app, SpeculationSettings& settings, std::string& rule);
void add_form_options(CLI::App& app, FormFlags& form);
void add_grammar_library_option(CLI::App& app, std::vector<std::string>& libraries, const char* group);
void add_log_options(CLI::App& app, LogFlags& flags);
void add_report_options(CLI::App& app, RunFiles& files, bool& quiet);
void add_generate_options(CLI::App& app, RunOptions& options);  // the last three, and requests

// All checks that open no file.
Status check_options(const RunOptions& options);

}  // namespace outrider
