#include "lab/report/palette.h"

#include <algorithm>

namespace outrider::report {

// Found by a search over Oklab distances under the simulation of Machado et al. 2009, then ordered so that
// the first few differ most; palette_test measures them.
const Hue kPalette[kHues + 1] = {{"#3168be", "#60d1ff"}, {"#c8782f", "#d35d03"}, {"#226d63", "#3f9370"},
                                 {"#571d89", "#a28fff"}, {"#ae81a1", "#ff93b2"}, {"#4e4200", "#c7ad02"},
                                 {"#4591f7", "#5d82b7"}, {"#667079", "#9aa5b0"}};

const std::string& thing_of(const Series& series) {
  return series.thing.empty() ? series.name : series.thing;
}

void Palette::add(const std::string& thing) {
  constexpr const char* kHeldAgainst[] = {"theory", "plain", "idle"};
  if (std::find(std::begin(kHeldAgainst), std::end(kHeldAgainst), thing) != std::end(kHeldAgainst)) {
    looks_.try_emplace(thing, Look{kNeutral, 0});
  } else if (looks_.try_emplace(thing, Look{next_ % kHues, next_ / kHues % kMarkShapes}).second) {
    ++next_;
  }
}

Palette Palette::of(const Report& report) {
  Palette palette;
  const auto walk = [&palette](const auto& drawing) {
    using Drawing = std::decay_t<decltype(drawing)>;
    for (const auto& panel : drawing.panels) {
      if constexpr (std::is_same_v<Drawing, Plot>) {
        for (const Series& series : panel.series) palette.add(thing_of(series));
      } else if constexpr (std::is_same_v<Drawing, Bars>) {
        for (const auto& bar : panel.bars) {
          if (bar.parts.empty()) palette.add(bar.thing);
          for (const auto& part : bar.parts) palette.add(part.thing);
        }
      } else {
        for (const auto& lane : panel.lanes)
          for (const auto& span : lane.spans) palette.add(span.thing);
      }
    }
  };
  for (const Section& section : report.sections)
    for (const auto& part : section.parts)
      if (const auto* figure = std::get_if<Figure>(&part)) std::visit(walk, figure->drawing);
  return palette;
}

Look Palette::operator[](const std::string& thing) const {
  const auto found = looks_.find(thing);
  return found == looks_.end() ? Look{} : found->second;
}

}  // namespace outrider::report
