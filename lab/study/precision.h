// `outrider study --until 2%`: a study repeats its cells until their intervals are as narrow as that, or says
// that they are not.
//
// The interval of a cell is that of its tokens/s over those of the fastest cell of its group, or, of a cell
// that is alone in its group, that of its speed-up over plain decoding. Its half width over its value is
// compared. The stop looks at widths only, never at which cell is ahead: a stop at the first significant
// difference would find differences between equals.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "lab/study/summary.h"

namespace outrider {

// Half the interval over the value; infinite without an interval.
double half_width(const Ratio& ratio);

// The widest interval of a group's successful cells; 0 without one. 0 also if the other cells failed and the
// only one left has no speed-up.
double widest(const CellGroup& group);

// The cells of groups with an interval wider than `wanted`, in the order of the study.
std::vector<Cell> imprecise_cells(const StudySummary& summary, double wanted);

// A sentence for the conclusions.
std::string precision_line(const StudySummary& summary, double wanted);

// Whether every cell has something to be compared with. kInvalidArgument names a cell that has not.
Status check_precision(const StudyFile& study);

// "2%" or "2": 0.02. kInvalidArgument unless it lies between 0.1 and 50 percent.
Result<double> parse_precision(const std::string& text);

}  // namespace outrider
