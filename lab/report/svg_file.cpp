#include "lab/report/svg_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/report/page_parts.h"
#include "lab/report/svg.h"

namespace outrider::report {
namespace {

constexpr double kGap = 16, kLine = 20;
constexpr size_t kColumns = 3;

// Gives a drawn panel or key its place in the file.
std::string placed(const std::string& svg, double x, double y, const std::string& size) {
  constexpr std::string_view kOpen = "<svg ";
  return fmt::format("<svg x=\"{:.0f}\" y=\"{:.0f}\" {}{}", x, y, size, svg.substr(kOpen.size()));
}

// The height in the viewBox of a panel: its fourth number.
double height_of(const std::string& panel) {
  constexpr std::string_view kBox = "viewBox=\"";
  size_t at = panel.find(kBox) + kBox.size();
  for (int i = 0; i < 3; ++i) at = panel.find(' ', at) + 1;
  return std::stod(panel.substr(at));
}

}  // namespace

std::string svg_file(const Figure& figure) {
  Report report;
  report.sections.push_back({.title = "", .text = "", .parts = {figure}});
  const Palette palette = Palette::of(report);
  const Drawn drawn = std::visit([&](const auto& drawing) { return draw(drawing, palette); }, figure.drawing);
  if (drawn.panels.empty()) return "";
  const size_t columns = std::min(kColumns, drawn.panels.size());
  const double width = static_cast<double>(std::max<size_t>(columns, 2)) * (kPanelWidth + kGap) + kGap;
  std::string body = text_at(kGap, 26, Anchor::kStart, figure.title, "title");
  double x = kGap, y = 50;
  if (drawn.legend.size() > 1)
    for (const LegendItem& item : drawn.legend) {
      const double wide = 44 + kLetter * static_cast<double>(letters_of(item.name));
      if (x > kGap && x + wide > width) x = kGap, y += kLine;
      body += placed(item.key, x, y - 10, "");
      body += text_at(x + 34, y, Anchor::kStart, item.name);
      x += wide;
    }
  y += 14;
  for (size_t begin = 0; begin < drawn.panels.size(); begin += columns) {
    double tallest = 0;
    for (size_t i = begin; i < std::min(begin + columns, drawn.panels.size()); ++i) {
      const double height = height_of(drawn.panels[i]);
      body += placed(drawn.panels[i], kGap + static_cast<double>(i - begin) * (kPanelWidth + kGap), y,
                     fmt::format("width=\"{:.0f}\" height=\"{:.0f}\" ", kPanelWidth, height));
      tallest = std::max(tallest, height);
    }
    y += tallest + kGap;
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\">\n"
      "<style>\n{2}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"{3}\"/>\n{4}</svg>\n",
      width, y, figure_style(), kLightBackground, body);
}

}  // namespace outrider::report
