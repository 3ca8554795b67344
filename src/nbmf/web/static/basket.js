// A basket of items with counts, and the recommendations for it. The address holds the basket: #/basket/ITEM=COUNT/…

import { get, post } from "./api.js";
import { empty, fault, h, itemLink, labels, loading, number, plural, say } from "./dom.js";
import { rankedList } from "./ranked.js";
import { pickItem } from "./search.js";

const KEPT = "nbmf-basket";
const MOST = 1000;

let basket = null; // {from, items: [{item, name, count}]}
let order = "score";

function load() {
  if (basket) return basket;
  try {
    basket = JSON.parse(sessionStorage.getItem(KEPT));
  } catch {
    basket = null;
  }
  basket ??= { from: null, items: [] };
  return basket;
}

const keep = () => sessionStorage.setItem(KEPT, JSON.stringify(basket));

const address = () =>
  ["#/basket", ...basket.items.map(({ item, count }) => `${encodeURIComponent(item)}=${count}`)].join("/");

/** Take over the basket of an address, unless it is the one that is here. */
function read(given) {
  const items = given.slice(0, MOST).map((text) => {
    const [, item, count] = text.match(/^(.+)=(\d+(?:\.\d+)?)$/s) ?? [null, text, 1];
    return { item, name: item, count: Number(count) };
  });
  const same = (row, n) => String(load().items[n]?.item) === row.item && basket.items[n].count === row.count;
  if (items.length !== load().items.length || !items.every(same)) basket = { from: null, items };
}

/** Add one to the count of an item; a new item goes to the top. */
function add({ item, name }) {
  const row = load().items.find((other) => String(other.item) === String(item));
  if (row) row.count += 1;
  else basket.items = [{ item, name, count: 1 }, ...basket.items].slice(0, MOST);
  keep();
  say(`Added ${name} to the basket`);
}

/** Add an item from another view, and go to the basket. */
export function putIn(row) {
  add(row);
  location.hash = address();
}

/** Start from the items of a user. */
export function fillBasket(items, from) {
  basket = { from, items: items.slice(0, MOST).map(({ item, name, count }) => ({ item, name, count })) };
  keep();
  location.hash = address();
}

export function showBasket(main, card, given) {
  load();
  if (given.length) read(given);
  document.title = "Basket · nbmf";
  const rows = h("ul", { className: "basket" });
  const best = h("div", { className: "live" });
  const facts = h("p", { className: "facts" });
  const hint = h("p", { className: "hint" });
  const clear = h("button", { className: "quiet", onclick: () => change(() => (basket = { from: null, items: [] })) }, "Empty basket");
  let asked = null;
  let timer = null;
  let before = new Map(); // the rank of each item in the last answer

  const change = (how) => {
    const used = document.activeElement?.getAttribute("aria-label");
    how();
    keep();
    list();
    // the list is new: keep the keyboard focus where it was
    if (used) [...rows.querySelectorAll("[aria-label]")].find((other) => other.ariaLabel === used)?.focus();
    clearTimeout(timer);
    timer = setTimeout(rank, 80);
  };

  const list = () => {
    const total = basket.items.reduce((sum, row) => sum + row.count, 0);
    facts.textContent = basket.items.length
      ? `${plural(basket.items.length, "item")}, total count ${number(total)}${basket.from ? `, started from ${basket.from}` : ""}`
      : "Add items and their counts.";
    hint.textContent = aboutCounts(total, card);
    clear.hidden = !basket.items.length;
    history.replaceState(null, "", address());
    if (!basket.items.length) return suggest();
    const called = labels(basket.items);
    rows.replaceChildren(...basket.items.map((row, n) => line(row, called[n], change)));
    return null;
  };

  const suggest = async () => {
    rows.replaceChildren(h("li", {}, empty("The basket is empty.", h("p", {}, "Search for an item to add it."))));
    const found = await get("search/items", { n: 8 }).catch(() => ({ items: [] }));
    if (!found.items.length || basket.items.length) return;
    const chips = found.items.map((row) => h("li", {}, h("button", { onclick: () => change(() => add(row)) }, row.name)));
    rows.querySelector("p:last-child").replaceWith(
      h("p", {}, "Search for an item, or start with one of these:"),
      h("ul", { className: "chips" }, chips),
    );
  };

  const rank = async () => {
    asked?.abort();
    asked = new AbortController();
    const given = basket.items.map(({ item, count }) => ({ item, count }));
    if (!best.childElementCount) best.replaceChildren(loading("Ranking items …"));
    best.setAttribute("aria-busy", "true");
    try {
      const found = await post("recommend", { items: given, n: 20, level: 0.9, order }, asked.signal);
      if (found.basket?.some((row, n) => basket.items[n].name !== row.name)) {
        // an address has ids and no names
        found.basket.forEach((row, n) => Object.assign(basket.items[n], row));
        list();
      }
      const reasons = card.can.explain_for ? (item) => post("explain", { items: given, item, n: 8 }) : null;
      const open = [...best.querySelectorAll("li:has([aria-expanded=true])")].map((row) => row.dataset.item);
      best.replaceChildren(rankedList({ items: found.items, reasons, add: (row) => change(() => add(row)), card }));
      for (const row of best.querySelectorAll("li"))
        if (open.includes(row.dataset.item)) row.querySelector("button").click();
      const places = new Map(found.items.map((row, n) => [String(row.item), n]));
      if (before.size) mark(best, before, places);
      before = places;
      say(`Top item: ${found.items[0]?.name ?? "none"}`);
    } catch (error) {
      if (error.name === "AbortError") return;
      best.replaceChildren(fault(error, rank));
    }
    best.removeAttribute("aria-busy");
  };

  main.replaceChildren(
    h("div", { className: "head" }, h("div", {}, h("h1", {}, "Build a basket"), facts), pickItem("Add an item", (row) => change(() => add(row)))),
    h(
      "div",
      { className: "pair" },
      h(
        "section",
        { className: "card", "aria-labelledby": "basket-title" },
        h("div", { className: "title-row" }, h("h2", { id: "basket-title" }, "Basket"), clear),
        rows,
      ),
      h(
        "section",
        { className: "card", "aria-labelledby": "live-title" },
        h("div", { className: "title-row" }, h("h2", { id: "live-title" }, "Recommended items"), card.scores_are_counts && orders(rank)),
        hint,
        best,
      ),
    ),
  );
  list();
  rank();
}

