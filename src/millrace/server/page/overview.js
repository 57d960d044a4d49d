/** The page of a pipeline: its flow, its speed, its event time and its state. */

import { get, repeat } from "./api.js";
import { brief, clock, count, duration, fill, h, table } from "./dom.js";
import { picture } from "./flow.js";
import { inUse, isBehind } from "./health.js";
import { plot } from "./plot.js";
import { use } from "./use.js";

const SPAN = 15; // rates are those of so many seconds
const IDLE = 60; // seconds without records after which a source is idle
const KEPT = 600;

/** Whether an output reads a source; ids of sources begin with their kind. */
const reads = (part, source) => part.reads.some((id) => id === source || id.endsWith(` ${source}`));

export function overview(page, chosen) {
  const picker = h("nav", { class: "picker", "aria-label": "Pipelines" });
  const flow = h("div", { class: "flow scroll", tabindex: "0", role: "region", "aria-label": "Flow" });
  const time = h("div"), state = h("div");
  const plots = {
    rate: plot("Records a second", [{ label: "records/s", colour: "one" }]),
    phases: plot("Time of a micro-batch by phase", [
      { label: "whole", colour: "one" }, { label: "write", colour: "two" }, { label: "edge, CPU", colour: "three" },
      { label: "panes, CPU", colour: "four" }], duration),
    latency: plot("From a record to its view", [{ label: "p50", colour: "one" }, { label: "p99", colour: "two" }], duration),
    lag: plot("Watermark behind the clock", [{ label: "lag", colour: "one" }], duration),
  };
  page.onLeave(() => Object.values(plots).forEach((each) => each.end()));
  const none = h("section", { hidden: true }, h("h2", {}, "Nothing runs yet"),
    h("p", {}, "A pipeline shows here after its first micro-batch:"),
    h("pre", { tabindex: "0", role: "region", "aria-label": "Commands" }, "millrace init charts && cd charts\nmillrace topics create plays\nmillrace send plays plays.json\nmillrace run charts.py"));
  const parts = h("div", { hidden: true },
    h("section", {}, h("h2", {}, "Flow"), flow),
    h("section", {}, h("h2", {}, "Speed"), h("div", { class: "plots" }, plots.rate.element, plots.phases.element, plots.latency.element)),
    h("div", { class: "columns" }, h("section", {}, h("h2", {}, "Event time"), time, plots.lag.element),
      h("section", {}, h("h2", {}, "State"), state)),
    h("section", {}, h("h2", {}, "Use this"), use("pipeline", () => ({ pipeline: name }))));
  page.content.replaceChildren(picker, none, parts);

  let name = chosen, batches = [], checkpoint = null, steps = null;

  repeat(page, 1000, async () => {
    const statuses = inUse(await get("/pipelines"));
    none.hidden = statuses.length > 0;
    parts.hidden = !statuses.length;
    if (!statuses.length) return;
    const status = statuses.find((each) => each.pipeline === name) ?? statuses[0];
    name = status.pipeline;
    fill(picker, statuses.length < 2 ? [] : statuses.map((each) => h("a", { href: `#/pipelines/${encodeURIComponent(each.pipeline)}`,
      "aria-current": each.pipeline === name ? "page" : null }, each.pipeline)));
    await read(status);
    show(status);
  });

  async function read(status) {
    const path = `/pipelines/${encodeURIComponent(name)}`;
    const since = batches.at(-1)?.batch ?? -1;
    const isAnew = status.checkpoint !== checkpoint || status.progress?.batch < since;
    const found = await get(`${path}/progress?since=${isAnew ? -1 : since}`);
    if (isAnew) [checkpoint, steps, batches] = [status.checkpoint, null, []];
    batches = [...batches, ...found.batches].slice(-KEPT);
    if (!steps?.steps.length) steps = await get(`${path}/flow`);
  }

  function show(status) {
    const now = Date.now() / 1000;
    const last = batches.filter((each) => each.at > now - SPAN);
    const rate = (of) => last.reduce((sum, each) => sum + (of(each) ?? 0), 0) / SPAN;
    const perSecond = (value, noun) => (value ? `${brief(value)} ${noun}/s` : null);
    const label = (from, to) => {
      if (from.source !== null) return perSecond(rate((each) => each.sources[from.source]), "records");
      return to.output === null ? null : perSecond(rate((each) => each.parts[to.output]?.answers), "answers");
    };
    const waits = (step) => {
      if (step.source !== null && isBehind(status)) return `${brief(status.behind)} wait`;
      return step.output !== null && status.waiting ? "waits" : null;
    };
    fill(flow, steps.steps.length ? picture(steps, label, waits) : h("p", { class: "quiet" }, "The flow is known after the first micro-batch."));

    const xs = batches.map((each) => each.at);
    plots.rate.draw(xs, [batches.map((each) => each.rows_per_second)]);
    plots.phases.draw(xs, [batches.map((each) => each.seconds), ...["write", "edge", "panes"].map((phase) => batches.map((each) => each.phases[phase] ?? null))]);
    plots.latency.draw(xs, ["p50", "p99"].map((share) => batches.map((each) => each.latency?.[share] ?? null)));
    plots.lag.draw(xs, [batches.map((each) => {
      const lags = Object.values(each.parts).map((part) => part.lag).filter((lag) => lag !== null);
      return lags.length ? Math.max(...lags) / 1e6 : null;
    })]);
    const progress = batches.at(-1);
    if (progress) {
      fill(time, ...eventTime(progress, now));
      fill(state, ...stateOf(status, progress, now));
    }
  }

  /** The watermark of a source is the earliest of the outputs that read it. */
  function eventTime(progress, now) {
    const outputs = Object.entries(progress.parts);
    const moment = (part) => [part?.watermark == null ? "–" : clock(part.watermark / 1e6), part?.lag == null ? "–" : duration(part.lag / 1e6)];
    const sources = [...new Set(batches.flatMap((each) => Object.keys(each.sources)))].map((source) => {
      const seen = batches.findLast((each) => each.sources[source]);
      const isIdle = !seen || now - seen.at > IDLE;
      const read = outputs.map(([, part]) => part).filter((part) => reads(part, source) && part.watermark !== null);
      const earliest = read.sort((one, other) => one.watermark - other.watermark)[0];
      return [source, h("span", { class: `mark ${isIdle ? "idle" : "on-time"}` }, isIdle ? "○ idle" : "● active"),
        seen ? `${duration(now - seen.at)} ago` : "–", ...moment(earliest)];
    });
    return [table("Sources", ["source", "state", "last records", "watermark (UTC)", "behind the clock"], sources),
      table("Watermarks", ["output", "reads", "watermark (UTC)", "behind the clock"],
        outputs.map(([output, part]) => [output, part.reads.join(", "), ...moment(part)]))];
  }

  function stateOf(status, progress, now) {
    const starts = new Set(batches.map((each) => each.began).filter(Boolean));
    return [table("Outputs", ["output", "open windows", "state", "too late", "no value"],
      Object.entries(progress.parts).map(([output, part]) => [output, part.groups, h("span", {}, `${brief(part.bytes)}B`), part.dropped, part.errors])),
    table("Checkpoint", ["figure", "value"], [
      ["checkpoint", status.checkpoint],
      ["last micro-batch", `${count(progress.batch)}, ${duration(now - progress.at)} ago`],
      ["started", progress.began ? `${duration(now - progress.began)} ago` : "–"],
      [`restarts within ${count(batches.length)} micro-batches`, count(Math.max(0, starts.size - 1))],
      ["records since the start", count(status.rows ?? 0)], ["answers since the start", count(status.answers ?? 0)],
      ["dead letters", count(status.dead ?? 0)], ["skipped records", count(status.skipped ?? 0)],
    ])];
  }
}
