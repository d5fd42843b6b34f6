// A command's results for people: conclusions first, then sections of figures and tables. Commands fill it;
// html.h makes one page of it, terminal.h writes its tables to a terminal. Plain values, UTF-8, not escaped
// yet.
//
// A `thing` (e.g. "ewma", "draft", "verify") has one colour and one mark in all figures of a report. Names
// contain only the differences from the neighbours; common properties belong in a title or in the facts.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace outrider::report {

enum class Tone { kPlain, kGood, kWarning, kBad };

// A number, with the interval it lies in where low < high. What the interval is (95 %, lowest to highest) is
// said in the text of the figure.
struct Value {
  double value = 0, low = 0, high = 0;
  bool has_interval() const { return low < high; }
};

struct Axis {
  std::string label;               // what is counted or measured
  std::string unit;                // e.g. "ms", "tokens/s"; empty: a plain number
  std::vector<std::string> names;  // of x = 0, 1, ... instead of numbers
};

// ---- figures: small multiples, whose panels share their axes --------------------------------------------

struct Point {
  double x = 0;
  Value y;
};

struct Series {
  enum class Kind {
    kLine,     // a mark at each point, joined
    kCurve,    // joined, without marks: many points
    kTheory,   // dashed, without marks
    kMarks,    // marks alone
    kCloud,    // faint dots, of many
    kColumns,  // from 0, one for each x
  };
  std::string name;
  std::vector<Point> points;
  Kind kind = Kind::kLine;
  std::string thing;  // empty: the name
};

// y over x; y from 0. A panel with many lines is drawn as a panel for each, the others faint behind it.
struct Plot {
  Axis x, y;
  std::optional<double> guide;  // a horizontal line, e.g. at 1 for plain decoding
  std::string guide_name;
  struct Panel {
    std::string title;
    std::vector<Series> series;
  };
  std::vector<Panel> panels;
};

// Named values side by side; below 0 they reach to the left. Bars of parts are stacked, and their value is
// the sum.
struct Bars {
  Axis values;
  std::optional<double> guide;
  std::string guide_name;
  struct Part {
    std::string thing;
    double value = 0;
  };
  struct Bar {
    std::string name;
    Value value;
    std::string thing;  // empty: the first of the report's colours, for all bars
    std::vector<Part> parts;
  };
  struct Panel {
    std::string title;
    std::vector<Bar> bars;
  };
  std::vector<Panel> panels;
};

// Work of several parties on one axis of time.
struct Lanes {
  double length_ms = 0;
  struct Span {
    double begin_ms = 0, end_ms = 0;
    std::string thing;
  };
  struct Lane {
    std::string name;
    std::vector<Span> spans;
    std::string note;  // behind the lane, e.g. "idle 12 %"
  };
  struct Panel {
    std::string title;
    std::vector<Lane> lanes;
  };
  std::vector<Panel> panels;
};

struct Figure {
  std::string title;
  std::string text;  // how to read it: what an interval is, where from; one or two sentences
  std::variant<Plot, Bars, Lanes> drawing;
};

// ---- tables ---------------------------------------------------------------------------------------------

struct Column {
  std::string name, unit;
  bool is_text = false;  // left, not right
};

struct Entry {
  std::string text;
  Tone tone = Tone::kPlain;
};

// The first column names the rows. A row may be shorter than the columns: its last entry spans the rest.
struct Table {
  std::string title, text;
  std::vector<Column> columns;
  std::vector<std::vector<Entry>> rows;
};

// ---- the report -----------------------------------------------------------------------------------------

// Figures and tables without anything to show are left out, and so are sections without any.
struct Section {
  std::string title, text;
  std::vector<std::variant<Figure, Table>> parts;
};

// A whole sentence, with its interval: "ewma is 1.53 times as fast as plain decoding (1.41 to 1.60)."
struct Conclusion {
  std::string text;
  Tone tone = Tone::kPlain;
};

// A fact of the setting: model, device, version, seeds.
struct Fact {
  std::string name, value;
};

struct Report {
  std::string title;
  std::string subtitle;  // one sentence
  std::vector<Conclusion> conclusions;
  std::vector<Fact> facts;
  std::vector<Section> sections;
};

}  // namespace outrider::report
