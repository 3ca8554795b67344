// The map on a canvas: islands of points with names, drag, zoom, hover and keyboard.

import { colour, placeLabels, short, textWidth, touches } from "./charts.js";
import { hue, plural, say } from "./dom.js";

const ITEM_SCALE = 16; // pixels between items from which their names are shown

/** @param tell functions for what was chosen: an item, an island, or all of the map again */
export class Islands {
  constructor(found, canvas, tip, tell) {
    Object.assign(this, { found, canvas, tip, tell, chosen: -1, over: -1, scale: 1, x: 0, y: 0 });
    const most = Math.max(...found.n_users, 1);
    this.hues = new Map(found.islands.map((island) => [island.factor, hue(island.rank)]));
    this.radius = found.n_users.map((n) => 0.14 + 0.36 * Math.sqrt(n / most));
    this.order = found.n_users.map((_, n) => n).sort((a, b) => found.n_users[b] - found.n_users[a]);
    this.islands = [...found.islands].sort((a, b) => b.radius - a.radius);
    this.listen();
  }

  start() {
    if (!this.canvas.isConnected) return;
    const left = new AbortController(); // a canvas that leaves the page has no size, which is observed too
    const resizing = new ResizeObserver(() => (this.canvas.isConnected ? this.resize() : left.abort()));
    resizing.observe(this.canvas);
    left.signal.addEventListener("abort", () => resizing.disconnect());
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", () => this.draw(), { signal: left.signal });
    this.resize();
    this.tell.all();
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || (this.width === width && this.height === height)) return;
    const ratio = window.devicePixelRatio || 1;
    Object.assign(this, { width, height, ratio });
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    this.whole();
  }

  reset() {
    this.chosen = -1;
    this.whole();
    this.tell.all();
  }

  whole() {
    const edge = (pick, name, sign) => pick(...this.found.islands.map((one) => one[name] + sign * one.radius));
    this.show(edge(Math.min, "x", -1), edge(Math.min, "y", -1), edge(Math.max, "x", 1), edge(Math.max, "y", 1));
  }

  /** Fit a rectangle of the map into the view. */
  show(left, top, right, bottom) {
    this.scale = 0.92 * Math.min(this.width / (right - left), this.height / (bottom - top));
    this.x = this.width / 2 - (this.scale * (left + right)) / 2;
    this.y = this.height / 2 - (this.scale * (top + bottom)) / 2;
    this.draw();
  }

  zoom(by, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(Math.max(this.scale * by, 0.5), 160);
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.draw();
  }

  /** Zoom to an island and tell about it. */
  visit(island) {
    if (!island) return;
    const { x, y } = island;
    const around = island.radius * 1.15 + 1;
    this.chosen = -1;
    this.show(x - around, y - around, x + around, y + around);
    this.tell.island(island);
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
    this.tell.item(n);
  }

  /** The item under a point of the canvas, or −1. */
  at(px, py) {
    const [x, y] = [(px - this.x) / this.scale, (py - this.y) / this.scale];
    const reach = Math.min(0.6, 12 / this.scale);
    let [best, least] = [-1, reach * reach];
    for (let n = 0; n < this.found.x.length; n += 1) {
      const distance = (this.found.x[n] - x) ** 2 + (this.found.y[n] - y) ** 2;
      if (distance < least) [best, least] = [n, distance];
    }
    return best;
  }

  islandAt(px, py) {
    return this.discs().find((disc) => Math.hypot(disc.x - px, disc.y - py) < disc.radius)?.island;
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  /** The islands in pixels. */
  discs() {
    return this.islands.map((island) => ({
      island,
      x: this.x + this.scale * island.x,
      y: this.y + this.scale * island.y,
      radius: (island.radius + 0.9) * this.scale,
    }));
  }

  /** The item in pixels. */
  disc(n) {
    const radius = Math.max(1.3, this.radius[n] * this.scale);
    return { n, x: this.x + this.scale * this.found.x[n], y: this.y + this.scale * this.found.y[n], radius };
  }

  paint() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const pen = this.canvas.getContext("2d");
    const circle = ({ x, y, radius }) => {
      pen.beginPath();
      pen.arc(x, y, radius, 0, 2 * Math.PI);
    };
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const discs = this.discs();
    for (const disc of discs) {
      circle(disc);
      pen.fillStyle = `hsl(${hue(disc.island.rank)} ${dark ? "35% 50% / 0.16" : "60% 50% / 0.1"})`;
      pen.fill();
    }
    const visible = [];
    for (const n of this.order) {
      const point = this.disc(n);
      if (point.x < -20 || point.y < -20 || point.x > this.width + 20 || point.y > this.height + 20) continue;
      visible.push(point);
      pen.fillStyle = `hsl(${this.hues.get(this.found.factor[n])} ${dark ? "65% 68%" : "55% 42%"})`;
      pen.globalAlpha = 0.35 + 0.6 * this.found.share[n];
      circle(point);
      pen.fill();
    }
    pen.globalAlpha = 1;
    this.names(pen, discs, visible);
    for (const [n, width] of [
      [this.over, 1.5],
      [this.chosen, 2.5],
    ]) {
      if (n < 0) continue;
      const point = this.disc(n);
      circle({ ...point, radius: Math.max(4, point.radius + 2) });
      Object.assign(pen, { lineWidth: width, strokeStyle: colour("ink") });
      pen.stroke();
    }
  }

  /** Name the islands and, close up, the most popular items: as many as there is room for beside points and islands. */
  names(pen, discs, visible) {
    const taken = [[this.width - 160, 0, this.width, 54]]; // the buttons
    const inside = (box) => box[0] >= 2 && box[1] >= 2 && box[2] <= this.width - 2 && box[3] <= this.height - 2;
    const write = ({ text, box }, font, ink) => {
      Object.assign(pen, { font, fillStyle: colour(ink), textBaseline: "middle" });
      pen.fillText(text, box[0] + 2, (box[1] + box[3]) / 2);
    };
    const bold = "600 12px system-ui, sans-serif";
    for (const disc of discs) {
      const { name } = disc.island;
      for (const text of new Set([short(name, 34), short(name.split(" · ")[0], 24), short(name, 18), short(name, 11)])) {
        const wanted = [{ ...disc, text, width: textWidth(text, bold) + 4 }];
        const [placed] = placeLabels(wanted, discs, inside, { taken, height: 15, sides: false });
        if (!placed) continue;
        write(placed, bold, "ink");
        break;
      }
    }
    if (this.scale < ITEM_SCALE) return;
    const plain = "12px system-ui, sans-serif";
    const within = (box, n) => discs.every((disc) => disc.island.factor === this.found.factor[n] || !touches(box, disc));
    const wanted = visible.slice(0, 80).map((point) => {
      const text = short(this.found.name[point.n], 24);
      return { ...point, text, width: textWidth(text, plain) + 4 };
    });
    for (const placed of placeLabels(wanted, visible, (box, { n }) => inside(box) && within(box, n), { taken, most: 40 }))
      write(placed, plain, "ink");
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
      else this.visit(this.islandAt(...where(event)));
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
      else if (event.key === "0") this.reset();
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
    const island = n < 0 ? this.islandAt(x, y) : null;
    this.tip.hidden = n < 0 && !island;
    if (this.tip.hidden) return;
    this.tip.textContent = island
      ? `${island.name} · ${plural(island.n_items, "item")}`
      : `${this.found.name[n]} · ${plural(this.found.n_users[n], "user")}`;
    const left = Math.min(x + 14, this.width - this.tip.offsetWidth - 6);
    Object.assign(this.tip.style, {
      left: `${Math.max(4, left)}px`,
      top: `${y > this.height - 50 ? y - 40 : y + 16}px`,
    });
  }
}
