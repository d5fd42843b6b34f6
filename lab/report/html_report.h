// The report of a study as one HTML page: figures as inline SVG, no scripts, nothing from a network.
#pragma once

#include <string>

#include "lab/study/summary.h"

namespace outrider {

std::string html_report(const StudySummary& summary);

}  // namespace outrider
