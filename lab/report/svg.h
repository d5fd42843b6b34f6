// Small charts as SVG text to stand inside an HTML page. Every function returns "" where there is nothing to
// show.
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
  enum class Kind {
    kLine,    // with a dot at each point
    kCurve,   // without
    kDashed,  // the same, for theory
    kMarks,   // diamonds
    kCloud,   // faint dots, of many
  };
  std::string name;
  std::vector<Point> points;
  Kind kind = Kind::kLine;
  int colour = 0;  // index, any
};

struct Chart {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  double guide = -1;                 // a horizontal line at y; below 0: none
  std::vector<std::string> x_names;  // of x = 0, 1, ... instead of numbers
};
// Both axes start at 0.
std::string svg_chart(const Chart& chart);

// One row per bar, with its value written out; bars below 0 reach to the left.
struct Bar {
  std::string name;
  double value = 0, low = 0, high = 0;
  int colour = 0;
};
std::string svg_bars(const std::string& title, const std::vector<Bar>& bars, const std::string& unit = "");

// Columns for x = 0, 1, ...; heights as shares of their sum.
std::string svg_histogram(const std::string& title, const std::vector<double>& counts, int colour);

// Who worked when: rows of lanes on one axis of time.
struct Lane {
  std::string name;
  struct Span {
    double begin_ms = 0, end_ms = 0;
    int colour = 0;
  };
  std::vector<Span> spans;
  std::string note;  // behind the lane
};
struct GanttRow {
  std::string name;
  std::vector<Lane> lanes;
};
std::string svg_gantt(const std::string& title, double length_ms, const std::vector<GanttRow>& rows);

}  // namespace outrider
