"""The page in a real browser: each view in light, dark and on a phone, search, reasons, basket, keyboard, errors."""

import os
import re
import shutil
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

import nbmf
import nbmf.web.views
from nbmf.web.middleware import Access
from serving import TOKEN, serving, wait_for, write_model

SCREENSHOTS = Path(__file__).parents[2] / "screenshots"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
SCREENS = {
    "light": {"viewport": {"width": 1280, "height": 900}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed: make browser installs Debian's")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "model.nbmf"
    write_model(path)
    with serving(path) as client:
        yield client


@pytest.fixture(scope="module")
def usual(browser):
    """A window for pages that need no other, which keeps the scripts that it has loaded once."""
    return browser.new_context(**SCREENS["light"])


@pytest.fixture
def start():
    """Return a function that starts a server, which answers until the pages of the test are closed."""
    with ExitStack() as running:
        yield lambda path, **settings: running.enter_context(serving(path, **settings))


@pytest.fixture
def visit(browser, usual, start):
    """Return a function that opens a page; at the end, no page may have had an unexpected error."""
    opened, errors = [], []

    def open_page(client, path="", expected="$^", **screen):
        def note(told):
            if told.type in ("error", "warning") and not re.search(expected, told.text):
                errors.append(told.text)

        page = browser.new_page(**screen) if screen else usual.new_page()
        opened.append(page)
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", note)
        page.goto(f"http://127.0.0.1:{client.port}/{path}")
        return page

    yield open_page
    for page in opened:
        page.close()
    assert errors == []


def rows(page):
    """Return the items of the ranked list in the order of the page."""
    return [int(row.get_attribute("data-item")) for row in page.query_selector_all(".ranked > li")]


def keep(page, name):
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


CHECKS = """() => {
  const named = (element) =>
    element.ariaLabel || element.labels?.length || element.textContent.trim() || element.querySelector("img");
  const reached = [...document.querySelectorAll("input, button, a, canvas, [role=img]")];
  const unnamed = reached.filter((element) => !named(element));
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  const root = document.documentElement;
  return {
    unnamed: unnamed.map((element) => element.outerHTML.slice(0, 200)),
    repeated: ids.filter((id, n) => ids.indexOf(id) !== n),
    n_headings: document.querySelectorAll("h1").length,
    too_wide: root.scrollWidth - root.clientWidth,
    slips: document.body.innerText.match(/undefined|NaN|false|null|object Object/g) ?? [],
    no_alt: document.querySelectorAll("img:not([alt])").length,
  };
}"""


EXPECTED = {"unnamed": [], "repeated": [], "n_headings": 1, "too_wide": 0, "slips": [], "no_alt": 0}


@pytest.mark.parametrize("screen", SCREENS)
def test_every_view_loads_and_can_be_heard_and_fits_the_screen(served, visit, screen):
    page = visit(served, **SCREENS[screen])
    parts = {
        "user": ".chart .main-svg",
        "item": ".chart .main-svg",
        "basket": ".ranked li",
        "factors": ".factor",
        "map": ".map canvas",
        "fit": ".chart .main-svg",
    }
    for view, part in parts.items():
        page.click(f"#views a[data-view={view}]")
        page.wait_for_selector(part)
        page.wait_for_selector("main .loading", state="detached")
        page.wait_for_timeout(150)
        found = page.evaluate(CHECKS)
        assert found == EXPECTED, view
        assert page.get_attribute("#views a[aria-current]", "data-view") == view
        keep(page, f"{view}-{screen}")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    assert dark == (screen == "dark")


def test_a_user_is_found_by_keyboard_alone(served, visit):
    page = visit(served)
    page.wait_for_selector(".ranked li")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.focus("main input")
    page.keyboard.type("bob 1")
    page.wait_for_selector("[role=option] >> text=bob 10 é")
    assert len(page.query_selector_all("[role=option]")) == 5
    page.keyboard.press("ArrowDown")
    chosen = page.inner_text("[role=option][aria-selected=true] .title")
    assert page.get_attribute("main input", "aria-activedescendant")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"h1 >> text=User {chosen}")
    page.wait_for_selector(".ranked li")
    assert rows(page) == [row["item"] for row in served.get("/api/recommend", user=chosen, n=20)["items"]]


def test_reasons_open_under_a_recommendation_and_add_up(served, visit):
    page = visit(served, "#/user/ann%2F7")
    page.wait_for_selector(".ranked li")
    first = rows(page)[0]
    page.focus(".ranked .face")
    page.keyboard.press("Enter")
    page.wait_for_selector(".parts")
    why = served.get("/api/explain", user="ann/7", item=first, n=8)
    tastes, items = page.query_selector_all(".parts")  # by factor first, then by item; each adds up to the score
    for table, rows_of in ((tastes, "factors"), (items, "parts")):
        shown = [float(cell.inner_text().replace(",", "")) for cell in table.query_selector_all(".value")]
        assert sum(shown) == pytest.approx(why["score"], abs=0.006 * len(shown))
        names = [cell.inner_text() for cell in table.query_selector_all(".part th")]
        assert all(part["name"] in name for part, name in zip(why[rows_of], names, strict=True))
        assert len(table.query_selector_all(".bar span")) == len(why[rows_of])  # none for what is left
    assert f"{why['score']:.2f}" in tastes.query_selector("caption").inner_text()
    keep(page, "reasons-light")
    page.keyboard.press("Enter")
    page.wait_for_selector(".parts", state="hidden")


def test_the_chart_is_the_papers(served, visit):
    """Counts and exposures on logarithmic axes, a dashed line at 1, names on hover."""
    page = visit(served, "#/user/ann%2F7")
    page.wait_for_selector(".chart .main-svg")
    chart = page.evaluate(
        "(() => { const c = document.querySelector('.chart'); return {y: [...c.data[0].y], text: c.data[0].text, "
        "axes: [c.layout.xaxis.type, c.layout.yaxis.type], line: c.layout.shapes[0]}; })()"
    )
    took = served.get("/api/exposures", user="ann/7")["items"]
    assert chart["y"] == pytest.approx([row["exposure"] for row in took])
    assert chart["axes"] == ["log", "log"]
    assert (chart["line"]["y0"], chart["line"]["y1"], chart["line"]["line"]["dash"]) == (1, 1, "dash")
    assert all(row["name"] in text for row, text in zip(took, chart["text"], strict=True))


def test_the_history_names_its_notable_points_and_lists_what_the_user_has(served, visit):
    page = visit(served, "#/user/ann%2F7")
    page.wait_for_selector(".chart .annotation-text")
    took = served.get("/api/exposures", user="ann/7")
    named = [label.text_content() for label in page.query_selector_all(".chart .annotation-text")]
    assert len(named) >= 3
    assert set(named) <= {row["name"] for row in took["items"]}
    boxes = [label.bounding_box() for label in page.query_selector_all(".chart .annotation-text")]
    points = [point.bounding_box() for point in page.query_selector_all(".chart .points path")]
    for box in boxes:
        for other in points + [other for other in boxes if other is not box]:
            inner = {"x": other["x"] + other["width"] / 2, "y": other["y"] + other["height"] / 2}
            inside = box["x"] < inner["x"] < box["x"] + box["width"]
            assert not (inside and box["y"] < inner["y"] < box["y"] + box["height"])
    assert len(page.query_selector_all(".numbers tbody tr:visible")) == min(15, took["n_items"])
    assert page.inner_text(".numbers th a") == took["items"][0]["name"]
    tastes = [link.get_attribute("href") for link in page.query_selector_all(".tastes a")]
    assert tastes == [f"#/factors/{one['factor']}" for one in took["factors"] if one["share"] >= 0.05]


def test_another_user_is_one_click_away(served, visit):
    page = visit(served, "#/user/ann%2F7")
    page.click("text=Another user")
    users = served.get("/api/model")["example_users"]
    following = users[(users.index("ann/7") + 1) % len(users) if "ann/7" in users else 0]
    page.wait_for_selector(f"h1 >> text=User {following}")


def test_an_item_has_a_page_with_its_users_factors_and_similar_items(served, visit):
    page = visit(served, "#/item/104")
    found = served.get("/api/item", item=104, n=12)
    page.wait_for_selector(f"h1 >> text={found['name']}")
    links = [link.get_attribute("href") for link in page.query_selector_all("main .shares a")]
    assert links[: len(found["factors"])] == [f"#/factors/{one['factor']}" for one in found["factors"]]
    page.wait_for_selector("#alike-title ~ div .shares a")
    near = served.get("/api/similar/items", item=104, n=10)["items"]
    page.click("#alike-title ~ div .shares a")
    page.wait_for_selector(f"h1 >> text={near[0]['name']}")
    page.goto(f"http://127.0.0.1:{served.port}/#/map/item/104")
    page.wait_for_selector(f".item-card h2 >> text={found['name']}")


def test_an_unknown_item_is_told(served, visit):
    page = visit(served, "#/item/soup", expected="404")
    page.wait_for_selector("h1 >> text=No item soup")


def test_a_basket_is_in_the_address(served, visit):
    page = visit(served, "#/basket/104=3/107=1")
    page.wait_for_selector(".basket a >> text=Early song 7")
    assert [box.input_value() for box in page.query_selector_all(".basket input")] == ["3", "1"]
    page.click(".basket [aria-label='Add one Early song 7']")
    wait_for(lambda: page.url.endswith("#/basket/104=3/107=2"))
    assert "expected counts are small" in page.inner_text("main")
    before = rows(page)
    page.click(".switch [value=lift]")
    wait_for(lambda: rows(page) != before)
    assert page.inner_text(".ranked .lift").startswith("×")


def test_the_model_view_says_whether_the_fit_converged(served, visit, start, tmp_path):
    page = visit(served, "#/fit")
    page.wait_for_selector(".verdict.bad >> text=max_iter=30")
    page.wait_for_selector(".chart .main-svg")
    chart = page.evaluate("({y: [...document.querySelector('.chart').data[0].y]})")
    objective = served.get("/api/fit")["objective"]
    gains = [(b - a) / abs(a) for a, b in pairwise(objective)]
    assert chart["y"] == pytest.approx([gain for gain in gains if gain > 0])
    line = page.evaluate("document.querySelector('.chart').layout.shapes[0].y0")
    assert line == served.get("/api/fit")["tol"] == 1e-5
    write_model(tmp_path / "model.nbmf", nbmf.NBMF(2, tol=0.01, random_state=0))
    client = start(tmp_path / "model.nbmf")
    visit(client, "#/fit").wait_for_selector(".verdict.good >> text=Converged")


def test_the_model_view_says_whether_the_model_fits(visit, start, tmp_path):
    """Findings as the model has them, and a cross for every statistic that is off."""
    bursts = nbmf.PoissonMF(3, max_iter=40, tol=0, random_state=0)
    write_model(tmp_path / "model.nbmf", bursts)
    client = start(tmp_path / "model.nbmf")
    found = client.get("/api/check")
    page = visit(client, "#/fit")
    page.wait_for_selector("text=Does it fit?")
    page.wait_for_selector(".panel .main-svg >> nth=3")
    shown = [row.inner_text() for row in page.query_selector_all(".findings li")]
    assert shown == [f"{text[0].upper()}{text[1:]}." for text in found["findings"]]
    assert shown
    marks = [mark for panel in found["panels"] for mark in panel["marks"]]
    drawn = "[...document.querySelectorAll('.panel')].map((panel) => panel.data.map((trace) => trace.x.length))"
    counts = page.evaluate(drawn)
    assert sum(panel[4] for panel in counts) == sum(not mark["fits"] for mark in marks)
    assert sum(panel[3] for panel in counts) == sum(mark["fits"] for mark in marks)
    assert [row.inner_text() for row in page.query_selector_all("#main figcaption")] == [
        panel["title"] for panel in found["panels"]
    ]
    page.click("summary >> text=Observed and expected")
    assert len(page.query_selector_all("section[aria-labelledby=check-title] tbody tr")) == len(marks)
    write_model(tmp_path / "right.nbmf", nbmf.NBMF(3, input="log1p", max_iter=9, random_state=0))
    client = start(tmp_path / "right.nbmf")
    page = visit(client, "#/fit")
    page.wait_for_selector(".chart .main-svg")
    assert not page.query_selector("text=Does it fit?")


def test_factors_are_found_by_any_of_their_items(served, visit):
    page = visit(served, "#/factors")
    page.wait_for_selector(".factor")
    found = served.get("/api/factors")["factors"]
    assert page.inner_text(".factor h2") == found[0]["name"]
    listed = {row["name"] for one in found for row in one["items"]}
    name = next(row["name"] for row in served.get("/api/search/items", n=30)["items"] if row["name"] not in listed)
    page.fill("#filter", name)
    page.wait_for_selector(f".factor .shares a >> text={name}")
    page.fill("#filter", "no such song")
    page.wait_for_selector("text=No item is called")


def test_factors_are_short_on_a_phone(served, visit):
    page = visit(served, "#/factors", **SCREENS["phone"])
    page.wait_for_selector(".factor")
    assert not page.query_selector(".factor .shares:visible")
    page.click(".factor summary")
    page.wait_for_selector(".factor .shares:visible")


def test_the_basket_changes_the_list_at_once(served, visit):
    page = visit(served, "#/basket")
    page.wait_for_selector(".chips button")
    page.wait_for_selector(".ranked li")
    before = rows(page)
    page.click(".chips button >> nth=0")
    page.wait_for_selector(".basket [data-item]")
    wait_for(lambda: rows(page) != before)
    item = int(page.get_attribute(".basket li", "data-item"))
    basket = {"items": [{"item": item, "count": 1}], "n": 20}
    assert rows(page) == [row["item"] for row in served.ask("/api/recommend", basket)[1]["items"]]
    scores = page.inner_text(".ranked .score")
    page.fill(".basket input", "50")
    page.keyboard.press("Tab")
    wait_for(lambda: page.inner_text(".ranked .score") != scores)
    page.focus(".basket button >> nth=1")  # one more
    page.keyboard.press("Enter")
    wait_for(lambda: page.input_value(".basket input") == "51")
    page.keyboard.press("Enter")
    wait_for(lambda: page.input_value(".basket input") == "52")
    page.fill("main .search input", "green song")
    page.click("[role=option] >> text=Green song")
    wait_for(lambda: len(page.query_selector_all(".basket > li")) == 2)
    wait_for(lambda: page.query_selector(".moved"))
    page.click(".ranked .face")
    page.wait_for_selector(".parts")
    keep(page, "what-if-light")
    page.reload()
    page.wait_for_selector(".basket [data-item]")
    assert len(page.query_selector_all(".basket > li")) == 2
    page.click("text=Empty basket")
    page.wait_for_selector(".chips button")


def test_a_user_becomes_a_basket(served, visit):
    page = visit(served, "#/user/ann%2F7")
    page.click("text=Open in basket")
    page.wait_for_selector(".basket [data-item]")
    assert len(page.query_selector_all(".basket > li")) == served.get("/api/exposures", user="ann/7")["n_items"]


def test_the_map_tells_what_is_chosen_and_leads_to_its_factor(served, visit):
    page = visit(served, "#/map")
    page.wait_for_selector(".map canvas")
    page.fill("main .search input", "golden")
    page.wait_for_selector("[role=option]")
    name = page.inner_text("[role=option] .title")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(f".item-card h2 >> text={name}")
    keep(page, "map-chosen-light")
    page.click(".item-card .factor-link")
    page.wait_for_selector(".factor.chosen")


def test_islands_have_names_and_tell_what_is_on_them(served, visit):
    page = visit(served, "#/map")
    page.wait_for_selector(".islands button")
    islands = sorted(served.get("/api/map")["islands"], key=lambda one: one["rank"])
    assert [row.inner_text() for row in page.query_selector_all(".islands button")] == [one["name"] for one in islands]
    n_factors = served.get("/api/model")["n_factors"]
    assert ("one for each factor" in page.inner_text(".facts")) == (len(islands) == n_factors)
    page.click(".islands button")
    page.wait_for_selector(f".item-card h2 >> text={islands[0]['name']}")
    assert len(page.query_selector_all(".islands li")) == min(10, islands[0]["n_items"])


WATCHED = """
  window.painted = 0;
  window.watching = 0;
  const count = (kind, name, note) => {
    const usual = kind[name];
    kind[name] = function (...given) { note(); return usual.apply(this, given); };
  };
  count(CanvasRenderingContext2D.prototype, "clearRect", () => (window.painted += 1));
  count(ResizeObserver.prototype, "observe", () => (window.watching += 1));
  count(ResizeObserver.prototype, "disconnect", () => (window.watching -= 1));
"""


def test_a_map_that_was_left_does_no_more_work(served, visit):
    page = visit(served)
    page.add_init_script(WATCHED)
    page.goto(f"http://127.0.0.1:{served.port}/#/map")
    page.reload()
    wait_for(lambda: page.evaluate("window.painted") > 0)
    before = page.evaluate("window.painted")
    page.emulate_media(color_scheme="dark")
    wait_for(lambda: page.evaluate("window.painted") > before)
    assert page.evaluate("window.watching") == 1
    page.evaluate("location.hash = '#/factors'")
    page.wait_for_selector(".factor")
    wait_for(lambda: page.evaluate("window.watching") == 0)
    before = page.evaluate("window.painted")
    page.emulate_media(color_scheme="light")
    wait_for(lambda: page.evaluate("matchMedia('(prefers-color-scheme: light)').matches"))
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("window.painted") == before


def test_what_a_model_cannot_answer_is_left_out(tmp_path, visit, start, monkeypatch):
    write_model(tmp_path / "model.nbmf", nbmf.PoissonMF(3, max_iter=9, random_state=0))
    everything = nbmf.web.views.abilities
    monkeypatch.setattr(
        nbmf.web.views, "abilities", lambda model: {name: name == "explain" for name in everything(model)}
    )
    client = start(tmp_path / "model.nbmf")
    page = visit(client)
    page.wait_for_selector(".ranked li")
    assert [link.inner_text() for link in page.query_selector_all("#views a")] == ["Users", "Items", "Model"]
    page.goto(f"http://127.0.0.1:{client.port}/#/map")
    page.wait_for_selector("text=Page not found")


@pytest.mark.parametrize(
    "model",
    [
        nbmf.PoissonMF(3, max_iter=9),
        nbmf.Averaged(nbmf.NBMF(2, max_iter=9), 2),
        nbmf.NBSLIM(penalty=0.5),
        nbmf.NBFISM(3, n_starts=2, penalty=0.5, max_iter=30),
        nbmf.Blend([nbmf.NBSLIM(penalty=0.5), nbmf.PoissonMF(3, max_iter=9)], [0.5, 0.5]),
        nbmf.Blend([nbmf.NBSLIM(penalty=0.5), nbmf.NBFISM(3, penalty=0.5, max_iter=9)], [0.5, 0.5]),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_models_have_pages_too(tmp_path, visit, start, model):
    write_model(tmp_path / "model.nbmf", model)
    client = start(tmp_path / "model.nbmf")
    page = visit(client)
    page.wait_for_selector(".ranked li")
    shown = [link.inner_text() for link in page.query_selector_all("#views a")]
    if isinstance(model, nbmf.NBSLIM | nbmf.Blend):
        assert shown == ["Users", "Items", "Basket", "Model"]
        page.wait_for_selector("#took-title >> text=/^History$/")
        assert not page.query_selector("#took-title ~ details")
    else:
        assert shown == ["Users", "Items", "Basket", "Factors", "Map", "Model"]
        page.wait_for_selector(".chart .main-svg")
    assert ("over-exposed" in page.inner_text("main")) == isinstance(model, nbmf.Averaged)
    page.click(".ranked .face")
    page.wait_for_selector(".parts")
    assert page.evaluate(CHECKS) == EXPECTED
    keep(page, f"{type(model).__name__}-user")
    for view in ("item", "fit"):
        page.click(f"#views a[data-view={view}]")
        page.wait_for_selector(".chart .main-svg")
        page.wait_for_selector("main .loading", state="detached")
        assert page.evaluate(CHECKS) == EXPECTED, view


@pytest.mark.parametrize("screen", SCREENS)
def test_the_pages_of_an_encoder(tmp_path, visit, start, screen):
    """What is for everybody stands last and has no island; scores say what they are."""
    write_model(tmp_path / "model.nbmf", nbmf.NBFISM(3, n_starts=2, penalty=0.5, max_iter=30, random_state=0))
    client = start(tmp_path / "model.nbmf")
    page = visit(client, "#/user/ann%2F7", **SCREENS[screen])
    page.wait_for_selector(".chart .main-svg")
    assert "New items by expected ln(1 + count)" in page.inner_text("#best-title ~ .hint")
    assert "ln(1 + count) is what the user’s other items predict" in page.inner_text("#took-title ~ .hint")
    assert "ln(1 + count)" in page.text_content(".chart .xtitle")
    page.click(".ranked .face")
    page.wait_for_selector(".parts")
    first, second = page.query_selector_all(".parts")
    assert "Tastes behind the expected ln(1 + count) of" in first.inner_text()
    assert first.query_selector_all("tr")[-1].inner_text().startswith("everybody")
    assert "the same for every user" in second.inner_text()
    page.click(".parts .rest .factor-link")
    page.wait_for_selector(".factor.chosen.common >> text=For every user alike")
    assert "3 factors from the first of 2 starts" in page.inner_text(".facts")
    cards = page.query_selector_all(".factor")
    assert [card.query_selector("h2").inner_text() for card in cards].index("everybody") == len(cards) - 1 == 3
    assert not cards[-1].query_selector("a[href^='#/map']")
    assert page.evaluate(CHECKS) == EXPECTED
    keep(page, f"encoder-factors-{screen}")
    page.click("#views a[data-view=map]")
    page.wait_for_selector(".islands button")
    assert "everybody" not in page.inner_text(".islands")
    assert page.evaluate(CHECKS) == EXPECTED


def test_nobody_and_nothing(served, visit):
    page = visit(served, "#/user/nobody", expected="404")
    page.wait_for_selector("h1 >> text=No user nobody")
    assert page.query_selector(".chips a")
    keep(page, "unknown-light")
    page.goto(f"http://127.0.0.1:{served.port}/#/user/{EMPTY}")
    page.wait_for_selector("text=No history.")
    page.wait_for_selector(".ranked li")
    keep(page, "empty-light")


EMPTY = "ann%2F3"  # the row of small_matrix that has no counts


def test_the_page_asks_for_the_token(tmp_path, visit, start):
    write_model(tmp_path / "model.nbmf")
    client = start(tmp_path / "model.nbmf", access=Access(token=TOKEN))
    page = visit(client, expected="401")
    page.fill("#token", "wrong-wrong-wrong-wrong")
    page.click("text=Continue")
    page.wait_for_selector("text=Wrong token")
    page.fill("#token", TOKEN)
    page.click("text=Continue")
    page.wait_for_selector(".ranked li")


def test_a_replaced_model_is_noticed_and_a_lost_server_told(tmp_path, visit, monkeypatch):
    monkeypatch.setattr("nbmf.web.app.RELOAD_SECONDS", 0.02)
    path = tmp_path / "model.nbmf"
    write_model(path)
    with serving(path) as client:
        page = visit(client, expected="ERR_CONNECTION_REFUSED")
        page.wait_for_selector(".ranked li")
        mark = client.get("/api/model")["model"]
        write_model(tmp_path / "new.nbmf", seed=1)
        os.replace(tmp_path / "new.nbmf", path)
        wait_for(lambda: client.get("/api/model")["model"] != mark)
        page.click("#views a[data-view=factors]")
        page.wait_for_selector("text=The model has been replaced")
        assert client.get("/api/model")["model"] in page.inner_text("#mark")
    page.click("#views a[data-view=map]")
    page.wait_for_selector("text=The server is not responding")
    page.click("#views a[data-view=basket]")
    page.wait_for_selector("text=The basket is empty.")
    assert "one of these" not in page.inner_text("main")
