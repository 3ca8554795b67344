// The factors as cards, largest first, each with its typical items and users.

import { get } from "./api.js";
import { barList, dot, empty, explained, fault, fill, h, hue, itemLink, labels, percent, plural, rankName, say, showAll, userLink } from "./dom.js";

const SHOWN = 12; // factors before "show all"

export function showFactors(main, card, [chosen]) {
  document.title = "Factors · nbmf";
  const place = h("div", {});
  const facts = h("p", { className: "facts" });
  const filter = h("input", { id: "filter", type: "search", placeholder: "Part of an item's name" });
  main.replaceChildren(
    h(
      "div",
      { className: "head" },
      h("div", {}, h("h1", {}, "Factors"), facts),
      h("div", { className: "search" }, h("label", { htmlFor: "filter" }, "Find the factors of an item"), filter),
    ),
    place,
  );
  fill(place, get("factors"), (found) => listed(found, card, chosen), "Loading factors …").then((found) => {
    if (!found || !place.isConnected) return;
    const starts = card.class === "NBFISM" && card.settings.n_starts > 1 ? ` from the first of ${card.settings.n_starts} starts (the others are similar)` : "";
    facts.textContent = `${plural(found.n_factors, "factor")}${starts}, largest first, named after typical items. A bar shows how much of an item the factor explains.`;
    say(plural(found.n_factors, "factor"));
    const wanted = place.querySelector(".chosen");
    wanted?.scrollIntoView({ block: "center" });
    wanted?.focus();
    let asked = null;
    let timer = null;
    filter.addEventListener("input", () => {
      clearTimeout(timer);
      asked?.abort();
      asked = new AbortController();
      const { signal } = asked;
      timer = setTimeout(() => narrow(place, found, filter.value.trim(), { card, signal }), 120);
    });
  });
}

function listed(found, card, chosen) {
  if (!found.factors.length) return empty("The model has no factors.");
  const wide = matchMedia("(min-width: 561px)").matches;
  const cards = found.factors.map((factor) => factorCard(factor, card, { wide, isChosen: String(factor.factor) === chosen }));
  const isShown = (one, n) => n < SHOWN || found.factors[n].rank === null || one.classList.contains("chosen");
  const rest = cards.filter((one, n) => !isShown(one, n));
  for (const one of rest) one.hidden = true;
  return [
    h("ul", { className: "cards" }, cards),
    rest.length > 0 && showAll(rest, `Show all ${cards.filter((_, n) => found.factors[n].rank !== null).length} factors`),
  ];
}

function factorCard(factor, card, { wide, isChosen = false }) {
  const size = factor.share < 0.01 ? `${(100 * factor.share).toFixed(1)} %` : percent(factor.share);
  const called = labels(factor.items);
  const users = factor.users?.slice(0, 6).map((row, n) => [n ? ", " : "", userLink(row.user)]);
  return h(
    "li",
    { className: ["card factor", factor.rank === null && "common", isChosen && "chosen"].filter(Boolean).join(" "), id: `factor-${factor.factor}`, tabIndex: -1, style: { "--hue": String(hue(factor.rank)) } },
    h(
      "details",
      { open: wide || isChosen },
      h(
        "summary",
        {},
        h("h2", {}, dot(factor.rank), factor.name),
        h("p", { className: "more" }, rankName(factor.rank), factor.share !== undefined && ` · ${size} of ${explained(card)}`),
      ),
      factor.rank === null && h("p", { className: "hint" }, "The part of an item’s scores that depends on no user’s counts. Items that have most of it come first."),
      barList(factor.items.map((row, n) => ({ label: itemLink(row, called[n]), share: row.share, value: percent(row.share) }))),
      users?.length ? h("p", { className: "more" }, "Typical users: ", users) : null,
      h(
        "p",
        { className: "more" },
        factor.rank !== null && [h("a", { href: `#/map/${factor.factor}` }, "Show on map"), " · "],
        `component ${factor.factor} in Python`,
      ),
    ),
  );
}

/** Show only the factors of the items that are searched for, with those items. */
async function narrow(place, all, text, { card, signal }) {
  if (!text) return place.replaceChildren(...[listed(all, card)].flat().filter(Boolean));
  try {
    const found = await get("search/factors", { q: text }, signal);
    const sizes = new Map(all.factors.map((factor) => [factor.factor, factor.share]));
    const cards = found.factors.map((factor) => factorCard({ ...factor, share: sizes.get(factor.factor) }, card, { wide: true }));
    place.replaceChildren(cards.length ? h("ul", { className: "cards" }, cards) : empty(`No item is called “${text}”.`));
    return say(plural(cards.length, "factor"));
  } catch (error) {
    return error.name === "AbortError" ? null : place.replaceChildren(fault(error));
  }
}
