/** Views as live tables: search, sort, marks of panes, cells that changed, and the history of a row. */

import { get } from "./api.js";
import { count, fill, h, isNumeric, many, mark, shown } from "./dom.js";
import { history } from "./history.js";
import { live, quoted, text } from "./live.js";
import { use } from "./use.js";

const MOST = 200;
const PAUSE = 200; // milliseconds between the last key and the search
const FLASH = 1500;

export async function views(page, chosen) {
  const known = await get("/views");
  if (!known.length) {
    fill(page.content, h("p", { class: "quiet" }, "There are no views yet. Run a pipeline that has views: millrace run charts.py"));
    setTimeout(() => page.left || views(page, chosen).catch((error) => page.trouble(error)), 2000);
    return;
  }
  const view = known.find((each) => each.view === chosen) ?? known[0];
  const columns = Object.keys(view.columns).slice(0, -1); // live queries have no version of a row
  const timing = columns.at(-3); // then the index of the pane, and whether it is the last one
  const texts = columns.filter((name) => view.columns[name] === "STRING" && name !== timing);
  const asked = { search: "", order: null, descending: false };
  const about = h("p", { class: "quiet", role: "status" });
  const body = h("tbody"), head = h("thead");
  const past = history(view);
  let waiting = null;
  const search = h("input", { type: "search", placeholder: "search texts", "aria-label": "Search", oninput: () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { asked.search = search.value; again(); }, PAUSE);
  } });
  page.content.replaceChildren(
    h("nav", { class: "picker", "aria-label": "Views" }, known.map((each) => h("a", { href: `#/views/${encodeURIComponent(each.view)}`,
      "aria-current": each === view ? "page" : null }, each.view))),
    h("section", {},
      h("div", { class: "bar" }, h("h2", {}, view.view), texts.length ? search : null, about),
      view.records_since ? h("p", { class: "quiet" }, `It has no records from before ${view.records_since}.`) : null,
      h("p", { class: "quiet" }, "Click a row, or press Enter on it, to see how it came about."),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Rows of ${view.view}` },
        h("table", { class: "live" }, head, body))),
    past.element,
    h("section", {}, h("h2", {}, "Use this"), use("view", () => ({ view: view.view, sql: sql() }))),
  );

  let query = null;
  page.onLeave(() => query?.close());
  if (!page.left) again();

  function sql() {
    const where = asked.search
      ? ` WHERE ${texts.map((name) => `${quoted(name)} LIKE ${text(`%${asked.search}%`)}`).join(" OR ")}` : "";
    const newest = columns.includes("window_start") ? ["window_start"] : [];
    const by = (asked.order ? [`${quoted(asked.order)}${asked.descending ? " DESC" : ""}`] : newest.map((name) => `${quoted(name)} DESC`)).join(", ");
    return `SELECT * FROM ${quoted(view.view)}${where}${by ? ` ORDER BY ${by}` : ""} LIMIT ${MOST}`;
  }

  function again() {
    const focused = document.activeElement?.dataset.column;
    query?.close();
    head.replaceChildren(h("tr", {}, columns.map((name) => h("th", { scope: "col", class: isNumeric(view.columns[name]) ? "number" : null,
      "aria-sort": asked.order !== name ? "none" : asked.descending ? "descending" : "ascending" },
    h("button", { type: "button", "data-column": name, onclick: () => sort(name) }, name,
      asked.order === name ? (asked.descending ? " ↓" : " ↑") : "")))));
    if (focused !== undefined) head.querySelector(`[data-column="${CSS.escape(focused)}"]`)?.focus();
    query = live().query(sql());
    query.onChange(show);
    query.onError((error) => fill(about, h("span", { class: "wrong" }, error.message)));
  }

  function sort(name) {
    [asked.order, asked.descending] = [name, asked.order === name ? !asked.descending : false];
    again();
  }

  function show({ added, changed, removed, snapshot }) {
    const rows = new Map([...body.children].map((row) => [row.dataset.id, row]));
    const made = query.rows.map((row, place) => {
      const id = query.ids[place];
      const element = rows.get(id) ?? line(id);
      columns.forEach((name, column) => write(element.children[column], name, row[name]));
      element.row = row;
      return element;
    });
    if (made.length !== body.children.length || made.some((element, place) => body.children[place] !== element)) {
      const focused = document.activeElement;
      body.replaceChildren(...made);
      if (body.contains(focused)) focused.focus();
    }
    const all = query.rows.length < MOST;
    fill(about, `${all ? many(query.rows.length, "row") : `the first ${count(MOST)} rows`}, version ${query.version ?? "–"}`);
    past.changed(snapshot ? null : [...added, ...changed, ...removed]);
  }

  /** Write a value into a cell, which flashes if it had another one. */
  function write(cell, name, value) {
    const text = shown(isNumeric(view.columns[name]) && value !== null ? count(value) : value);
    if (cell.dataset.value === text) return;
    const is = cell.dataset.value !== undefined;
    cell.dataset.value = text;
    cell.className = value === null ? "null" : isNumeric(view.columns[name]) ? "number" : "";
    cell.title = text.length > 48 ? text : "";
    cell.replaceChildren(name === timing ? mark(value) : text);
    if (!is) return;
    cell.classList.add("flash");
    setTimeout(() => cell.classList.remove("flash"), FLASH);
  }

  function line(id) {
    const open = (element) => past.show(id, element.row);
    return h("tr", { "data-id": id, tabindex: "0", onclick: (event) => open(event.currentTarget),
      onkeydown: (event) => { if (event.key === "Enter") open(event.currentTarget); } }, columns.map(() => h("td")));
  }
}
