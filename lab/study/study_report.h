// Results of a study, as a report: study_report.cpp writes words and tables, study_figures.cpp draws lengths
// and rates, study_times.cpp draws the course of the runs.
#pragma once

#include "lab/report/report.h"
#include "lab/study/summary.h"

namespace outrider {

report::Report study_report(const StudySummary& summary);

// The best fixed length and the best policy of every group: what a terminal shows.
report::Table overview_table(const StudySummary& summary);

// Sections; without parts where the study has nothing for them.
report::Section axis_section(const StudySummary& summary);
report::Section speed_section(const StudySummary& summary);
report::Section length_section(const StudySummary& summary);
report::Section latency_section(const StudySummary& summary);
report::Section occupation_section(const StudySummary& summary);

// The fastest of the policies that choose their length; null without any.
const CellSummary* best_policy(const CellGroup& group);
report::Value value_of(const Spread& spread);

}  // namespace outrider
