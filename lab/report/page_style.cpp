#include <fmt/format.h>

#include <sstream>

#include "lab/report/page_parts.h"
#include "lab/report/palette.h"

namespace outrider::report {
namespace {

constexpr const char* kRules = R"(
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
.skip { position: absolute; left: -9999px; }
.skip:focus { left: 8px; top: 8px; background: var(--back); padding: 8px 12px; z-index: 3; }
.page { max-width: 1480px; margin: 0 auto; padding: 0 16px 64px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 24px 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 0 0 4px; }
h3 { font-size: 1rem; margin: 0; }
p { margin: 4px 0 12px; max-width: 46em; }
.soft, dt, .text { color: var(--soft); }
a { color: var(--link); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
section { margin: 40px 0 0; padding-top: 16px; border-top: 1px solid var(--line); scroll-margin-top: 8px; }
section.first { border: 0; margin-top: 16px; padding-top: 0; }
.conclusions { list-style: none; margin: 8px 0; padding: 0; max-width: 52em; }
.conclusions li { border-left: 4px solid var(--line); padding: 4px 0 4px 12px; margin: 0 0 8px; font-size: 1.06rem; overflow-wrap: anywhere; }
.conclusions .good { border-color: var(--good); }
.conclusions .warning { border-color: var(--warning); }
.conclusions .bad { border-color: var(--bad); }
td.good { color: var(--good); } td.warning { color: var(--warning); } td.bad { color: var(--bad); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 2px 16px; margin: 8px 0; font-size: .9rem; }
dd { margin: 0; overflow-wrap: anywhere; }
nav ol { margin: 4px 0; padding-left: 1.3em; font-size: .92rem; }
nav li { margin: 3px 0; }
figure, .tabled { margin: 20px 0 28px; }
figcaption, .tabled > header { margin: 0 0 6px; }
figcaption p, .tabled p { margin: 2px 0 6px; font-size: .92rem; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin: 6px 0; padding: 0; font-size: .85rem; }
.legend li { display: flex; align-items: center; gap: 6px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 12px 20px; align-items: start; }
.panels.one { grid-template-columns: minmax(0, 440px); }
svg.panel { display: block; width: 100%; height: auto; max-width: 520px; }
.save { margin: 2px 0 0; font-size: .82rem; display: flex; gap: 14px; align-items: baseline; }
.save button { font: inherit; color: var(--link); background: none; border: 0; padding: 0; text-decoration: underline; cursor: pointer; }
svg text { font: 12px system-ui, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }
svg text.soft { fill: var(--soft); }
svg text.halo { fill: var(--soft); paint-order: stroke; stroke: var(--back); stroke-width: 4px; }
svg text.title { font-weight: 600; font-size: 12.5px; }
svg .grid { stroke: var(--line); }
svg .axis { stroke: var(--soft); }
svg .guide { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 1 3; }
svg .lane { fill: var(--lane); }
svg .interval { stroke: var(--ink); stroke-width: 1.5; }
svg rect[class^="k"] { fill: currentColor; }
svg .curve { fill: none; stroke: currentColor; stroke-width: 1.9; stroke-linejoin: round; }
svg .faint { color: var(--line); stroke-width: 1.2; }
svg .dashed { stroke-dasharray: 5 4; }
svg .whisker { stroke: currentColor; stroke-width: 1.4; }
svg .mark { fill: currentColor; stroke: var(--back); stroke-width: .8; }
svg .dot { fill: currentColor; fill-opacity: .35; }
svg .ring { fill: none; stroke: var(--ink); stroke-width: 1.5; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; font-size: 1rem; padding: 0 0 4px; }
th, td { padding: 4px 10px; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; }
thead th { vertical-align: bottom; color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--soft); }
th .soft { font-weight: 400; }
tbody th { font-weight: 500; text-align: left; position: sticky; left: 0; background: var(--back); min-width: 9em; max-width: 22em; overflow-wrap: anywhere; }
thead th:first-child, th.word, td.word { text-align: left; }
td.word { white-space: normal; min-width: 6em; overflow-wrap: anywhere; }
footer { margin-top: 48px; font-size: .85rem; color: var(--soft); }
#tip { position: fixed; z-index: 2; pointer-events: none; white-space: pre-line; max-width: min(320px, 90vw); background: var(--ink); color: var(--back); padding: 5px 9px; border-radius: 4px; font-size: 13px; line-height: 1.35; overflow-wrap: anywhere; }
#tip:empty { display: none; }
@media (min-width: 1180px) {
  .page.listed { display: grid; grid-template: "list top" auto "list main" auto / 200px minmax(0, 1fr); gap: 0 36px; }
  .listed > .top { grid-area: top; }
  .listed > main { grid-area: main; }
  .listed > nav { grid-area: list; position: sticky; top: 0; align-self: start; max-height: 100vh; overflow-y: auto; padding-top: 28px; }
}
@media print {
  @page { size: A4; margin: 14mm 13mm; }
  body { font-size: 10pt; }
  .page { padding: 0; max-width: none; }
  .skip, .save, #tip, footer { display: none; }
  nav ol { columns: 2; }
  section { margin-top: 18px; padding-top: 10px; }
  h2, h3, figcaption, .legend, .tabled > header, caption { break-after: avoid; break-inside: avoid; }
  figure, .tabled { margin: 12px 0 14px; }
  p { orphans: 3; widows: 3; }
  .panels { display: block; font-size: 0; orphans: 1; widows: 1; }
  .panels > svg { display: inline-block; width: 49%; margin: 0 1% 8px 0; vertical-align: top; break-inside: avoid; }
  .conclusions li, .legend li, tr { break-inside: avoid; }
  .scroll { overflow: visible; }
  thead { display: table-header-group; }
  table { font-size: 7.5pt; max-width: 100%; }
  th, td { padding: 2px 4px; white-space: normal; overflow-wrap: break-word; }
  tbody th { position: static; min-width: 13em; }
}
)";

// Grey tones of text and lines, then the palette.
std::string variables(bool dark) {
  std::string out = dark ? "--ink:#e6e9ec;--soft:#a9b3bc;--line:#39434d;--lane:#222a32;--link:#7cc4ff;"
                           "--good:#5fd39b;--warning:#f0b429;--bad:#ff8a80;color-scheme:dark;"
                         : "--ink:#1b232b;--soft:#52606d;--line:#d8dee4;--lane:#eef1f4;--link:#0b57a4;"
                           "--good:#17723f;--warning:#8a5a00;--bad:#a61b1b;color-scheme:light;";
  out += fmt::format("--back:{};", dark ? kDarkBackground : kLightBackground);
  for (int i = 0; i <= kHues; ++i)
    out += fmt::format("--c{}:{};", i, dark ? kPalette[i].dark : kPalette[i].light);
  return out;
}

}  // namespace

// Paper is light, and so is what is saved (the script's class "paper").
std::string page_style() {
  std::string out = fmt::format(":root{{{}}}\n", variables(false));
  out += fmt::format("@media screen and (prefers-color-scheme: dark){{:root:not(.paper){{{}}}}}\n",
                     variables(true));
  for (int i = 0; i <= kHues; ++i) out += fmt::format(".k{0}{{color:var(--c{0})}}", i);
  return out + kRules;
}

std::string figure_style() {
  std::string out;
  for (int i = 0; i <= kHues; ++i) out += fmt::format(".k{0}{{color:var(--c{0})}}\n", i);
  std::istringstream rules(kRules);
  for (std::string line; std::getline(rules, line);)
    if (line.starts_with("svg ")) out += line + "\n";
  std::istringstream named(variables(false));
  for (std::string one; std::getline(named, one, ';');) {
    const size_t colon = one.find(':');
    const std::string use = "var(" + one.substr(0, colon) + ")", value = one.substr(colon + 1);
    for (size_t at = out.find(use); at != std::string::npos; at = out.find(use, at))
      out.replace(at, use.size(), value);
  }
  return out;
}

}  // namespace outrider::report
