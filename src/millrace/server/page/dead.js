/** Dead letters by reason, with a sample, and a button that sends them again. */

import { get, post, repeat } from "./api.js";
import { count, fill, h, many, shown, table } from "./dom.js";
import { inUse } from "./health.js";
import { use } from "./use.js";

const SAMPLE = 5;
const DONE = {
  fix: (done) => {
    const failed = Object.values(done.failed);
    return `Fixed ${many(done.fixed, "letter")}.${failed.length ? ` ${many(failed.length, "letter")} could not be fixed: ${failed[0]}` : ""}`;
  },
  resend: (done) => `Sent ${many(done.resent, "record")} again.`,
  drop: (done) => `Dropped ${many(done.dropped, "letter")}.`,
};

export function dead(page) {
  const list = h("div"), none = h("p", { class: "quiet", hidden: true }, "There are none.");
  page.content.replaceChildren(h("section", {}, h("h2", {}, "Dead letters"),
    h("p", { class: "quiet" }, "A record that does not fit its schema, or for which an expression has no value, is kept here with the reason."),
    none, list),
  h("section", {}, h("h2", {}, "Use this"), use("dead", () => ({ pipeline: name }))));
  let name = "PIPELINE";
  const cards = new Map();
  repeat(page, 2000, async () => {
    const statuses = inUse(await get("/pipelines"));
    const found = new Map();
    for (const { pipeline } of statuses) {
      const { reasons } = await get(`/pipelines/${encodeURIComponent(pipeline)}/dead`);
      for (const reason of reasons) found.set(JSON.stringify([pipeline, reason.reason]), { pipeline, ...reason });
    }
    if (statuses.length) name = statuses[0].pipeline;
    for (const [id, card] of [...cards]) {
      if (found.has(id)) continue;
      card.element.remove();
      cards.delete(id);
    }
    for (const [id, reason] of found) {
      if (!cards.has(id)) {
        cards.set(id, made(reason));
        list.append(cards.get(id).element);
      }
      cards.get(id).show(reason);
    }
    none.hidden = found.size > 0;
  });

  function made({ pipeline, reason }) {
    const sample = h("div"), figures = h("p", { class: "quiet" }), hint = h("p");
    const said = h("p", { class: "quiet", role: "status" });
    const path = `/pipelines/${encodeURIComponent(pipeline)}/dead`;
    const act = async (what, body) => {
      try {
        fill(said, h("span", {}, DONE[what](await post(`${path}/${what}`, { reason, ...body }))));
        if (details.open) await read();
      } catch (error) {
        fill(said, h("span", { class: "wrong" }, error.message));
      }
    };
    const field = h("input", { "aria-label": "Field", placeholder: "field", required: true, size: "12" });
    const sql = h("input", { "aria-label": "Its value in SQL", placeholder: "its value in SQL", required: true, size: "34" });
    const fixing = h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); act("fix", { set: { [field.value]: sql.value } }); } },
      "Set", field, "to", sql, h("button", { type: "submit", class: "plain" }, "Fix"));
    const read = async () => {
      const found = await get(`${path}/letters?${new URLSearchParams({ reason, limit: SAMPLE })}`);
      fill(sample, table(`The first ${SAMPLE} at most`, ["letter", "state", "source", "partition", "offset", "reason", "value"],
        found.letters.map((letter) => [letter.letter, letter.state, letter.source, letter.partition, letter.offset, letter.reason,
          letter.value === null ? null : h("code", {}, letter.fixed ?? letter.value)])));
    };
    const details = h("details", { ontoggle: () => { if (details.open) read().catch((error) => fill(sample, error.message)); } },
      h("summary", {}, "Sample"), sample);
    const element = h("article", { class: "card" }, h("h3", {}, reason), figures, hint, fixing,
      h("div", { class: "bar" },
        h("button", { type: "button", onclick: () => act("resend", { unchanged: true }) }, "Send again"),
        h("button", { type: "button", onclick: () => act("drop", {}) }, "Drop")),
      said, details);
    return {
      element,
      show(now) {
        fill(figures, `${pipeline}: ${many(now.letters, "letter")}, ${count(now.fixed)} fixed, ${count(now.resent)} sent again; first ${when(now.first)}, last ${when(now.last)}`);
        fill(hint, now.hint ? `Hint: ${now.hint}` : "");
        hint.hidden = !now.hint;
      },
    };
  }
}

const when = (time) => shown(time).slice(0, 19);
