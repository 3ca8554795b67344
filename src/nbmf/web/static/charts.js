// Charts by plotly.js, loaded with the first chart. They follow the colours of the page.

import { count, percent } from "./dom.js";

let script = null;
const drawn = new Map(); // element → function that draws its chart again

function plotly() {
  script ??= new Promise((resolve, reject) => {
    const element = document.createElement("script");
    element.src = "static/plotly.min.js";
    element.onload = () => resolve(window.Plotly);
    element.onerror = () => {
      script = null;
      reject(new Error("Charts need plotly.js: in a clone of nbmf, run pip install '.[server]'. The tables show the same numbers."));
    };
    document.head.append(element);
  });
  return script;
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function theme() {
  const axis = {
    gridcolor: colour("line"),
    zeroline: false,
    linecolor: colour("line"),
    tickcolor: colour("line"),
    tickfont: { color: colour("soft"), size: 12 },
    title: { font: { color: colour("soft"), size: 13 }, standoff: 8 },
    automargin: true,
  };
  return {
    axis,
    layout: {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      showlegend: false,
      hovermode: "closest",
      font: { family: "inherit", color: colour("ink") },
      margin: { l: 8, r: 12, t: 8, b: 8 },
      dragmode: false,
      hoverlabel: {
        bgcolor: colour("card"),
        bordercolor: colour("soft"),
        font: { color: colour("ink"), size: 13 },
        align: "left",
      },
    },
  };
}

/**
 * Draw a chart into an element. `make(theme)` returns {data, layout}, and is called again when the colour scheme changes;
 * it may return `annotate`, which makes annotations when the axes are known: `annotate({xaxis, yaxis})`.
 * Resolves to the element, or to null if the chart could not be drawn.
 */
export async function draw(place, make) {
  try {
    const Plotly = await plotly();
    if (!place.isConnected) return null;
    const again = async () => {
      const { data, layout, annotate } = make(theme());
      const settings = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: "reset" };
      await Plotly.react(place, data, layout, settings);
      if (annotate) await Plotly.relayout(place, { annotations: annotate(place._fullLayout) });
    };
    place.replaceChildren();
    await again();
    drawn.set(place, again);
    return place;
  } catch (error) {
    place.textContent = error.message;
    return null;
  }
}

/** Release charts that have left the page. */
export function sweep() {
  for (const place of drawn.keys()) {
    if (place.isConnected) continue;
    window.Plotly?.purge(place);
    drawn.delete(place);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((again) => again()));

/** Ticks of a logarithmic axis at 1, 2, 5, 10, … within a range, as plain numbers. */
export function logTicks(low, high) {
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
    for (const step of [1, 2, 5]) values.push(step * 10 ** power);
  const inside = values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  const few = inside.length > 9 ? inside.filter((value) => Number.isInteger(Math.log10(value))) : inside;
  return {
    tickvals: few,
    ticktext: few.map((value) => (value >= 1 ? value.toLocaleString("en") : String(Number(value.toPrecision(3))))),
  };
}

/** Bars of how many counts there are of each size. */
export function drawSizes(place, sizes, what) {
  const total = sizes.reduce((sum, { n }) => sum + n, 0);
  const called = sizes.map(({ least, below }) =>
    least === 0 ? "below 1" : below === least + 1 ? count(least) : `${count(least)}–${count(below - 1)}`,
  );
  return draw(place, ({ axis, layout }) => ({
    data: [
      {
        type: "bar",
        x: called,
        y: sizes.map(({ n }) => n / total),
        text: sizes.map(({ n }) => percent(n / total)),
        customdata: sizes.map(({ n }) => `${count(n)} ${what}`),
        textposition: sizes.length < 14 ? "outside" : "none",
        textfont: { color: colour("soft"), size: 11 },
        cliponaxis: false,
        hovertemplate: "count %{x}: %{customdata}<extra></extra>",
        marker: { color: colour("accent") },
      },
    ],
    layout: {
      ...layout,
      margin: { ...layout.margin, t: 22 },
      bargap: 0.25,
      xaxis: { ...axis, type: "category", title: { ...axis.title, text: "count" }, showgrid: false, fixedrange: true },
      yaxis: { ...axis, tickformat: ".0%", rangemode: "tozero", nticks: 5, fixedrange: true },
    },
  }));
}

// Labels ------------------------------------------------------------------------------------------------------------

export const escaped = (text) => text.replace(/[&<>]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[letter]);

export const short = (text, most = 26) => (text.length > most ? `${text.slice(0, most - 1).trimEnd()}…` : text);

const pen = document.createElement("canvas").getContext("2d");

export function textWidth(text, font = "12px system-ui, sans-serif") {
  pen.font = font;
  return pen.measureText(text).width;
}

const overlap = (a, b) => a[0] < b[2] && a[2] > b[0] && a[1] < b[3] && a[3] > b[1];

/** Whether a disc reaches into a box [left, top, right, bottom]. */
export function touches([left, top, right, bottom], { x, y, radius }) {
  const [dx, dy] = [x - Math.min(Math.max(x, left), right), y - Math.min(Math.max(y, top), bottom)];
  return dx * dx + dy * dy < radius * radius;
}

/**
 * Place labels beside, above or below their points, so that none covers a point or another label.
 * @param wanted [{x, y, radius, width}] in pixels, most important first
 * @param points discs that must stay visible
 * @param fits (box, label) → whether the label may be there otherwise
 * @param taken boxes that are not free; those of the labels are added
 * @returns the wanted that have a place, with their `box`
 */
export function placeLabels(wanted, points, fits, { height = 15, most = 20, taken = [], sides = true } = {}) {
  const placed = [];
  for (const one of wanted) {
    if (placed.length >= most) break;
    const { x, y, width } = one;
    const gap = one.radius + 3;
    const beside = [
      [x + gap, y - height / 2],
      [x - gap - width, y - height / 2],
    ];
    const box = [
      ...(sides ? beside : []),
      [x - width / 2, y - gap - height],
      [x - width / 2, y + gap],
    ]
      .map(([left, top]) => [left, top, left + width, top + height])
      .find(
        (other) =>
          fits(other, one) &&
          !taken.some((used) => overlap(other, used)) &&
          !points.some((point) => touches(other, point)),
      );
    if (!box) continue;
    taken.push(box);
    placed.push({ ...one, box });
  }
  return placed;
}

/** Annotations that name some points of a chart with logarithmic axes: `wanted` are pairs of a text and a point. */
export function labelPoints({ xaxis, yaxis }, wanted, x, y) {
  const points = x.map((_, n) => ({ x: xaxis.d2p(x[n]), y: yaxis.d2p(y[n]), radius: 5 }));
  const inside = (box) => box[0] >= 0 && box[1] >= 0 && box[2] <= xaxis._length && box[3] <= yaxis._length;
  const labels = wanted.map(([text, n]) => ({ ...points[n], n, text, width: textWidth(text) + 4 }));
  return placeLabels(labels, points, inside, { most: xaxis._length > 400 ? 9 : 5 }).map(({ n, text, box }) => ({
    text: escaped(text),
    showarrow: false,
    font: { size: 12, color: colour("ink") },
    x: Math.log10(x[n]),
    y: Math.log10(y[n]),
    xanchor: "center",
    yanchor: "middle",
    xshift: (box[0] + box[2]) / 2 - points[n].x,
    yshift: points[n].y - (box[1] + box[3]) / 2,
  }));
}
