#!/usr/bin/env bash
# Reports in a real browser: at the widths of a telephone, a tablet and a screen, by day and in the dark, nothing is wider
# than the window, no text is cut, small or pale; values show on hover and by keyboard; a figure is saved as SVG and its
# values as CSV; nothing on the console, no request but for the page itself; and a PDF from the printer.
# Usage: browser_test.sh OUTRIDER SOURCE_DIR. Needs Chromium; without it: exit code 77, and the reason.
set -euo pipefail
outrider=$1 source_dir=$2

for name in chromium chromium-browser google-chrome; do browser=$(command -v "$name") && break; done
if [ -z "${browser:-}" ]; then
  echo "NOT TESTED: reports in a browser: there is no Chromium; apt-get install chromium" >&2
  exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
  echo "FAILED: $1"
  exit 1
}

# Every section at once: fixed and adaptive lengths, an axis, a synthetic process, a cell that fails.
cat > "$dir/study.toml" <<TOML
name = "in a browser"
x-axis = "max-num-seqs"
[base]
model = "$source_dir/launch/demo_pair/target"
draft-model = "$source_dir/launch/demo_pair/draft"
prompts = "$source_dir/lab/study/openings.jsonl"
max-tokens = 24
ignore-eos = true
compare-plain = true
synthetic-acceptance = "rates:0.8"
[[sweep]]
max-num-seqs = [1, 4]
gamma-policy = ["fixed:gamma=2", "fixed:gamma=4", "ewma", "heuristic"]
[[sweep]]
max-num-seqs = [2]
model = ["/nonexistent/with/a/long/name/that/does/not/fit/into/any/line/of/any/figure/or/table/and/goes/on/and/on/target"]
TOML
code=0
"$outrider" study "$dir/study.toml" --output "$dir/out" --quiet > /dev/null 2>&1 || code=$?
[ "$code" -eq 1 ] || fail "the study ended with $code, not with its one failed cell"
cp "$dir/out/report.html" "$dir/study.html"
# Figures and tables that each page has at least.
pages=("study 9 4")

