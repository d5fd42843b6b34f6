// The format of --help: options in groups, wrapped at the terminal's width.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class FormatterBase;
}

namespace outrider {

// The width of the terminal on standard output, or else COLUMNS, or else 100; between 60 and 140.
int help_width();

// Wraps `text` at `width` characters and indents the later lines. Line breaks are kept, and words longer than
// a line are not broken.
std::string wrapped(const std::string& text, int width, int indent);

// kBrief: a command of many options shows the ones that most users need, with the first sentence of each
// description, and how to see the rest.
enum class HelpLength { kBrief, kWhole };

// For the main command, before sub-commands are added: they inherit it.
std::shared_ptr<CLI::FormatterBase> help_formatter(int width, HelpLength length);

// The words of a command line, `outrider help CMD` written as `outrider CMD --help`, and --help=all and
// --help-all as --help. `length`: what was asked for.
std::vector<std::string> without_help_forms(int argc, const char* const* argv, HelpLength& length);

}  // namespace outrider
