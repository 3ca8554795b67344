// A ranked list of recommendations, each of which opens to show its reasons.

import { get } from "./api.js";
import { fault, h, labels, loading, number, percent, plural, say } from "./dom.js";

/**
 * @param items as the server ranks them: {item, name, score, interval, at_least_one}
 * @param reasons item → promise of the parts of its score; null if the model does not explain scores
 * @param add called with an item to add it to the basket
 */
export function rankedList({ items, reasons, add, card }) {
  const widest = Math.max(1, ...items.map((row) => row.interval?.[1] ?? row.score ?? 0));
  const hasIntervals = items.some((row) => row.interval);
  const list = h("ol", { className: "ranked" });
  const called = labels(items);
  items.forEach((row, n) => list.append(entry(row, called[n], { reasons, add, widest, card })));
  const head = h(
    "div",
    { className: "ranked-head", "aria-hidden": "true" },
    h("span", {}, "item"),
    h("span", {}, scoreName(card)),
    hasIntervals && h("span", {}, "90 % interval"),
    hasIntervals && h("span", {}, "P(y ≥ 1)"),
  );
  return h("div", { className: hasIntervals ? "with-interval" : "without-interval" }, head, list);
}

function entry(row, called, { reasons, add, widest, card }) {
  const id = `why-${Math.random().toString(36).slice(2)}`;
  const why = h("div", { id, className: "why", hidden: true });
  const spoken = row.interval
    ? `${row.name}: expected count ${number(row.score)}, 90 percent interval ${row.interval[0]} to ${row.interval[1]}, ` +
      `probability of at least one ${percent(row.at_least_one)}`
    : `${row.name}: ${scoreName(card)} ${number(row.score)}`;
  const face = [
    h("span", { className: "name" }, called),
    h("span", { className: "score" }, number(row.score)),
    row.interval && interval(row, widest),
    row.interval && h("span", { className: "chance" }, percent(row.at_least_one)),
  ];
  const button = h(
    "button",
    { className: "face", "aria-expanded": "false", "aria-controls": id, "aria-label": `${spoken}. Why?` },
    ...face,
  );
  button.addEventListener("click", async () => {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    why.hidden = open;
    if (open || why.childElementCount) return;
    await explain(why, row, reasons, add, card);
  });
  return h("li", { "data-item": row.item }, button, why);
}

/** Scores are expected counts, unless the model was fitted to something else. */
const scoreName = (card) => (card.scores_are_counts ? "expected" : "score");

function interval(row, widest) {
  const [low, high] = row.interval;
  const at = (value) => `${Math.min(100, (100 * value) / widest)}%`;
  return h(
    "span",
    { className: "interval" },
    h(
      "span",
      { className: "track" },
      h("span", { className: "range", style: { left: at(low), width: `max(2px, ${at(high - low)})` } }),
      h("span", { className: "mean", style: { left: at(row.score) } }),
    ),
    h("span", { className: "ends" }, `${low}–${high}`),
  );
}

async function explain(place, row, reasons, add, card) {
  const actions = h(
    "div",
    { className: "actions" },
    add && h("button", { onclick: () => add(row) }, "Add to basket"),
  );
  if (!reasons) {
    place.replaceChildren(h("p", {}, "This model does not explain its scores."), actions);
    return;
  }
  place.replaceChildren(loading("Loading reasons …", 3));
  try {
    const found = await reasons(row.item);
    place.replaceChildren(parts(found), actions);
    if (card.can.similar_items) alike(row, actions);
    const first = found.parts[0];
    say(
      first
        ? `${first.name} contributes ${percent(first.contribution / found.score)} of the score`
        : "The score comes from the prior alone",
    );
  } catch (error) {
    place.replaceChildren(fault(error));
  }
}

/** The parts of a score as bars; they add up to the score. */
function parts(found) {
  const largest = Math.max(
    ...found.parts.map((part) => part.contribution),
    found.others.contribution,
    found.prior,
    1e-300,
  );
  const line = (name, detail, value, kind = "") =>
    h(
      "tr",
      { className: kind },
      h("th", { scope: "row" }, name, detail && h("small", {}, ` ${detail}`)),
      h("td", { className: "bar" }, h("span", { style: { width: `${(100 * Math.max(value, 0)) / largest}%` } })),
      h("td", { className: "value" }, number(value)),
    );
  const called = labels(found.parts);
  const rows = found.parts.map((part, n) => line(called[n], `× ${number(part.count)}`, part.contribution));
  if (found.others.n_items)
    rows.push(line(plural(found.others.n_items, "other item"), "", found.others.contribution, "rest"));
  if (found.prior) rows.push(line("prior, before any data", "", found.prior, "rest"));
  const caption = found.parts.length ? "Where this score comes from" : "Without any history, every user gets this score.";
  return h(
    "table",
    { className: "parts" },
    h("caption", {}, caption),
    h("tbody", {}, rows),
    h(
      "tfoot",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "row" }, "total"),
        h("td", {}),
        h("td", { className: "value" }, number(found.score)),
      ),
    ),
  );
}

async function alike(row, place) {
  const found = await get("similar/items", { item: row.item, n: 4 }).catch(() => null);
  if (found?.items.length)
    place.append(h("p", { className: "alike" }, "Similar items: ", found.items.map((other) => other.name).join(" · ")));
}
