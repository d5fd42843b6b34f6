// The executable for this program's children.
#pragma once

#include <string>

namespace outrider {

// /proc/self/exe; or, after ld.so --argv0 NAME PROGRAM, that NAME.
std::string own_program();

}  // namespace outrider
