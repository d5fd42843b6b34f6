#include "lab/report/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "lab/report/svg.h"

namespace outrider::report {
namespace {

constexpr size_t kGap = 2, kNarrowest = 12;  // of a column of text

using Lines = std::vector<std::string>;

// At blanks; a word that is longer is cut.
Lines broken(const std::string& text, size_t width) {
  if (width == 0 || letters_of(text) <= width) return {text};
  Lines out(1);
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(' ', at), text.size());
    std::string word = text.substr(at, end - at);
    at = end + 1;
    if (!out.back().empty() && letters_of(out.back()) + 1 + letters_of(word) > width) out.emplace_back();
    while (out.back().empty() && letters_of(word) > width) {
      const std::string piece = shortened(word, width + 1);
      const std::string kept = piece.substr(0, piece.size() - std::string("\u2026").size());
      out.back() = kept;
      word.erase(0, kept.size());
      out.emplace_back();
    }
    if (word.empty()) continue;
    if (!out.back().empty()) out.back() += ' ';
    out.back() += word;
  }
  if (out.back().empty()) out.pop_back();
  return out;
}

std::string head_of(const Column& column) {
  return column.unit.empty() ? column.name : fmt::format("{}, {}", column.name, column.unit);
}

size_t longest_word(const std::string& text) {
  size_t longest = 0, at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(' ', at), text.size());
    longest = std::max(longest, letters_of(std::string_view(text).substr(at, end - at)));
    at = end + 1;
  }
  return longest;
}

std::string padded(const std::string& text, size_t width, bool left) {
  const std::string blanks(width > letters_of(text) ? width - letters_of(text) : 0, ' ');
  return left ? fmt::format("{}{}", text, blanks) : fmt::format("{}{}", blanks, text);
}

std::string bold(const std::string& text) { return fmt::format("\x1b[1m{}\x1b[0m", text); }

bool spans_rest(const Table& table, const std::vector<Entry>& row) {
  return row.size() < table.columns.size();
}

class Layout {
 public:
  Layout(const Table& table, const Screen& screen) : table_(table), screen_(screen) {
    for (size_t c = 0; c < table.columns.size(); ++c) {
      size_t entries = 1;
      for (const auto& row : table.rows)
        if (c < row.size() && !(spans_rest(table, row) && c + 1 == row.size() && c > 0))
          entries = std::max(entries, letters_of(row[c].text));
      const std::string head = head_of(table.columns[c]);
      widths_.push_back(std::max(entries, screen.width == 0 ? letters_of(head) : longest_word(head)));
    }
    if (screen.width > 0) {
      narrow();
      widen();
    }
  }

  std::string write() const {
    std::string out;
    size_t begin = 1;
    const size_t end = table_.columns.size();
    do {
      size_t stop = begin, used = widths_.empty() ? 0 : widths_[0];
      while (stop < end &&
             (screen_.width == 0 || stop == begin || used + kGap + widths_[stop] <= screen_.width))
        used += kGap + widths_[stop++];
      if (!out.empty()) out += "\n";
      out += block(begin, stop);
      begin = stop;
    } while (begin < end);
    return out;
  }

 private:
  size_t total() const {
    size_t sum = 0;
    for (const size_t width : widths_) sum += width + kGap;
    return sum - std::min(sum, kGap);
  }
  bool is_word(size_t c) const { return c == 0 || table_.columns[c].is_text; }

  // The widest column of text gives way first; each fits beside the names of the rows.
  void narrow() {
    if (widths_.empty()) return;
    widths_[0] = std::min(widths_[0], std::max(kNarrowest / 2, screen_.width / 2));
    for (size_t c = 1; c < widths_.size(); ++c)
      if (is_word(c) && widths_[0] + kGap + widths_[c] > screen_.width)
        widths_[c] = std::max(kNarrowest / 2, screen_.width - widths_[0] - kGap);
    while (total() > screen_.width) {
      size_t widest = widths_.size();
      for (size_t c = 0; c < widths_.size(); ++c)
        if (is_word(c) && widths_[c] > kNarrowest &&
            (widest == widths_.size() || widths_[c] > widths_[widest]))
          widest = c;
      if (widest == widths_.size()) return;
      --widths_[widest];
    }
  }
  // Heads need not be broken where there is room.
  void widen() {
    for (size_t c = 0; c < widths_.size(); ++c)
      while (widths_[c] < letters_of(head_of(table_.columns[c])) && total() < screen_.width) ++widths_[c];
  }

