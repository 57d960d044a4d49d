/** A console for live queries: the snapshot, each change with its version, and the rows as they are now. */

import { get } from "./api.js";
import { clock, fill, h, many, shown, table } from "./dom.js";
import { live, quoted } from "./live.js";
import { use } from "./use.js";

const KEPT = 100;

export async function consolePage(page) {
  const known = await get("/views");
  const box = h("textarea", { rows: "3", spellcheck: "false", "aria-label": "Live query", id: "sql",
    onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start(); } });
  box.value = `SELECT * FROM ${quoted(known[0]?.view ?? "view")} LIMIT 20`;
  const about = h("p", { class: "quiet", role: "status" }), rows = h("div"), changes = h("div");
  const results = h("div", { class: "columns", hidden: true },
    h("section", {}, h("h2", {}, "Rows now"), rows), h("section", {}, h("h2", {}, "Changes"), changes));
  page.content.replaceChildren(
    h("section", {}, h("h2", {}, "Live query"),
      h("p", { class: "quiet" }, "SELECT columns FROM view WHERE … ORDER BY … LIMIT n OFFSET m; the result changes with the view."),
      h("form", { onsubmit: (event) => { event.preventDefault(); start(); } }, box,
        h("div", { class: "bar" }, h("button", { type: "submit" }, "Watch"),
          h("button", { type: "button", onclick: () => stop("stopped") }, "Stop"), about))),
    results,
    h("section", {}, h("h2", {}, "Use this"), use("query", () => ({ sql: box.value }))),
  );
  let query = null, log = [], old = new Map();
  page.onLeave(() => query?.close());

  function stop(why) {
    query?.close();
    query = null;
    fill(about, why);
  }

  function start() {
    stop("connecting…");
    [log, old] = [[], new Map()];
    const mine = query = live().query(box.value);
    mine.onError((error) => {
      if (query !== mine) return;
      results.hidden = true;
      fill(about, h("span", { class: "wrong" }, error.message));
    });
    mine.onChange((change) => query === mine && show(mine, change));
  }

  function show(mine, { added, changed, removed, snapshot }) {
    const now = new Map(mine.ids.map((id, place) => [id, mine.rows[place]]));
    const line = (what, row) => [clock(Date.now() / 1000), mine.version, what, row];
    const text = (row) => (row ? Object.values(row).map(shown).join(", ") : "");
    const lines = snapshot ? [line("snapshot", many(mine.rows.length, "row"))]
      : [...removed.map((id) => line("remove", text(old.get(id)))), ...changed.map((id) => line("change", text(now.get(id)))),
        ...added.map((id) => line("add", text(now.get(id))))];
    log = [...lines.reverse(), ...log].slice(0, KEPT);
    old = now;
    results.hidden = false;
    const columns = Object.keys(mine.rows[0] ?? {});
    fill(rows, mine.rows.length ? table(`${many(mine.rows.length, "row")} at version ${mine.version}`, columns,
      mine.rows.slice(0, KEPT).map((row) => columns.map((name) => row[name]))) : h("p", { class: "quiet" }, `No rows at version ${mine.version}.`));
    fill(changes, table("Newest first", ["time (UTC)", "version", "message", "row"], log));
    fill(about, `live, version ${mine.version}`);
  }
}
