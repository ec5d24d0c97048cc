"""The documentation site as a reader sees it, in a real browser, if `make docs` has built it and there is one."""

import pathlib
import shutil

import pytest

HTML = pathlib.Path(__file__).parents[2] / "docs" / "_build" / "html"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}
PAGES = sorted(path.relative_to(HTML).as_posix() for path in HTML.rglob("*.html") if "_modules" not in path.parts)

pytestmark = [
    pytest.mark.skipif(not PAGES, reason="the site is not built: make docs"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(params=WIDTHS)
def tab(browser, request):
    """A page of that width that remembers what it complained about and what it asked other hosts for."""
    width, height = WIDTHS[request.param]
    page = browser.new_page(viewport={"width": width, "height": height})
    page.complaints = []
    page.on("console", lambda said: page.complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda sent: page.complaints.append(sent.url) if sent.url.startswith("http") else None)
    yield page
    page.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_quietly_and_fits_the_screen(name, tab):
    tab.goto(f"file://{HTML / name}")
    assert tab.locator("h1").count() >= 1
    assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert tab.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert tab.complaints == []


def test_formulas_are_drawn_by_the_browser_itself(tab):
    tab.goto(f"file://{HTML / 'theory.html'}")
    boxes = tab.evaluate("[...document.querySelectorAll('math')].map(each => each.getBoundingClientRect().width)")
    assert len(boxes) > 50 and min(boxes) > 0


def test_the_search_finds_a_function(tab):
    tab.goto(f"file://{HTML / 'search.html'}?q=diagnose")
    tab.wait_for_selector("#search-results li", timeout=20_000)
    assert "diagnose" in tab.locator("#search-results").inner_text()


@pytest.mark.parametrize("name", ["index.html", "theory.html", "architecture.html", "api.html"])
def test_axe_finds_nothing_serious(name, tab):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe looks for what hinders readers")
    tab.goto(f"file://{HTML / name}")
    found = axe.Axe().run(tab).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert not serious, [(each["id"], each["nodes"][0]["html"]) for each in serious]
