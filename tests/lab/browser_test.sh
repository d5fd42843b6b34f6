#!/usr/bin/env bash
# The report of a study in a real browser: nothing on the console, no request but for the page itself, nothing wider than
# the window at 1280 pixels, no text outside its figure, and a PDF from the printer.
# Usage: browser_test.sh OUTRIDER SOURCE_DIR. Needs Chromium; without it: exit code 77, and the reason.
set -euo pipefail
outrider=$1 source_dir=$2

for name in chromium chromium-browser google-chrome; do browser=$(command -v "$name") && break; done
if [ -z "${browser:-}" ]; then
  echo "NOT TESTED: the report in a browser: there is no Chromium; apt-get install chromium" >&2
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

grep -q "Content-Security-Policy.*default-src .none." "$dir/out/report.html" || fail "the page does not forbid requests"

# Looks at the report from outside, since the report itself has no script.
cat > "$dir/out/look.html" <<'HTML'
<!DOCTYPE html>
<html><body style="margin:0"><iframe src="report.html" style="width:1280px;height:900px;border:0"></iframe><pre id="seen"></pre>
<script>
onload = () => {
  const page = document.querySelector("iframe").contentWindow, root = page.document.documentElement;
  const count = (what) => page.document.querySelectorAll(what).length;
  const cut = [...page.document.querySelectorAll("svg")].flatMap((svg) => {
    const frame = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].filter((text) => {
      const box = text.getBoundingClientRect();
      return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
    }).map((text) => text.textContent);
  });
  const smallest = Math.min(...[...page.document.querySelectorAll("p, td, th, svg text")].map(
      (text) => parseFloat(page.getComputedStyle(text).fontSize)));
  document.getElementById("seen").textContent = [
    "overflow=" + (root.scrollWidth - root.clientWidth), "figures=" + count("svg"), "tables=" + count("table"),
    "scripts=" + count("script"), "requests=" + page.performance.getEntriesByType("resource").length,
    "smallest=" + smallest, "cut=" + cut.length, ...cut].join("\n");
};
</script></body></html>
HTML

# Chromium: everything of its own that would use a network is off, and no name resolves.
look() {
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --no-first-run --disable-extensions --disable-sync \
    --disable-background-networking --disable-component-update --disable-dev-shm-usage --hide-scrollbars \
    --allow-file-access-from-files --host-resolver-rules="MAP * ~NOTFOUND" --user-data-dir="$dir/profile" \
    --enable-logging=stderr --window-size=1280,900 "$@"
}

look --dump-dom "file://$dir/out/look.html" > "$dir/dom" 2> "$dir/console" || fail "Chromium: $(tail -3 "$dir/console")"
sed -n '/<pre id="seen">/,/<\/pre>/p' "$dir/dom" | sed 's/.*<pre id="seen">//; s/<\/pre>.*//' > "$dir/seen"
value() { sed -n "s/^$1=//p" "$dir/seen"; }
cat "$dir/seen"

# The page forbids all requests by its Content-Security-Policy, so that an attempt would be told here, too.
! grep -q CONSOLE "$dir/console" || fail "the console says: $(grep CONSOLE "$dir/console")"
[ "$(value overflow)" = 0 ] || fail "the page is $(value overflow) pixels wider than the window"
[ "$(value requests)" = 0 ] || fail "the page asks for more than itself"
[ "$(value scripts)" = 0 ] || fail "the page runs scripts"
[ "$(value cut)" = 0 ] || fail "texts reach out of their figures"
[ "$(value figures)" -ge 20 ] && [ "$(value tables)" -ge 4 ] || fail "figures or tables are missing"
awk -v size="$(value smallest)" 'BEGIN { exit !(size >= 11) }' || fail "text of $(value smallest) pixels"

look --print-to-pdf="$dir/report.pdf" --no-pdf-header-footer "file://$dir/out/report.html" 2> "$dir/printer" || fail "printing: $(tail -3 "$dir/printer")"
head -c 5 "$dir/report.pdf" | grep -q '%PDF-' || fail "the printer's file is no PDF"
[ "$(grep -ac '/Type */Page\b' "$dir/report.pdf")" -ge 2 ] || fail "the PDF has hardly a page"
echo "read, and printed: $(stat -c %s "$dir/report.pdf") bytes"
