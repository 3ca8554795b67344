// Elements, formatted numbers, and the loading, empty and error states.

/** An element with properties (aria-* and data-* as attributes, on* as listeners) and children. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, part] of Object.entries(value)) element.style.setProperty(key, part);
    else if (name in element && !name.includes("-") && name !== "list" && name !== "role") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

const whole = new Intl.NumberFormat("en");

/** A whole number with separators. */
export const count = (value) => whole.format(Math.round(value));

/** A number with about three significant digits. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return whole.format(Math.round(value));
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 0.01 || value === 0) return value.toFixed(2);
  return size >= 1e-4 ? String(Number(value.toPrecision(2))) : value.toExponential(1);
}

export function percent(value) {
  if (value === null || value === undefined) return "–";
  if (value > 0 && value < 0.01) return "< 1 %";
  return value > 0.99 && value < 1 ? "> 99 %" : `${Math.round(100 * value)} %`;
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** Announce something to screen readers. */
export function say(text) {
  document.getElementById("spoken").textContent = text;
}

export const loading = (text = "Loading …", lines = 4) =>
  h(
    "div",
    { className: "state loading", "aria-busy": "true" },
    h("p", {}, text),
    Array.from({ length: lines }, (_, n) => h("div", { className: "bone", style: { width: `${92 - 13 * (n % 4)}%` } })),
  );

export const empty = (title, ...rest) =>
  h("div", { className: "state empty" }, h("p", { className: "lead" }, title), ...rest);

export const fault = (error, again) =>
  h(
    "div",
    { className: "state fault", role: "alert" },
    h("p", { className: "lead" }, "Something went wrong."),
    h("p", {}, error.message),
    again && h("button", { onclick: again }, "Try again"),
  );

/** Show the result of a promise in an element: first a loading state, then the result or the error. */
export async function fill(place, promise, show, text) {
  place.replaceChildren(loading(text));
  try {
    const found = await promise;
    place.replaceChildren(...[show(found)].flat(Infinity).filter(Boolean));
    return found;
  } catch (error) {
    if (error.name !== "AbortError") place.replaceChildren(fault(error));
    return null;
  }
}

export const userLink = (user, text = user) => h("a", { href: `#/user/${encodeURIComponent(user)}` }, `${text}`);

export const itemLink = ({ item, name }, text = name) => h("a", { href: `#/item/${encodeURIComponent(item)}` }, text);

/** The hue of a factor by its rank in size; neighbouring ranks have distant hues. */
export const hue = (rank) => (rank * 137.508 + 70) % 360;

export const dot = (rank) =>
  h("span", { className: rank === null ? "dot common" : "dot", style: { "--hue": String(hue(rank)) }, "aria-hidden": "true" });

/** The number of a factor by size; what an item has for everybody has none. */
export const rankName = (rank) => (rank === null ? "For every user alike" : `Factor ${rank + 1}`);

/** What factors explain parts of. */
export const explained = (card) => (card.scores_are_counts ? "expected counts" : "scores");

/** What scores are, by the form of the counts that the model predicts. */
export const scoreName = (card) => ({ counts: "expected count", log1p: "expected ln(1 + count)" })[card.target] ?? "score";

/** A factor by its colour and name, as a link to its card. */
export const factorLink = ({ factor, rank, name }) =>
  h("a", { className: "factor-link", href: `#/factors/${factor}`, title: rankName(rank) }, dot(rank), name);

/** A list with a bar behind each row, or none: {label, share, value}, a share of 1 being the whole width. */
export const barList = (rows) =>
  h(
    "ol",
    { className: "shares" },
    rows.map(({ label, share, value }) =>
      h(
        "li",
        {},
        h("span", { className: "share", style: { "--share": String(share ?? 0) }, "aria-hidden": "true" }),
        h("span", { className: "name" }, label),
        h("span", { className: "value" }, value),
      ),
    ),
  );

/** A table of numbers whose first column names the rows. A button shows those beyond `most`; `what` they are. */
export function numberTable(head, rows, most, what) {
  const line = ([name, ...cells], n) =>
    h(
      "tr",
      { hidden: n >= most },
      h("th", { scope: "row" }, name),
      cells.map((cell) => h("td", {}, cell)),
    );
  const body = h("tbody", {}, rows.map(line));
  const table = h(
    "table",
    { className: "numbers" },
    h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
    body,
  );
  return [table, rows.length > most && showAll([...body.rows].slice(most), `Show all ${count(rows.length)} ${what}`)];
}

/** A button that shows hidden elements and then leaves. */
export function showAll(elements, text) {
  const button = h("button", { className: "show-all" }, text);
  button.addEventListener("click", () => {
    for (const element of elements) element.hidden = false;
    button.remove();
  });
  return button;
}

/** Labels of items: their names, with ids where several items share a name. */
export function labels(rows) {
  const uses = new Map();
  for (const { name } of rows) uses.set(name, (uses.get(name) ?? 0) + 1);
  return rows.map(({ item, name }) => (uses.get(name) > 1 ? [name, h("small", {}, ` #${item}`)] : [name]));
}