# Looks at a page from outside, in frames of three widths.
cat > "$dir/look.js" <<'JS'
const contrast = (one, other) => {
  const light = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map((c) => c / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const [a, b] = [light(one), light(other)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
const faults = [];
const look = (frame) => {
  const page = frame.contentWindow, doc = page.document, root = doc.documentElement, at = `at ${frame.width} pixels: `;
  const fault = (what) => faults.push(at + what);
  const all = (what) => [...doc.querySelectorAll(what)];
  if (root.scrollWidth > root.clientWidth) fault(`the page is ${root.scrollWidth - root.clientWidth} pixels wider than the window`);
  if (page.performance.getEntriesByType("resource").length) fault("the page asks for more than itself");
  const back = page.getComputedStyle(doc.body).backgroundColor;
  const words = (element) => JSON.stringify(element.textContent.slice(0, 60));
  for (const svg of all("svg.panel")) {
    const edge = svg.getBoundingClientRect(), scale = edge.width / svg.viewBox.baseVal.width;
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect(), style = page.getComputedStyle(text);
      if (box.left < edge.left - 1 || box.right > edge.right + 1 || box.top < edge.top - 1 || box.bottom > edge.bottom + 1) fault("cut: " + words(text));
      if (parseFloat(style.fontSize) * scale < 10.5) fault("small: " + words(text));
      if (contrast(style.fill, back) < 4.5) fault("pale: " + words(text));
    }
  }
  for (const element of all("p, td, th, li, dt, dd, a, h1, h2, h3, footer")) {
    const style = page.getComputedStyle(element);
    if (parseFloat(style.fontSize) < 11) fault("small: " + words(element));
    if (contrast(style.color, back) < 4.5) fault("pale: " + words(element));
  }
  for (const box of all(".scroll")) if (box.tabIndex !== 0) fault("a table cannot be scrolled by keyboard");
  const ids = all("[id]").map((element) => element.id);
  if (new Set(ids).size < ids.length) fault("an id is there twice");
  for (const link of all("nav a")) if (!doc.getElementById(link.getAttribute("href").slice(1))) fault("the contents lead nowhere: " + words(link));

  // Values on hover, at the middle of the first mark of every panel, and by keyboard.
  const tip = doc.getElementById("tip");
  for (const panel of all("svg.panel")) {
    const shape = panel.querySelector("title") ? panel.querySelector("title").parentNode : panel.querySelector("[data-v]");
    if (!shape) continue;
    panel.scrollIntoView();
    let x, y;
    if (shape.dataset.v) {
      const [px, py] = shape.getAttribute("points").split(/[ ,]/).map(Number), on = new DOMPoint(px, py).matrixTransform(shape.getScreenCTM());
      [x, y] = [on.x, on.y];
    } else {
      const box = shape.getBoundingClientRect();
      [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    }
    panel.dispatchEvent(new page.PointerEvent("pointermove", {clientX: x, clientY: y}));
    if (!/\d/.test(tip.textContent)) fault("no value on hover: " + panel.getAttribute("aria-label"));
    const box = tip.getBoundingClientRect();
    if (box.left < 0 || box.right > root.clientWidth) fault("a value stands outside the window");
    panel.dispatchEvent(new page.PointerEvent("pointerleave"));
    if (tip.textContent) fault("a value stays");
    panel.dispatchEvent(new page.KeyboardEvent("keydown", {key: "ArrowRight"}));
    if (!/\d/.test(tip.textContent)) fault("no value by keyboard: " + panel.getAttribute("aria-label"));
    panel.dispatchEvent(new page.FocusEvent("blur"));
  }

  // What saving would write.
  for (const figure of all("figure")) {
    let saved = "", name = "";
    page.Blob = function (parts) { saved = parts.join(""); };
    page.URL.createObjectURL = () => "blob:nothing";
    page.HTMLAnchorElement.prototype.click = function () { name = this.download; };
    figure.querySelector(".save button").click();
    const svg = new DOMParser().parseFromString(saved, "image/svg+xml"), panels = figure.querySelectorAll("svg.panel").length;
    if (svg.querySelector("parsererror") || !name.endsWith(".svg")) fault("no SVG is saved of " + figure.id);
    if (svg.querySelectorAll("svg > svg").length < panels) fault("panels are missing in the SVG of " + figure.id);
    if (/var\(|class=|currentcolor/i.test(saved)) fault("the SVG of " + figure.id + " needs the page's style");
    for (const text of svg.querySelectorAll("text"))
      if (contrast(text.getAttribute("fill").startsWith("#") ? "rgb(27, 35, 43)" : text.getAttribute("fill"), "rgb(255,255,255)") < 4.5) fault("pale in the SVG of " + figure.id);
  }
  for (const link of all(".save a")) {
    const lines = decodeURIComponent(link.href.slice(link.href.indexOf(",") + 1)).trim().split("\r\n");
    if (lines.length < 2 || !link.download.endsWith(".csv")) fault("no values in " + link.download);
  }
  return `figures=${all("figure").length}\ntables=${all("table").length}\nback=${back}`;
};
onload = () => {
  let counts = "";
  try {
    for (const frame of document.querySelectorAll("iframe")) counts = look(frame);
  } catch (error) {
    faults.push(String(error.stack));
  }
  document.getElementById("seen").textContent = [counts, "faults=" + faults.length, ...faults.slice(0, 30)].join("\n");
};
JS

# Chromium: everything of its own that would use a network is off, and no name resolves.
look() {
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --no-first-run --disable-extensions --disable-sync \
    --disable-background-networking --disable-component-update --disable-dev-shm-usage --hide-scrollbars \
    --allow-file-access-from-files --host-resolver-rules="MAP * ~NOTFOUND" --user-data-dir="$dir/profile" \
    --enable-logging=stderr --window-size=1500,900 "$@"
}

# The largest stretch of a page's height on which nothing is printed, margins apart, in percent; by page.
empty_stretches() {
  local width height
  pdftoppm -r 18 -gray "$1" "$dir/printed"
  for page in "$dir"/printed-*.pgm; do
    read -r width height <<< "$(head -c 40 "$page" | sed -n 2p)"
    tail -c $((width * height)) "$page" | od -An -v -tu1 -w"$width" |
      awk -v height="$height" '
        NR > 0.06 * height && NR < 0.94 * height {
          printed = 0
          for (i = 1; i <= NF; ++i) if ($i < 200) { printed = 1; break }
          run = printed ? 0 : run + 1
          if (run > most) most = run
        }
        END { printf "%d\n", 100 * most / height }'
  done
  rm -f "$dir"/printed-*.pgm
}

value() { sed -n "s/^$1=//p" "$dir/seen"; }

for page in "${pages[@]}"; do
  read -r name figures tables <<< "$page"
  grep -q "Content-Security-Policy.*default-src .none." "$dir/$name.html" || fail "$name: the page does not forbid requests"
  {
    echo '<!DOCTYPE html><html><body style="margin:0">'
    for width in 380 800 1400; do echo "<iframe src=\"$name.html\" width=\"$width\" height=\"900\" style=\"border:0\"></iframe>"; done
    echo '<pre id="seen"></pre><script src="look.js"></script></body></html>'
  } > "$dir/look.html"
  for scheme in 1 0; do  # light, dark
    look --blink-settings=preferredColorScheme=$scheme --dump-dom "file://$dir/look.html" > "$dir/dom" 2> "$dir/console" ||
      fail "$name: Chromium: $(tail -3 "$dir/console")"
    sed -n '/<pre id="seen">/,/<\/pre>/p' "$dir/dom" | sed 's/.*<pre id="seen">//; s/<\/pre>.*//' > "$dir/seen"
    cat "$dir/seen"
    [ "$(value faults)" = 0 ] || fail "$name: the faults above"
    # The page forbids all requests by its Content-Security-Policy, so that an attempt would be told here, too.
    ! grep -q CONSOLE "$dir/console" || fail "$name: the console says: $(grep CONSOLE "$dir/console")"
    [ "$(value figures)" -ge "$figures" ] && [ "$(value tables)" -ge "$tables" ] || fail "$name: figures or tables are missing"
    [ $scheme = 1 ] && day=$(value back)
  done
  [ "$(value back)" != "$day" ] || fail "$name: the page is as light in the dark as by day"

  look --print-to-pdf="$dir/$name.pdf" --no-pdf-header-footer "file://$dir/$name.html" 2> "$dir/printer" || fail "$name: printing: $(tail -3 "$dir/printer")"
  head -c 5 "$dir/$name.pdf" | grep -q '%PDF-' || fail "$name: the printer's file is no PDF"
  if command -v pdftoppm > /dev/null; then
    stretches=$(empty_stretches "$dir/$name.pdf")
    echo "$name: percent of each printed page that is empty in one piece:" $stretches
    for empty in $(head -n -1 <<< "$stretches"); do  # the last page ends where the report does
      [ "$empty" -lt 33 ] || fail "$name: a third of a printed page is empty"
    done
  else
    echo "NOT TESTED: empty stretches in print: there is no pdftoppm; apt-get install poppler-utils"
  fi
  echo "$name: read, and printed: $(grep -ac '/Type */Page\b' "$dir/$name.pdf") pages"
done
