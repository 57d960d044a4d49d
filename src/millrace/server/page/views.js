/** Views as live tables: search, sort, marks of panes, cells that changed, and the history of a row. */

import { get } from "./api.js";
import { count, fill, h, mark, shown } from "./dom.js";
import { history } from "./history.js";
import { live, quoted, text } from "./live.js";
import { use } from "./use.js";

const MOST = 200;

export async function views(page, chosen) {
  const known = await get("/views");
  if (!known.length) {
    page.content.replaceChildren(h("p", { class: "quiet" }, "There are no views yet. Run a pipeline that has views: millrace run charts.py"));
    return;
  }
  const view = known.find((each) => each.view === chosen) ?? known[0];
  const columns = Object.keys(view.columns).slice(0, -1); // live queries have no version of a row
  const asked = { search: "", order: null, descending: false };
  const about = h("p", { class: "quiet", role: "status" });
  const body = h("tbody"), head = h("thead");
  const past = h("section", { hidden: true });
  const search = h("input", { type: "search", placeholder: "search texts", "aria-label": "Search",
    oninput: () => { asked.search = search.value; again(); } });
  page.content.replaceChildren(
    h("div", { class: "picker" }, known.map((each) => h("a", { href: `#/views/${encodeURIComponent(each.view)}`,
      "aria-current": each === view ? "page" : null }, each.view))),
    h("section", {},
      h("div", { class: "bar" }, h("h2", {}, view.view), search, about),
      view.records_since ? h("p", { class: "quiet" }, `It has no records from before ${view.records_since}.`) : null,
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Rows of ${view.view}` },
        h("table", { class: "live" }, h("caption", {}, "Rows as they are now; a click on a row shows how it came about"), head, body))),
    past,
    h("section", {}, h("h2", {}, "Use this"), use("view", () => ({ view: view.view, sql: sql() }))),
  );

  let query = null;
  page.onLeave(() => query?.close());
  again();

  function sql() {
    const texts = columns.filter((name) => view.columns[name] === "STRING");
    const where = asked.search && texts.length
      ? ` WHERE ${texts.map((name) => `${quoted(name)} LIKE ${text(`%${asked.search}%`)}`).join(" OR ")}` : "";
    const newest = columns.includes("window_start") ? ["window_start"] : [];
    const by = (asked.order ? [`${quoted(asked.order)}${asked.descending ? " DESC" : ""}`] : newest.map((name) => `${quoted(name)} DESC`)).join(", ");
    return `SELECT * FROM ${quoted(view.view)}${where}${by ? ` ORDER BY ${by}` : ""} LIMIT ${MOST}`;
  }

  function again() {
    query?.close();
    head.replaceChildren(h("tr", {}, columns.map((name) => h("th", { scope: "col",
      "aria-sort": asked.order !== name ? "none" : asked.descending ? "descending" : "ascending" },
    h("button", { type: "button", onclick: () => sort(name) }, name, asked.order === name ? (asked.descending ? " ↓" : " ↑") : "")))));
    body.replaceChildren();
    query = live().query(sql());
    query.onChange(show);
    query.onError((error) => fill(about, h("span", { class: "wrong" }, error.message)));
  }

  function sort(name) {
    [asked.order, asked.descending] = [name, asked.order === name ? !asked.descending : false];
    again();
  }

  function show({ changed }) {
    const rows = new Map([...body.children].map((row) => [row.dataset.id, row]));
    const flash = new Set(changed);
    const made = query.rows.map((row, place) => {
      const id = query.ids[place];
      const element = rows.get(id) ?? line(id);
      columns.forEach((name, column) => {
        const cell = element.children[column];
        const value = shown(row[name]);
        if (cell.dataset.value === value) return;
        const is = cell.dataset.value !== undefined || flash.has(id);
        cell.dataset.value = value;
        cell.className = typeof row[name] === "number" ? "number" : row[name] === null ? "null" : "";
        cell.replaceChildren(name === "timing" ? mark(row[name]) : value);
        if (is) {
          cell.classList.add("flash");
          setTimeout(() => cell.classList.remove("flash"), 1500);
        }
      });
      element.row = row;
      return element;
    });
    if (made.length !== body.children.length || made.some((element, place) => body.children[place] !== element)) {
      const focused = document.activeElement;
      body.replaceChildren(...made);
      if (body.contains(focused)) focused.focus();
    }
    fill(about, `${count(query.rows.length)} rows${query.rows.length === MOST ? " (the first)" : ""}, version ${query.version ?? "–"}`);
  }

  function line(id) {
    const open = (element) => {
      past.hidden = false;
      history(past, view, element.row);
      past.scrollIntoView({ block: "nearest" });
    };
    return h("tr", { "data-id": id, tabindex: "0", onclick: (event) => open(event.currentTarget),
      onkeydown: (event) => { if (event.key === "Enter") open(event.currentTarget); } }, columns.map(() => h("td")));
  }
}
