// Results of a bench, as a page (lab/report/report.h).
#pragma once

#include "lab/bench/results.h"
#include "lab/report/report.h"

namespace outrider {

report::Report bench_report(const BenchResults& results);

}  // namespace outrider
