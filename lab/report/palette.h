// The colour and mark of each thing, the same throughout a report.
#pragma once

#include <map>
#include <string>

#include "lab/report/report.h"

namespace outrider::report {

constexpr int kHues = 7;
constexpr int kNeutral = kHues;  // theory, plain decoding, idling: what other things are held against
constexpr int kMarkShapes = 4;   // circle, square, triangle, diamond

// `colour` is the k of the CSS class "kN" (page_style.cpp). From the eighth thing on colours repeat with the
// next mark.
struct Look {
  int colour = 0, mark = 0;
};

// Colours of the classes, for light and for dark backgrounds: a contrast of at least 3 to 1, and
// distinguishable with common kinds of colour blindness.
struct Hue {
  const char* light;
  const char* dark;
};
extern const Hue kPalette[kHues + 1];
constexpr const char* kLightBackground = "#ffffff";
constexpr const char* kDarkBackground = "#15191e";

class Palette {
 public:
  // Assigns colours in order of appearance.
  static Palette of(const Report& report);
  Look operator[](const std::string& thing) const;

 private:
  void add(const std::string& thing);
  std::map<std::string, Look> looks_;
  int next_ = 0;
};

// The thing that a series or a bar stands for; it decides the colour.
const std::string& thing_of(const Series& series);

}  // namespace outrider::report
