// One user: tastes, history, exposures and recommendations.

import { get } from "./api.js";
import { fillBasket, putIn } from "./basket.js";
import { colour, draw, escaped, labelPoints, logTicks, short } from "./charts.js";
import { count, empty, factorLink, fill, h, itemLink, number, numberTable, percent, plural, say, scoreName, userLink } from "./dom.js";
import { rankedList } from "./ranked.js";
import { pickUser } from "./search.js";

const MOST = 1000; // items of a history that are loaded
const SHOWN = 15; // rows of the history before "show all"

export function showUser(main, card, [user]) {
  const chosen = user ?? String(card.example.user);
  const facts = h("p", { className: "facts" });
  const tastes = h("div", {});
  const took = h("section", { className: "card", "aria-labelledby": "took-title" });
  const best = h("section", { className: "card", "aria-labelledby": "best-title" });
  const actions = h("div", { className: "actions" }, h("button", { onclick: () => another(card, chosen) }, "Another user"));
  const body = h("div", { className: "pair" }, took, best);
  main.replaceChildren(
    h("div", { className: "head" }, h("div", {}, h("h1", {}, `User ${chosen}`), facts, tastes, actions), pickUser()),
    body,
  );
  document.title = `User ${chosen} · nbmf`;
  const best20 = get("recommend", { user: chosen, n: 20, level: 0.9 });
  fill(best, best20, (found) => bestCard(found, chosen, card), "Ranking items …");
  const taken = get("exposures", { user: chosen, n: MOST });
  fill(took, taken, (found) => tookCard(found, card), "Loading history …").then((found) => {
    if (!found || !took.isConnected) return;
    facts.textContent = howMuch(found);
    if (found.factors?.length && found.n_items) tastes.replaceWith(tasteList(found.factors));
    if (card.can.recommend_for && found.n_items)
      actions.append(h("button", { onclick: () => fillBasket(found.items, `user ${chosen}`) }, "Open in basket"));
    if (card.can.similar_users) neighbours(actions, chosen);
    say(`User ${chosen}: ${facts.textContent}`);
    plot(took, found, card);
  });
  taken.catch((error) => error.status === 404 && took.isConnected && unknown(main, body, chosen));
}

/** Go to the next of the example users, who have few and many items in turns. */
function another(card, chosen) {
  const users = card.example_users.map(String);
  const next = users[(users.indexOf(chosen) + 1) % users.length];
  location.hash = `#/user/${encodeURIComponent(next)}`;
}

function howMuch({ n_items: nItems, items }) {
  const total = number(items.reduce((sum, row) => sum + row.count, 0));
  return `${plural(nItems, "item")}${nItems > items.length ? "" : `, total count ${total}`}`;
}

const tasteList = (factors) =>
  h(
    "ul",
    { className: "tastes", "aria-label": "Tastes: the largest factors of this user" },
    factors.filter((one) => one.rank !== null && one.share >= 0.05).map((one) => h("li", {}, factorLink(one), ` ${percent(one.share)}`)),
  );

/** An unknown user: say so, and offer users with similar ids. */
async function unknown(main, shown, user) {
  const nobody = { users: [] };
  const near = await get("search/users", { q: user.slice(0, 3), n: 6 }).catch(() => nobody);
  const others = near.users.length ? near : await get("search/users", { n: 6 }).catch(() => nobody);
  if (!shown.isConnected) return; // the page shows another user by now
  main.replaceChildren(
    h("div", { className: "head" }, h("h1", {}, `No user ${user}`), pickUser()),
    empty(
      "There is no user with this id in the training data.",
      others.users.length > 0 && [
        h("p", {}, near.users.length ? "Users with similar ids:" : "Try one of these:"),
        h("ul", { className: "chips" }, others.users.map((row) => h("li", {}, userLink(row.user)))),
      ],
    ),
  );
  say(`No user ${user}`);
}

async function neighbours(place, user) {
  const found = await get("similar/users", { user, n: 5 }).catch(() => null);
  if (found?.users.length)
    place.append(
      h(
        "p",
        { className: "alike" },
        "Similar users: ",
        found.users.map((row, n) => [n ? ", " : "", userLink(row.user)]),
      ),
    );
}

function bestCard(found, user, card) {
  const title = h("h2", { id: "best-title" }, "Recommended items");
  if (!found.items.length)
    return [title, empty("Nothing left to recommend.", h("p", {}, "This user already has every item."))];
  const reasons = card.can.explain ? (item) => get("explain", { user, item, n: 8 }) : null;
  const hint = h(
    "p",
    { className: "hint" },
    `New items by ${scoreName(card)}. `,
    reasons && "Select one to see why.",
  );
  return [title, hint, rankedList({ items: found.items, reasons, add: card.can.recommend_for ? putIn : null, card })];
}

