"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = 8;
const colour = (index) => `var(--c${Math.min(index, COLOURS - 1)})`;

function element(name, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent?.appendChild(made);
  return made;
}

/** How wide a text of 12 px may be. */
const textWidth = (text) => 6.8 * text.length + 8;

/** A number with three digits that count. */
function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 4 });
}

/** Nanoseconds in the unit that suits. */
function time(ns) {
  const [unit, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3]].find(([, size]) => Math.abs(ns) >= size) ?? ["ns", 1];
  return `${short(ns / size)} ${unit}`;
}

/** About `count` round numbers from `low` to `high`. */
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((step) => step >= raw);
  const found = [];
  // Counted, since numbers far from 0 may be further apart than a step. Not -0.
  const first = Math.ceil(low / step - 1e-9);
  for (let n = 0; n <= 2 * count + 2 && (first + n) * step <= high + step * 1e-9; n++) found.push((first + n) * step || 0);
  return found;
}

// What the pointer is on.
const tip = document.getElementById("tip");
function tell(event, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const { width, height } = tip.getBoundingClientRect();
  const at = (near, size, room) => Math.max(4, near + 14 + size > room ? near - size - 10 : near + 14);
  tip.style.left = `${Math.min(at(event.clientX, width, innerWidth), Math.max(4, innerWidth - width - 4))}px`;
  tip.style.top = `${at(event.clientY, height, innerHeight)}px`;
}

/** Timelines with one scale: all show the same stretch of time. */
class Timelines {
  constructor(section) {
    this.lines = data.timelines;
    this.whole = Math.max(1, ...this.lines.map((line) => line.wall_ns));
    [this.from, this.to] = [0, this.whole];
    this.wanted = "";
    this.byTime = this.order();
    this.places = [...section.querySelectorAll(".drawn")];
    this.found = section.querySelector("output");
    this.path = section.querySelector("input[type=checkbox]");
    this.key(section.querySelector(".key"));
    this.places.forEach((place, index) => this.listen(place, index));
    this.path?.addEventListener("change", () => this.draw());
    section.querySelector("input[type=search]").addEventListener("input", (event) => {
      this.wanted = event.target.value.trim().toLowerCase();
      this.draw();
    });
    const zooms = { in: 0.5, out: 2 };
    for (const button of section.querySelectorAll("button[data-zoom]")) {
      const factor = zooms[button.dataset.zoom];
      button.addEventListener("click", () => (factor ? this.zoom(factor, 0.5) : this.show(0, this.whole)));
    }
  }

  /** The names, by the time that they take of streams. What only the host does has no colour of its own. */
  order() {
    const totals = new Map();
    for (const { names, rows, slices } of this.lines) {
      for (const [row, start, end, name] of slices) {
        const counted = rows[row].startsWith("host") ? 0 : end - start;
        totals.set(names[name], (totals.get(names[name]) ?? 0) + counted);
      }
    }
    return [...totals].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  }

  key(place) {
    const named = this.byTime.slice(0, COLOURS - 1);
    for (const name of this.byTime.length > named.length ? [...named, "others"] : named) {
      const entry = place.appendChild(document.createElement("span"));
      entry.appendChild(document.createElement("i")).style.background = this.colour(name);
      entry.append(name);
    }
  }

  colour(name) {
    const index = this.byTime.indexOf(name);
    return colour(index < 0 ? COLOURS : index);
  }

  show(from, to) {
    const size = Math.min(Math.max(to - from, 100), this.whole);
    this.from = Math.min(Math.max(from, 0), this.whole - size);
    this.to = this.from + size;
    this.draw();
  }

