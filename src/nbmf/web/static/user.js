// One user: history, exposures and recommendations.

import { get } from "./api.js";
import { colour, draw, logTicks } from "./charts.js";
import { count, empty, fill, h, number, plural, say, userLink } from "./dom.js";
import { rankedList } from "./ranked.js";
import { searchField } from "./search.js";
import { fillBasket, putIn } from "./basket.js";

const SHOWN = 1000;

export function showUser(main, card, [user]) {
  const chosen = user ?? String(card.example.user);
  const title = h("h1", {}, `User ${chosen}`);
  const facts = h("p", { className: "facts" });
  const took = h("section", { className: "card", "aria-labelledby": "took-title" });
  const best = h("section", { className: "card", "aria-labelledby": "best-title" });
  const actions = h("div", { className: "actions" });
  const body = h("div", { className: "pair" }, took, best);
  main.replaceChildren(h("div", { className: "head" }, h("div", {}, title, facts, actions), pickUser()), body);
  document.title = `User ${chosen} · nbmf`;
  const best20 = get("recommend", { user: chosen, n: 20, level: 0.9 });
  fill(best, best20, (found) => bestCard(found, chosen, card), "Ranking items …");
  const taken = get("exposures", { user: chosen, n: SHOWN });
  fill(took, taken, (found) => tookCard(found, card), "Loading history …").then((found) => {
    if (!found || !took.isConnected) return;
    facts.textContent = howMuch(found);
    if (card.can.recommend_for && found.n_items) {
      const begin = () => fillBasket(found.items, `user ${chosen}`);
      actions.append(h("button", { onclick: begin }, "Open in basket"));
    }
    if (card.can.similar_users) neighbours(actions, chosen);
    say(`User ${chosen}: ${facts.textContent}`);
    plot(took, found, card);
  });
  taken.catch((error) => error.status === 404 && took.isConnected && unknown(main, body, chosen));
}

function howMuch({ n_items: nItems, items }) {
  const total = number(items.reduce((sum, row) => sum + row.count, 0));
  return `${plural(nItems, "item")}${nItems > items.length ? "" : `, total count ${total}`}`;
}

const pickUser = () =>
  searchField({
    label: "Find a user",
    placeholder: "User id, or part of it",
    find: async (text, signal) =>
      (await get("search/users", { q: text, n: 8 }, signal)).users.map((row) => ({
        title: String(row.user),
        detail: plural(row.n_items, "item"),
        value: row.user,
      })),
    choose: (user) => (location.hash = `#/user/${encodeURIComponent(user)}`),
  });

/** An unknown user: say so, and offer users with similar ids. */
async function unknown(main, shown, user) {
  const nobody = { users: [] };
  const near = await get("search/users", { q: user.slice(0, 3), n: 6 }).catch(() => nobody);
  const others = near.users.length ? near : await get("search/users", { n: 6 }).catch(() => nobody);
  const links = others.users.map((row) => h("li", {}, userLink(row.user)));
  if (!shown.isConnected) return; // the page shows another user by now
  main.replaceChildren(
    h("div", { className: "head" }, h("h1", {}, `No user ${user}`), pickUser()),
    empty(
      "There is no user with this id in the training data.",
      h("p", {}, near.users.length ? "Users with similar ids:" : "Try one of these:"),
      h("ul", { className: "chips" }, links),
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
    `New items by ${card.scores_are_counts ? "expected count" : "score"}. `,
    reasons && "Select one to see why.",
  );
  return [title, hint, rankedList({ items: found.items, reasons, add: card.can.recommend_for ? putIn : null, card })];
}

function tookCard(found, card) {
  const title = h(
    "h2",
    { id: "took-title" },
    card.can.exposures ? "History and exposure" : "History",
  );
  if (!found.items.length)
    return [title, empty("No history.", h("p", {}, "Without counts in the training data, recommendations come from the prior alone."))];
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
    : found.items[0].expected !== undefined &&
      h("p", { className: "hint" }, "On the line, counts are as high as the user’s tastes explain.");
  const chart =
    found.items[0].expected !== undefined &&
    h("div", { className: "chart", role: "img", "aria-label": "Chart of the history; the table below lists its values" });
  return [title, hint, chart, asTable(found, card, !chart)];
}

function asTable(found, card, open) {
  const columns = ["count", "expected", "exposure"].filter((name) => found.items[0][name] !== undefined);
  const cell = (row, name) =>
    h("td", {}, name === "exposure" ? `${number(row.exposure)} ± ${number(row.sd)}` : number(row[name]));
  const rows = found.items.slice(0, 200).map((row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, row.name),
      columns.map((name) => cell(row, name)),
    ),
  );
  const more =
    found.n_items > rows.length &&
    h("p", { className: "hint" }, `The ${rows.length} largest of ${count(found.n_items)} counts.`);
  return h(
    "details",
    { open },
    h("summary", {}, "Table"),
    more,
    h(
      "div",
      { className: "scroll", tabIndex: 0, role: "region", "aria-label": "History" },
      h(
        "table",
        { className: "numbers" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col" }, "item"),
            columns.map((name) => h("th", { scope: "col" }, name)),
          ),
        ),
        h("tbody", {}, rows),
      ),
    ),
  );
}

function plot(section, found, card) {
  const place = section.querySelector(".chart");
  if (!place) return;
  const shows = card.can.exposures ? "exposure" : "expected";
  const rows = found.items.filter((row) => row.count > 0 && row[shows] > 0);
  const x = rows.map((row) => row.count);
  const y = rows.map((row) => row[shows]);
  const [left, right] = [Math.min(...x) / 1.25, Math.max(...x, 2) * 1.25];
  const [low, high] = [Math.min(...y, 0.5) / 1.2, Math.max(...y, 2) * 1.25];
  const words = rows.map(
    (row) =>
      `<b>${escaped(row.name)}</b><br>count ${number(row.count)}, expected ${number(row.expected)}` +
      (row.exposure === undefined ? "" : `<br>exposure ${number(row.exposure)} ± ${number(row.sd)}`),
  );
  draw(place, ({ axis, layout }) => ({
    data: [
      {
        type: "scatter",
        mode: "markers",
        x: x.map(spread),
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
      xaxis: {
        ...axis,
        type: "log",
        title: { ...axis.title, text: "count" },
        range: [left, right].map(Math.log10),
        ...logTicks(left, right),
        fixedrange: true,
      },
      yaxis: {
        ...axis,
        type: "log",
        title: { ...axis.title, text: card.can.exposures ? "exposure" : "expected" },
        range: [low, high].map(Math.log10),
        ...logTicks(low, high),
        fixedrange: true,
      },
      shapes: [
        card.can.exposures
          ? {
              type: "line",
              xref: "paper",
              x0: 0,
              x1: 1,
              y0: 1,
              y1: 1,
              line: { color: colour("alarm"), width: 1.5, dash: "dash" },
            }
          : {
              type: "line",
              x0: left,
              x1: right,
              y0: left,
              y1: right,
              line: { color: colour("alarm"), width: 1.5, dash: "dash" },
            },
      ],
    },
  }));
}

/** Shift points a little sideways, always by the same amount, so that equal counts do not overlap. */
const spread = (value, n) => value * (1 + 0.09 * (((n * 0.618034) % 1) - 0.5));

const escaped = (text) => text.replace(/[&<>]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[letter]);
