// A map of all items on a canvas: islands of factors, drag and zoom, names on hover, search, keyboard.

import { get } from "./api.js";
import { putIn } from "./basket.js";
import { colour } from "./charts.js";
import { count, fill, h, hue, percent, plural, say } from "./dom.js";
import { searchField } from "./search.js";

export function showMap(main, card, [factor]) {
  document.title = "Map · nbmf";
  const place = h("div", {});
  const facts = h("p", { className: "facts" });
  const about = h(
    "aside",
    { className: "card item-card", "aria-live": "polite" },
    h(
      "p",
      { className: "hint" },
      "Each point is an item; larger points have more users. Each island is a factor. Select a point for details.",
    ),
  );
  const head = h("div", { className: "head" }, h("div", {}, h("h1", {}, "Map of items"), facts));
  main.replaceChildren(head, place);
  fill(
    place,
    get("map"),
    (found) => {
      facts.textContent =
        `${plural(found.item.length, "item")} on ${plural(found.islands.length, "island")}` +
        (found.item.length < found.n_items ? `, the most popular of ${count(found.n_items)}` : "");
      const canvas = h("canvas", {
        tabIndex: 0,
        role: "img",
        "aria-label": "Map of the items. Arrow keys move it, plus and minus zoom, and the search field finds an item.",
      });
      const tip = h("div", { className: "tip", hidden: true });
      const map = new Chart(found, canvas, tip, (n) => tell(about, found, n, card));
      head.append(
        searchField({
          label: "Find an item",
          placeholder: "Part of a name",
          find: async (text, signal) =>
            (await get("search/items", { q: text, n: 8 }, signal)).items.map((row) => ({
              title: row.name,
              detail: plural(row.n_users, "user"),
              value: row.item,
            })),
          choose: (item) => map.goTo(found.item.indexOf(item)),
        }),
      );
      const zoom = (by, text, label) => h("button", { "aria-label": label, onclick: () => map.zoom(by) }, text);
      const tools = h(
        "div",
        { className: "map-tools" },
        zoom(1.5, "+", "Zoom in"),
        zoom(1 / 1.5, "−", "Zoom out"),
        h("button", { onclick: () => map.whole() }, "Reset"),
      );
      queueMicrotask(() => map.start(factor === undefined ? null : Number(factor)));
      return h("div", { className: "map-pair" }, h("div", { className: "map" }, canvas, tip, tools), about);
    },
    "Drawing the map …",
  );
}

const hues = (found) => new Map(found.islands.map((island) => [island.factor, hue(island.rank)]));

async function tell(about, found, n, card) {
  const [item, name, factor] = [found.item[n], found.name[n], found.factor[n]];
  const alike = h("div", {});
  about.replaceChildren(
    h("h2", {}, name),
    h("p", { className: "facts" }, plural(found.n_users[n], "user")),
    h(
      "p",
      {},
      h("span", { className: "dot", style: { "--hue": String(hues(found).get(factor)) }, "aria-hidden": "true" }),
      h("a", { href: `#/factors/${factor}` }, `Factor ${factor + 1}`),
      ` explains ${percent(found.share[n])} of this item.`,
    ),
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
        near.items.map((row) => h("li", {}, row.name)),
      ),
    );
}

class Chart {
  constructor(found, canvas, tip, choose) {
    Object.assign(this, { found, canvas, tip, choose, chosen: -1, over: -1, scale: 1, x: 0, y: 0 });
    const most = Math.max(...found.n_users, 1);
    this.hues = hues(found);
    this.radius = found.n_users.map((n) => 0.2 + 0.65 * Math.sqrt(n / most));
    this.listen();
  }

