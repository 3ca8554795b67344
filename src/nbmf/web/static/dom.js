// Elements, numbers in words, and what is shown while there is nothing to show.

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

/** A number with about three digits. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return whole.format(Math.round(value));
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 0.01 || value === 0) return value.toFixed(2);
  return value.toExponential(1);
}

export function percent(value) {
  if (value === null || value === undefined) return "–";
  if (value > 0 && value < 0.01) return "< 1 %";
  return value > 0.99 && value < 1 ? "> 99 %" : `${Math.round(100 * value)} %`;
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** Say something to those who listen to the page instead of seeing it. */
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
    h("p", { className: "lead" }, "That did not work."),
    h("p", {}, error.message),
    again && h("button", { onclick: again }, "Try again"),
  );

/** Put what a promise brings into a place: first that it is loading, then the result or the fault. */
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

/** A colour for a factor by its rank in size: those next to each other are far apart in hue. */
export const hue = (rank) => (rank * 137.508 + 70) % 360;

/** What to call each of some items: where several have one name, with their ids. */
export function labels(rows) {
  const uses = new Map();
  for (const { name } of rows) uses.set(name, (uses.get(name) ?? 0) + 1);
  return rows.map(({ item, name }) => (uses.get(name) > 1 ? [name, h("small", {}, ` #${item}`)] : [name]));
}
