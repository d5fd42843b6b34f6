#include "lab/report/html.h"

#include <fmt/format.h>

#include <map>

#include "base/hash.h"
#include "base/version.h"
#include "lab/report/csv.h"
#include "lab/report/page_parts.h"
#include "lab/report/svg.h"

namespace outrider::report {
namespace {

constexpr const char* kToneClass[] = {"", " class=\"good\"", " class=\"warning\"", " class=\"bad\""};
const char* tone_class(Tone tone) { return kToneClass[static_cast<int>(tone)]; }

// For ids and file names: letters, digits and dashes.
std::string slug_of(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    const bool capital = c >= 'A' && c <= 'Z';
    if (plain || capital)
      out += capital ? static_cast<char>(c - 'A' + 'a') : c;
    else if (!out.empty() && out.back() != '-')
      out += '-';
    if (out.size() == 48) break;
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "part" : out;
}

// A data: URL. Plain characters are kept as they are, all others are written in hexadecimal.
std::string data_address(const std::string& csv) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.!~*(),:/+=;";
  std::string out = "data:text/csv;charset=utf-8,";
  for (const char c : csv) {
    if (kPlain.find(c) != std::string_view::npos)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::string paragraph(const std::string& text) {
  return text.empty() ? "" : fmt::format("<p class=\"text\">{}</p>\n", escaped(text));
}

class Page {
 public:
  explicit Page(const Report& report) : report_(report), palette_(Palette::of(report)) {}

  std::string write() {
    std::string sections, contents;
    for (const Section& each : report_.sections) {
      const std::string id = new_id(each.title), inside = parts_of(each);
      if (inside.empty()) continue;
      sections += fmt::format(
          "<section id=\"{0}\" aria-labelledby=\"{0}-title\">\n<h2 "
          "id=\"{0}-title\">{1}</h2>\n{2}{3}</section>\n",
          id, escaped(each.title), paragraph(each.text), inside);
      contents += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", id, escaped(each.title));
    }
    if (!contents.empty())
      contents =
          "<nav aria-label=\"Contents\">\n<strong>Contents</strong>\n<ol>\n" + contents + "</ol>\n</nav>\n";
    const std::string body = fmt::format(
        "<a class=\"skip\" href=\"#report\">To the report</a>\n<div class=\"page{}\">\n<header "
        "class=\"top\">\n{}"
        "</header>\n{}<main id=\"report\">\n{}"
        "<footer>Written by outrider {}. Everything is in this file; it asks for nothing from a "
        "network.</footer>\n"
        "</main>\n</div>\n<div id=\"tip\" role=\"status\"></div>\n",
        contents.empty() ? "" : " listed", top(), contents, sections, kVersion);
    const std::string page = head(body);  // makes the nonce
    return page + "<body>\n" + body +
           fmt::format("<script nonce=\"{}\">{}</script>\n</body>\n</html>\n", nonce_, page_script());
  }

 private:
  // Text of the report is escaped; if some were not, it would still have to name this to run.
  std::string head(const std::string& body) {
    uint64_t one = 1, other = 2;
    for (const char c : body) {
      one = hash_combine(one, static_cast<unsigned char>(c));
      other = hash_combine(other + 1, static_cast<unsigned char>(c));
    }
    nonce_ = fmt::format("{:016x}{:016x}", one, other);
    return fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'; "
        "script-src 'nonce-{}'\"/>\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{}</title>\n"
        "<style>\n{}</style>\n</head>\n",
        nonce_, escaped(report_.title), page_style());
  }

  std::string top() const {
    std::string out = fmt::format("<h1>{}</h1>\n{}", escaped(report_.title), paragraph(report_.subtitle));
    if (!report_.conclusions.empty()) {
      out += "<section class=\"first\" aria-label=\"Conclusions\">\n<ul class=\"conclusions\">\n";
      for (const Conclusion& each : report_.conclusions)
        out += fmt::format("<li{}>{}</li>\n", tone_class(each.tone), escaped(each.text));
      out += "</ul>\n</section>\n";
    }
    if (report_.facts.empty()) return out;
    out += "<dl>\n";
    for (const Fact& fact : report_.facts)
      out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(fact.name), escaped(fact.value));
    return out + "</dl>\n";
  }

