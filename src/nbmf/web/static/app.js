// The page: shows the view that the address names, if the model can answer it.

import { get, showing } from "./api.js";
import { showBasket } from "./basket.js";
import { sweep } from "./charts.js";
import { count, empty, fault, h, say } from "./dom.js";
import { showFactors } from "./factors.js";
import { showFit } from "./fit.js";
import { showItem } from "./item.js";
import { showMap } from "./map.js";
import { showUser } from "./user.js";

const VIEWS = [
  { path: "user", name: "Users", show: showUser, has: () => true },
  { path: "item", name: "Items", show: showItem, has: () => true },
  { path: "basket", name: "Basket", show: showBasket, has: (card) => card.can.recommend_for },
  { path: "factors", name: "Factors", show: showFactors, has: (card) => card.can.factors },
  { path: "map", name: "Map", show: showMap, has: (card) => card.can.map },
  { path: "fit", name: "Model", show: showFit, has: () => true },
];

const main = document.getElementById("main");
let card = null;

async function meet() {
  card = await get("model");
  showing(card.model);
  document.getElementById("about").textContent =
    `${card.class} · ${count(card.n_users)} users × ${count(card.n_items)} items`;
  document.getElementById("mark").textContent = `Model ${card.model}`;
  document
    .getElementById("views")
    .replaceChildren(
      ...VIEWS.filter((view) => view.has(card)).map((view) =>
        h("li", {}, h("a", { href: `#/${view.path}`, "data-view": view.path }, view.name)),
      ),
    );
}

function route(byPerson = true) {
  const [path, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const view = VIEWS.find((other) => other.path === (path || "user") && other.has(card));
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.view === view?.path) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view) view.show(main, card, rest.filter(Boolean).map(decodeURIComponent));
  else main.replaceChildren(h("h1", {}, "Page not found"), empty("The views of this model are listed above."));
  sweep();
  if (!byPerson) return;
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
}

window.addEventListener("hashchange", () => card && route());
window.addEventListener("model-replaced", async () => {
  await meet();
  const notice = document.getElementById("notice");
  notice.textContent = "The model has been replaced. This page shows the new one.";
  notice.hidden = false;
  setTimeout(() => (notice.hidden = true), 8000);
  route(false);
});

meet().then(
  () => route(false),
  (error) => {
    main.replaceChildren(fault(error, () => location.reload()));
    say(error.message);
  },
);
