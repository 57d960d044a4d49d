/** The panes of one key and window over time: every answer, correction and retraction as it came. */

import { get } from "./api.js";
import { fill, h, mark, shown, svg, table } from "./dom.js";

const BOUNDS = ["window_start", "window_end"];
const PANE = ["timing", "index", "last", "pane_timing", "pane_index", "pane_last"];

/** Show the history of a row of a view in an element. */
export async function history(element, view, row, whole = false) {
  const version = view.key.length ? Object.keys(view.columns).at(-1) : "version";
  const key = view.key.filter((name) => !PANE.includes(name) && !(whole && BOUNDS.includes(name)));
  const filters = key.map((name) => (row[name] === null ? null : [name, row[name]])).filter(Boolean);
  const path = `/views/${encodeURIComponent(view.view)}/history?${new URLSearchParams(filters)}`;
  let found;
  try {
    found = (await get(path)).changes;
  } catch (error) {
    fill(element, h("p", { class: "wrong" }, error.message));
    return;
  }
  const values = Object.keys(view.columns).filter((name) => !view.key.includes(name) && !PANE.includes(name) && name !== version && !BOUNDS.includes(name));
  const title = `How ${filters.map(([, value]) => shown(value)).join(", ") || view.view} came about`;
  const steps = grouped(found, version);
  fill(element,
    h("div", { class: "bar" }, h("h2", {}, title)),
    h("p", { class: "quiet" }, "Each mark is a commit. Below the line is what it took back, above the line what it answered instead. Changes are kept for an hour, unless the store says otherwise."),
    steps.length ? timeline(steps, values) : h("p", { class: "quiet" }, "Its changes are no longer kept."),
    table("Changes, newest first", ["time (UTC)", "version", "change", "pane", ...(whole ? BOUNDS : []), ...values], found.toReversed().map((change) => [
      at(change), change[version], sign(change.diff), mark(change.timing ?? change.pane_timing),
      ...(whole ? BOUNDS : []).map((name) => shown(change[name])), ...values.map((name) => change[name])])));
  const newest = element.querySelector(".scroll");
  if (newest) newest.scrollLeft = newest.scrollWidth;
  if (view.key.includes(BOUNDS[0])) {
    element.querySelector(".bar").append(h("label", {}, h("input", { type: "checkbox", checked: whole,
      onchange: (event) => history(element, view, row, event.target.checked) }), " all windows of this key"));
  }
}

const sign = (diff) => h("span", { class: diff > 0 ? "plus" : "minus" }, diff > 0 ? "+1 answer" : "−1 taken back");
const at = (change) => (change.committed === null ? "–" : String(change.committed).slice(11, 23).replace("Z", ""));

function grouped(changes, version) {
  const steps = new Map();
  for (const change of changes) {
    if (!steps.has(change[version])) steps.set(change[version], { version: change[version], changes: [] });
    steps.get(change[version]).changes.push(change);
  }
  return [...steps.values()];
}

/** The commits from left to right at equal distances, with the time between them. */
function timeline(steps, values) {
  const step = 128, middle = 84, width = Math.max(steps.length * step + 20, 200);
  const label = (change) => (values.length ? `${change.diff > 0 ? "+" : "−"}${shown(change[values[0]])}` : change.diff > 0 ? "+1" : "−1");
  const drawn = steps.flatMap(({ version, changes }, place) => {
    const x = 64 + place * step;
    const up = changes.filter((change) => change.diff > 0), down = changes.filter((change) => change.diff < 0);
    const timing = (change) => change.timing ?? change.pane_timing ?? "early";
    const boxes = (some, way) => some.slice(0, 3).map((change, number) => {
      const y = middle + way * (30 + number * 24) - 10;
      return svg("g", { class: `pane ${way < 0 ? timing(change) : "back"}` },
        svg("title", {}, values.map((name) => `${name} ${shown(change[name])}`).join(", ")),
        svg("rect", { x: x - 46, y, width: 92, height: 20, rx: 10 }),
        svg("text", { x, y: y + 14, "text-anchor": "middle" }, label(change)));
    });
    return [svg("line", { class: "line", x1: x, x2: x, y1: middle - (up.length ? 20 : 0), y2: middle + (down.length ? 20 : 0) }),
      svg("circle", { class: "commit", cx: x, cy: middle, r: 5 }), ...boxes(up, -1), ...boxes(down, 1),
      svg("text", { class: "rate", x, y: 172, "text-anchor": "middle" }, at(changes[0]) === "–" ? `version ${version}` : at(changes[0]))];
  });
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Timeline of panes" },
    svg("svg", { class: "timeline", width, height: 180, viewBox: `0 0 ${width} 180`, role: "img",
      "aria-label": "Timeline of panes; the table below has the same changes" },
    svg("line", { class: "line", x1: 8, x2: width - 8, y1: middle, y2: middle }), drawn));
}
