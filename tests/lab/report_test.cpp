// The HTML page and the tables made from a report.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>

#include "lab/report/csv.h"
#include "lab/report/html.h"
#include "lab/report/palette.h"
#include "lab/report/svg.h"
#include "lab/report/svg_file.h"
#include "lab/report/terminal.h"
#include "lab/study/names.h"

namespace outrider::report {
namespace {

Series line(const std::string& name, double at = 1) {
  return {.name = name, .points = {{1, {at, at - 0.5, at + 0.5}}, {2, {at + 1, 0, 0}}}, .thing = ""};
}

Figure figure(const std::string& title, Plot plot) { return {title, "", std::move(plot)}; }

Plot plot_of(std::vector<Series> series) {
  return {.x = {"gamma", "tokens", {}},
          .y = {"speed-up", "", {}},
          .guide = {},
          .guide_name = "",
          .panels = {{"panel", std::move(series)}}};
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// ---- colours --------------------------------------------------------------------------------------------

using Light = std::array<double, 3>;  // linear red, green, blue

Light light_of(const char* colour) {
  Light out{};
  for (size_t i = 0; i < 3; ++i) {
    const double c =
        static_cast<double>(std::strtol(std::string(colour + 1 + 2 * i, 2).c_str(), nullptr, 16)) / 255;
    out[i] = c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  }
  return out;
}

// WCAG 2.1.
double contrast(const char* one, const char* other) {
  const auto luminance = [](const char* colour) {
    const Light c = light_of(colour);
    return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
  };
  const double a = luminance(one), b = luminance(other);
  return (std::max(a, b) + 0.05) / (std::min(a, b) + 0.05);
}

using Matrix = std::array<Light, 3>;
// Colour transforms of normal vision, of vision without long-wave cones and without medium-wave cones:
// Machado, Oliveira, Fernandes 2009.
constexpr Matrix kEyes[] = {
    {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}},
    {{{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}}},
    {{{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}}}};

Light times(const Matrix& m, const Light& v) {
  Light out{};
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 3; ++j) out[i] += m[i][j] * v[j];
  return out;
}

// Oklab: Ottosson 2020.
Light oklab(Light v) {
  for (double& c : v) c = std::clamp(c, 0.0, 1.0);
  constexpr Matrix kCones{{{0.4122214708, 0.5363325363, 0.0514459929},
                           {0.2119034982, 0.6806995451, 0.1073969566},
                           {0.0883024619, 0.2817188376, 0.6299787005}}};
  constexpr Matrix kLab{{{0.2104542553, 0.7936177850, -0.0040720468},
                         {1.9779984951, -2.4285922050, 0.4505937099},
                         {0.0259040371, 0.7827717662, -0.8086757660}}};
  Light cones = times(kCones, v);
  for (double& c : cones) c = std::cbrt(c);
  return times(kLab, cones);
}

TEST(Palette, ColoursAreSeenByEveryoneOnBothBackgrounds) {
  for (const bool dark : {false, true}) {
    const auto colour = [dark](int i) { return dark ? kPalette[i].dark : kPalette[i].light; };
    for (int i = 0; i <= kHues; ++i)
      EXPECT_GE(contrast(colour(i), dark ? kDarkBackground : kLightBackground), 3) << colour(i);
    for (const Matrix& eyes : kEyes)
      for (int i = 0; i < kHues; ++i)
        for (int j = 0; j < i; ++j) {
          const Light a = oklab(times(eyes, light_of(colour(i)))),
                      b = oklab(times(eyes, light_of(colour(j))));
          // 0.02 is about what is just seen side by side.
          EXPECT_GE(std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]), 0.1) << colour(i) << " " << colour(j);
        }
  }
}

TEST(Palette, AThingKeepsItsColourAndTheEighthGetsAnotherMark) {
  Report report;
  std::vector<Series> many;
  for (int i = 0; i < 8; ++i) many.push_back(line(fmt::format("s{}", i)));
  report.sections = {{"a", "", {figure("f", plot_of({line("s1"), line("plain")}))}},
                     {"b", "", {figure("g", plot_of(many))}}};
  const Palette palette = Palette::of(report);
  EXPECT_EQ(palette["s1"].colour, 0);
  EXPECT_EQ(palette["plain"].colour, kNeutral);
  EXPECT_EQ(palette["s0"].colour, 1);
  EXPECT_EQ(palette["s7"].colour, 0);
  EXPECT_NE(palette["s7"].mark, palette["s1"].mark);
}

// ---- figures --------------------------------------------------------------------------------------------

