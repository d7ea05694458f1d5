"""The page in a real browser, without a network: it is drawn, it answers to clicks and hovers, and names are text."""

import json
import shutil
import time

import pytest
from test_page import HOSTILE, compared, run_of_ranks
from test_ranks import training
from test_summary import record, run_of

from mlvbench.report.page import report_page
from mlvbench.report.summary import summarize
from mlvbench.report.text import printable

pytestmark = pytest.mark.browser

OPTIONS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1100,900",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip
PHONE = 390


class Page:
    """A page in the browser."""

    def __init__(self, driver, path):
        self.driver, self._path = driver, path

    def open(self, shown, *, theme="light", width=1100):
        self._path.write_text(shown, encoding="utf-8")
        self.driver.get("about:blank")
        self.emulate(theme, width)
        self.driver.get(self._path.as_uri())
        return self

    def emulate(self, theme, width):
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    @property
    def data(self):
        return json.loads(self.run("return document.getElementById('data').textContent"))

    def tops(self, chart=0):
        """How high each phase reaches that is shown, the highest first, over each step."""
        script = "return echarts.getInstanceByDom(document.querySelectorAll('[role=img]')[arguments[0]])"
        return self.run(f"{script}.getOption().series.map(series => series.data)", chart)

    def hover(self, chart, x, y):
        """Puts the mouse at a part of the width and height of a chart and returns what is shown, by lines."""
        from selenium.webdriver import ActionChains

        place = self.all("[role=img]")[chart]
        self.run("arguments[0].scrollIntoView({block: 'center'})", place)
        offsets = round(place.size["width"] * (x - 0.5)), round(place.size["height"] * (y - 0.5))
        ActionChains(self.driver).move_to_element_with_offset(place, *offsets).pause(0.3).perform()
        # Charts of the same steps show theirs at the same time.
        selector = ".tip > b, .tip > div > span, .tip > div > b"
        return self.run(
            "return [...arguments[0].querySelectorAll(arguments[1])].map(e => e.textContent)", place, selector
        )

    def click(self, name):
        [button] = [b for b in self.all("#legend button") if b.find_element("css selector", "span").text == name]
        button.click()
        return button


@pytest.fixture(scope="module")
def driver():
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not chromedriver:
        pytest.skip("there is no chromium with its chromedriver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()


@pytest.fixture
def page(driver, tmp_path):
    """Where a test does not expect anything on the console, nothing is there."""
    page = Page(driver, tmp_path / "page.html")
    driver.get_log("browser")
    yield page
    assert driver.get_log("browser") == []


def steady(snapshots, **more):
    seconds = {"data": 1, "forward": 3, "forward/blocks": 2, "backward": 5}
    return run_of([record(50 * i, seconds, wall=10, samples=100, **more) for i in range(1, snapshots + 2)])


def shown(run):
    return report_page(run, summarize(run))


RANKS = training(8, 60, extra={5: {"forward": 8}}, noise=0)


class TestAlone:
    def test_it_is_drawn_and_nothing_is_asked_for(self, page):
        page.open(shown(steady(100, peak=3.5)))
        assert page.texts("h2") == [
            "Time per step ms, of each phase without what is nested in it", "Throughput samples/s", "Memory, peak GB",
        ]  # fmt: skip
        assert len(page.all("[role=img] canvas")) == 3
        assert page.run("return performance.getEntriesByType('resource').length") == 0

    def test_a_script_that_got_in_would_not_run(self, page, driver):
        page.open(shown(steady(3)))
        page.run(
            "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
        )
        page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">')")
        time.sleep(0.2)
        assert page.run("return window.ran === undefined")
        assert all("Content Security Policy" in entry["message"] for entry in driver.get_log("browser"))

    def test_without_javascript_the_table_is_there(self, page, driver):
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        try:
            page.open(shown(steady(3)))
            assert [cell.text for cell in page.all("tbody tr:last-child > *")][:3] == ["wall time", "200.0", "100.0%"]
            assert "The charts need JavaScript" in page.all("noscript")[0].text
        finally:
            driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


