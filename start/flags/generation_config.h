// --generation-config auto: takes sampling defaults from the target's generation_config.json.
#pragma once

#include <string>

#include "base/status.h"
#include "requests/request_params.h"

namespace CLI {
class App;
}  // namespace CLI

namespace outrider {

// For a GGUF file its keys general.sampling.* are read in place of generation_config.json.
// Where `choice` is `auto`, sets temperature, top_k, top_p, min_p, repetition_penalty and max_tokens
// (max_new_tokens there) as the file says, where neither flag nor --config file of the command did;
// "do_sample": false is temperature 0. A model without the file says nothing. Errors name file and key.
Status take_generation_config(const CLI::App& command, const std::string& choice, const std::string& model,
                              RequestParams& params);

}  // namespace outrider