  std::string block(size_t begin, size_t end) const {
    std::vector<size_t> columns{0};
    for (size_t c = begin; c < end; ++c) columns.push_back(c);
    std::vector<Lines> head;
    for (const size_t c : columns) head.push_back(broken(head_of(table_.columns[c]), widths_[c]));
    std::string out = lines_of(head, columns, true);
    size_t width = 0;
    for (const size_t c : columns) width += widths_[c] + kGap;
    out += std::string(width - kGap, '-') + "\n";
    for (const auto& row : table_.rows) {
      std::vector<Lines> cells;
      std::string rest;
      for (const size_t c : columns) {
        const bool last = spans_rest(table_, row) && c + 1 >= row.size();
        if (last && c > 0 && rest.empty() && c + 1 == row.size()) rest = row[c].text;
        const bool own = c < row.size() && !(last && c > 0);
        cells.push_back(own ? broken(row[c].text, screen_.width == 0 ? 0 : widths_[c]) : Lines{""});
      }
      out += lines_of(cells, columns, false, rest);
    }
    return out;
  }

  // `rest`: stands behind the columns before it.
  std::string lines_of(const std::vector<Lines>& cells, const std::vector<size_t>& columns, bool is_head,
                       const std::string& rest = "") const {
    size_t lines = 1;
    for (const Lines& cell : cells) lines = std::max(lines, cell.size());
    std::string out;
    for (size_t l = 0; l < lines; ++l) {
      std::string line;
      for (size_t i = 0; i < cells.size(); ++i) {
        const size_t from = is_head ? lines - cells[i].size() : 0;  // heads stand on their columns
        const std::string text = l >= from && l - from < cells[i].size() ? cells[i][l - from] : "";
        if (i > 0) line.append(kGap, ' ');
        line += padded(text, widths_[columns[i]], is_word(columns[i]));
      }
      line.erase(line.find_last_not_of(' ') + 1);
      if (l == 0 && !rest.empty()) line = padded(line, widths_[0] + kGap, true) + rest;
      out += is_head && screen_.styled ? bold(line) : line;
      out += '\n';
    }
    return out;
  }

  const Table& table_;
  const Screen& screen_;
  std::vector<size_t> widths_;
};

}  // namespace

Screen Screen::of(std::FILE* file) {
  const int descriptor = fileno(file);
  if (descriptor < 0 || isatty(descriptor) == 0) return {};
  winsize size{};
  size_t width = ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
  if (width == 0)
    if (const char* columns = std::getenv("COLUMNS"))
      width = static_cast<size_t>(std::max(0, std::atoi(columns)));
  const char* terminal = std::getenv("TERM");
  const bool plain = std::getenv("NO_COLOR") != nullptr || (terminal && std::string(terminal) == "dumb");
  return {.width = width > 0 ? std::max<size_t>(width, 20) : 80, .styled = !plain};
}

std::string on_screen(const Table& table, const Screen& screen) {
  if (table.columns.empty() || table.rows.empty()) return "";
  std::string out;
  if (!table.title.empty()) {
    out = wrapped(table.title, screen);
    if (screen.styled) out = bold(out.substr(0, out.size() - 1)) + '\n';
  }
  return out + Layout(table, screen).write();
}

std::string wrapped(const std::string& text, const Screen& screen) {
  std::string out;
  for (const std::string& line : broken(text, screen.width)) out += line + "\n";
  return out;
}

}  // namespace outrider::report
