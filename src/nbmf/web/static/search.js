// A search field with suggestions: a combobox with a list box, as WAI-ARIA describes it.

import { get } from "./api.js";
import { h, itemLink, plural, say, userLink } from "./dom.js";

let made = 0;

/**
 * @param label visible label of the field
 * @param find (text, signal) → promise of entries {title, detail, value}
 * @param choose called with the value of the selected entry
 */
export function searchField({ label, placeholder, find, choose, keep = false }) {
  made += 1;
  const id = `search-${made}`;
  const list = h("ul", { id: `${id}-list`, className: "options", role: "listbox", "aria-label": label, hidden: true });
  const input = h("input", {
    id,
    type: "search",
    placeholder,
    autocomplete: "off",
    spellcheck: false,
    role: "combobox",
    "aria-expanded": "false",
    "aria-controls": `${id}-list`,
    "aria-autocomplete": "list",
  });
  let entries = [];
  let active = -1;
  let asked = null;
  let timer = null;

  const close = () => {
    clearTimeout(timer); // a late answer must not open the list again
    asked?.abort();
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const activate = (place) => {
    active = place;
    [...list.children].forEach((option, n) => option.setAttribute("aria-selected", String(n === place)));
    const option = list.children[place];
    if (!option) return;
    input.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  };
  const take = (place) => {
    const entry = entries[place];
    if (!entry) return;
    input.value = keep ? entry.title : "";
    close();
    choose(entry.value, entry);
  };
  const show = () => {
    list.replaceChildren(
      ...entries.map((entry, n) =>
        h(
          "li",
          {
            id: `${id}-${n}`,
            role: "option",
            "aria-selected": "false",
            onpointerdown: (event) => event.preventDefault(),
            onclick: () => take(n),
            onpointermove: () => active !== n && activate(n),
          },
          h("span", { className: "title" }, entry.title),
          entry.detail && h("span", { className: "detail" }, entry.detail),
        ),
      ),
    );
    if (!entries.length)
      list.replaceChildren(h("li", { className: "none", role: "presentation" }, `No match for “${input.value}”.`));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    say(entries.length ? `${entries.length} results` : "No results");
  };
  const look = async () => {
    asked?.abort();
    const { signal } = (asked = new AbortController());
    try {
      const found = await find(input.value.trim(), signal);
      if (signal.aborted) return;
      entries = found;
      active = -1;
      show();
    } catch (error) {
      if (error.name === "AbortError") return;
      list.replaceChildren(h("li", { className: "none", role: "presentation" }, error.message));
      list.hidden = false;
    }
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, 120);
  });
  input.addEventListener("focus", look);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", async (event) => {
    const last = entries.length - 1;
    const moves = { ArrowDown: active < last ? active + 1 : 0, ArrowUp: active > 0 ? active - 1 : last };
    if (event.key in moves && entries.length) {
      event.preventDefault();
      if (list.hidden) show();
      activate(moves[event.key]);
    } else if (event.key === "Enter") {
      event.preventDefault();
      clearTimeout(timer);
      if (active < 0) await look();
      take(Math.max(active, 0));
    } else if (event.key === "Escape") {
      if (list.hidden) input.value = "";
      close();
    }
  });
  return h(
    "div",
    { className: "search" },
    h("label", { htmlFor: id }, label),
    h("div", { className: "field" }, input, list),
  );
}

/** A search field for users, which opens the user's page. */
export const pickUser = () =>
  searchField({
    label: "Find a user",
    placeholder: "User id, or part of it",
    find: async (text, signal) =>
      (await get("search/users", { q: text, n: 8 }, signal)).users.map((row) => ({
        title: String(row.user),
        detail: plural(row.n_items, "item"),
        value: row.user,
      })),
    choose: (user) => (location.hash = userLink(user).hash),
  });

/** A search field for items; by default it opens the item's page. */
export const pickItem = (label = "Find an item", choose = (row) => (location.hash = itemLink(row).hash)) =>
  searchField({
    label,
    placeholder: "Part of a name",
    find: async (text, signal) =>
      (await get("search/items", { q: text, n: 8 }, signal)).items.map((row) => ({
        title: row.name,
        detail: plural(row.n_users, "user"),
        value: row,
      })),
    choose,
  });
