/** The page of a pipeline: its flow, its time, its speed and its state. */

import { get, repeat } from "./api.js";
import { brief, clock, count, duration, fill, h, table } from "./dom.js";
import { picture } from "./flow.js";
import { inUse, isBehind } from "./health.js";
import { plot } from "./plot.js";
import { use } from "./use.js";

const SPAN = 15; // rates are those of so many seconds

export function overview(page, chosen) {
  const picker = h("div", { class: "picker" });
  const flow = h("div", { class: "flow scroll", tabindex: "0", role: "region", "aria-label": "Flow" });
  const time = h("div"), state = h("div");
  const plots = {
    rate: plot("Records a second", [{ label: "records/s", colour: "one" }]),
    phases: plot("Time of a micro-batch by phase", [
      { label: "whole", colour: "one" }, { label: "write", colour: "two" }, { label: "edge, CPU", colour: "three" },
      { label: "panes, CPU", colour: "four" }], duration),
    latency: plot("From a record to its commit", [{ label: "p50", colour: "one" }, { label: "p99", colour: "two" }], duration),
    lag: plot("Watermark behind the clock", [{ label: "lag", colour: "one" }], duration),
  };
  page.onLeave(() => Object.values(plots).forEach((each) => each.end()));
  const tables = h("div", { class: "columns" }, h("section", {}, h("h2", {}, "Event time"), time, plots.lag.element),
    h("section", {}, h("h2", {}, "State"), state));
  page.content.replaceChildren(
    picker,
    h("section", {}, h("h2", {}, "Flow"), flow),
    h("section", {}, h("h2", {}, "Speed"), h("div", { class: "plots" }, plots.rate.element, plots.phases.element, plots.latency.element)),
    tables,
    h("section", {}, h("h2", {}, "Use this"), use("pipeline", () => ({ pipeline: name }))),
  );

  let name = chosen, batches = [], checkpoint = null, steps = null;

  repeat(page, 1000, async () => {
    const statuses = inUse(await get("/pipelines"));
    page.statuses(statuses);
    if (!statuses.length) return;
    const status = statuses.find((each) => each.pipeline === name) ?? statuses[0];
    name = status.pipeline;
    fill(picker, statuses.length < 2 ? [] : statuses.map((each) => h("a", { href: `#/pipelines/${encodeURIComponent(each.pipeline)}`,
      "aria-current": each.pipeline === name ? "page" : null }, each.pipeline)));
    const since = batches.length ? batches.at(-1).batch : -1;
    const path = `/pipelines/${encodeURIComponent(name)}`;
    const found = await get(`${path}/progress?since=${since}`);
    if (found.checkpoint !== checkpoint) {
      [checkpoint, steps, batches] = [found.checkpoint, null, since < 0 ? [] : (await get(`${path}/progress`)).batches];
      if (since >= 0) found.batches = [];
    }
    batches = [...batches, ...found.batches].slice(-600);
    if (!steps?.steps.length) steps = await get(`${path}/flow`);
    show(status);
  });

  function show(status) {
    const now = Date.now() / 1000;
    const last = batches.filter((each) => each.at > now - SPAN);
    const rate = (of) => last.reduce((sum, each) => sum + (of(each) ?? 0), 0) / SPAN;
    const perSecond = (value, noun) => (value ? `${brief(value)} ${noun}/s` : null);
    const label = (from, to) => {
      if (from.source !== null) return perSecond(rate((each) => each.sources[from.source]), "records");
      if (to.output !== null) return perSecond(rate((each) => each.parts[to.output]?.answers), "answers");
      if (to.verb === "aggregate") return perSecond(rate((each) => Math.max(0, ...Object.values(each.parts).map((part) => part.elements))), "rows");
      return null;
    };
    const waits = (step) => {
      if (step.source !== null && isBehind(status)) return `${brief(status.behind)} wait`;
      return step.output !== null && status.waiting ? "waiting" : null;
    };
    fill(flow, steps.steps.length ? picture(steps, label, waits) : h("p", { class: "quiet" }, "The flow is known after the first micro-batch."));

    const xs = batches.map((each) => each.at);
    const parts = (each) => Object.values(each.parts);
    plots.rate.draw(xs, [batches.map((each) => each.rows_per_second)]);
    plots.phases.draw(xs, [batches.map((each) => each.seconds), ...["write", "edge", "panes"].map((phase) => batches.map((each) => each.phases[phase] ?? null))]);
    plots.latency.draw(xs, ["p50", "p99"].map((share) => batches.map((each) => each.latency?.[share] ?? null)));
    plots.lag.draw(xs, [batches.map((each) => {
      const lags = parts(each).map((part) => part.lag).filter((lag) => lag !== null);
      return lags.length ? Math.max(...lags) / 1e6 : null;
    })]);

    const progress = batches.at(-1);
    if (!progress) return;
    const quiet = Object.keys(Object.assign({}, ...batches.map((each) => each.sources))).map((source) => {
      const seen = batches.findLast((each) => each.sources[source]);
      const idle = !seen || now - seen.at > 60;
      return [source, idle ? h("span", { class: "mark idle" }, "○ idle") : h("span", { class: "mark on-time" }, "● active"),
        seen ? `${duration(now - seen.at)} ago` : "–"];
    });
    const marks = Object.entries(progress.parts).map(([output, part]) =>
      [output, part.watermark === null ? "–" : clock(part.watermark / 1e6), part.lag === null ? "–" : duration(part.lag / 1e6)]);
    fill(time, table("Sources", ["source", "state", "last records"], quiet),
      table("Watermarks", ["output", "watermark (UTC)", "behind the clock"], marks));
    fill(state, table("Outputs", ["output", "open windows", "state", "too late", "no value"],
      Object.entries(progress.parts).map(([output, part]) => [output, part.groups, `${brief(part.bytes)}B`, part.dropped, part.errors])),
      table("Checkpoint", ["figure", "value"], [
        ["checkpoint", status.checkpoint], ["last micro-batch", `${progress.batch}, ${duration(now - progress.at)} ago`],
        ["records since the start", count(status.rows)], ["answers since the start", count(status.answers)],
        ["dead letters", count(status.dead)], ["skipped records", count(status.skipped)],
      ]));
  }
}
