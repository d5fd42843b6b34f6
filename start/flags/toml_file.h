// TOML files that people write: those of --config and of studies. Errors name file, line and key.
#pragma once

#include <toml++/toml.h>

#include <optional>
#include <string>

#include "base/status.h"

namespace outrider {

Result<toml::table> read_toml(const std::string& path);

// "FILE:LINE: KEY: what"; the node knows file and line.
Status toml_error(const toml::node& node, const std::string& key, const std::string& what);

// Keys are names of flags; Python's underscores are accepted.
std::string dashed(const toml::key& key);

// A string, number or boolean, as text for the command line.
std::optional<std::string> scalar_text(const toml::node& node);

}  // namespace outrider
