// Sources of option values: command line, then environment, then --config file; the first one with a value
// wins. Also makes the error messages.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
class Option;
class ParseError;
}  // namespace CLI

namespace outrider {

// Adds --config and the environment to a command whose options are complete: each option with a long name
// reads OUTRIDER_ and that name. A repeated single-valued flag takes its last value, except a model and a
// prompt, which are refused.
void add_config_layer(CLI::App& command, std::string& config_file);

// Adds only --config, to a command whose flags differ in meaning from other commands (in `simulate plan`
// --model is a preset): no environment variable sets them.
void add_config_file(CLI::App& command, std::string& config_file);

// The rule that a value of the option breaks, such as "must be a whole number", for an error of CLI11 about
// this option; empty: the error is about something else.
std::string broken_rule(const CLI::Option& option, const std::string& error);

// The nearest long flag of the command; empty: none is near.
std::string nearest_flag(const CLI::App& command, const std::string& name);

// An error if a file that the command writes is an existing one that it reads by another option, or is in the
// directory of a model. For the command that was parsed.
Status check_outputs(const CLI::App& app);

// With OUTRIDER_MODEL set, or `model` in the --config file, a text alone behind the command is the prompt and
// no model, unless it is a path that exists. Then --model is added to the words, to be parsed again. False:
// the words mean what was parsed.
bool add_model_of_settings(const CLI::App& command, std::vector<std::string>& words);

// llama.cpp's flags for models of the hub, -hf and -hfd, and their long forms, become --model and
// --draft-model.
void name_hub_flags(std::vector<std::string>& words);

// For people: a line for each OUTRIDER_ variable that no option of any command reads.
std::string explain_unread_variables(const CLI::App& app, const char* const* environment);

// For people: names the flag, and the nearest one that exists. `command_line` is what main was given.
std::string explain_parse_error(const CLI::App& app, const CLI::ParseError& error, int argc,
                                const char* const* argv);

}  // namespace outrider
