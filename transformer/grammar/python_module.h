// llguidance as pip installs it: a shared library that is a module of Python, which wants Python's symbols to
// be loaded and uses none of them through its C interface.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

// Where `pip install llguidance` puts its library, those that are there, the likeliest first: in the
// environment that is active, beside the programs of PATH, in the user's packages and in the system's.
std::vector<std::string> installed_grammar_libraries();

// Makes Python's symbols that `file` wants and does not have, without Python: all of them are one place of
// zeros. An error names the file; none of its symbols are Python's: kInvalidArgument.
Status provide_python_symbols(const std::string& file);

}  // namespace outrider