function tookCard(found, card) {
  const title = h("h2", { id: "took-title" }, card.can.exposures ? "History and exposure" : "History");
  if (!found.items.length)
    return [title, empty("No history.", h("p", {}, "Without counts in the training data, recommendations come from the prior alone."))];
  const hasChart = found.items[0].expected !== undefined && card.target !== "binary";
  const hint = card.can.exposures
    ? h(
        "p",
        { className: "hint" },
        "Above the line, counts are higher than the user’s tastes explain: ",
        h("b", { className: "over" }, "over-exposed"),
        ". Below it, they are lower: ",
        h("b", { className: "under" }, "under-exposed"),
        ".",
      )
    : hasChart && h("p", { className: "hint" }, onTheLine(card));
  const chart =
    hasChart &&
    h("div", { className: "chart", role: "img", "aria-label": "Chart of the history; the table below lists its values" });
  const more =
    found.n_items > found.items.length &&
    h("p", { className: "hint" }, `The ${count(found.items.length)} largest of ${count(found.n_items)} counts.`);
  return [title, hint, chart, historyTable(found), more];
}

const onTheLine = (card) =>
  `On the line, ${card.target === "log1p" ? "ln(1 + count) is" : "counts are"} what the user’s ${card.class === "NBFISM" ? "other items predict" : "tastes predict"}.${card.target === "log1p" ? " Expected values are of ln(1 + count)." : ""}`;

/** A count in the form that the model predicts. */
const formed = (value, card) => (card.target === "log1p" ? Math.log1p(value) : value);

function historyTable(found) {
  const columns = ["count", "expected", "exposure"].filter((name) => found.items[0][name] !== undefined);
  const cell = (row, name) =>
    name === "exposure"
      ? [number(row.exposure), h("small", {}, ` ± ${number(row.sd)}`)]
      : number(row[name]);
  const rows = found.items.map((row) => [itemLink(row), ...columns.map((name) => cell(row, name))]);
  return numberTable(["item", ...columns], rows, SHOWN, "items");
}

function plot(section, found, card) {
  const place = section.querySelector(".chart");
  if (!place) return;
  const shows = card.can.exposures ? "exposure" : "expected";
  const rows = found.items.filter((row) => row.count > 0 && row[shows] > 0);
  const x = rows.map((row, n) => spread(card.can.exposures ? row.count : formed(row.count, card), n));
  const y = rows.map((row) => row[shows]);
  const [left, right] = [Math.min(...x) / 1.25, Math.max(...x, 2) * 1.6];
  const [low, high] = [Math.min(...y, 0.5) / 1.25, Math.max(...y, 2) * 1.3];
  const words = rows.map(
    (row) =>
      `<b>${escaped(row.name)}</b><br>count ${number(row.count)}, ${scoreName(card)} ${number(row.expected)}` +
      (row.exposure === undefined ? "" : `<br>exposure ${number(row.exposure)} ± ${number(row.sd)}`),
  );
  const dashed = { type: "line", line: { color: colour("alarm"), width: 1.5, dash: "dash" } };
  const line = card.can.exposures
    ? { ...dashed, xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1 }
    : { ...dashed, x0: left, x1: right, y0: left, y1: right };
  const logarithmic = (axis, text, ends) => ({
    ...axis,
    type: "log",
    title: { ...axis.title, text },
    range: ends.map(Math.log10),
    ...logTicks(...ends),
    fixedrange: true,
  });
  draw(place, ({ axis, layout }) => ({
    data: [
      {
        type: "scatter",
        mode: "markers",
        x,
        y,
        text: words,
        hovertemplate: "%{text}<extra></extra>",
        marker: {
          size: 9,
          opacity: 0.75,
          line: { width: 1, color: colour("card") },
          color: rows.map((row) => colour(card.can.exposures ? (row.exposure > 1 ? "over" : "under") : "accent")),
        },
      },
    ],
    layout: {
      ...layout,
      xaxis: logarithmic(axis, shows === "expected" && card.target === "log1p" ? "ln(1 + count)" : "count", [left, right]),
      yaxis: logarithmic(axis, shows === "expected" ? scoreName(card) : shows, [low, high]),
      shapes: [line],
    },
    annotate: (area) => labelPoints(area, notable(rows, card).map((n) => [short(rows[n].name), n]), x, y),
  }));
}

/** The rows to name on the chart, in turns: the most exposed, the least exposed, those with the largest counts. */
function notable(rows, card) {
  const excess = (row) => row.exposure ?? formed(row.count, card) / row.expected;
  const order = (value) => rows.map((_, n) => n).sort((a, b) => value(rows[b]) - value(rows[a]));
  const turns = [order(excess), order((row) => row.count), order((row) => -excess(row))];
  return [...new Set(Array.from({ length: 4 }, (_, n) => turns.map((list) => list[n])).flat())].filter((n) => n >= 0);
}

/** Shift points a little sideways, always by the same amount, so that equal counts do not overlap. */
const spread = (value, n) => value * (1 + 0.09 * (((n * 0.618034) % 1) - 0.5));
