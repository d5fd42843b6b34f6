#include "lab/report/csv.h"

#include <fmt/format.h>

#include "lab/report/svg.h"

namespace outrider::report {

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

namespace {

std::string line(const std::vector<std::string>& fields) {
  std::string out;
  for (const std::string& each : fields) {
    if (&each != &fields.front()) out += ',';
    out += csv_field(each);
  }
  return out + "\r\n";
}

std::string number(double value) { return fmt::format("{:.7g}", value); }

void add_value(const Value& value, std::vector<std::string>& to) {
  to.push_back(number(value.value));
  to.push_back(value.has_interval() ? number(value.low) : "");
  to.push_back(value.has_interval() ? number(value.high) : "");
}

std::string lines_of(const Plot& plot) {
  std::string out = line({"panel", "series", axis_title(plot.x), axis_title(plot.y), "low", "high"});
  for (const Plot::Panel& panel : plot.panels)
    for (const Series& series : panel.series)
      for (const Point& p : series.points) {
        const auto at = static_cast<size_t>(p.x < 0 ? 0 : p.x);
        std::vector<std::string> fields{panel.title, series.name,
                                        at < plot.x.names.size() ? plot.x.names[at] : number(p.x)};
        add_value(p.y, fields);
        out += line(fields);
      }
  return out;
}

std::string lines_of(const Bars& bars) {
  std::string out = line({"panel", "name", "part", axis_title(bars.values), "low", "high"});
  for (const Bars::Panel& panel : bars.panels)
    for (const Bars::Bar& bar : panel.bars) {
      for (const Bars::Part& part : bar.parts)
        out += line({panel.title, bar.name, part.thing, number(part.value), "", ""});
      if (!bar.parts.empty()) continue;
      std::vector<std::string> fields{panel.title, bar.name, ""};
      add_value(bar.value, fields);
      out += line(fields);
    }
  return out;
}

std::string lines_of(const Lanes& lanes) {
  std::string out = line({"panel", "lane", "what", "begin, ms", "end, ms"});
  for (const Lanes::Panel& panel : lanes.panels)
    for (const Lanes::Lane& lane : panel.lanes)
      for (const Lanes::Span& span : lane.spans)
        out += line({panel.title, lane.name, span.thing, number(span.begin_ms), number(span.end_ms)});
  return out;
}

}  // namespace

std::string csv_of(const Figure& figure) {
  return std::visit([](const auto& drawing) { return lines_of(drawing); }, figure.drawing);
}

std::string csv_of(const Table& table) {
  std::vector<std::string> fields;
  for (const Column& column : table.columns)
    fields.push_back(column.unit.empty() ? column.name : fmt::format("{}, {}", column.name, column.unit));
  std::string out = line(fields);
  for (const auto& row : table.rows) {
    fields.clear();
    for (const Entry& entry : row) fields.push_back(entry.text);
    fields.resize(table.columns.size());
    out += line(fields);
  }
  return out;
}

}  // namespace outrider::report
