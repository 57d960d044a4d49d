/** The flow of a pipeline as a graph: steps from left to right, rates on its lines, and where it waits. */

import { Graph, layout } from "./vendor/dagre.js";
import { svg } from "./dom.js";

const WIDTH = 164, HEIGHT = 48, LINE = 17;
const QUERY = ["group by", "window", "trigger", "panes", "aggregate"];
const cut = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);

/** The flow with the steps of each query, which always follow each other, as one step with several lines. */
function joined(flow) {
  const before = new Map(flow.lines.map(([from, to]) => [to, from]));
  const after = (place) => flow.lines.filter(([from]) => from === place).map(([, to]) => to);
  const into = flow.steps.map((_, place) => place);
  flow.steps.forEach((step, place) => {
    const from = before.get(place);
    const follows = QUERY.includes(step.verb) && from !== undefined && QUERY.includes(flow.steps[from].verb);
    if (follows && after(from).length === 1) into[place] = into[from];
  });
  const steps = flow.steps.map((step, place) => ({ ...step, lines: flow.steps.filter((_, other) => into[other] === place) }));
  return { steps, places: steps.map((_, place) => place).filter((place) => into[place] === place),
    lines: flow.lines.filter(([from, to]) => into[from] !== into[to]).map(([from, to]) => [into[from], into[to], from, to]) };
}

/**
 * The picture. `label(from, to)` is the text on the line between two steps, or null; `waits(step)` says why a step
 * waits, or null.
 */
export function picture(flow, label, waits) {
  const narrow = matchMedia("(max-width: 760px)").matches;
  const graph = new Graph();
  graph.setGraph({ rankdir: narrow ? "TB" : "LR", nodesep: 18, ranksep: narrow ? 30 : 8, marginx: 4, marginy: 12 });
  graph.setDefaultEdgeLabel(() => ({}));
  const { steps, places, lines: between } = joined(flow);
  const size = (place) => {
    const many = steps[place].lines.length;
    return many > 1 ? { width: 300, height: 14 + many * LINE } : { width: WIDTH, height: HEIGHT };
  };
  for (const place of places) graph.setNode(String(place), size(place));
  for (const [from, to] of between) graph.setEdge(String(from), String(to), { width: narrow ? 20 : 76, height: 12 });
  layout(graph);
  const { width, height } = graph.graph();
  const lines = between.map(([from, to, last, next]) => {
    const { points } = graph.edge(String(from), String(to));
    const middle = points[Math.floor(points.length / 2)];
    const text = label(flow.steps[last], flow.steps[next]);
    return svg("g", {},
      svg("path", { class: text ? "flows" : "line", d: `M${points.map((point) => `${point.x},${point.y}`).join("L")}`,
        "marker-end": "url(#arrow)" }),
      text === null ? [] : [svg("text", { class: "rate", x: middle.x + (narrow ? 8 : 0), y: middle.y - (narrow ? -4 : 9),
        "text-anchor": narrow ? "start" : "middle" }, text)]);
  });
  const boxes = places.map((place) => {
    const step = steps[place];
    const { x, y, width, height } = graph.node(String(place));
    const why = waits(step);
    const kind = step.source !== null ? "source" : step.output !== null ? "output" : "step";
    const [left, top] = [x - width / 2, y - height / 2];
    const rect = svg("rect", { x: left, y: top, width, height, rx: 7 });
    if (step.lines.length > 1) {
      return svg("g", { class: `box ${kind}` }, rect, step.lines.map((each, line) => [
        svg("text", { class: "verb", x: left + 10, y: top + 19 + line * LINE }, each.verb),
        svg("text", { class: "detail", x: left + 90, y: top + 19 + line * LINE }, svg("title", {}, each.detail), cut(each.detail, 33))]));
    }
    return svg("g", { class: `box ${kind}${why ? " waits" : ""}` },
      svg("title", {}, why ? `${step.verb} ${step.detail}: ${why}` : `${step.verb} ${step.detail}`),
      rect,
      svg("text", { class: "verb", x: left + 10, y: top + 19 }, why ? `${step.verb} · ${cut(why, 18)}` : step.verb),
      svg("text", { class: "detail", x: left + 10, y: top + 37 }, cut(step.detail, 25)));
  });
  const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7,
    orient: "auto" }, svg("path", { d: "M0,0L8,4L0,8z", class: "head" }));
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `Flow: ${flow.steps.map((step) => `${step.verb} ${step.detail}`).join("; ")}` },
    svg("defs", {}, arrow), lines, boxes);
}
