// The fit: whether it fits, whether it converged, the counts it was fitted to, and facts about the model.

import { get } from "./api.js";
import { colour, draw, drawSizes } from "./charts.js";
import { showCheck } from "./check.js";
import { count, fill, h, number, numberTable, say } from "./dom.js";

const exact = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });

export function showFit(main, card) {
  document.title = "Model · nbmf";
  const went = h("section", { className: "card", "aria-labelledby": "went-title" });
  const sizes = h("section", { className: "card", "aria-labelledby": "sizes-title" });
  const fits = h("section", { className: "card", "aria-labelledby": "check-title" });
  main.replaceChildren(
    h(
      "div",
      { className: "head" },
      h(
        "div",
        {},
        h("h1", {}, card.class),
        h("p", { className: "facts" }, `${count(card.n_counts)} counts of ${count(card.n_users)} users and ${count(card.n_items)} items`),
      ),
    ),
    h(
      "div",
      { className: "stack" },
      card.can.check && fits,
      h("div", { className: "pair" }, h("div", { className: "stack" }, card.can.fit && went, sizes), about(card)),
    ),
  );
  if (card.can.check) showCheck(fits);
  fill(sizes, get("counts"), () => [
    h("h2", { id: "sizes-title" }, "Counts by size"),
    h("p", { className: "hint" }, "Share of the nonzero training counts of each size."),
    h("div", { className: "chart low", role: "img", "aria-label": "Histogram of the training counts" }),
  ]).then((found) => found && sizes.isConnected && drawSizes(sizes.querySelector(".chart"), found.sizes, "counts"));
  if (!card.can.fit) return;
  fill(went, get("fit"), (found) => fitCard(found, card), "Loading sweeps …").then((found) => {
    if (!found || !went.isConnected) return;
    plot(went.querySelector(".chart"), found, card);
    say(went.querySelector(".verdict").textContent);
  });
}

const brief = (value) => value.toExponential().replace("e+0", "").replace("e+", "e");

/** Ticks of a logarithmic axis at powers of ten. */
function powers(low, high) {
  const first = Math.floor(Math.log10(low));
  const tickvals = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 }, (_, n) => 10 ** (first + n));
  return { tickvals, ticktext: tickvals.map((value) => brief(Number(value.toPrecision(1)))) };
}

/** The relative gain of each sweep from the second on. */
const gains = ({ objective }) =>
  objective.slice(1).map((value, n) => (value - objective[n]) / Math.max(Math.abs(objective[n]), 1e-300));

const hasConverged = (card) => card.fit.ending === "converged";

function fitCard(found, card) {
  const rows = thinned(found.objective.length).map((n) => [
    count(n + 1),
    ...(found.seconds ? [number(found.seconds[n])] : []),
    exact(found.objective[n]),
  ]);
  const head = ["sweep", ...(found.seconds ? ["seconds"] : []), "objective"];
  return [
    h("h2", { id: "went-title" }, "Convergence"),
    h("p", { className: `verdict ${hasConverged(card) ? "good" : "bad"}` }, verdict(found, card)),
    h("div", { className: "chart", role: "img", "aria-label": "Chart of the relative gain per sweep; the table below lists the objective" }),
    h("details", {}, h("summary", {}, "Objective after each sweep"), numberTable(head, rows, Infinity)),
  ];
}

const thinned = (n) =>
  Array.from({ length: n }, (_, sweep) => sweep).filter(
    (sweep) => sweep < 5 || sweep === n - 1 || (sweep + 1) % Math.ceil(n / 20) === 0,
  );

