// A ranked list of recommendations; each opens to tell why.

import { get } from "./api.js";
import { fault, h, labels, loading, number, percent, plural, say } from "./dom.js";

/**
 * @param items as the server ranks them: {item, name, score, interval, at_least_one}
 * @param reasons item → promise of the parts of its score; null if the model gives none
 * @param add called with an item to put it into the basket
 */
export function rankedList({ items, reasons, add, card }) {
  const widest = Math.max(1, ...items.map((row) => row.interval?.[1] ?? row.score ?? 0));
  const hasLaw = items.some((row) => row.interval);
  const list = h("ol", { className: "ranked" });
  const called = labels(items);
  items.forEach((row, n) => list.append(entry(row, called[n], { reasons, add, widest, card })));
  const head = h(
    "div",
    { className: "ranked-head", "aria-hidden": "true" },
    h("span", {}, "item"),
    h("span", {}, scoreName(card)),
    hasLaw && h("span", {}, "90 % interval"),
    hasLaw && h("span", {}, "P(y ≥ 1)"),
  );
  return h("div", { className: hasLaw ? "with-law" : "without-law" }, head, list);
}

function entry(row, called, { reasons, add, widest, card }) {
  const id = `why-${Math.random().toString(36).slice(2)}`;
  const why = h("div", { id, className: "why", hidden: true });
  const spoken = row.interval
    ? `${row.name}: expected ${number(row.score)}, ninety percent between ${row.interval[0]} and ${row.interval[1]}, ` +
      `taken at all with ${percent(row.at_least_one)}`
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

/** What a score is: an expected count, unless the model looks at something else than counts. */
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
    add && h("button", { onclick: () => add(row) }, "Put it into the basket"),
  );
  if (!reasons) {
    place.replaceChildren(h("p", {}, "This model gives no reasons."), actions);
    return;
  }
  place.replaceChildren(loading("Looking for the reasons …", 3));
  try {
    const found = await reasons(row.item);
    place.replaceChildren(parts(found), actions);
    if (card.can.similar_items) alike(row, actions);
    const first = found.parts[0];
    say(
      first
        ? `Because of ${first.name}, ${percent(first.contribution / found.score)} of the score`
        : "Because of the prior alone",
    );
  } catch (error) {
    place.replaceChildren(fault(error));
  }
}

/** The parts of a score, as bars that add up to it. */
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
  if (found.prior) rows.push(line("before anything was taken", "", found.prior, "rest"));
  const caption = found.parts.length ? "Because you took …" : "Nothing was taken yet: this is what anybody gets.";
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
        h("th", { scope: "row" }, "together"),
        h("td", {}),
        h("td", { className: "value" }, number(found.score)),
      ),
    ),
  );
}

async function alike(row, place) {
  const found = await get("similar/items", { item: row.item, n: 4 }).catch(() => null);
  if (found?.items.length)
    place.append(h("p", { className: "alike" }, "Much like it: ", found.items.map((other) => other.name).join(" · ")));
}
