/** The panes of one key and window over time: every answer, correction and retraction as it came. */

import { get } from "./api.js";
import { count, fill, h, isNumeric, mark, shown, svg, table } from "./dom.js";

const BOUNDS = ["window_start", "window_end"];

/** The section with the history of a row of a view: `show(id, row)` opens it, `changed(ids)` renews it. */
export function history(view) {
  const all = Object.keys(view.columns);
  const [timing, index, last, version] = all.slice(-4);
  const panes = [timing, index, last];
  const free = (name) => (all.includes(name) ? `pane_${name}` : name); // as the store names its own columns
  const values = all.filter((name) => !view.key.includes(name) && !panes.includes(name) && name !== version && !BOUNDS.includes(name));
  const title = h("h2"), drawn = h("div");
  const whole = h("input", { type: "checkbox", onchange: () => renew(true) });
  const element = h("section", { hidden: true, "aria-label": "History of a row" },
    h("div", { class: "bar" }, title, view.key.includes(BOUNDS[0]) ? h("label", {}, whole, " all windows of this key") : null),
    h("p", { class: "quiet" }, "Each dot is a commit: above it what was answered, below it what was taken back. Changes are kept for an hour, unless the store says otherwise."),
    drawn);
  let open = null, isReading = false, isStale = false, toNewest = false;

  const keyOf = () => view.key.filter((name) => !panes.includes(name) && !(whole.checked && BOUNDS.includes(name)));

  /** Read and draw; what changes meanwhile is read afterwards. `newest` scrolls to the newest change. */
  async function renew(newest = false) {
    toNewest ||= newest;
    isStale = true;
    if (isReading) return;
    isReading = true;
    while (isStale) {
      isStale = false;
      await read();
    }
    isReading = false;
  }

  async function read() {
    const mine = open, { row } = mine, key = keyOf();
    const parameters = new URLSearchParams(key.filter((name) => row[name] !== null).map((name) => [`${name}.eq`, row[name]]));
    let found;
    try {
      found = (await get(`/views/${encodeURIComponent(view.view)}/history?${parameters}`)).changes;
    } catch (error) {
      if (mine === open) fill(drawn, h("p", { class: "wrong" }, error.message));
      return;
    }
    if (mine !== open) return;
    found = found.filter((change) => key.every((name) => row[name] !== null || change[name] === null)).map((change) => ({
      row: change, version: change[version], timing: change[timing], diff: change[free("diff")], committed: change[free("committed")] }));
    const bounds = whole.checked && view.key.includes(BOUNDS[0]) ? BOUNDS : [];
    const value = ({ row }, name) => (isNumeric(view.columns[name]) && row[name] !== null ? count(row[name]) : shown(row[name]));
    fill(drawn,
      found.length ? timeline(grouped(found), [...values, ...bounds], value) : h("p", { class: "quiet" }, "Its changes are no longer kept."),
      table("Changes, newest first", ["time (UTC)", "version", "change", "pane", ...bounds, ...values], found.toReversed().map((change) => [
        at(change), change.version, sign(change.diff), mark(change.timing),
        ...bounds.map((name) => shown(change.row[name])), ...values.map((name) => exact(view.columns[name], change.row[name]))])));
    const line = drawn.querySelector(".scroll");
    if (toNewest) line.scrollLeft = line.scrollWidth;
    toNewest = false;
  }

  return {
    element,
    show(id, row) {
      open = { id, row };
      element.hidden = false;
      const group = view.key.filter((name) => !panes.includes(name) && !BOUNDS.includes(name)).map((name) => shown(row[name]));
      const span = view.key.includes(BOUNDS[0]) ? [`${shown(row[BOUNDS[0]])} to ${shown(row[BOUNDS[1]])}`] : [];
      fill(title, `How ${[...group, ...span].join(", ") || view.view} came about`);
      fill(drawn, h("p", { class: "quiet" }, "Loading…"));
      renew(true).then(() => element.scrollIntoView({ block: "nearest" }));
    },
    /** Rows with these ids have changed; null if any may have. */
    changed(ids) {
      if (open && (ids === null || ids.includes(open.id) || whole.checked)) renew();
    },
  };
}

/** A value of a column; a whole number that JavaScript would round comes as text. */
const exact = (type, value) => (isNumeric(type) && /^-?\d+$/.test(value ?? "") ? BigInt(value) : value);

const sign = (diff) => h("span", { class: diff > 0 ? "plus" : "minus" }, diff > 0 ? "+1 answer" : "−1 taken back");
const at = (change) => (change.committed === null ? "–" : String(change.committed).slice(11, 23).replace(/[Z+].*/, ""));

/** The changes of each commit. */
function grouped(changes) {
  const steps = new Map();
  for (const change of changes) {
    if (!steps.has(change.version)) steps.set(change.version, { version: change.version, changes: [] });
    steps.get(change.version).changes.push(change);
  }
  return [...steps.values()];
}

/** The commits from left to right at equal distances, with their times. */
function timeline(steps, values, value) {
  const step = 128, most = 3, line = 24;
  const high = Math.max(1, ...steps.map(({ changes }) => Math.min(most, changes.filter((change) => change.diff > 0).length)));
  const low = Math.max(1, ...steps.map(({ changes }) => Math.min(most, changes.filter((change) => change.diff < 0).length)));
  const middle = 26 + high * line, height = middle + 52 + low * line, width = Math.max(steps.length * step + 8, 200);
  const label = (change) => {
    const text = values.length ? value(change, values[0]) : "1";
    return `${change.diff > 0 ? "+" : "−"}${text.length > 11 ? `${text.slice(0, 10)}…` : text}`;
  };
  const drawn = steps.flatMap(({ version, changes }, place) => {
    const x = step / 2 + place * step;
    const up = changes.filter((change) => change.diff > 0), down = changes.filter((change) => change.diff < 0);
    const boxes = (some, way) => some.slice(0, most).map((change, number) => {
      const y = middle + way * (30 + number * line) - 10;
      return svg("g", { class: `pane ${way < 0 ? change.timing : "back"}` },
        svg("title", {}, values.map((name) => `${name} ${value(change, name)}`).join(", ")),
        svg("rect", { x: x - 50, y, width: 100, height: 20, rx: 10 }),
        svg("text", { x, y: y + 14, "text-anchor": "middle" }, label(change)));
    });
    const time = at(changes[0]);
    return [svg("line", { class: "line", x1: x, x2: x, y1: middle - (up.length ? 20 : 0), y2: middle + (down.length ? 20 : 0) }),
      svg("circle", { class: "commit", cx: x, cy: middle, r: 5 }), ...boxes(up, -1), ...boxes(down, 1),
      svg("text", { class: "rate", x, y: height - 8, "text-anchor": "middle" }, time === "–" ? `version ${version}` : time)];
  });
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Timeline of panes" },
    svg("svg", { class: "timeline", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": "Timeline of panes; the table below has the same changes" },
    svg("line", { class: "line", x1: 8, x2: width - 8, y1: middle, y2: middle }), drawn));
}
