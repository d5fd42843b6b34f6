// How --help looks: options in groups, wrapped at the terminal's width.
#pragma once

#include <memory>
#include <string>

namespace CLI {
class FormatterBase;
}

namespace outrider {

// Columns of the terminal on standard output; else what COLUMNS says; else 100. Between 60 and 140.
int help_width();

// Words of `text` in lines of at most `width` characters, the later ones indented; a line break in the text
// stays, and a word longer than a line is not broken.
std::string wrapped(const std::string& text, int width, int indent);

// For the main command, before sub-commands are added: they inherit it.
std::shared_ptr<CLI::FormatterBase> help_formatter(int width);

}  // namespace outrider
