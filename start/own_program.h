// What this program's children are started from.
#pragma once

#include <string>

namespace outrider {

// /proc/self/exe; or, where a loader was told which program to run (ld.so --argv0 NAME PROGRAM), that NAME.
std::string own_program();

}  // namespace outrider
