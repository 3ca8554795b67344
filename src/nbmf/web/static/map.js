// A map of all items on a canvas: named islands of factors, drag and zoom, names on hover, search, keyboard.

import { get } from "./api.js";
import { putIn } from "./basket.js";
import { count, dot, factorLink, fill, h, itemLink, percent, plural, say, showAll } from "./dom.js";
import { Islands } from "./islands.js";
import { pickItem } from "./search.js";

const LISTED = 10; // islands, or items of an island, in the panel

export function showMap(main, card, [first, second]) {
  document.title = "Map · nbmf";
  const place = h("div", {});
  const facts = h("p", { className: "facts" });
  const panel = h("aside", { className: "card item-card", "aria-live": "polite" });
  const head = h("div", { className: "head" }, h("div", {}, h("h1", {}, "Map of items"), facts));
  main.replaceChildren(head, place);
  fill(
    place,
    get("map"),
    (found) => {
      facts.textContent = summary(found);
      const canvas = h("canvas", {
        tabIndex: 0,
        role: "img",
        "aria-label": "Map of the items. Arrow keys move it, plus and minus zoom, and the search field finds an item.",
      });
      const tip = h("div", { className: "tip", hidden: true });
      const map = new Islands(found, canvas, tip, {
        item: (n) => tellItem(panel, found, n, card),
        island: (island) => tellIsland(panel, found, island, map),
        all: () => tellAll(panel, found, map),
      });
      const find = (id) => map.goTo(found.item.findIndex((item) => String(item) === String(id)));
      head.append(pickItem("Find an item", (row) => find(row.item)));
      const zoom = (by, text, label) => h("button", { "aria-label": label, onclick: () => map.zoom(by) }, text);
      const tools = h(
        "div",
        { className: "map-tools" },
        zoom(1.5, "+", "Zoom in"),
        zoom(1 / 1.5, "−", "Zoom out"),
        h("button", { onclick: () => map.reset() }, "Reset"),
      );
      queueMicrotask(() => {
        map.start();
        if (first === "item") find(second);
        else map.visit(found.islands.find((island) => String(island.factor) === first));
      });
      return h("div", { className: "map-pair" }, h("div", { className: "map" }, canvas, tip, tools), panel);
    },
    "Drawing the map …",
  );
}

function summary(found) {
  const lacking = found.n_factors - found.islands.length;
  return [
    `${plural(found.item.length, "item")} on ${plural(found.islands.length, "island")}`,
    found.item.length < found.n_items ? `, the most popular of ${count(found.n_items)}` : "",
    lacking
      ? `. ${lacking === 1 ? "One factor has" : `The other ${plural(lacking, "factor")} have`} no island: for every item, another factor is more distinctive.`
      : ", one for each factor.",
  ].join("");
}

/** Explain the map, and list its islands. */
function tellAll(panel, found, map) {
  panel.replaceChildren(
    h("h2", {}, "How to read it"),
    h(
      "p",
      { className: "hint" },
      "Each point is an item; the larger, the more users. It lies on the island of its most distinctive factor: " +
        "the closer to the middle, the more that factor explains of it, and on the side that faces its other factors. " +
        "Neighbouring islands have items in common.",
    ),
    h("h3", {}, "Islands and their numbers of items"),
    ...islandList(found, map),
  );
}

function islandList(found, map) {
  const rows = [...found.islands]
    .sort((a, b) => a.rank - b.rank)
    .map((island, n) =>
      h(
        "li",
        { hidden: n >= LISTED },
        h("button", { className: "quiet", title: island.name, onclick: () => map.visit(island) }, dot(island.rank), island.name),
        h("small", {}, count(island.n_items)),
      ),
    );
  const more = rows.length > LISTED ? showAll(rows.slice(LISTED), `Show all ${rows.length} islands`) : "";
  return [h("ul", { className: "islands" }, rows), more];
}

const back = (map) => h("button", { className: "quiet back", onclick: () => map.reset() }, "‹ All islands");

function tellIsland(panel, found, island, map) {
  const items = found.item.map((_, n) => n).filter((n) => found.factor[n] === island.factor);
  items.sort((a, b) => found.n_users[b] - found.n_users[a]);
  panel.replaceChildren(
    back(map),
    h("h2", {}, dot(island.rank), island.name),
    h("p", { className: "facts" }, `Factor ${island.rank + 1} · ${plural(island.n_items, "item")} · `, h("a", { href: `#/factors/${island.factor}` }, "details")),
    h("h3", {}, items.length > LISTED ? "Items with most users" : "Items"),
    h(
      "ul",
      { className: "islands" },
      items.slice(0, LISTED).map((n) =>
        h(
          "li",
          {},
          h("button", { className: "quiet", title: found.name[n], onclick: () => map.take(n) }, found.name[n]),
          h("small", {}, plural(found.n_users[n], "user")),
        ),
      ),
    ),
  );
  say(`${island.name}, ${plural(island.n_items, "item")}`);
}

async function tellItem(panel, found, n, card) {
  const [item, name] = [found.item[n], found.name[n]];
  const island = found.islands.find((one) => one.factor === found.factor[n]);
  const alike = h("div", {});
  panel.replaceChildren(
    h("h2", {}, itemLink({ item, name })),
    h("p", { className: "facts" }, plural(found.n_users[n], "user")),
    h("p", {}, factorLink(island), ` explains ${percent(found.share[n])} of it.`),
    alike,
    card.can.recommend_for ? h("button", { onclick: () => putIn({ item, name }) }, "Add to basket") : "",
  );
  say(name);
  if (!card.can.similar_items) return;
  const near = await get("similar/items", { item, n: 6 }).catch(() => null);
  if (near)
    alike.replaceChildren(
      h("h3", {}, "Similar items"),
      h(
        "ul",
        { className: "plain" },
        near.items.map((row) => h("li", {}, itemLink(row))),
      ),
    );
}

