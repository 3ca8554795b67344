// One user: what they took, how exposed they were, and what they may like.

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
  fill(best, best20, (found) => bestCard(found, chosen, card), "Ranking the catalogue …");
  const taken = get("exposures", { user: chosen, n: SHOWN });
  fill(took, taken, (found) => tookCard(found, card), "Looking up what they took …").then((found) => {
    if (!found || !took.isConnected) return;
    facts.textContent = howMuch(found);
    if (card.can.recommend_for && found.n_items) {
      const begin = () => fillBasket(found.items, `user ${chosen}`);
      actions.append(h("button", { onclick: begin }, "What if they also liked …"));
    }
    if (card.can.similar_users) neighbours(actions, chosen);
    say(`User ${chosen}: ${facts.textContent}`);
    plot(took, found, card);
  });
  taken.catch((error) => error.status === 404 && took.isConnected && unknown(main, body, chosen));
}

function howMuch({ n_items: nItems, items }) {
  const times = plural(
    items.reduce((sum, row) => sum + row.count, 0),
    "time",
  );
  return `${plural(nItems, "item")} taken${nItems > items.length ? "" : `, ${times} in all`}`;
}

const pickUser = () =>
  searchField({
    label: "Find a user",
    placeholder: "An id, or part of one",
    find: async (text, signal) =>
      (await get("search/users", { q: text, n: 8 }, signal)).users.map((row) => ({
        title: String(row.user),
        detail: plural(row.n_items, "item"),
        value: row.user,
      })),
    choose: (user) => (location.hash = `#/user/${encodeURIComponent(user)}`),
  });

/** Somebody who is not in the model: say so, and offer those with an id like it. */
async function unknown(main, shown, user) {
  const nobody = { users: [] };
  const near = await get("search/users", { q: user.slice(0, 3), n: 6 }).catch(() => nobody);
  const others = near.users.length ? near : await get("search/users", { n: 6 }).catch(() => nobody);
  const links = others.users.map((row) => h("li", {}, userLink(row.user)));
  if (!shown.isConnected) return; // somebody else was asked for meanwhile
  main.replaceChildren(
    h("div", { className: "head" }, h("h1", {}, `No user ${user}`), pickUser()),
    empty(
      "Nobody of this id was in the data of the fit.",
      h("p", {}, near.users.length ? "These were, and are called much like it:" : "These were:"),
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
        "Much like: ",
        found.users.map((row, n) => [n ? ", " : "", userLink(row.user)]),
      ),
    );
}

function bestCard(found, user, card) {
  const title = h("h2", { id: "best-title" }, "What they may like");
  if (!found.items.length)
    return [title, empty("There is nothing left to recommend.", h("p", {}, "This user took every item."))];
  const reasons = card.can.explain ? (item) => get("explain", { user, item, n: 8 }) : null;
  const hint = h(
    "p",
    { className: "hint" },
    `Items not taken yet, by ${card.scores_are_counts ? "expected count" : "score"}. `,
    reasons && "Choose one to see why.",
  );
  return [title, hint, rankedList({ items: found.items, reasons, add: card.can.recommend_for ? putIn : null, card })];
}

function tookCard(found, card) {
  const title = h(
    "h2",
    { id: "took-title" },
    card.can.exposures ? "What they took, and how exposed they were" : "What they took",
  );
  if (!found.items.length)
    return [title, empty("Nothing was taken.", h("p", {}, "All that is known of this user is the prior."))];
  const hint = card.can.exposures
    ? h(
        "p",
        { className: "hint" },
        "Above the line they took more than their tastes explain: ",
        h("b", { className: "over" }, "over-exposed"),
        ". Below it, less: ",
        h("b", { className: "under" }, "under-exposed"),
        ".",
      )
    : found.items[0].expected !== undefined &&
      h("p", { className: "hint" }, "On the line they took as much as their tastes explain.");
  const chart =
    found.items[0].expected !== undefined &&
    h("div", { className: "chart", role: "img", "aria-label": "Chart; the table below has its numbers" });
  return [title, hint, chart, asTable(found, card, !chart)];
}

function asTable(found, card, open) {
  const columns = [
    ["count", "times"],
    ["expected", "expected"],
    ["exposure", "exposure"],
  ].filter(([name]) => found.items[0][name] !== undefined);
  const cell = (row, name) =>
    h("td", {}, name === "exposure" ? `${number(row.exposure)} ± ${number(row.sd)}` : number(row[name]));
  const rows = found.items.slice(0, 200).map((row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, row.name),
      columns.map(([name]) => cell(row, name)),
    ),
  );
  const more =
    found.n_items > rows.length &&
    h("p", { className: "hint" }, `The ${rows.length} most taken of ${count(found.n_items)}.`);
  return h(
    "details",
    { open },
    h("summary", {}, "As a table"),
    more,
    h(
      "div",
      { className: "scroll", tabIndex: 0, role: "region", "aria-label": "What they took" },
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
            columns.map(([, name]) => h("th", { scope: "col" }, name)),
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
      `<b>${escaped(row.name)}</b><br>taken ${number(row.count)} times, expected ${number(row.expected)}` +
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
        title: { ...axis.title, text: "times taken" },
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

/** Equal counts would lie on one another: move each a little, always the same way. */
const spread = (value, n) => value * (1 + 0.09 * (((n * 0.618034) % 1) - 0.5));

const escaped = (text) => text.replace(/[&<>]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[letter]);
