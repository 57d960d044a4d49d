/** Small functions that make elements, and write numbers and times as people read them. */

/** An element with attributes, listeners (`onclick`) and children; children that are null or false are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  assign(element, attributes);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An SVG element; text children become its text. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  assign(element, attributes);
  element.append(...children.flat(Infinity));
  return element;
}

function assign(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
}

/**
 * Give an element these children. What is the same stays as it is, so that nobody loses the focus, a selection or the
 * place to which they have scrolled; so the children must have no listeners.
 */
export function fill(element, ...children) {
  sameChildren(element, h("div", {}, ...children));
}

function sameChildren(element, wanted) {
  const made = [...wanted.childNodes];
  made.forEach((child, place) => {
    const old = element.childNodes[place];
    if (old === undefined) element.append(child);
    else if (old.nodeName !== child.nodeName) old.replaceWith(child);
    else if (old.nodeType === Node.TEXT_NODE) { if (old.data !== child.data) old.data = child.data; }
    else {
      for (const { name } of [...old.attributes]) if (!child.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of child.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      sameChildren(old, child);
    }
  });
  while (element.childNodes.length > made.length) element.lastChild.remove();
}

/** A table with a caption, from the names of its columns and its rows of cells. */
export function table(caption, columns, rows, attributes = {}) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", attributes,
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map((column, place) =>
        h("th", { scope: "col", class: rows.some((row) => isNumber(row[place])) ? "number" : null }, column)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", cellAttributes(cell),
        cell instanceof Node ? cell : shown(cell))))))));
}

const LONG = 48;

/** The attributes of a cell; a long text is cut by the style, and shown whole under the pointer. */
function cellAttributes(cell) {
  const text = cell instanceof Node ? cell.textContent : shown(cell);
  return { class: isNumber(cell) ? "number" : cell === null ? "null" : null, title: text.length > LONG ? text : null };
}

const isNumber = (cell) => typeof cell === "number" || typeof cell === "bigint";

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)$/;

/** A value of a row as text; a time is in UTC. */
export function shown(value) {
  if (value === null || value === undefined) return "NULL";
  if (isNumber(value)) return count(value);
  if (typeof value === "object") return JSON.stringify(value);
  return TIME.test(value) ? value.replace("T", " ").replace(/(:00)?(\.0+)?(\+00:00|Z)$/, "") : String(value);
}

/** A number with its digits in groups of three; a whole number beyond 2^53 comes as text. */
export function count(value) {
  if (typeof value === "string") return /^-?\d{1,30}$/.test(value) ? BigInt(value).toLocaleString("en") : value;
  return Number.isInteger(value) || typeof value === "bigint" ? value.toLocaleString("en") : String(value);
}

/** A number of things: 1 row, 2 rows. */
export const many = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Whether an SQL type is one of numbers. */
export const isNumeric = (type) => /^(TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL)/.test(type ?? "");

/** A rate or a size in three digits: 1.23, 12.3, 123, 1.2k. */
export function brief(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(value) >= size) return `${(value / size).toFixed(1)}${unit}`;
  }
  const size = Math.abs(value);
  return size >= 100 || Number.isInteger(value) ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** Seconds as a duration: 40 ms, 0.8 s, 3 min, 2 h, 5 d. */
export function duration(seconds) {
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.1) return `${Math.round(seconds * 1000)} ms`;
  if (size < 10) return `${seconds.toFixed(1)} s`;
  for (const [unit, length, next] of [["s", 1, 120], ["min", 60, 7200], ["h", 3600, 172800]]) {
    if (size < next) return `${Math.round(seconds / length)} ${unit}`;
  }
  return `${Math.round(seconds / 86400)} d`;
}

/** The time of day of an instant in seconds since 1970, in UTC, with the date if that is not today. */
export function clock(seconds) {
  const at = new Date(seconds * 1000).toISOString();
  return at.slice(0, 10) === new Date().toISOString().slice(0, 10) ? at.slice(11, 19) : at.slice(0, 19).replace("T", " ");
}

/** The mark of a pane: early, on time or late. */
export function mark(timing) {
  const signs = { early: "◔", "on-time": "●", late: "◆" };
  return timing in signs ? h("span", { class: `mark ${timing}` }, `${signs[timing]} ${timing}`) : shown(timing);
}