  std::string parts_of(const Section& section) {
    std::string out;
    for (const auto& part : section.parts)
      out += std::visit([this](const auto& each) { return part_of(each); }, part);
    return out;
  }

  std::string part_of(const Figure& figure) {
    const Drawn drawn =
        std::visit([this](const auto& drawing) { return draw(drawing, palette_); }, figure.drawing);
    if (drawn.panels.empty()) return "";
    const std::string id = new_id(figure.title);
    std::string out = fmt::format("<figure id=\"{}\">\n<figcaption><h3>{}</h3>\n{}</figcaption>\n", id,
                                  escaped(figure.title), paragraph(figure.text));
    if (drawn.legend.size() > 1) {
      out += "<ul class=\"legend\">\n";
      for (const LegendItem& item : drawn.legend)
        out += fmt::format("<li>{}{}</li>\n", item.key, escaped(item.name));
      out += "</ul>\n";
    }
    out += fmt::format("<div class=\"panels{}\">\n", drawn.panels.size() == 1 ? " one" : "");
    for (const std::string& panel : drawn.panels) out += panel;
    return out + "</div>\n" + save_line(id, csv_of(figure)) + "</figure>\n";
  }

  std::string part_of(const Table& table) {
    if (table.rows.empty()) return "";
    const std::string id = new_id(table.title);
    std::string out = fmt::format("<div class=\"tabled\" id=\"{}\">\n", id);
    out += table.text.empty() ? "" : fmt::format("<header>{}</header>\n", paragraph(table.text));
    out += fmt::format("<div class=\"scroll\" role=\"region\" aria-label=\"{0}\" tabindex=\"0\">\n<table>\n",
                       escaped(table.title));
    if (!table.title.empty()) out += fmt::format("<caption>{}</caption>\n", escaped(table.title));
    out += "<thead><tr>";
    for (const Column& column : table.columns)
      out += fmt::format(
          "<th scope=\"col\"{}>{}{}</th>", column.is_text ? " class=\"word\"" : "", escaped(column.name),
          column.unit.empty() ? "" : fmt::format(" <span class=\"soft\">{}</span>", escaped(column.unit)));
    out += "</tr></thead>\n<tbody>\n";
    for (const auto& row : table.rows) out += row_of(table, row);
    return out + "</tbody>\n</table>\n</div>\n" + save_line(id, csv_of(table)) + "</div>\n";
  }

  static std::string row_of(const Table& table, const std::vector<Entry>& row) {
    std::string out = "<tr>";
    for (size_t i = 0; i < row.size() && i < table.columns.size(); ++i) {
      if (i == 0) {
        out += fmt::format("<th scope=\"row\">{}</th>", escaped(row[0].text));
        continue;
      }
      const size_t span = i + 1 == row.size() ? table.columns.size() - i : 1;
      std::string css = table.columns[i].is_text || span > 1 ? "word" : "";
      const char* const kTones[] = {"", "good", "warning", "bad"};
      if (row[i].tone != Tone::kPlain)
        css += fmt::format("{}{}", css.empty() ? "" : " ", kTones[static_cast<int>(row[i].tone)]);
      out += fmt::format("<td{}{}>{}</td>", span > 1 ? fmt::format(" colspan=\"{}\"", span) : "",
                         css.empty() ? "" : fmt::format(" class=\"{}\"", css), escaped(row[i].text));
    }
    return out + "</tr>\n";
  }

  std::string save_line(const std::string& id, const std::string& csv) const {
    return fmt::format("<p class=\"save\"><a download=\"{}-{}.csv\" href=\"{}\">Values as CSV</a></p>\n",
                       slug_of(report_.title), id, data_address(csv));
  }

  std::string new_id(const std::string& title) {
    const std::string slug = slug_of(title);
    const int uses = ++ids_[slug];
    return uses == 1 ? slug : fmt::format("{}-{}", slug, uses);
  }

  const Report& report_;
  const Palette palette_;
  std::map<std::string, int> ids_{{"report", 1}, {"tip", 1}};  // how often taken
  std::string nonce_;
};

}  // namespace

std::string html_page(const Report& report) { return Page(report).write(); }

}  // namespace outrider::report
