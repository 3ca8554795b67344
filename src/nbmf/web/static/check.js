// Does the model fit? Its findings, and each statistic of the data beside what draws from the model have.

import { get } from "./api.js";
import { colour, draw, logTicks } from "./charts.js";
import { count, fill, h, number, numberTable, percent } from "./dom.js";

/** Show the check of the model in a card of its own. */
export async function showCheck(card) {
  const found = await fill(card, get("check"), checkCard, "Comparing the data with draws from the model …");
  if (found && card.isConnected) drawPanels(card.querySelector(".panels"), found.panels);
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function checkCard(found) {
  const compared = `${count(found.n_draws)} draws of ${count(found.n_cells)} cells`;
  const verdict = found.fits
    ? `It fits: no statistic is off by more than is normal for a correct model, in ${compared}.`
    : `It does not fit: ${count(found.findings.length)} ${found.findings.length === 1 ? "finding" : "findings"} in ${compared}.`;
  return [
    h("h2", { id: "check-title" }, "Does it fit?"),
    h("p", { className: `verdict ${found.fits ? "good" : "bad"}` }, verdict),
    !found.fits && h("ul", { className: "findings" }, found.findings.map((text) => h("li", {}, `${capital(text)}.`))),
    h("p", { className: "hint" }, "Dots are the data; a cross is off. Narrow bars hold 90 % of the draws, wide ones what is tolerated."),
    h("div", { className: "panels", role: "img", "aria-label": "Statistics of the data beside draws from the model; the table below lists them" }),
    h("details", {}, h("summary", {}, "Observed and expected"), numberTable(["", "observed", "expected", "tolerated"], rows(found.panels), Infinity)),
  ];
}

const share = (value) => (value > 0.1 && value < 0.9 ? percent(value) : `${Number((100 * value).toPrecision(2))} %`);

const inWords = (panel) => (panel.is_share ? share : number);

const rows = (panels) =>
  panels.flatMap((panel) =>
    panel.marks.map((mark) => {
      const text = inWords(panel);
      return [`${panel.title}: ${mark.label}`, text(mark.observed), text(mark.expected), `${text(mark.least)} – ${text(mark.most)}`];
    }),
  );

/** One plot per panel, in a row that wraps on narrow screens. */
function drawPanels(place, panels) {
  place.replaceChildren(
    ...panels.map((panel) =>
      h("figure", { style: { "--marks": String(panel.marks.length) } }, h("figcaption", {}, panel.title), h("div", { className: "panel" })),
    ),
  );
  panels.forEach((panel, n) => drawPanel(place.querySelectorAll(".panel")[n], panel));
}

function drawPanel(place, panel) {
  const { marks } = panel;
  const positive = marks.flatMap(({ observed, expected, low, high, least, most }) => [observed, expected, low, high, least, most]).filter((value) => value > 0);
  const [bottom, top] = [Math.min(...positive, 1) / 1.5, Math.max(...positive) * 1.5];
  const inside = (value) => (panel.is_logarithmic ? Math.max(value, bottom) : value);
  const x = marks.map(({ label }) => label.replaceAll(" ", "<br>").replace("99<br>%", "99 %"));
  const bars = (from, to, width, opacity) => ({
    type: "bar",
    x,
    base: marks.map((mark) => inside(mark[from])),
    y: marks.map((mark) => inside(mark[to]) - inside(mark[from])),
    width,
    hoverinfo: "skip",
    marker: { color: colour("accent"), opacity },
  });
  const points = (chosen, symbol, tone) => ({
    type: "scatter",
    mode: "markers",
    x: x.filter((_, n) => chosen(marks[n])),
    y: marks.filter(chosen).map((mark) => inside(mark.observed)),
    text: marks.filter(chosen).map(hover(panel)),
    hovertemplate: "%{text}<extra></extra>",
    marker: { symbol, size: 11, color: colour(tone), line: { color: colour("card"), width: 1 } },
  });
  return draw(place, ({ axis, layout }) => ({
    data: [
      bars("least", "most", 0.62, 0.16),
      bars("low", "high", 0.44, 0.45),
      {
        type: "scatter",
        mode: "markers",
        x,
        y: marks.map((mark) => inside(mark.expected)),
        hoverinfo: "skip",
        marker: { symbol: "line-ew", size: 12, line: { color: colour("accent"), width: 2.5 } },
      },
      points((mark) => mark.fits, "circle", "over"),
      points((mark) => !mark.fits, "x", "alarm"),
    ],
    layout: {
      ...layout,
      margin: { ...layout.margin, l: 48 }, // a narrow plot gives its labels no margin of their own
      barmode: "overlay",
      xaxis: { ...axis, type: "category", showgrid: false, fixedrange: true, tickangle: 0, tickfont: { ...axis.tickfont, size: 11 } },
      yaxis: panel.is_logarithmic
        ? { ...axis, type: "log", range: [Math.log10(bottom), Math.log10(top)], ...(panel.is_share ? named(logTicks(bottom, top).tickvals, share) : logTicks(bottom, top)), fixedrange: true }
        : { ...axis, range: [0, 1], ...named([0, 0.2, 0.4, 0.6, 0.8, 1], percent), fixedrange: true },
    },
  }));
}

const named = (tickvals, text) => ({ tickvals, ticktext: tickvals.map((value) => text(value)) });

const hover = (panel) => (mark) => {
  const text = inWords(panel);
  return `${mark.label}<br>observed ${text(mark.observed)}<br>expected ${text(mark.expected)}`;
};
