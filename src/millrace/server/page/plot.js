/** Plots over time that share a cursor, each with the same figures as a table. */

import uPlot from "./vendor/uplot.js";
import { brief, clock, fill, h, table } from "./dom.js";

const HEIGHT = 190, ROWS = 20;

const sync = uPlot.sync("millrace");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/**
 * A plot with a title. `series` is a list of {label, colour}; `draw(xs, [ys...])` shows figures, xs in seconds since 1970.
 * `unit` writes a figure as text.
 */
export function plot(title, series, unit = brief) {
  const canvas = h("div", { class: "plot" });
  const shown = h("div"), details = h("details", { class: "figures" }, h("summary", {}, `${title} as a table`), shown);
  const element = h("figure", {}, h("figcaption", {}, title), canvas, details);
  let chart = null;
  let data = null;

  const make = () => {
    chart?.destroy();
    const ink = colour("quiet");
    const axis = { stroke: ink, grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
    chart = new uPlot({
      width: Math.max(260, canvas.clientWidth), height: HEIGHT,
      cursor: { sync: { key: sync.key }, drag: { x: true, y: false } },
      legend: { live: true },
      scales: { y: { range: (_, least, most) => [Math.min(0, least ?? 0), (most || 1) * 1.1] } },
      axes: [{ ...axis, space: 90, values: (_, ticks) => ticks.map((at) => clock(at).slice(-8)) }, { ...axis, size: 58, values: (_, ticks) => ticks.map(unit) }],
      series: [{ label: "time", value: (_, at) => (at === null ? "–" : clock(at)) },
        ...series.map((each) => ({ label: each.label, stroke: colour(each.colour), width: 2, spanGaps: true,
          points: { show: false }, value: (_, y) => (y === null ? "–" : unit(y)) }))],
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
    }, data, canvas);
  };

  const resize = new ResizeObserver(() => {
    if (chart && canvas.clientWidth && chart.width !== canvas.clientWidth) {
      chart.setSize({ width: canvas.clientWidth, height: HEIGHT });
    }
  });
  resize.observe(canvas);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const redraw = () => data && make();
  scheme.addEventListener("change", redraw);

  const figures = () => {
    if (!details.open || !data) return;
    const last = data[0].map((at, place) => [clock(at), ...data.slice(1).map((ys) => (ys[place] === null ? "–" : unit(ys[place])))]);
    fill(shown, table(`${title}, newest first`, ["time (UTC)", ...series.map((each) => each.label)], last.slice(-ROWS).reverse()));
  };
  details.addEventListener("toggle", figures);

  return {
    element,
    draw(xs, ys) {
      data = [xs, ...ys];
      if (chart) chart.setData(data, true);
      else if (canvas.isConnected) make();
      figures();
    },
    end() {
      resize.disconnect();
      scheme.removeEventListener("change", redraw);
      chart?.destroy();
    },
  };
}
