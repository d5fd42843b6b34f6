// Tables of a report on a terminal: columns aligned, numbers right, wrapped where the terminal ends. Piped
// they are plain: a row is a line, however long.
#pragma once

#include <cstdio>
#include <string>

#include "lab/report/report.h"

namespace outrider::report {

struct Screen {
  size_t width = 0;     // letters; 0: no end
  bool styled = false;  // bold heads
  // A terminal has its width (COLUMNS if unknown); other outputs have no limit and no style.
  static Screen of(std::FILE* file);
};

// Ends with a line break. Long words are cut only if necessary; a table that is still too wide continues
// below, with the names of its rows repeated.
std::string on_screen(const Table& table, const Screen& screen);
// Between words.
std::string wrapped(const std::string& text, const Screen& screen);

}  // namespace outrider::report
