// A ranked list of recommendations, each of which opens to show its reasons.

import { get } from "./api.js";
import { factorLink, fault, h, itemLink, labels, loading, number, percent, plural, say, scoreName } from "./dom.js";

/**
 * @param items as the server ranks them: {item, name, score, lift, interval, at_least_one}
 * @param reasons item → promise of the parts of its score; null if the model does not explain scores
 * @param add called with an item to add it to the basket
 */
export function rankedList({ items, reasons, add, card }) {
  const widest = Math.max(1, ...items.map((row) => row.interval?.[1] ?? 0));
  const score = { kind: "score", head: card.scores_are_counts ? "expected" : "score", width: "4.4rem", cell: (row) => number(row.score) };
  const lift = { kind: "lift", head: "lift", width: "4rem", cell: (row) => `× ${number(row.lift)}` };
  const range = { kind: "interval", head: "90 % interval", width: "8.2rem", cell: (row) => interval(row, widest) };
  const chance = { kind: "chance", head: "P(y ≥ 1)", width: "3.9rem", cell: (row) => percent(row.at_least_one) };
  const columns = [
    score,
    items.some((row) => row.lift !== undefined) && lift,
    items.some((row) => row.interval?.[1] > 0) && range, // intervals from 0 to 0 say less than the chance
    items.some((row) => row.interval) && chance,
  ].filter(Boolean);
  const called = labels(items);
  return h(
    "div",
    { style: { "--columns": ["minmax(0, 1fr)", ...columns.map(({ width }) => width)].join(" ") } },
    h(
      "div",
      { className: "ranked-head", "aria-hidden": "true" },
      h("span", {}, "item"),
      columns.map(({ kind, head }) => h("span", { className: kind }, head)),
    ),
    h(
      "ol",
      { className: "ranked" },
      items.map((row, n) => entry(row, called[n], columns, { reasons, add, card })),
    ),
  );
}

function entry(row, called, columns, { reasons, add, card }) {
  const id = `why-${Math.random().toString(36).slice(2)}`;
  const why = h("div", { id, className: "why", hidden: true });
  const spoken = row.interval
    ? `${row.name}: expected count ${number(row.score)}, 90 percent interval ${row.interval[0]} to ${row.interval[1]}, ` +
      `probability of at least one ${percent(row.at_least_one)}`
    : `${row.name}: ${scoreName(card)} ${number(row.score)}`;
  const button = h(
    "button",
    { className: "face", "aria-expanded": "false", "aria-controls": id, "aria-label": `${spoken}. Why?` },
    h("span", { className: "name" }, called),
    columns.map(({ kind, cell }) => h("span", { className: kind }, cell(row))),
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

function interval(row, widest) {
  const [low, high] = row.interval;
  const at = (value) => `${Math.min(100, (100 * value) / widest)}%`;
  return [
    h(
      "span",
      { className: "track" },
      high > 0 && h("span", { className: "range", style: { left: at(low), width: `max(2px, ${at(high - low)})` } }),
      h("span", { className: "mean", style: { left: at(row.score) } }),
    ),
    h("span", { className: "ends" }, low === high ? `${low}` : `${low}–${high}`),
  ];
}

async function explain(place, row, reasons, add, card) {
  const actions = h(
    "div",
    { className: "actions" },
    h("a", { href: itemLink(row).hash }, "About this item"),
    add && h("button", { onclick: () => add(row) }, "Add to basket"),
  );
  if (!reasons) {
    place.replaceChildren(h("p", {}, "This model does not explain its scores."), actions);
    return;
  }
  place.replaceChildren(loading("Loading reasons …", 3));
  try {
    const found = await reasons(row.item);
    place.replaceChildren(...why(found, card), actions);
    if (card.can.similar_items) alike(row, actions);
    const first = found.factors.find(({ rank }) => rank !== null) ?? found.parts[0];
    say(
      first
        ? `${first.name} contributes ${percent(first.contribution / found.score)} of the score`
        : "The score comes from the prior alone",
    );
  } catch (error) {
    place.replaceChildren(fault(error));
  }
}

/** What no item contributes, in models that have intercepts instead of priors of users, or both. */
const BASE = { NBFISM: "the same for every user", NBSLIM: "the same for every user", Blend: "what no item explains" };

/** The parts of a score, by taste and by item; each table adds up to the score. */
function why(found, card) {
  const total = `the ${scoreName(card)} of ${number(found.score)}`;
  const common = found.factors.filter(({ rank }) => rank === null);
  if (!found.parts.length) return [h("p", {}, `Without any history, every user gets ${total}.`)];
  const tastes = found.factors.length
    ? partTable(
        `Tastes behind ${total}`,
        found.factors.filter(({ rank }) => rank !== null).map((one) => [factorLink(one), one.contribution]),
        [
          [plural(found.other_factors.n_factors, "other factor"), found.other_factors.contribution],
          ...common.map((one) => [factorLink(one), one.contribution]),
        ],
      )
    : null;
  const called = labels(found.parts);
  const items = partTable(
    tastes ? "Items behind it" : `Items behind ${total}`,
    found.parts.map((part, n) => [
      [itemLink(part, called[n]), h("small", {}, ` × ${number(part.count)}`)],
      part.contribution,
    ]),
    [
      [plural(found.others.n_items, "other item"), found.others.contribution],
      [BASE[card.class] ?? "prior, before any data", found.prior],
    ],
  );
  return [tastes, items].filter(Boolean);
}

/** Parts as bars, and what is left of the total as plain lines below. */
function partTable(caption, parts, rest) {
  const largest = Math.max(...parts.map(([, value]) => value), 1e-300);
  const bar = (value) => h("span", { style: { width: `${(100 * Math.max(value, 0)) / largest}%` } });
  const line = (name, value, className) =>
    h(
      "tr",
      { className },
      h("th", { scope: "row" }, name),
      h("td", { className: "bar" }, className === "part" && bar(value)),
      h("td", { className: "value" }, number(value)),
    );
  return h(
    "table",
    { className: "parts" },
    h("caption", {}, caption),
    h(
      "tbody",
      {},
      parts.map(([name, value]) => line(name, value, "part")),
      rest.filter(([, value]) => value).map(([name, value]) => line(name, value, "rest")),
    ),
  );
}

async function alike(row, place) {
  const found = await get("similar/items", { item: row.item, n: 4 }).catch(() => null);
  if (found?.items.length)
    place.append(
      h(
        "p",
        { className: "alike" },
        "Similar items: ",
        found.items.map((other, n) => [n ? " · " : "", itemLink(other)]),
      ),
    );
}
