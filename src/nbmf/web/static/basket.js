// A basket of items with counts, and the recommendations for it.

import { get, post } from "./api.js";
import { empty, fault, h, labels, loading, number, plural, say } from "./dom.js";
import { rankedList } from "./ranked.js";
import { searchField } from "./search.js";

const KEPT = "nbmf-basket";
const MOST = 1000;

let basket = null; // {from, items: [{item, name, count}]}

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

function keep() {
  sessionStorage.setItem(KEPT, JSON.stringify(basket));
}

/** Add one to the count of an item; a new item goes to the top. */
function add({ item, name }) {
  const row = load().items.find((other) => other.item === item);
  if (row) row.count += 1;
  else basket.items = [{ item, name, count: 1 }, ...basket.items].slice(0, MOST);
  keep();
  say(`Added ${name} to the basket`);
}

/** Add an item from another view, and go to the basket. */
export function putIn(row) {
  add(row);
  location.hash = "#/basket";
}

/** Start from the items of a user. */
export function fillBasket(items, from) {
  basket = { from, items: items.slice(0, MOST).map(({ item, name, count }) => ({ item, name, count })) };
  keep();
  location.hash = "#/basket";
}

export function showBasket(main, card) {
  load();
  document.title = "Basket · nbmf";
  const rows = h("ul", { className: "basket" });
  const best = h("div", { className: "live" });
  const facts = h("p", { className: "facts" });
  const clear = h("button", { onclick: () => change(() => (basket = { from: null, items: [] })) }, "Empty basket");
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
    clear.hidden = !basket.items.length;
    if (!basket.items.length) return suggest();
    const called = labels(basket.items);
    rows.replaceChildren(...basket.items.map((row, n) => line(row, called[n], change)));
    return null;
  };

  const suggest = async () => {
    rows.replaceChildren(
      h(
        "li",
        {},
        empty(
          "The basket is empty.",
          h("p", {}, "Search for an item, or start with one of these:"),
          h("ul", { className: "chips" }),
        ),
      ),
    );
    const found = await get("search/items", { n: 8 }).catch(() => ({ items: [] }));
    const chips = rows.querySelector(".chips");
    chips?.replaceChildren(
      ...found.items.map((row) => h("li", {}, h("button", { onclick: () => change(() => add(row)) }, row.name))),
    );
  };

  const rank = async () => {
    asked?.abort();
    asked = new AbortController();
    const given = basket.items.map(({ item, count }) => ({ item, count }));
    if (!best.childElementCount) best.replaceChildren(loading("Ranking items …"));
    best.setAttribute("aria-busy", "true");
    try {
      const found = await post("recommend", { items: given, n: 20, level: 0.9 }, asked.signal);
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

  const pick = searchField({
    label: "Add an item",
    placeholder: "Part of a name",
    find: async (text, signal) =>
      (await get("search/items", { q: text, n: 8 }, signal)).items.map((row) => ({
        title: row.name,
        detail: `${plural(row.n_users, "user")} · ${row.item}`,
        value: row,
      })),
    choose: (row) => change(() => add(row)),
  });
  main.replaceChildren(
    h("div", { className: "head" }, h("div", {}, h("h1", {}, "Build a basket"), facts), pick),
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
        h("h2", { id: "live-title" }, "Recommended items"),
        h("p", { className: "hint" }, "Updated whenever the basket changes; arrows show what moved."),
        best,
      ),
    ),
  );
  list();
  rank();
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
    h("span", { className: "name" }, called),
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
