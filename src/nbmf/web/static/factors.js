// The factors as cards, each with its typical items and users.

import { get } from "./api.js";
import { empty, fill, h, hue, labels, percent, plural, say, userLink } from "./dom.js";

export function showFactors(main, card, [chosen]) {
  document.title = "Factors · nbmf";
  const place = h("div", {});
  const facts = h("p", { className: "facts" });
  const filter = h("input", {
    id: "filter",
    type: "search",
    placeholder: "Part of an item's name",
    oninput: () => narrow(place, filter.value),
  });
  main.replaceChildren(
    h(
      "div",
      { className: "head" },
      h("div", {}, h("h1", {}, "Factors"), facts),
      h("div", { className: "search" }, h("label", { htmlFor: "filter" }, "Filter by item"), filter),
    ),
    place,
  );
  fill(
    place,
    get("factors"),
    (found) => {
      facts.textContent = `${plural(found.n_factors, "factor")}, largest first. Each bar is the share of the factor in the item.`;
      if (!found.factors.length) return empty("The model has no factors.");
      return h(
        "ul",
        { className: "cards" },
        found.factors.map(factorCard),
        h("li", { className: "nothing", hidden: true }, empty("No factor lists such an item.")),
      );
    },
    "Loading factors …",
  ).then((found) => {
    if (!found) return;
    say(plural(found.n_factors, "factor"));
    const card = chosen !== undefined && document.getElementById(`factor-${chosen}`);
    if (card) {
      card.scrollIntoView({ block: "center" });
      card.classList.add("chosen");
      card.focus();
    }
  });
}

function factorCard(factor) {
  const colour = { "--hue": String(hue(factor.rank)) };
  const called = labels(factor.items);
  const items = factor.items.map((row, n) =>
    h(
      "li",
      {},
      h("span", { className: "share", style: { width: `${100 * row.share}%` }, "aria-hidden": "true" }),
      h("span", { className: "name" }, called[n]),
      h("span", { className: "value" }, percent(row.share)),
    ),
  );
  const users = factor.users.slice(0, 6).map((row, n) => [n ? ", " : "", userLink(row.user)]);
  return h(
    "li",
    {
      className: "card factor",
      id: `factor-${factor.factor}`,
      style: colour,
      tabIndex: -1,
      "data-names": factor.items.map((row) => row.name.toLowerCase()).join("\n"),
    },
    h(
      "h2",
      {},
      h("span", { className: "dot", "aria-hidden": "true" }),
      `Factor ${factor.factor + 1}`,
      h(
        "small",
        {},
        `${factor.share < 0.01 ? `${(100 * factor.share).toFixed(1)} %` : percent(factor.share)} of expected counts`,
      ),
    ),
    h("ol", { className: "shares" }, items),
    users.length ? h("p", { className: "more" }, "Typical users: ", users) : null,
    h("p", { className: "more" }, h("a", { href: `#/map/${factor.factor}` }, "Show on map")),
  );
}

function narrow(place, text) {
  const wanted = text.trim().toLowerCase();
  let n = 0;
  for (const card of place.querySelectorAll(".factor")) {
    card.hidden = !card.dataset.names.includes(wanted);
    n += card.hidden ? 0 : 1;
  }
  const nothing = place.querySelector(".nothing");
  if (nothing) nothing.hidden = n > 0;
  say(plural(n, "factor"));
}
