/** One sentence about each pipeline: whether it runs, how far behind it is, and what is wrong. */

import { count, duration, h } from "./dom.js";

/** The statuses of the checkpoints in use: of several of one pipeline, the one that runs, or else the last one used. */
export function inUse(statuses) {
  const found = new Map();
  for (const status of statuses) {
    const other = found.get(status.pipeline);
    const newer = !other || status.running > other.running || (status.running === other.running && (status.at ?? 0) > (other.at ?? 0));
    if (newer) found.set(status.pipeline, status);
  }
  return [...found.values()];
}

/** Whether records wait for longer than a few micro-batches: what arrives during one is no delay. */
export const isBehind = (status) => status.behind > 5 * (status.progress?.rows ?? 0);

/** How a pipeline is: a word for its colour, and the sentence. */
export function health(status, now = Date.now() / 1000) {
  const name = status.pipeline;
  if (status.state === "damaged") return ["bad", `${name}: its report is damaged; millrace repair looks at it`];
  if (status.state === "waiting") return ["bad", `${name}: waiting, ${status.waiting.problem}; ${status.waiting.advice}`];
  if (status.state === "stopped") return ["off", `${name}: stopped ${duration(now - status.at)} ago; start it with millrace run`];
  const latency = status.progress?.latency;
  const took = latency ? `, ${duration(latency.p50)} behind` : "";
  const behind = isBehind(status) ? `catching up, ${count(status.behind)} records to read${took}` : `up to date${took}`;
  const wrong = [
    status.dead ? `${count(status.dead)} dead letters` : null,
    status.progress?.late ? `${count(status.progress.late)} records too late` : null,
    ...status.warnings,
  ].filter(Boolean);
  const kind = status.warnings.length ? "warn" : isBehind(status) ? "busy" : "good";
  return [kind, `${name}: ${behind}${wrong.length ? `; ${wrong.join("; ")}` : ""}`];
}

export function healthLines(statuses) {
  if (!statuses.length) {
    return [h("p", { class: "health off" }, "No pipeline has run yet. Start one: millrace run charts.py")];
  }
  return inUse(statuses).map((status) => {
    const [kind, sentence] = health(status);
    return h("p", { class: `health ${kind}` }, sentence);
  });
}
