// Sections of the HTML report. Each is "" where the study has nothing for it.
#pragma once

#include <string>

#include "lab/report/svg.h"
#include "lab/study/summary.h"

namespace outrider {

// html_charts.cpp: sections with headings and figures.
std::string x_axis_section(const StudySummary& summary);
std::string speedup_section(const StudySummary& summary);
std::string position_section(const StudySummary& summary);
std::string length_section(const StudySummary& summary);

// html_time.cpp: when things happened.
std::string latency_section(const StudySummary& summary);
std::string gantt_section(const StudySummary& summary);

// html_tables.cpp
std::string overview_table(const StudySummary& summary);
std::string rate_section(const StudySummary& summary);
std::string regret_section(const StudySummary& summary);
std::string wire_section(const StudySummary& summary);
std::string cell_table(const StudySummary& summary);
std::string failed_runs(const StudySummary& summary);

// A heading, a paragraph and what was drawn; "" where nothing was.
std::string section(const char* heading, const std::string& explanation, const std::string& drawn);

}  // namespace outrider