class TestStack:
    @pytest.mark.parametrize("snapshots", [5, 100])
    def test_phases_can_be_switched_off_and_the_stack_restacks(self, page, snapshots):
        page.open(shown(steady(snapshots)))
        assert [column[0] for column in page.tops()] == [200, 180, 80, 40, 20]
        backward = page.click("backward")
        assert backward.get_attribute("aria-pressed") == "false"
        assert [column[0] for column in page.tops()] == [100, 80, 40, 20]
        page.click("data")
        assert [column[0] for column in page.tops()] == [80, 60, 20]
        backward.click()
        assert backward.get_attribute("aria-pressed") == "true"
        assert [column[0] for column in page.tops()] == [180, 160, 60, 20]

    def test_what_is_switched_off_stays_off_in_another_theme(self, page):
        page.open(shown(steady(5)))
        page.click("backward")
        page.all("#theme")[0].click()
        assert len(page.tops()) == 4

    def test_all_can_be_switched_off(self, page):
        page.open(shown(steady(5)))
        for name in page.data["phases"]:
            page.click(name)
        assert page.tops() == []

    @pytest.mark.parametrize("snapshots", [5, 100])
    def test_a_hover_shows_the_figures_of_its_step(self, page, snapshots):
        run = run_of([
            record(50 * i, {"data": i / 10, "forward": 3, "forward/blocks": 2}, wall=5 + i / 10)
            for i in range(1, snapshots + 2)
        ])  # fmt: skip
        page.open(shown(run))
        title, *rows = page.hover(0, 0.5, 0.4)
        number = int(title.split(":")[0].removeprefix("step ").replace(",", "")) / 50
        # In milliseconds a step, of 50 steps.
        assert abs(number - (snapshots + 3) / 2) <= max(snapshots / 20, 1)
        data, wall = 1000 * number / 10 / 50, 1000 * (5 + number / 10) / 50
        digits = page.data["digits"]
        assert title == f"step {50 * number:,.0f}: {wall:,.{digits}f} ms"
        expected = {"other": 40, "forward/blocks": 40, "forward": 20, "data": data}
        assert dict(zip(rows[::2], rows[1::2], strict=True)) == {
            name: f"{value:,.{digits}f}" for name, value in expected.items()
        }

    def test_a_hover_leaves_out_what_is_switched_off(self, page):
        page.open(shown(steady(5)))
        page.click("backward")
        title, *rows = page.hover(0, 0.5, 0.4)
        assert title.endswith(": 100.0 ms")
        assert rows[::2] == ["other", "forward/blocks", "forward", "data"]

    def test_two_runs_have_one_scale_that_follows(self, page):
        page.open(compared(steady(5), run_of([record(50 * i, {"data": 30}, wall=30) for i in range(1, 7)])))
        scales = (
            "return [...document.querySelectorAll('[role=img]')]"
            ".map(place => echarts.getInstanceByDom(place).getModel().getComponent('yAxis').axis.scale.getExtent()[1])"
        )
        assert page.run(scales) == [600, 600]
        page.click("data")
        assert page.run(scales) == [200, 200]

    def test_many_phases_of_two_long_runs(self, page):
        run = run_of([record(50 * i, {f"p{n}": 1 for n in range(60)}, wall=60) for i in range(1, 2002)])
        page.open(compared(run, run))
        assert len(page.tops(0)) == len(page.tops(1)) == 61


class TestOthers:
    def test_a_hover_over_throughput_and_memory(self, page):
        page.open(shown(steady(100, peak=3.5)))
        assert page.hover(1, 0.5, 0.5)[1:] == ["Throughput, samples/s", "10.00"]
        assert page.hover(2, 0.5, 0.5)[1:] == ["Memory, peak, GB", "3.50"]

    def test_a_hover_over_a_rank(self, page):
        page.open(shown(RANKS))
        heat = len(page.all("[role=img]")) - 1
        # Of eight ranks the sixth, of five phases the second.
        found = page.hover(heat, 0.66, 0.18)
        assert found == ["rank 5", "forward", "28.00 ms", "than the median", "+8.00"]

    @pytest.mark.parametrize("ranks", [1000, 20_000])
    def test_many_ranks(self, page, ranks):
        few = training(1000, 12, extra={7: {"data": 9}}).ranks
        run = run_of_ranks({rank: few[rank if rank < 1000 else 0][0] for rank in range(ranks)})
        made = shown(run)
        start = time.monotonic()
        page.open(made)
        assert time.monotonic() - start < 10
        assert page.texts(".advice")[0].startswith("rank 7 is slower than the others")
        heat = len(page.all("[role=img]")) - 1
        edged = [cell["value"][0] for cell in page.tops(heat)[0] if isinstance(cell, dict)]
        assert set(edged) == {7}