  start(factor) {
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.resize();
    const island = this.found.islands.find((other) => other.factor === factor);
    if (island)
      this.show(
        island.x - island.radius - 4,
        island.y - island.radius - 4,
        island.x + island.radius + 4,
        island.y + island.radius + 4,
      );
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || (this.width === width && this.height === height)) return;
    const ratio = window.devicePixelRatio || 1;
    Object.assign(this, { width, height, ratio });
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    this.whole();
  }

  whole() {
    const edges = this.found.islands.map((one) => [
      one.x - one.radius,
      one.y - one.radius,
      one.x + one.radius,
      one.y + one.radius,
    ]);
    const side = (n, pick) => pick(...edges.map((edge) => edge[n]));
    this.show(side(0, Math.min), side(1, Math.min), side(2, Math.max), side(3, Math.max));
  }

  /** Fit a rectangle of the map into the view. */
  show(left, top, right, bottom) {
    this.scale = 0.94 * Math.min(this.width / (right - left), this.height / (bottom - top));
    this.x = this.width / 2 - (this.scale * (left + right)) / 2;
    this.y = this.height / 2 - (this.scale * (top + bottom)) / 2;
    this.draw();
  }

  zoom(by, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(Math.max(this.scale * by, 0.5), 80);
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.draw();
  }

  goTo(n) {
    if (n < 0) return say("This item is not on the map");
    const [x, y] = [this.found.x[n], this.found.y[n]];
    const around = Math.min(12, Math.max(...this.found.islands.map((island) => island.radius)));
    this.show(x - around, y - around, x + around, y + around);
    return this.take(n);
  }

  take(n) {
    this.chosen = n;
    this.draw();
    this.choose(n);
  }

  /** The item under a point of the canvas, or −1. */
  at(px, py) {
    const [x, y] = [(px - this.x) / this.scale, (py - this.y) / this.scale];
    const reach = Math.max(0.6, 9 / this.scale);
    let [best, least] = [-1, reach * reach];
    for (let n = 0; n < this.found.x.length; n += 1) {
      const distance = (this.found.x[n] - x) ** 2 + (this.found.y[n] - y) ** 2;
      if (distance < least) [best, least] = [n, distance];
    }
    return best;
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const at = (x, y) => [this.x + this.scale * x, this.y + this.scale * y];
    for (const island of this.found.islands) {
      pen.beginPath();
      pen.arc(...at(island.x, island.y), (island.radius + 0.9) * this.scale, 0, 2 * Math.PI);
      pen.fillStyle = `hsl(${hue(island.rank)} ${dark ? "35% 50% / 0.13" : "60% 50% / 0.09"})`;
      pen.fill();
    }
    const paints = new Map();
    for (let n = 0; n < this.found.x.length; n += 1) {
      const [px, py] = at(this.found.x[n], this.found.y[n]);
      if (px < -20 || py < -20 || px > this.width + 20 || py > this.height + 20) continue;
      const factor = this.found.factor[n];
      if (!paints.has(factor)) paints.set(factor, `hsl(${this.hues.get(factor)} ${dark ? "65% 68%" : "55% 42%"})`);
      pen.fillStyle = paints.get(factor);
      pen.globalAlpha = 0.35 + 0.6 * this.found.share[n];
      pen.beginPath();
      pen.arc(px, py, Math.max(1, this.radius[n] * this.scale), 0, 2 * Math.PI);
      pen.fill();
    }
    pen.globalAlpha = 1;
    this.names(pen, at, dark);
    for (const [n, width] of [
      [this.over, 1.5],
      [this.chosen, 2.5],
    ]) {
      if (n < 0) continue;
      pen.beginPath();
      pen.arc(...at(this.found.x[n], this.found.y[n]), Math.max(4, this.radius[n] * this.scale + 2), 0, 2 * Math.PI);
      Object.assign(pen, { lineWidth: width, strokeStyle: colour("ink") });
      pen.stroke();
    }
  }

  /** Draw the names of the most popular items, as many as there is room for. */
  names(pen, at, dark) {
    this.order ??= this.found.n_users.map((_, n) => n).sort((a, b) => this.found.n_users[b] - this.found.n_users[a]);
    const taken = [[this.width - 160, 0, this.width, 54]]; // the buttons
    const said = new Set();
    Object.assign(pen, { font: "500 12px system-ui, sans-serif", textBaseline: "middle", lineJoin: "round" });
    for (const n of this.order) {
      if (taken.length >= Math.max(12, this.width / 26)) break;
      const [x, y] = at(this.found.x[n], this.found.y[n]);
      if (said.has(this.found.name[n]) || x < 0 || y < 8 || x > this.width - 40 || y > this.height - 8) continue;
      const text = this.found.name[n].length > 26 ? `${this.found.name[n].slice(0, 25)}…` : this.found.name[n];
      const left = x + Math.max(4, this.radius[n] * this.scale) + 4;
      const box = [left - 2, y - 9, left + 2 + pen.measureText(text).width, y + 9];
      if (
        box[2] > this.width ||
        taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1])
      )
        continue;
      taken.push(box);
      said.add(this.found.name[n]);
      Object.assign(pen, {
        lineWidth: 3,
        strokeStyle: dark ? "rgb(18 22 28 / 0.85)" : "rgb(255 255 255 / 0.85)",
        fillStyle: colour("ink"),
      });
      pen.strokeText(text, left, y);
      pen.fillText(text, left, y);
    }
  }

  listen() {
    const { canvas } = this;
    const held = new Map(); // pointer id → position
    let moved = 0;
    const where = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      held.set(event.pointerId, where(event));
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = where(event);
      const before = held.get(event.pointerId);
      if (!before) return this.point(x, y);
      const others = [...held].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
      moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
      if (others.length) {
        const far = (from) => Math.hypot(from[0] - others[0][0], from[1] - others[0][1]);
        this.zoom(far([x, y]) / Math.max(far(before), 1), ...others[0]);
      } else {
        this.x += x - before[0];
        this.y += y - before[1];
        this.draw();
      }
      held.set(event.pointerId, [x, y]);
      return null;
    });
    const release = (event) => {
      if (!held.delete(event.pointerId) || moved > 6 || event.type === "pointercancel") return;
      const n = this.at(...where(event));
      if (n >= 0) this.take(n);
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => this.point(-1e9, 0));
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY / 500), ...where(event));
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
      if (event.key in steps) {
        this.x += steps[event.key][0];
        this.y += steps[event.key][1];
        this.draw();
      } else if (event.key === "+" || event.key === "=") this.zoom(1.4);
      else if (event.key === "-") this.zoom(1 / 1.4);
      else if (event.key === "0") this.whole();
      else if (event.key === "Enter") this.take(Math.max(this.at(this.width / 2, this.height / 2), 0));
      else return;
      event.preventDefault();
    });
  }

  /** Show the name of the item under the pointer. */
  point(x, y) {
    const n = this.at(x, y);
    if (n !== this.over) {
      this.over = n;
      this.canvas.style.cursor = n < 0 ? "grab" : "pointer";
      this.draw();
    }
    this.tip.hidden = n < 0;
    if (n < 0) return;
    this.tip.textContent = `${this.found.name[n]} · ${plural(this.found.n_users[n], "user")}`;
    const left = Math.min(x + 14, this.width - this.tip.offsetWidth - 6);
    Object.assign(this.tip.style, {
      left: `${Math.max(4, left)}px`,
      top: `${y > this.height - 50 ? y - 40 : y + 16}px`,
    });
  }
}