/** Whether the fit converged and, if not, the remedy. */
function verdict(found, card) {
  const n = found.objective.length;
  const sweeps = `${count(n)} ${n === 1 ? "sweep" : "sweeps"}${card.fit.seconds === null ? "" : ` in ${number(card.fit.seconds)} s`}`;
  if (hasConverged(card))
    return `Converged after ${sweeps}${found.tol ? `: the last one raised the objective by less than tol = ${brief(found.tol)} of it` : ""}.`;
  const last = gains(found).at(-1);
  const rate = found.tol && last > found.tol ? ` Its last sweep still gained ${brief(Number(last.toPrecision(2)))}, more than tol = ${brief(found.tol)}.` : "";
  const why = { max_iter: `stopped at its limit of ${sweeps}`, interrupted: `was interrupted after ${sweeps}` };
  const remedy = `max_iter=${2 * n}${"accelerate" in card.settings ? " or accelerate=True" : ""}`;
  return `Not converged: the fit ${why[card.fit.ending] ?? `was stopped after ${sweeps}`}.${rate} Rankings may improve; fit again with ${remedy}.`;
}

function plot(place, found, card) {
  const gain = gains(found);
  const shown = gain.map((_, n) => n).filter((n) => gain[n] > 0);
  if (!shown.length) return place.remove();
  const text = (n) =>
    `sweep ${n + 2}${found.seconds ? `, ${number(found.seconds[n + 1])} s` : ""}<br>` +
    `gain ${gain[n].toExponential(1)}, objective ${exact(found.objective[n + 1])}`;
  return draw(place, ({ axis, layout }) => {
    const tone = colour(hasConverged(card) ? "accent" : "over");
    const [low, high] = [Math.min(...shown.map((n) => gain[n]), found.tol || 1), Math.max(...gain, found.tol || 0)];
    const end = { x: shown.at(-1) + 2, y: gain[shown.at(-1)] };
    return {
      data: [
        {
          type: "scatter",
          mode: shown.length < 60 ? "lines+markers" : "lines",
          x: shown.map((n) => n + 2),
          y: shown.map((n) => gain[n]),
          text: shown.map(text),
          hovertemplate: "%{text}<extra></extra>",
          line: { color: tone, width: 2.5 },
          marker: { color: tone, size: 6 },
        },
        { type: "scatter", mode: "markers", x: [end.x], y: [end.y], hoverinfo: "skip", marker: { color: tone, size: 10 } },
      ],
      layout: {
        ...layout,
        xaxis: { ...axis, title: { ...axis.title, text: "sweep" }, rangemode: "tozero", fixedrange: true },
        yaxis: {
          ...axis,
          type: "log",
          title: { ...axis.title, text: "relative gain of the objective" },
          range: [Math.log10(low / 4), Math.log10(high * 2)],
          ...powers(low, high),
          fixedrange: true,
        },
        shapes: found.tol
          ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: found.tol, y1: found.tol, line: { color: colour("soft"), width: 1.5, dash: "dash" } }]
          : [],
        annotations: found.tol
          ? [{ xref: "paper", x: 0.01, y: Math.log10(found.tol), xanchor: "left", yanchor: "top", showarrow: false, text: `tol = ${brief(found.tol)}`, font: { color: colour("soft"), size: 12 } }]
          : [],
      },
    };
  });
}

const asPython = (value) => ({ null: "None", true: "True", false: "False" })[value] ?? value;

function about(card) {
  const facts = {
    factors: card.n_factors === null ? null : count(card.n_factors),
    concentration: card.concentration === null ? null : number(card.concentration),
    objective: card.fit.objective === null ? null : exact(card.fit.objective),
    checksum: card.model,
  };
  const list = (entries) =>
    h(
      "dl",
      { className: "settings" },
      entries.map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]),
    );
  return h(
    "section",
    { className: "card", "aria-labelledby": "about-title" },
    h("h2", { id: "about-title" }, "About this model"),
    list(Object.entries(facts).filter(([, value]) => value !== null)),
    card.refused && h("p", { className: "fault" }, `The model file has changed and is not served: ${card.refused}`),
    h("h3", {}, "Settings"),
    list(Object.entries(card.settings).map(([name, value]) => [name, asPython(value)])),
  );
}