/** Buttons that choose the order of the list. */
function orders(rank) {
  const button = (value, text, title) =>
    h("button", { value, title, "aria-pressed": String(order === value), onclick: () => choose(value) }, text);
  const group = h(
    "div",
    { className: "switch", role: "group", "aria-label": "Rank by" },
    button("score", "Expected count", "Rank by expected count"),
    button("lift", "Lift", "Rank by the share of an item in the expected counts, relative to its share in the training counts"),
  );
  const choose = (value) => {
    order = value;
    for (const other of group.children) other.setAttribute("aria-pressed", String(other.value === order));
    rank();
  };
  return group;
}

/** Why the expected counts of a small basket are small. */
function aboutCounts(total, card) {
  if (card.target === "log1p") return "Scores are expected ln(1 + count). Updated with every change; arrows show what moved.";
  if (!card.scores_are_counts || !total || total >= card.median_total / 2) return "Updated with every change; arrows show what moved.";
  return (
    `The model takes the basket for all that a user has in the whole period of the data. The median user there has a ` +
    `total of ${number(card.median_total)}, this one ${number(total)}, so expected counts are small. Lift compares the shares of the items in them with those in all counts.`
  );
}

function line(row, called, change) {
  const set = (value) => change(() => (row.count = Math.min(1e9, Math.max(0, value))));
  const step = (by, name) =>
    h(
      "button",
      {
        className: "step",
        "aria-label": `${name} ${row.name}`,
        onclick: () => set(row.count + by),
        disabled: row.count + by < 1,
      },
      by > 0 ? "+" : "−",
    );
  return h(
    "li",
    { "data-item": row.item },
    h("span", { className: "name" }, itemLink(row, called)),
    h(
      "span",
      { className: "amount" },
      step(-1, "Remove one"),
      h("input", {
        type: "number",
        min: 0,
        step: 1,
        value: row.count,
        inputMode: "numeric",
        "aria-label": `Count of ${row.name}`,
        onchange: (event) => set(Number(event.target.value) || 0),
      }),
      step(1, "Add one"),
      h(
        "button",
        {
          className: "step",
          "aria-label": `Remove ${row.name}`,
          onclick: () => change(() => basket.items.splice(basket.items.indexOf(row), 1)),
        },
        "×",
      ),
    ),
  );
}

/** Show beside each item how far it has moved since the last answer. */
function mark(place, before, places) {
  for (const row of place.querySelectorAll("li[data-item]")) {
    const up = (before.get(row.dataset.item) ?? Infinity) - places.get(row.dataset.item);
    if (up === 0) continue;
    const text = up === Infinity ? "new" : up > 0 ? `↑ ${number(up)}` : `↓ ${number(-up)}`;
    row.querySelector(".name").append(h("span", { className: `moved ${up > 0 ? "up" : "down"}` }, text));
  }
}