TEST(Figures, ValuesAndIntervalsStandInThePage) {
  Report report;
  report.sections = {{"a", "", {figure("f", plot_of({line("ewma")}))}}};
  const std::string page = html_page(report);
  EXPECT_NE(page.find("<title>ewma\nspeed-up: 1 (0.5 to 1.5)\ngamma: 1 tokens</title>"), std::string::npos);
  EXPECT_NE(
      page.find(
          "download=\"part-f.csv\" href=\"data:text/csv;charset=utf-8,panel,series,%22gamma,%20tokens%22"),
      std::string::npos);
}

TEST(Figures, ManyLinesGetAPanelEach) {
  std::vector<Series> many;
  for (int i = 0; i < 9; ++i) many.push_back(line(fmt::format("line {}", i)));
  Report report;
  report.sections = {{"a", "", {figure("f", plot_of(many))}}};
  const Drawn drawn = draw(plot_of(many), Palette::of(report));
  ASSERT_EQ(drawn.panels.size(), 9u);
  EXPECT_TRUE(drawn.legend.empty());  // titles say it
  EXPECT_NE(drawn.panels[3].find("panel: line 3"), std::string::npos);
  EXPECT_EQ(count(drawn.panels[3], "faint"), 8u);
}

TEST(Figures, PanelsShareTheirAxes) {
  Plot plot = plot_of({line("a", 1)});
  plot.panels.push_back({"other", {line("b", 90)}});
  const Drawn drawn = draw(plot, Palette());
  ASSERT_EQ(drawn.panels.size(), 2u);
  for (const std::string& panel : drawn.panels) EXPECT_NE(panel.find(">100</text>"), std::string::npos);
}

TEST(Figures, BarsBelowZeroReachToTheLeft) {
  const Bars bars{.values = {"lost", "%", {}},
                  .guide = {},
                  .guide_name = "",
                  .panels = {{"", {{"lost", {10, 0, 0}, "", {}}, {"gained", {-5, -6, -4}, "", {}}}}}};
  const Drawn drawn = draw(bars, Palette());
  ASSERT_EQ(drawn.panels.size(), 1u);
  EXPECT_NE(drawn.panels[0].find(">10</text>"), std::string::npos) << drawn.panels[0];
  EXPECT_NE(drawn.panels[0].find("text-anchor=\"end\">-5</text>"), std::string::npos) << drawn.panels[0];
  EXPECT_NE(drawn.panels[0].find("lost: -5 (-6 to -4) %"), std::string::npos) << drawn.panels[0];
}

TEST(Figures, LanesShowTheirStretchOnly) {
  const Lanes lanes{10, {{"cell", {{"draft", {{-1, 2, "inside"}, {20, 30, "outside"}}, "idle 80 %"}}}}};
  const Drawn drawn = draw(lanes, Palette());
  ASSERT_EQ(drawn.panels.size(), 1u);
  EXPECT_EQ(count(drawn.panels[0], "<title>inside"), 1u) << drawn.panels[0];
  EXPECT_EQ(count(drawn.panels[0], "<title>outside"), 0u) << "a span outside is drawn";
  EXPECT_NE(drawn.panels[0].find("idle 80 %"), std::string::npos);
  EXPECT_TRUE(draw(Lanes{}, Palette()).panels.empty());
}

TEST(Figures, NothingIsShownOfNothing) {
  Report report{.title = "t", .subtitle = "", .conclusions = {}, .facts = {}, .sections = {}};
  report.sections = {{"empty section",
                      "",
                      {figure("empty figure", plot_of({})), Figure{"no bars", "", Bars{}},
                       Table{"no rows", "", {{"a", "", true}}, {}}}}};
  const std::string page = html_page(report);
  for (const char* absent : {"empty section", "empty figure", "no bars", "no rows", "<nav"})
    EXPECT_EQ(page.find(absent), std::string::npos) << absent;
}

TEST(Figures, TextIsEscaped) {
  EXPECT_EQ(escaped("<a & \"b\">\x01"), "&lt;a &amp; &quot;b&quot;&gt; ");
  Report report{.title = "<script>x</script>",
                .subtitle = "",
                .conclusions = {{"<b>", Tone::kGood}},
                .facts = {},
                .sections = {}};
  const std::string page = html_page(report);
  EXPECT_EQ(page.find("<script>"), std::string::npos);
  EXPECT_NE(page.find("<li class=\"good\">&lt;b&gt;</li>"), std::string::npos);
}

TEST(Figures, AShortenedNameEndsBetweenCharacters) {
  EXPECT_EQ(shortened("gr\u00fc\u00dfe", 5), "gr\u00fc\u00dfe");
  EXPECT_EQ(shortened("gr\u00fc\u00dfe", 4), "gr\u00fc\u2026");
}

