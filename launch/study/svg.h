// Small charts as SVG text to stand inside an HTML page.
#pragma once

#include <string>
#include <vector>

namespace outrider {

// For HTML and SVG, in text and attributes.
std::string escaped(const std::string& text);

struct Point {
  double x = 0, y = 0;
  double low = 0, high = 0;  // a whisker where low < high
};

struct Series {
  enum class Kind { kLine, kDashed, kMarks };
  std::string name;
  std::vector<Point> points;
  Kind kind = Kind::kLine;
  int colour = 0;  // index, any
};

struct Chart {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  double guide = -1;  // a horizontal line at y; below 0: none
};
// Both axes start at 0. Empty where there is nothing to show.
std::string svg_chart(const Chart& chart);

// One row per bar, with its value written out.
struct Bar {
  std::string name;
  double value = 0, low = 0, high = 0;
  int colour = 0;
};
std::string svg_bars(const std::string& title, const std::vector<Bar>& bars);

// Columns for x = 0, 1, ...; heights as shares of their sum.
std::string svg_histogram(const std::string& title, const std::vector<double>& counts, int colour);

}  // namespace outrider
