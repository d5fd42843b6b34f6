#include "start/flags/help_format.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace outrider {
namespace {

constexpr int kColumn = 30;  // where descriptions begin

// A footer's lines are laid out by hand: only those that are too long are wrapped, under their own text.
std::string wrapped_lines(const std::string& text, int width) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const int deeper = static_cast<int>(indent) + (indent > 0 ? 4 : 0);
    if (static_cast<int>(line.size()) <= width)
      out += line + "\n";
    else
      out += std::string(indent, ' ') + wrapped(line.substr(indent), width - deeper, deeper) + "\n";
  }
  return out;
}

class WrappedFormatter : public CLI::Formatter {
 public:
  explicit WrappedFormatter(int width) : width_(width) { column_width(kColumn); }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return entry(make_option_name(option, is_positional) + make_option_opts(option),
                 make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return entry(command->get_name(), command->get_description());
  }
  std::string make_description(const CLI::App* app) const override {
    return wrapped_lines(CLI::Formatter::make_description(app), width_);
  }
  std::string make_footer(const CLI::App* app) const override {
    return wrapped_lines(CLI::Formatter::make_footer(app), width_);
  }

 private:
  // Names are separated by commas without spaces; a list that is too long goes on in the next line.
  std::string names_of(std::string names) const {
    if (static_cast<int>(names.size()) + 2 <= width_) return "  " + names;
    for (size_t at = names.find(','); at != std::string::npos; at = names.find(',', at + 2))
      names.insert(at + 1, " ");
    return "  " + wrapped(names, width_ - 6, 6);
  }
  std::string entry(const std::string& names, const std::string& description) const {
    std::string out = names_of(names);
    const size_t last = out.size() - (out.rfind('\n') == std::string::npos ? 0 : out.rfind('\n') + 1);
    if (description.empty()) return out + "\n";
    out += last + 2 > kColumn ? "\n" + std::string(kColumn, ' ') : std::string(kColumn - last, ' ');
    return out + wrapped(description, width_ - kColumn, kColumn) + "\n";
  }

  int width_;
};

}  // namespace

int help_width() {
  winsize size{};
  int width = 100;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    width = size.ws_col;
  else if (const char* columns = std::getenv("COLUMNS"); columns && std::atoi(columns) > 0)
    width = std::atoi(columns);
  return std::clamp(width, 60, 140);
}

std::string wrapped(const std::string& text, int width, int indent) {
  std::string out;
  std::istringstream lines(text);
  bool first = true;
  for (std::string line; std::getline(lines, line);) {
    if (!first) out += "\n" + std::string(static_cast<size_t>(indent), ' ');
    first = false;
    std::istringstream words(line);
    int used = 0;
    for (std::string word; words >> word;) {
      const int length = static_cast<int>(word.size());
      if (used > 0 && used + 1 + length > width) {
        out += "\n" + std::string(static_cast<size_t>(indent), ' ');
        used = 0;
      } else if (used > 0) {
        out += " ";
        ++used;
      }
      out += word;
      used += length;
    }
  }
  return out;
}

std::shared_ptr<CLI::FormatterBase> help_formatter(int width) {
  return std::make_shared<WrappedFormatter>(width);
}

}  // namespace outrider
