#include "coordinator/gamma/shared_slope_fit.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

constexpr double kRidge = 1e-3;
constexpr double kDamping = 50;  // observations

double damped(double step, double count) { return step * count / (count + kDamping); }

}  // namespace

const SharedSlopeFit::Place& SharedSlopeFit::at(size_t place) const {
  return places_[std::min(place, places_.size() - 1)];
}

double SharedSlopeFit::chance(size_t place, double confidence) const {
  return 1 / (1 + std::exp(-(slope_ * confidence + offset(place))));
}

void SharedSlopeFit::observe(size_t place, double confidence, bool accepted) {
  const double predicted = chance(place, confidence);
  const double weight = predicted * (1 - predicted), error = (accepted ? 1 : 0) - predicted;
  Place& own = places_[std::min(place, places_.size() - 1)];
  own.cross += weight * confidence;
  own.weight += weight;
  own.error += error;
  own.count += 1;
  square_ += weight * confidence * confidence;
  slope_error_ += error * confidence;
}

void SharedSlopeFit::step() {
  if (++steps_ % kWindow == 0) refit();
}

// The information matrix is an arrowhead: a row and a column of the slope over a diagonal of offsets. Without
// the offsets one equation remains, that of the slope.
void SharedSlopeFit::refit() {
  double information = square_ + kRidge, error = slope_error_, count = 0;
  for (const Place& place : places_) {
    information -= place.cross * place.cross / (place.weight + kRidge);
    error -= place.cross * place.error / (place.weight + kRidge);
    count += place.count;
  }
  double change = damped(error / information, count);
  if (!(slope_ + change >= 0)) change = 0;
  slope_ += change;
  for (Place& place : places_) {
    const double offset = (place.error - place.cross * change) / (place.weight + kRidge);
    place = {.offset = place.offset + damped(offset, place.count)};
  }
  square_ = slope_error_ = 0;
}

}  // namespace outrider
