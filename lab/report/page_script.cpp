#include "lab/report/page_parts.h"

namespace outrider::report {

// Everything works without it but quick values, values by keyboard, and saving as SVG.
const char* page_script() {
  return R"JS("use strict";
(() => {
const tip = document.getElementById("tip");
const kNear = 28;  // units of a panel
const svgNames = "http://www.w3.org/2000/svg";

// Marks of a panel in the units of its viewBox, with what each tells. Titles become ours, so that the browser's own
// do not show beside them; saving puts them back.
const marksOf = new WeakMap();
const look = (panel) => {
  if (marksOf.has(panel)) return marksOf.get(panel);
  const marks = [];
  for (const title of panel.querySelectorAll("title")) {
    const shape = title.parentNode, box = shape.getBBox();
    shape.dataset.tip = title.textContent;
    title.remove();
    const isBox = shape.tagName === "rect";
    marks.push({x: box.x + box.width / 2, y: box.y + box.height / 2, w: isBox ? box.width / 2 : 0, h: isBox ? box.height / 2 : 0,
                text: shape.dataset.tip});
  }
  for (const curve of panel.querySelectorAll("[data-v]")) {
    const at = curve.getAttribute("points").trim().split(/[ ,]/).map(Number), d = curve.dataset, value = d.v.trim().split(" ");
    const unit = (u) => u ? " " + u : "";
    for (let i = 0; 2 * i < at.length; ++i)
      marks.push({x: at[2 * i], y: at[2 * i + 1], w: 0, h: 0,
                  text: `${d.name}\n${d.y}: ${value[2 * i + 1]}${unit(d.yu)}\n${d.x}: ${value[2 * i]}${unit(d.xu)}`});
  }
  marks.sort((a, b) => a.x - b.x || a.y - b.y);
  marksOf.set(panel, marks);
  return marks;
};

const hide = (panel) => {
  tip.textContent = "";
  for (const ring of (panel || document).querySelectorAll(".ring")) ring.remove();
};
const show = (panel, mark) => {
  hide();
  tip.textContent = mark.text;
  if (!mark.w) {
    const ring = document.createElementNS(svgNames, "circle");
    ring.setAttribute("class", "ring");
    ring.setAttribute("cx", mark.x);
    ring.setAttribute("cy", mark.y);
    ring.setAttribute("r", 6);
    panel.append(ring);
  }
  const at = new DOMPoint(mark.x, mark.y - mark.h).matrixTransform(panel.getScreenCTM());
  const left = Math.min(at.x - tip.offsetWidth / 2, document.documentElement.clientWidth - tip.offsetWidth - 4);
  const above = at.y - tip.offsetHeight - 10;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = (above < 4 ? at.y + 16 : above) + "px";
};

for (const panel of document.querySelectorAll("svg.panel")) {
  let current = -1;
  panel.setAttribute("tabindex", "0");
  const point = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(panel.getScreenCTM().inverse());
    let best = -1, least = kNear;
    look(panel).forEach((m, i) => {
      const far = Math.hypot(Math.max(0, Math.abs(at.x - m.x) - m.w), Math.max(0, Math.abs(at.y - m.y) - m.h));
      if (far < least) least = far, best = i;
    });
    current = best;
    best < 0 ? hide(panel) : show(panel, look(panel)[best]);
  };
  panel.addEventListener("pointermove", point);
  panel.addEventListener("pointerdown", point);
  panel.addEventListener("pointerleave", () => hide(panel));
  panel.addEventListener("blur", () => hide(panel));
  panel.addEventListener("keydown", (event) => {
    const marks = look(panel), step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (event.key === "Escape") return hide(panel);
    if (!step || !marks.length) return;
    event.preventDefault();
    current = Math.min(Math.max(current + step, 0), marks.length - 1);
    show(panel, marks[current]);
  });
}

// A figure as one SVG document: title, legend and panels, with the colours of paper written into every element.
const kStyled = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "font-family", "font-size", "font-weight"];
const frozen = (from) => {
  const copy = from.cloneNode(true);
  copy.querySelectorAll(".ring").forEach((ring) => ring.remove());
  const live = [...from.querySelectorAll("*")].filter((e) => !e.classList.contains("ring"));
  [...copy.querySelectorAll("*")].forEach((element, i) => {
    const style = getComputedStyle(live[i]);
    if (element.tagName === "title") return;
    for (const name of kStyled) element.setAttribute(name, style.getPropertyValue(name));
    if (element.dataset.tip) element.append(Object.assign(document.createElementNS(svgNames, "title"), {textContent: element.dataset.tip}));
    for (const name of [...element.attributes].map((a) => a.name))
      if (name === "class" || name.startsWith("data-")) element.removeAttribute(name);
  });
  for (const name of ["class", "tabindex", "role", "aria-label"]) copy.removeAttribute(name);
  return copy;
};
const svgOf = (figure) => {
  const out = document.createElementNS(svgNames, "svg"), kWidth = 360, kGap = 16;
  const panels = [...figure.querySelectorAll("svg.panel")], columns = Math.min(3, panels.length);
  const add = (tag, attributes, text) => {
    const element = document.createElementNS(svgNames, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text) element.textContent = text;
    out.append(element);
  };
  const width = Math.max(columns, 2) * (kWidth + kGap) + kGap;
  const font = {"font-family": "system-ui, sans-serif", fill: "#1b232b"};
  add("rect", {width: "100%", height: "100%", fill: "#ffffff"});
  add("text", {x: kGap, y: 26, "font-size": 15, "font-weight": 600, ...font}, figure.querySelector("h3").textContent);
  let x = kGap, y = 50;
  for (const item of figure.querySelectorAll(".legend li")) {
    const name = item.textContent, wide = 44 + 7 * name.length;
    if (x > kGap && x + wide > width) x = kGap, y += 20;
    const key = frozen(item.querySelector("svg"));
    key.setAttribute("x", x);
    key.setAttribute("y", y - 10);
    out.append(key);
    add("text", {x: x + 34, y, "font-size": 12, ...font}, name);
    x += wide;
  }
  y += 14;
  for (let i = 0; i < panels.length; i += columns) {
    let tallest = 0;
    panels.slice(i, i + columns).forEach((panel, j) => {
      const copy = frozen(panel), height = panel.viewBox.baseVal.height;
      for (const [name, value] of Object.entries({x: kGap + j * (kWidth + kGap), y, width: kWidth, height})) copy.setAttribute(name, value);
      out.append(copy);
      tallest = Math.max(tallest, height);
    });
    y += tallest + kGap;
  }
  out.setAttribute("viewBox", `0 0 ${width} ${y}`);
  out.setAttribute("width", width);
  out.setAttribute("height", y);
  return '<?xml version="1.0" encoding="UTF-8"?>\n' + new XMLSerializer().serializeToString(out);
};
for (const figure of document.querySelectorAll("figure")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Save as SVG";
  button.addEventListener("click", () => {
    const root = document.documentElement;
    root.classList.add("paper");
    const text = svgOf(figure);
    root.classList.remove("paper");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], {type: "image/svg+xml"}));
    link.download = figure.id + ".svg";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  figure.querySelector(".save").prepend(button);
}
})();
)JS";
}

}  // namespace outrider::report
