/** The flow of a pipeline as a graph: steps from left to right, rates on its lines, and where it waits. */

import { Graph, layout } from "./vendor/dagre.js";
import { svg } from "./dom.js";

const LINE = 18, PAD = 10, DETAIL = 92, NARROWEST = 150, WIDEST = 430;
const VERB = "650 13px system-ui, sans-serif", SMALL = "12px system-ui, sans-serif";
const pen = document.createElement("canvas").getContext("2d");

function wide(text, font) {
  pen.font = font;
  return pen.measureText(text).width;
}

/** A text, cut so that it is at most so wide. */
function cut(text, font, most) {
  if (wide(text, font) <= most) return text;
  let length = text.length;
  while (length > 1 && wide(`${text.slice(0, length)}…`, font) > most) length--;
  return `${text.slice(0, length)}…`;
}

/** The flow with steps that always follow each other, up to an aggregate, as one step with several lines. */
function joined({ steps, lines }) {
  const before = (place) => lines.filter(([, to]) => to === place).map(([from]) => from);
  const after = (place) => lines.filter(([from]) => from === place).map(([, to]) => to);
  const inner = (step) => step.source === null && step.output === null;
  const into = steps.map((_, place) => place);
  steps.forEach((step, place) => {
    const [from, ...others] = before(place);
    if (from === undefined || others.length || !inner(step) || !inner(steps[from])) return;
    if (after(from).length === 1 && steps[from].verb !== "aggregate") into[place] = into[from];
  });
  const places = into.filter((first, place) => first === place);
  return { boxes: new Map(places.map((place) => [place, steps.filter((_, other) => into[other] === place)])),
    between: lines.filter(([from, to]) => into[from] !== into[to]).map(([from, to]) => [into[from], into[to], steps[from], steps[to]]) };
}

/** What a box says: a title and a line below it, or a line for each of several steps. */
function written(steps, why) {
  if (steps.length > 1) return steps.map(({ verb, detail }) => [verb, detail]);
  const [{ verb, detail, source, output }] = steps;
  // The columns of a source or a view are under the pointer.
  return [[why ? `${verb}: ${why}` : verb, null], [null, source === null && output === null ? detail : detail.replace(/ \(.*/s, "")]];
}

/** The picture. `label(from, to)` is the text on the line between two steps, or null; `waits(step)` says why one waits. */
export function picture(flow, label, waits) {
  const narrow = matchMedia("(max-width: 760px)").matches;
  const { boxes, between } = joined(flow);
  const graph = new Graph();
  graph.setGraph({ rankdir: narrow ? "TB" : "LR", nodesep: 18, ranksep: narrow ? 30 : 8, marginx: 4, marginy: 14 });
  graph.setDefaultEdgeLabel(() => ({}));
  const texts = new Map([...boxes].map(([place, steps]) => [place, written(steps, waits(steps[0]))]));
  for (const [place, lines] of texts) {
    const needed = lines.map(([verb, detail]) => (verb && detail ? DETAIL + wide(detail, SMALL) : wide(verb ?? detail, verb ? VERB : SMALL)));
    graph.setNode(String(place), { width: Math.min(WIDEST, Math.max(NARROWEST, ...needed.map((width) => width + 2 * PAD))), height: 12 + lines.length * LINE });
  }
  for (const [from, to] of between) graph.setEdge(String(from), String(to), { width: narrow ? 20 : 100, height: 12 });
  layout(graph);
  const { width, height } = graph.graph();

  const drawnLines = between.map(([from, to, last, next]) => {
    const { points } = graph.edge(String(from), String(to));
    const middle = points[Math.floor(points.length / 2)];
    const text = label(last, next);
    return svg("g", {},
      svg("path", { class: text ? "flows" : "line", d: `M${points.map((point) => `${point.x},${point.y}`).join("L")}`,
        "marker-end": text ? "url(#flows)" : "url(#rests)" }),
      text === null ? [] : [svg("text", { class: "rate", x: middle.x + (narrow ? 8 : 0), y: middle.y - (narrow ? -4 : 8),
        "text-anchor": narrow ? "start" : "middle" }, text)]);
  });
  const drawnBoxes = [...boxes].map(([place, steps]) => {
    const { x, y, width, height } = graph.node(String(place));
    const [left, top] = [x - width / 2, y - height / 2];
    const kind = steps[0].source !== null ? "source" : steps[0].output !== null ? "output" : "step";
    const why = waits(steps[0]);
    return svg("g", { class: `box ${kind}${why ? " waits" : ""}` },
      svg("title", {}, steps.map(({ verb, detail }) => `${verb} ${detail}`).join("\n")),
      svg("rect", { x: left, y: top, width, height, rx: 7 }),
      texts.get(place).map(([verb, detail], line) => {
        const [at, inset] = [top + 19 + line * LINE, verb && detail ? DETAIL : 0];
        return [verb === null ? [] : svg("text", { class: "verb", x: left + PAD, y: at }, cut(verb, VERB, width - 2 * PAD)),
          detail === null ? [] : svg("text", { class: "detail", x: left + PAD + inset, y: at }, cut(detail, SMALL, width - 2 * PAD - inset))];
      }));
  });
  const arrow = (id, head) => svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9,
    markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0,0L8,4L0,8z", class: head }));
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `Flow: ${flow.steps.map((step) => `${step.verb} ${step.detail}`).join("; ")}` },
    svg("defs", {}, arrow("flows", "head"), arrow("rests", "rest")), drawnLines, drawnBoxes);
}
