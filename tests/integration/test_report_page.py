"""The report of a healed training, opened in a real browser: quiet, offline, readable, and every incident can be reached."""

from __future__ import annotations

import pytest

from self_healing.cli.main import main

from .browser import CONTRAST, Opened, chromium

pytestmark = pytest.mark.torch
VIEWS = [(width, scheme) for width in (1400, 400) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of the demo's healed training."""
    from self_healing.drills.demonstration import HEALED, QUICK, _one_thread, _train

    folder = tmp_path_factory.mktemp("demo") / HEALED
    with _one_thread():
        result = _train(HEALED, folder, QUICK, lambda *_: None)
    assert result.updates == QUICK.updates
    assert main(["report", str(folder)]) == 0
    return folder / "healing" / "report.html"


def test_it_is_one_small_private_file(report):
    assert report.stat().st_size < 400_000
    assert report.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in report.parent.iterdir() if "report" in path.name] == ["report.html"]


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_it_is_quiet_offline_and_readable(report, browser, tmp_path, width, scheme):
    view = Opened(browser, report.as_uri(), width=width, scheme=scheme)
    page = view.page
    assert view.said == []
    assert view.asked == []
    wide, shown, sideways = page.evaluate(
        "() => [document.documentElement.clientWidth, document.documentElement.scrollWidth, "
        "[...document.querySelectorAll('body *')].filter(e => e.getClientRects().length && !e.closest('.scroll, .words, .skip') && "
        "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + (e.className.baseVal ?? e.className))]"
    )
    assert (wide, shown, sideways) == (width, width, [])
    assert page.evaluate(CONTRAST)[0][0] >= 4.5, page.evaluate(CONTRAST)
    small = page.evaluate(
        "() => [...document.querySelectorAll('body *')].filter(e => e.getClientRects().length && [...e.childNodes].some(n => n.nodeType === 3 && "
        "n.data.trim())).map(e => { const s = e.closest('svg'); const scale = s ? s.getBoundingClientRect().width / s.viewBox.baseVal.width : 1; "
        "return parseFloat(getComputedStyle(e).fontSize) * scale; }).sort((a, b) => a - b)[0]"
    )
    assert small >= 8.5
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(247, 246, 243)" if scheme == "light" else "rgb(16, 20, 26)")
    line = page.evaluate("getComputedStyle(document.querySelector('#curve-loss svg path[style*=ink-series]')).stroke")
    assert line == ("rgb(23, 98, 107)" if scheme == "light" else "rgb(116, 199, 208)")
    picture = tmp_path / "page.png"
    page.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 50_000
    view.close()


@pytest.mark.parametrize("width", [1400, 400])
def test_axes_are_labelled_and_incidents_lead_to_the_timeline_and_back(report, browser, width):
    view = Opened(browser, report.as_uri(), width=width)
    page = view.page
    shown = ".wide" if width == 1400 else ".narrow"
    for key, unit in {
        "loss": "loss",
        "grad_norm": "gradient norm",
        "learning_rate": "learning rate",
        "memory": "GiB",
        "step_time_s": "seconds",
    }.items():
        texts = [text.strip() for text in page.locator(f"#curve-{key} {shown} svg text").all_text_contents()]
        assert "step" in texts, key
        assert any(text.startswith(unit) for text in texts), (key, texts)
        assert sum(text.replace(".", "").replace("e-", "").isdigit() for text in texts) >= 6, (key, texts)
    assert page.locator(".missing").count() == 0, "all there is to draw was recorded"
    marks = page.locator(f"#curve-loss {shown} svg a[aria-label]")
    assert marks.count() >= 4
    name = marks.nth(1).get_attribute("href")
    marks.nth(1).click()
    assert page.evaluate("location.hash") == name
    target = page.locator(f"article{name}")
    page.wait_for_function(
        "name => { const r = document.querySelector(name).getBoundingClientRect(); return r.top >= -2 && r.top < innerHeight; }",
        arg=name,
    )
    assert page.evaluate("name => document.querySelector(name).matches(':target')", name)
    target.get_by_text("on the curves").click()
    assert page.evaluate("location.hash") == "#curve-loss"
    marks.nth(2).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == marks.nth(2).get_attribute("href")
    assert view.said == []
    view.close()


def test_it_is_walked_through_by_keyboard(report, browser):
    view = Opened(browser, report.as_uri())
    page = view.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.evaluate(
        "() => { window.seen = []; addEventListener('focusin', e => seen.push(e.target.getAttribute('href') || e.target.tagName)); }"
    )
    for _ in range(60):
        page.keyboard.press("Tab")
    seen = page.evaluate("window.seen")
    assert "#timeline" in seen
    assert "#incident-1" in seen
    assert "SUMMARY" in seen
    assert page.evaluate("document.querySelectorAll('h1').length") == 1
    details = page.locator("article details").first
    details.locator("summary").focus()
    page.keyboard.press("Enter")
    assert details.evaluate("d => d.open")
    view.close()


def test_what_it_tells_is_what_happened(report, browser):
    view = Opened(browser, report.as_uri())
    page = view.page
    figures = page.locator(".figures").inner_text()
    assert "80" in figures
    titles = page.locator("article h3").all_inner_texts()
    assert {"Step not finite", "Out of memory", "Bad record", "Network error"} <= set(titles)
    assert "trained 80 of 80 steps" in page.locator(".story").inner_text()
    assert "UnicodeDecodeError" in page.locator("#data").inner_text()
    assert "productive" in page.locator("#time").inner_text().lower()
    assert "torch" in page.locator("#environment").inner_text()
    view.close()


def test_hostile_texts_do_nothing_in_a_browser(browser, tmp_path):
    from ..unit.told_run import hostile_run

    hostile_run(tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    for width in (1400, 400):
        view = Opened(browser, (tmp_path / "healing" / "report.html").as_uri(), width=width)
        assert (view.said, view.asked) == ([], [])
        assert view.page.evaluate("document.documentElement.scrollWidth") == width
        assert view.page.evaluate("document.querySelectorAll('script, img, iframe, form').length") == 0
        view.close()


def test_the_live_page_opens_in_a_browser_and_looks_again(browser, tmp_path):
    import threading

    from self_healing.watch.tail import RunTail
    from self_healing.watch.web import Site

    from ..unit.told_run import Book

    book = Book(tmp_path)
    book.metrics(1, loss=1.0)
    book.ledger.flush()
    site = Site(RunTail(tmp_path), every_s=1.0)
    thread = threading.Thread(target=site.serve, daemon=True)
    thread.start()
    try:
        view = Opened(browser, site.address)
        assert "token" not in view.page.url
        assert "trained 1 steps" in view.page.locator(".story").inner_text().replace("one step", "1 steps")
        book.metrics(2, loss=0.5)
        book.close()
        view.page.get_by_text("trained 2 steps").wait_for(timeout=30_000)
        assert [text for text in view.said if "favicon" not in text] == []
        assert {address for address in view.asked if not address.startswith(f"http://127.0.0.1:{site.port}/")} == set()
        view.close()
    finally:
        site.close()
        thread.join(5)