class TestNames:
    def test_are_text_wherever_they_are(self, page):
        names = [name for name in HOSTILE if "/" not in name] + ["<script>window.ran = 1<", "<b>bold", "{a|b}{b|c}"]
        seconds = dict.fromkeys(names, 1)
        run = run_of(
            [record(50 * i, seconds, wall=len(seconds)) for i in range(1, 5)], command=["</title><script>", *names]
        )
        page.open(shown(run))
        expected = [printable(name) for name in seconds]
        assert page.texts("#legend span") == [*expected, "other"]
        assert page.texts("tbody th") == [*expected, "other", "wall time"]
        found = page.hover(0, 0.5, 0.4)
        assert found[1::2] == [*expected, "other"][::-1]
        assert page.run("return document.querySelectorAll('script').length") == 3
        assert page.run("return document.querySelectorAll('b b, b i, span *, th *, img').length") == 0
        assert page.run("return window.ran === undefined")
        assert page.driver.title.startswith("mlvbench: run '</title><script>' '<script>' ")

    def test_so_are_they_beside_ranks(self, page):
        name = "<script>alert(1)<{a|b}"
        page.open(shown(training(8, 12, extra={5: {name: 8}}, noise=0)))
        heat = len(page.all("[role=img]")) - 1
        found = [page.hover(heat, 0.66, y / 20) for y in range(2, 14)]
        assert ["rank 5", name, "8.00 ms", "than the median", "+8.00"] in found


class TestLooks:
    @pytest.mark.parametrize("width", [1100, PHONE])
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_in_both_themes_and_on_a_phone(self, page, theme, width, tmp_path):
        page.open(shown(RANKS), theme=theme, width=width)
        dark = page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        assert dark == (theme == "dark")
        # Nothing is wider than the page but the table, which scrolls by itself.
        assert page.run("return document.documentElement.scrollWidth") <= width
        assert (
            page.run(
                "return [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, pre, details') "
                "&& !e.closest('[role=img]') && e.getBoundingClientRect().right > innerWidth + 1).length"
            )
            == 0
        )
        page.driver.save_screenshot(str(tmp_path / f"{theme}-{width}.png"))
        assert (tmp_path / f"{theme}-{width}.png").stat().st_size > 10_000

    def test_the_button_changes_the_theme(self, page):
        page.open(shown(steady(3)))
        [button] = page.all("#theme")
        colour = "return getComputedStyle(document.body).backgroundColor"
        assert (button.text, page.run(colour)) == ("Dark", "rgb(255, 255, 255)")
        button.click()
        assert (button.text, page.run(colour)) == ("Light", "rgb(20, 23, 27)")

    def test_a_long_run_opens_and_scrolls_without_a_stall(self, page):
        run = steady(20_000, peak=1.5)
        made = shown(run)
        start = time.monotonic()
        page.open(made)
        assert time.monotonic() - start < 10
        page.run(
            "window.stalls = []; const keep = list => stalls.push(...list.getEntries().map(entry => entry.duration));"
            "new PerformanceObserver(keep).observe({type: 'longtask'})"
        )
        for y in range(0, 1200, 100):
            page.run("scrollTo(0, arguments[0])", y)
            time.sleep(0.05)
        assert max(page.run("return stalls"), default=0) < 500
        assert "each point is the sum of 10 snapshots, of 20,000" in page.texts("h2")[0]
        start = time.monotonic()
        page.click("backward")
        assert time.monotonic() - start < 2
