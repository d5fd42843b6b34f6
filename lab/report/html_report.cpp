#include "lab/report/html_report.h"

#include <fmt/format.h>

#include "base/version.h"
#include "lab/report/html_parts.h"

namespace outrider {
namespace {

constexpr const char* kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<meta name="viewport" content="width=device-width"/>
<title>{0}</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 0 auto; padding: 8px 24px 48px; color: #1f2933; }}
h1 {{ font-size: 26px; margin: 24px 0 4px; }}
h2 {{ font-size: 19px; margin: 40px 0 4px; padding-top: 12px; border-top: 2px solid #cbd2d9; break-after: avoid; }}
h3 {{ font-size: 14px; margin: 20px 0 6px; break-after: avoid; }}
p {{ margin: 4px 0 12px; max-width: 960px; color: #3e4c59; }}
svg {{ font: 11px system-ui, sans-serif; vertical-align: top; margin: 4px 8px 12px 0; max-width: 100%; height: auto; break-inside: avoid; }}
svg .title {{ font-weight: 600; font-size: 12px; }}
svg .tick {{ fill: #52606d; }}
table {{ border-collapse: collapse; font-size: 12px; font-variant-numeric: tabular-nums; }}
th {{ font-weight: 600; color: #52606d; vertical-align: bottom; border-bottom: 2px solid #9aa5b1; }}
th, td {{ padding: 3px 9px; text-align: right; }}
td {{ border-bottom: 1px solid #e4e7eb; }}
th:first-child, td:first-child {{ text-align: left; overflow-wrap: anywhere; }}
tr {{ break-inside: avoid; }}
.failed, .warning {{ color: #a61b1b; }}
.warning {{ border: 1px solid #a61b1b; padding: 6px 12px; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
@media print {{ body {{ padding: 0; }} h2 {{ margin-top: 20px; }} }}
@page {{ size: A4 landscape; margin: 12mm; }}
</style>
</head>
<body>
<h1>{0}</h1>
)";

std::string introduction(const StudySummary& s) {
  size_t there = 0;
  for (const CellSummary& cell : s.cells) there += cell.runs.size();
  std::string out = fmt::format(
      "<p>{} cells, {} of {} runs finished, {} of them failed. {} Written by outrider {}. Figures are "
      "medians over repeats; whiskers reach from the lowest to the highest.</p>\n",
      s.cells.size(), there, s.cells.size() * static_cast<size_t>(s.study.repeats), s.failed(),
      escaped(s.setting), kVersion);
  if (s.synthetic())
    out +=
        "<p class=\"warning\"><b>SYNTHETIC ACCEPTANCE</b>: in some cells a stated process decided what was "
        "accepted. Work and times are real, the text means nothing.</p>\n";
  return out;
}

}  // namespace

std::string html_report(const StudySummary& s) {
  return fmt::format(kHead, escaped(s.study.name)) + introduction(s) + overview_table(s) + failed_runs(s) +
         x_axis_section(s) + speedup_section(s) + rate_section(s) + regret_section(s) + length_section(s) +
         position_section(s) + latency_section(s) + gantt_section(s) + wire_section(s) + cell_table(s) +
         "</body>\n</html>\n";
}

}  // namespace outrider