  /** By a factor, around a part of what is shown. */
  zoom(factor, part) {
    const at = this.from + part * (this.to - this.from);
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  move(part) {
    const by = part * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  listen(place, index) {
    const part = (event) => {
      const { left, width } = place.getBoundingClientRect();
      const start = this.start(width);
      return Math.min(Math.max((event.clientX - left - start) / (width - start), 0), 1);
    };
    const pointers = new Map();
    place.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY / 300), part(event));
    }, { passive: false });
    place.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, part(event));
      place.setPointerCapture(event.pointerId);
    });
    for (const end of ["pointerup", "pointercancel"]) {
      place.addEventListener(end, (event) => pointers.delete(event.pointerId));
    }
    place.addEventListener("pointerleave", (event) => tell(event));
    place.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (before === undefined) {
        const slice = event.target.dataset?.slice;
        return tell(event, slice && this.describe(this.lines[index], Number(slice)));
      }
      tell(event);
      const now = part(event);
      pointers.set(event.pointerId, now);
      const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
      if (other === undefined) return this.move(before - now);
      const [was, is] = [Math.abs(before - other), Math.abs(now - other)];
      if (was > 0.01 && is > 0.01) this.zoom(was / is, other);
    });
    place.addEventListener("click", (event) => {
      const slice = event.target.dataset?.slice;
      tell(event, slice && this.describe(this.lines[index], Number(slice)));
    });
    place.addEventListener("keydown", (event) => {
      const does = {
        ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2),
        "+": () => this.zoom(0.5, 0.5), "-": () => this.zoom(2, 0.5), 0: () => this.show(0, this.whole),
      }[event.key];
      if (!does) return;
      event.preventDefault();
      does();
    });
  }

  describe({ names, rows, slices }, index) {
    const [row, start, end, name, critical, detail] = slices[index];
    const lines = [`${names[name]}, ${time(end - start)}`, `${rows[row]}, from ${time(start)} on`];
    if (detail) lines.push(detail);
    if (critical) lines.push("on the critical path");
    return lines.join("\n");
  }

  /** Where time begins, right of the names of rows if there is room. */
  start(width) {
    const label = Math.max(0, ...this.lines.flatMap(({ rows }) => rows.map(textWidth)));
    return label > width / 4 ? 0 : label;
  }

  draw() {
    const only = this.path?.checked;
    let [count, total] = [0, 0];
    this.places.forEach((place, index) => {
      const line = this.lines[index];
      const width = Math.max(place.clientWidth, 200), start = this.start(width), above = start ? 0 : 16;
      const bar = 20, row = bar + 10 + above, height = row * line.rows.length + 22;
      const x = (ns) => start + ((width - start) * (ns - this.from)) / (this.to - this.from);
      const y = (number) => number * row + above + 5;
      const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": line.title });
      const marks = ticks(this.from, this.to, (width - start) / 110);
      for (const tick of marks) {
        element("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height - 18 }, svg);
        const anchor = x(tick) < start + 24 ? "start" : x(tick) > width - 24 ? "end" : "middle";
        element("text", { x: x(tick), y: height - 4, "text-anchor": anchor }, svg, time(tick));
      }
      // What is too narrow to be seen is drawn once a pixel.
      const drawn = line.rows.map(() => -1), seen = [];
      line.slices.forEach(([number, from, to, name, critical], slice) => {
        if (to < this.from || from > this.to) return;
        const text = line.names[name], matches = !this.wanted || text.toLowerCase().includes(this.wanted);
        if (matches && this.wanted) [count, total] = [count + 1, total + to - from];
        const left = Math.max(x(from), start), right = Math.min(Math.max(x(to), left + 0.7), width);
        if (right - left < 1 && left < drawn[number]) return;
        drawn[number] = Math.max(drawn[number], right);
        const dim = !matches || (only && !critical) ? { class: "dim" } : {};
        const place = { x: left.toFixed(2), y: y(number), width: (right - left).toFixed(2), height: bar };
        element("rect", { ...place, ...dim, fill: this.colour(text), "data-slice": slice }, svg);
        if (critical) {
          const under = { x1: left, x2: right, y1: y(number) + bar + 2, y2: y(number) + bar + 2 };
          element("line", { class: "way", ...under }, svg);
        }
        if (right - left > textWidth(text) && !("class" in dim)) {
          seen.push([left + 4, y(number) + 14, text]);
        }
      });
      for (const [a, b] of line.arrows) {
        const [one, other] = [line.slices[a], line.slices[b]];
        if (one[2] > this.to || other[1] < this.from) continue;
        const [x1, y1, x2, y2] = [x(one[2]), y(one[0]) + bar / 2, x(other[1]), y(other[0]) + bar / 2];
        if (x1 < start || x2 > width) continue;
        element("path", { class: "wait", d: `M${x1} ${y1}L${x2} ${y2}m-5 -3l5 3l-4 4` }, svg);
      }
      for (const [left, top, text] of seen) {
        element("text", { x: left, y: top, style: "fill:#fff;pointer-events:none" }, svg, text);
      }
      line.rows.forEach((name, number) => {
        const at = start ? { x: 0, y: y(number) + 14 } : { x: 0, y: y(number) - 4 };
        if (start) element("rect", { x: 0, y: y(number) - 4, width: start - 4, height: bar + 8, fill: "var(--paper)" }, svg);
        element("text", { class: "name", ...at }, svg, name);
      });
      place.replaceChildren(svg);
    });
    this.found.textContent = this.wanted ? `${count} found, ${time(total)}` : "";
  }
}

