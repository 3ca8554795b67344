// One item: how often it was taken and by whom, its factors, and similar items.

import { get } from "./api.js";
import { putIn } from "./basket.js";
import { drawSizes } from "./charts.js";
import { barList, empty, explained, factorLink, fill, h, itemLink, labels, number, percent, plural, say, userLink } from "./dom.js";
import { pickItem } from "./search.js";

export function showItem(main, card, [chosen]) {
  const item = chosen ?? String(card.example.item);
  const place = h("div", {});
  document.title = `Item ${item} · nbmf`;
  main.replaceChildren(place);
  const asked = get("item", { item, n: 12 });
  fill(place, asked, (found) => page(found, card), "Loading item …").then((found) => {
    if (!found || !place.isConnected) return;
    document.title = `${found.name} · nbmf`;
    say(found.name);
    const chart = place.querySelector(".chart");
    if (chart) drawSizes(chart, found.sizes, "users");
  });
  asked.catch((error) => error.status === 404 && place.isConnected && main.replaceChildren(...unknown(item)));
}

const unknown = (item) => [
  h("div", { className: "head" }, h("h1", {}, `No item ${item}`), pickItem()),
  empty("There is no item with this id in the training data.", h("p", {}, "Search for one by its name.")),
];

function page(found, card) {
  const each = found.n_users ? `, ${number(found.total / found.n_users)} per user` : "";
  const facts = `${plural(found.n_users, "user")}, total count ${number(found.total)}${each}`;
  const users = found.users.map(({ user, count }) => ({
    label: userLink(user),
    share: count / found.users[0].count,
    value: number(count),
  }));
  return [
    h(
      "div",
      { className: "head" },
      h(
        "div",
        {},
        h("h1", {}, found.name),
        h("p", { className: "facts" }, facts, card.has_names && h("small", {}, ` · id ${found.item}`)),
        h(
          "div",
          { className: "actions" },
          card.can.recommend_for && h("button", { onclick: () => putIn(found) }, "Add to basket"),
          card.can.map && h("a", { href: `#/map/item/${encodeURIComponent(found.item)}` }, "Show on map"),
        ),
      ),
      pickItem(),
    ),
    h(
      "div",
      { className: "pair" },
      h("div", { className: "stack" }, found.factors.length > 0 && factorsCard(found, card), alikeCard(found, card)),
      h(
        "section",
        { className: "card", "aria-labelledby": "takers-title" },
        h("h2", { id: "takers-title" }, "Who takes it"),
        found.n_users
          ? [
              h("p", { className: "hint" }, "How many of its users have which count:"),
              h("div", { className: "chart low", role: "img", "aria-label": "Histogram of the counts of this item" }),
              h("h3", {}, "Users with the largest counts"),
              barList(users),
            ]
          : empty("Nobody took this item."),
      ),
    ),
  ];
}

const factorsCard = (found, card) =>
  h(
    "section",
    { className: "card", "aria-labelledby": "factors-title" },
    h("h2", { id: "factors-title" }, "Factors it belongs to"),
    h("p", { className: "hint" }, `How much of its ${explained(card)} each factor explains.`),
    barList(found.factors.map((one) => ({ label: factorLink(one), share: one.share, value: percent(one.share) }))),
  );

const ALIKE = { Blend: "1 is what every model finds most similar, 0 what none does." };

function alikeCard(found, card) {
  if (!card.can.similar_items) return null;
  const place = h("div", {});
  fill(place, get("similar/items", { item: found.item, n: 10 }), ({ items }) =>
    barList(items.map((row, n) => ({ label: itemLink(row, labels(items)[n]), value: number(row.similarity) }))),
  );
  return h(
    "section",
    { className: "card", "aria-labelledby": "alike-title" },
    h("h2", { id: "alike-title" }, "Similar items"),
    h("p", { className: "hint" }, ALIKE[card.class] ?? (card.can.factors ? "1 is the same mix of factors, 0 nothing in common." : "By how strongly each predicts the other.")),
    place,
  );
}
