// Which colour and mark stands for which thing, all over a report.
#pragma once

#include <map>
#include <string>

#include "lab/report/report.h"

namespace outrider::report {

constexpr int kHues = 7;
constexpr int kNeutral = kHues;  // theory, plain decoding, idling: what other things are held against
constexpr int kMarkShapes = 4;   // circle, square, triangle, diamond

// `colour` is the k of the CSS class "kN" (page_style.cpp). Beyond the seventh thing colours come round
// again with the next mark.
struct Look {
  int colour = 0, mark = 0;
};

// Colours of the classes, for light and for dark backgrounds: at least 3 to 1 against them, and told apart
// by those who lack one kind of cones.
struct Hue {
  const char* light;
  const char* dark;
};
extern const Hue kPalette[kHues + 1];
constexpr const char* kLightBackground = "#ffffff";
constexpr const char* kDarkBackground = "#15191e";

class Palette {
 public:
  // Hands out colours in the order in which things appear.
  static Palette of(const Report& report);
  Look operator[](const std::string& thing) const;

 private:
  void add(const std::string& thing);
  std::map<std::string, Look> looks_;
  int next_ = 0;
};

// What a series or a bar stands for.
const std::string& thing_of(const Series& series);

}  // namespace outrider::report