/** Lines over an axis of numbers. */
function plot(place, { x_label, y_label, lines }) {
  const points = lines.flatMap((line) => line.points);
  const width = Math.max(place.clientWidth, 200), height = 240, [left, right, top, bottom] = [58, 12, 24, 38];
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": y_label });
  const range = (at) => {
    const all = points.length ? points.map((point) => point[at]) : [0, 1];
    return [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
  };
  let [[x0, x1], [y0, y1]] = [range(0), range(1)];
  // From 0 on if that wastes little.
  if (y0 > 0 && y0 < 0.6 * y1) y0 = 0;
  if (y0 === y1) [y0, y1] = [y0 - (Math.abs(y0) || 1) / 2, y1 + (Math.abs(y1) || 1) / 2];
  if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
  const x = (value) => left + ((width - left - right) * (value - x0)) / (x1 - x0);
  const y = (value) => height - bottom - ((height - top - bottom) * (value - y0)) / (y1 - y0);
  for (const tick of ticks(y0, y1, 4)) {
    element("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }, svg);
    element("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, svg, short(tick));
  }
  for (const tick of ticks(x0, x1, (width - left) / 80)) {
    element("text", { x: x(tick), y: height - bottom + 16, "text-anchor": "middle" }, svg, short(tick));
  }
  element("text", { x: left - 50, y: 12 }, svg, y_label);
  element("text", { x: width - right, y: height - 6, "text-anchor": "end" }, svg, x_label);
  lines.forEach(({ name, points }, index) => {
    const dash = index % 2 ? { "stroke-dasharray": "5 3" } : {};
    const path = points.map(([a, b], at) => `${at ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    element("path", { d: path, fill: "none", stroke: colour(index), "stroke-width": 2, ...dash }, svg);
    if (points.length > 40) return;
    for (const [a, b] of points) {
      const mark = element("circle", { cx: x(a), cy: y(b), r: 3.5, fill: colour(index) }, svg);
      mark.dataset.tip = `${name}\n${x_label} ${short(a)}: ${short(b)} ${y_label}`;
    }
  });
  place.replaceChildren(svg);
}

/** Bars of parts, each of which has the colour of its name. */
function bars(place, { unit, rows, names }) {
  const width = Math.max(place.clientWidth, 200);
  const label = Math.max(0, ...rows.map(({ name }) => textWidth(name))), narrow = label > width / 3;
  const left = narrow ? 0 : label;
  const row = narrow ? 42 : 28, height = row * rows.length + 20;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": unit });
  const most = Math.max(1e-30, ...rows.map(({ parts }) => parts.reduce((sum, [, value]) => sum + value, 0)));
  const size = (value) => ((width - left) * value) / most;
  rows.forEach(({ name, parts }, number) => {
    const top = number * row + (narrow ? 16 : 0);
    element("text", { class: "name", x: 0, y: narrow ? top - 3 : top + 15 }, svg, name);
    let at = left;
    for (const [part, value] of parts) {
      const bar = element("rect", { x: at, y: top, width: size(value), height: 20, fill: colour(part) }, svg);
      bar.dataset.tip = `${name}\n${names[part]}: ${short(value)} ${unit}`;
      at += size(value);
    }
  });
  for (const tick of ticks(0, most, (width - left) / 90)) {
    const x = left + size(tick), anchor = x > width - 20 ? "end" : tick ? "middle" : "start";
    element("text", { x, y: height - 4, "text-anchor": anchor }, svg, tick ? short(tick) : `0 ${unit}`);
  }
  place.replaceChildren(svg);
}

/** A click on a column's name sorts a table by it, then the other way. */
function sortable(table) {
  const body = table.tBodies[0];
  table.querySelectorAll("th button").forEach((button, column) => {
    let sign = -1;
    button.addEventListener("click", () => {
      const value = (row) => row.cells[column].textContent;
      const compare = (a, b) => {
        const [one, other] = [parseFloat(value(a)), parseFloat(value(b))];
        return Number.isNaN(one - other) ? value(b).localeCompare(value(a)) : one - other;
      };
      body.append(...[...body.rows].sort((a, b) => sign * compare(a, b)));
      sign = -sign;
    });
  });
}

const section = document.getElementById("timelines");
const timelines = section && new Timelines(section);
function draw() {
  timelines?.draw();
  document.querySelectorAll("[data-plot]").forEach((place) => plot(place, data.plots[place.dataset.plot]));
  document.querySelectorAll("[data-bars]").forEach((place) => bars(place, data.bars[place.dataset.bars]));
}
document.querySelectorAll("table").forEach(sortable);
document.addEventListener("pointermove", (event) => {
  if (!event.target.closest(".drawn")) tell(event, event.target.dataset?.tip);
});
let pending = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(pending);
  pending = requestAnimationFrame(draw);
});
draw();
document.documentElement.dataset.drawn = document.querySelectorAll("svg").length;
