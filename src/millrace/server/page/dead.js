/** Dead letters by reason, with a sample, and a button that sends them again. */

import { get, post, repeat } from "./api.js";
import { count, fill, h, table } from "./dom.js";
import { inUse } from "./health.js";
import { use } from "./use.js";

export function dead(page) {
  const list = h("div"), note = h("p", { class: "quiet", role: "status" });
  page.content.replaceChildren(h("section", {}, h("h2", {}, "Dead letters"),
    h("p", { class: "quiet" }, "A record that does not fit its schema, or has no value, is kept here with the reason."), note, list),
  h("section", {}, h("h2", {}, "Use this"), use("dead", () => ({ pipeline: name }))));
  let name = "PIPELINE", drawn = "";
  repeat(page, 2000, async () => {
    const statuses = inUse(await get("/pipelines"));
    page.statuses(statuses);
    const reasons = [];
    for (const { pipeline } of statuses) {
      const found = await get(`/pipelines/${encodeURIComponent(pipeline)}/dead`);
      reasons.push(...found.reasons.map((reason) => ({ pipeline, ...reason })));
    }
    if (statuses.length) name = statuses[0].pipeline;
    if (JSON.stringify(reasons) === drawn) return;
    drawn = JSON.stringify(reasons);
    if (!reasons.length) {
      fill(list, h("p", { class: "quiet" }, "There are none."));
      return;
    }
    list.replaceChildren(...reasons.map((reason) => card(reason)));
  });

  function card(reason) {
    const sample = h("div");
    const path = `/pipelines/${encodeURIComponent(reason.pipeline)}/dead`;
    const chosen = { reason: reason.reason };
    const act = (what, body) => async (event) => {
      event.target.disabled = true;
      try {
        const done = await post(`${path}/${what}`, body);
        fill(note, what === "resend" ? `sent ${count(done.resent)} again` : `dropped ${count(done.dropped)}`);
      } catch (error) {
        fill(note, h("span", { class: "wrong" }, error.message));
      }
      drawn = "";
      event.target.disabled = false;
    };
    const details = h("details", { ontoggle: async () => {
      if (!details.open) return;
      const found = await get(`${path}/letters?${new URLSearchParams({ reason: reason.reason, limit: 5 })}`);
      fill(sample, table("Sample", ["letter", "topic", "partition", "offset", "value"], found.letters.map((letter) =>
        [letter.letter, letter.source ?? "", letter.partition ?? "", letter.offset ?? "", h("code", {}, String(letter.value ?? ""))])));
    } }, h("summary", {}, "Sample"), sample);
    return h("article", { class: "card" },
      h("h3", {}, reason.reason),
      h("p", { class: "quiet" }, `${reason.pipeline}: ${Object.entries(reason).filter(([field, value]) =>
        !["pipeline", "reason", "hint"].includes(field) && value !== null).map(([field, value]) => `${field} ${typeof value === "number" ? count(value) : String(value).slice(0, 19).replace("T", " ")}`).join(", ")}`),
      reason.hint ? h("p", {}, `Hint: ${reason.hint}`) : null,
      h("div", { class: "bar" },
        h("button", { type: "button", onclick: act("resend", { ...chosen, unchanged: true }) }, "Send again"),
        h("button", { type: "button", class: "plain", onclick: act("drop", chosen) }, "Drop")),
      details);
  }
}
