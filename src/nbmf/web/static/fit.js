// The course of the fit, and facts about the model.

import { get } from "./api.js";
import { colour, draw } from "./charts.js";
import { count, fill, h, number, say } from "./dom.js";

export function showFit(main, card) {
  document.title = "Model · nbmf";
  const went = h("section", { className: "card", "aria-labelledby": "went-title" });
  const facts = card.fit.sweeps
    ? `${count(card.fit.sweeps)} sweeps${card.fit.seconds === null ? "" : ` in ${number(card.fit.seconds)} s`}; ${endings[card.fit.ending] ?? card.fit.ending ?? ""}`
    : "";
  main.replaceChildren(
    h(
      "div",
      { className: "head" },
      h(
        "div",
        {},
        h("h1", {}, `${card.class}: ${count(card.n_users)} users and ${count(card.n_items)} items`),
        h("p", { className: "facts" }, facts),
      ),
    ),
    h("div", { className: "pair" }, card.can.fit && went, about(card)),
  );
  if (!card.can.fit) return;
  fill(
    went,
    get("fit"),
    (found) => [
      h("h2", { id: "went-title" }, found.seconds ? "Objective over time" : "Objective per sweep"),
      h(
        "p",
        { className: "hint" },
        found.seconds
          ? "Distance to the final objective; one point per sweep."
          : "Distance to the final objective. The times of the sweeps are not known; nbmf explore records them.",
      ),
      h("div", {
        className: "chart",
        role: "img",
        "aria-label": "Chart of the objective; the table below lists its values",
      }),
      asTable(found),
    ],
    "Loading sweeps …",
  ).then((found) => {
    if (!found) return;
    plot(went.querySelector(".chart"), found);
    say(facts);
  });
}

const endings = {
  converged: "converged",
  max_iter: "limit reached",
  interrupted: "interrupted",
  stopped: "stopped early",
};

function plot(place, found) {
  const last = found.objective.at(-1);
  const x = found.seconds ?? found.objective.map((_, n) => n + 1);
  const gap = found.objective.map((value) => Math.max(last - value, 0));
  const shown = gap.map((value, n) => n).filter((n) => gap[n] > 0);
  draw(place, ({ axis, layout }) => ({
    data: [
      {
        type: "scatter",
        mode: shown.length < 60 ? "lines+markers" : "lines",
        x: shown.map((n) => x[n]),
        y: shown.map((n) => gap[n]),
        text: shown.map(
          (n) => `sweep ${n + 1}, objective ${found.objective[n].toLocaleString("en", { maximumFractionDigits: 1 })}`,
        ),
        hovertemplate: "%{text}<extra></extra>",
        line: { color: colour("accent"), width: 2.5 },
        marker: { color: colour("accent"), size: 6 },
      },
    ],
    layout: {
      ...layout,
      xaxis: {
        ...axis,
        title: { ...axis.title, text: found.seconds ? "seconds" : "sweep" },
        rangemode: "tozero",
        fixedrange: true,
      },
      yaxis: {
        ...axis,
        type: "log",
        title: { ...axis.title, text: "distance to final objective" },
        fixedrange: true,
        exponentformat: "SI",
        dtick: 1,
      },
    },
  }));
}

function asTable(found) {
  const n = found.objective.length;
  const rows = found.objective
    .map((value, sweep) => [sweep, value])
    .filter(([sweep]) => sweep < 10 || sweep === n - 1 || sweep % Math.ceil(n / 40) === 0);
  return h(
    "details",
    {},
    h("summary", {}, "Table"),
    h(
      "div",
      { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Objective per sweep" },
      h(
        "table",
        { className: "numbers" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["sweep", found.seconds && "seconds", "objective"]
              .filter(Boolean)
              .map((name) => h("th", { scope: "col" }, name)),
          ),
        ),
        h(
          "tbody",
          {},
          rows.map(([sweep, value]) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, count(sweep + 1)),
              found.seconds && h("td", {}, number(found.seconds[sweep])),
              h("td", {}, value.toLocaleString("en", { maximumFractionDigits: 1 })),
            ),
          ),
        ),
      ),
    ),
  );
}

function about(card) {
  const facts = {
    model: card.class,
    users: count(card.n_users),
    items: count(card.n_items),
    counts: card.n_counts === null ? null : `${count(card.n_counts)} nonzero`,
    factors: card.n_factors === null ? null : count(card.n_factors),
    concentration: card.concentration === null ? null : number(card.concentration),
    objective:
      card.fit.objective === null ? null : card.fit.objective.toLocaleString("en", { maximumFractionDigits: 1 }),
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
    card.refused && h("p", { className: "fault" }, `A newer file was refused: ${card.refused}`),
    h("details", {}, h("summary", {}, "Settings"), list(Object.entries(card.settings))),
  );
}