TEST(Csv, FieldsAreQuotedWhereTheyMustBe) {
  const Table table{"t", "", {{"a, b", "", true}, {"n", "ms"}}, {{{"say \"x\""}, {"1"}}, {{"short"}}}};
  EXPECT_EQ(csv_of(table), "\"a, b\",\"n, ms\"\r\n\"say \"\"x\"\"\",1\r\nshort,\r\n");
  const Figure drawn = figure("f", plot_of({line("a")}));
  EXPECT_EQ(csv_of(drawn),
            "panel,series,\"gamma, tokens\",speed-up,low,high\r\npanel,a,1,1,0.5,1.5\r\npanel,a,2,2,,\r\n");
}

// ---- terminals ------------------------------------------------------------------------------------------

const Table kTable{
    "Title",
    "",
    {{"policy", "", true}, {"speed", "tokens/s"}, {"where it is worst", "", true}},
    {{{"ewma"}, {"12.5"}, {"a long sentence about where"}}, {{"gamma 4"}, {"1234.0"}, {"short"}}}};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    out.push_back(text.substr(at, text.find('\n', at) - at));
  return out;
}

TEST(Terminal, PipedTablesArePlainAndARowIsALine) {
  EXPECT_EQ(on_screen(kTable, {}),
            "Title\n"
            "policy   speed, tokens/s  where it is worst\n"
            "-----------------------------------------------------\n"
            "ewma                12.5  a long sentence about where\n"
            "gamma 4           1234.0  short\n");
}

TEST(Terminal, TablesKeepInsideTheScreenAndLoseNoWord) {
  for (const size_t width : {20u, 30u, 40u, 60u}) {
    const std::string text = on_screen(kTable, {.width = width, .styled = false});
    for (const std::string& each : lines_of(text)) EXPECT_LE(letters_of(each), width) << text;
    for (const char* word : {"ewma", "gamma 4", "12.5", "1234.0", "sentence", "tokens/s", "worst"})
      EXPECT_NE(text.find(word), std::string::npos) << width << "\n" << text;
  }
  EXPECT_EQ(on_screen(kTable, {}).find('\x1b'), std::string::npos);
  EXPECT_NE(on_screen(kTable, {.width = 80, .styled = true}).find("\x1b[1m"), std::string::npos);
}

TEST(Terminal, AFileIsNoTerminal) {
  std::FILE* const file = std::tmpfile();
  const Screen screen = Screen::of(file);
  std::fclose(file);
  EXPECT_EQ(screen.width, 0u);
  EXPECT_FALSE(screen.styled);
}

// ---- names ----------------------------------------------------------------------------------------------

TEST(Names, SayOnlyWhatDiffers) {
  Cell a, b, c;
  a.values = {
      {"gamma-policy", "fixed:gamma=2"}, {"temperature", "0"}, {"model", "/x/y/small"}, {"rule", "greedy"}};
  b.values = {{"gamma-policy", "ewma"}, {"temperature", "0.7"}, {"model", "/x/y/large"}, {"rule", "greedy"}};
  c.values = {{"gamma-policy", "ewma"}, {"temperature", "0"}, {"model", "/x/y/large"}, {"rule", "greedy"}};
  EXPECT_EQ(short_names({&a, &b, &c}), (std::vector<std::string>{"gamma 2, model small, temperature 0",
                                                                 "ewma, model large, temperature 0.7",
                                                                 "ewma, model large, temperature 0"}));
  EXPECT_EQ(short_names({&b, &c}), (std::vector<std::string>{"temperature 0.7", "temperature 0"}));
  EXPECT_EQ(short_names({&a, &b}, NamedBy::kLengthOnly), (std::vector<std::string>{"gamma 2", "ewma"}));
  EXPECT_EQ(short_names({&a, &b}, NamedBy::kAllButLength, "temperature"),
            (std::vector<std::string>{"model small", "model large"}));
  EXPECT_EQ(short_names({&a}), (std::vector<std::string>{""}));
}

TEST(SvgFile, StandsAlone) {
  const Figure two = figure("A & B", plot_of({line("one"), line("two")}));
  const std::string svg = svg_file(two);
  EXPECT_TRUE(svg.starts_with("<?xml"));
  EXPECT_EQ(count(svg, "<svg "), count(svg, "</svg>"));
  EXPECT_EQ(count(svg, "xmlns=\"http://www.w3.org/2000/svg\""), 1u);
  EXPECT_NE(svg.find("A &amp; B"), std::string::npos);
  EXPECT_NE(svg.find(">one<"), std::string::npos) << "the legend";
  EXPECT_EQ(svg.find("var("), std::string::npos) << "not every program knows variables";
  EXPECT_EQ(svg.find("href"), std::string::npos);
  EXPECT_EQ(svg_file(figure("nothing", plot_of({}))), "");
}

}  // namespace
}  // namespace outrider::report
