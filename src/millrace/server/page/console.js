/** A console for live queries: the snapshot, each change with its version, and the rows as they are now. */

import { get } from "./api.js";
import { clock, count, fill, h, shown, table } from "./dom.js";
import { live } from "./live.js";
import { use } from "./use.js";

const KEPT = 100;

export async function consolePage(page) {
  const known = await get("/views");
  const first = known.length ? `SELECT * FROM "${known[0].view}" LIMIT 20` : 'SELECT * FROM "view" WHERE ... ORDER BY ... LIMIT 20';
  const box = h("textarea", { rows: "3", spellcheck: "false", "aria-label": "Live query", id: "sql" });
  box.value = first;
  const about = h("p", { class: "quiet", role: "status" }), rows = h("div"), changes = h("div");
  const watch = h("button", { type: "submit" }, "Watch");
  page.content.replaceChildren(
    h("section", {}, h("h2", {}, "Live query"),
      h("form", { onsubmit: (event) => { event.preventDefault(); start(); } }, box,
        h("div", { class: "bar" }, watch, h("button", { type: "button", onclick: () => stop("stopped") }, "Stop"), about))),
    h("div", { class: "columns" }, h("section", {}, h("h2", {}, "Rows now"), rows), h("section", {}, h("h2", {}, "Changes"), changes)),
    h("section", {}, h("h2", {}, "Use this"), use("query", () => ({ sql: box.value }))),
  );
  let query = null, log = [];
  page.onLeave(() => query?.close());

  function stop(why) {
    query?.close();
    query = null;
    fill(about, why);
  }

  function start() {
    stop("connecting…");
    log = [];
    rows.replaceChildren();
    changes.replaceChildren();
    const mine = query = live().query(box.value);
    mine.onError((error) => query === mine && fill(about, h("span", { class: "wrong" }, error.message)));
    mine.onChange(({ added, changed, removed, snapshot }) => {
      if (query !== mine) return;
      const line = (what, many) => (many ? [[clock(Date.now() / 1000), mine.version, what, many]] : []);
      log = [...(snapshot ? line("snapshot", mine.rows.length) : [...line("remove", removed.length), ...line("change", changed.length),
        ...line("add", added.length)]).reverse(), ...log].slice(0, KEPT);
      const columns = Object.keys(mine.rows[0] ?? {});
      fill(rows, table(`${count(mine.rows.length)} rows at version ${mine.version}`, columns,
        mine.rows.slice(0, KEPT).map((row) => columns.map((name) => (typeof row[name] === "number" ? row[name] : shown(row[name]))))));
      fill(changes, table("Newest first", ["time (UTC)", "version", "message", "rows"], log));
      fill(about, `live, version ${mine.version}`);
    });
  }
}
