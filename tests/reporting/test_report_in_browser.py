"""The report in Chromium, as a person meets it: it opens at once, asks nobody, can be pointed at, switched and read."""

import pathlib

import pytest

import relbo
from pages import CHROMIUM, EVIL, WORSE, loaded_posterior, needs_chromium

pytestmark = needs_chromium
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("browser") / "report.html"
    return relbo.report(loaded_posterior(), path, title="A test").resolve().as_uri()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Visit:
    """A page that was opened, and what it said and asked for meanwhile."""

    def __init__(self, browser, address, viewport=DESKTOP, scheme="light"):
        self.context = browser.new_context(viewport=viewport, color_scheme=scheme)
        self.page = self.context.new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.clock = self.context.new_cdp_session(self.page)
        self.clock.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.page.goto(address)
        self.page.wait_for_selector('html[data-ready="yes"]')

    def cpu_seconds(self) -> float:
        """Of the page's own thread, whatever else the machine does."""
        metrics = self.clock.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    def readout(self, chart: str) -> str:
        return self.page.inner_text(f"#{chart}-readout")

    def point_at(self, chart: str, across: float = 0.5, down: float = 0.5) -> str:
        """Move the mouse over a chart, and read what it says."""
        over = self.page.locator(f"#{chart}-plot .u-over")
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        self.page.mouse.move(box["x"] + across * box["width"] - 3, box["y"] + down * box["height"])
        self.page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
        return self.readout(chart)


@pytest.fixture
def visit(browser, address):
    opened = []

    def open_page(**options) -> Visit:
        opened.append(Visit(browser, address, **options))
        return opened[-1]

    yield open_page
    for each in opened:
        each.context.close()


def test_it_opens_at_once_and_asks_nobody(visit, address):
    here = visit()
    assert here.asked == [address]
    assert here.cpu_seconds() < 1.0
    assert here.page.locator("#verdict-title").is_visible() and "Good" in here.page.inner_text("#verdict-title")
    assert here.page.locator("#verdict").bounding_box()["y"] < 300
    assert here.said == []


def test_names_are_shown_and_not_run(visit):
    here = visit()
    shown = {here.page.locator("th[scope=row] .name").nth(row).inner_text() for row in range(3)}
    assert shown == {EVIL, f"{WORSE}[0]", f"{WORSE}[1]"}
    assert set(here.page.locator("#marginal-parameter option").all_inner_texts()) == shown
    assert here.page.locator("script").count() == 4 and here.page.locator("img").count() == 0
    assert here.said == []


def test_a_script_that_was_slipped_in_does_not_run(browser, tmp_path):
    """Were escaping ever to fail, the browser itself would refuse."""
    page = relbo.report(loaded_posterior(), tmp_path / "page.html").read_text(encoding="utf-8")
    changed = tmp_path / "changed.html"
    changed.write_text(page.replace("<h1>", "<script>window.slipped = true</script><h1>"), encoding="utf-8")
    here = Visit(browser, changed.resolve().as_uri())
    assert here.page.evaluate("window.slipped") is None and "Content Security Policy" in " ".join(here.said)
    here.context.close()


def test_pointing_tells_values(visit):
    here = visit()
    left, right = here.point_at("marginal", 0.3), here.point_at("marginal", 0.7)
    assert "density" in left and "density" in right and left != right
    assert "Iteration 3 (fully-corrective, rejected): ELBO" in here.point_at("trace", 0.97)
    assert "of 2000 draws" in here.point_at("ratios")
    assert here.said == []


def test_parameters_and_components_can_be_switched(visit):
    here = visit()
    page = here.page
    first = page.inner_text("#marginal-parameter option:checked")
    page.click("#marginal-next")
    second = page.inner_text("#marginal-parameter option:checked")
    assert first != second and second in here.readout("marginal")
    page.select_option("#marginal-component", "1")
    assert "by component 2, 30.0%" in here.point_at("marginal")
    page.select_option("#pair-component", "0")
    assert "of them of component 1, 70.0%" in here.readout("pair")
    page.select_option("#trace-what", "gap")
    assert "gap" in here.point_at("trace", 0.6) and "could still gain" in page.inner_text("#trace-words")
    assert here.said == []


def test_a_name_in_the_table_leads_to_its_marginal(visit):
    page = visit().page
    page.click("th[scope=row] .name >> nth=2")
    assert page.input_value("#marginal-parameter") == "2"
    assert page.evaluate("document.activeElement.id") == "marginal-parameter"


def test_zooming_by_mouse_by_button_and_back(visit):
    here = visit()
    whole, kept = here.point_at("marginal", 0.2), here.point_at("marginal", 0.9)
    here.page.click('[data-chart="marginal"][data-zoom="in"]')  # around what was last pointed at
    assert here.point_at("marginal", 0.9) == kept and here.point_at("marginal", 0.2) != whole
    here.page.click('[data-chart="marginal"][data-zoom="reset"]')
    assert here.point_at("marginal", 0.2) == whole
    box = here.page.locator("#marginal-plot .u-over").bounding_box()
    here.page.mouse.move(box["x"] + 100, box["y"] + 60)
    here.page.mouse.down()
    here.page.mouse.move(box["x"] + 260, box["y"] + 200, steps=4)
    here.page.mouse.up()
    assert here.point_at("marginal", 0.9) != kept
    here.page.locator("#marginal-plot .u-over").dblclick()
    assert here.point_at("marginal", 0.9) == kept
    assert here.said == []


def test_the_keyboard_is_enough(visit):
    here = visit()
    page = here.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.focus("#pair-plot")
    page.keyboard.press("ArrowRight")
    first = here.readout("pair")
    page.keyboard.press("ArrowRight")
    assert "Component" in first and here.readout("pair") != first
    for key in ("+", "-", "0", "End", "Home"):
        page.keyboard.press(key)
    assert here.readout("pair") == first and here.said == []


def test_the_table_sorts_and_finds(visit):
    page = visit().page
    means = "table td:nth-child(3)"
    page.click("thead button >> text=mean >> nth=0")
    values = [float(text.split(" ")[0].replace("−", "-")) for text in page.locator(means).all_inner_texts()]
    assert values == sorted(values) and page.get_attribute("thead th:nth-child(3)", "aria-sort") == "ascending"
    page.fill("#find", "ALERT(1)")
    assert page.locator("tbody tr:visible").count() == 1 and page.inner_text("#found") == "1 of 3"


def test_light_and_dark(visit):
    dark, light = visit(scheme="dark"), visit(scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert light.page.evaluate(ground) == "rgb(255, 255, 255)" != dark.page.evaluate(ground)
    dark.page.click("#theme")
    assert dark.page.evaluate(ground) == "rgb(255, 255, 255)" and dark.said == []


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit, viewport, scheme):
    import axe_playwright_python

    here = visit(viewport=viewport, scheme=scheme)
    here.page.evaluate((pathlib.Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text())
    found = here.page.evaluate("axe.run()")["violations"]
    serious = [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")]
    assert serious == []


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_fits_the_screen_and_every_chart_is_drawn(visit, viewport, tmp_path):
    here = visit(viewport=viewport)
    assert here.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    painted = """canvas => {
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        return new Set(new Uint32Array(pixels.buffer)).size;
    }"""
    canvases = here.page.locator("canvas")
    assert canvases.count() == 4
    assert all(canvases.nth(index).evaluate(painted) > 20 for index in range(4))
    picture = here.page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert len(picture) > 50_000
