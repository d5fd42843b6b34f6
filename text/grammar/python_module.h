// llguidance as pip installs it: a shared library that is a Python module. It needs Python's symbols to load,
// and its C interface uses no Python symbol.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

// Where `pip install llguidance` puts its library, those that are there, the likeliest first: in the
// environment that is active, beside the programs of PATH, in the user's packages and in the system's.
std::vector<std::string> installed_grammar_libraries();

// Provides the Python symbols that `file` needs, without Python: all resolve to one block of zeros. An error
// names the file; kInvalidArgument if the file needs no Python symbols.
Status provide_python_symbols(const std::string& file);

}  // namespace outrider
