"""A real browser for the tests of pages: Debian's chromium, without a window."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

WITHOUT = "SELF_HEALING_TEST_WITHOUT"
"""Names, with blanks between them, of tools that tests may do without: `chromium tmux`."""


def tool(*names: str) -> str:
    """Return where a tool is; where it is missing the test fails, unless somebody has said that it may."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None and names[0] in os.environ.get(WITHOUT, "").split():
        pytest.skip(f"{names[0]} is not installed, and {WITHOUT} says that tests may do without it")
    if found is None:
        pytest.fail(
            f"this test needs {names[0]}: apt-get install {names[0]} (make test does so as root), or set {WITHOUT}={names[0]}"
        )
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """Start a browser."""
    from playwright.sync_api import sync_playwright

    path = tool("chromium", "chromium-browser", "google-chrome")
    with sync_playwright() as playwright:
        # Tests run as root in containers, where the browser's own sandbox cannot be set up.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """One page, and everything that it said, asked for or tried."""

    def __init__(
        self, browser: Any, address: str, *, width: int = 1400, height: int = 900, scheme: str = "light"
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=address.startswith("file:")
        )
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.asked.remove(self.page.url) if self.page.url in self.asked else None

    def close(self) -> None:
        self.context.close()


CONTRAST = """() => {
  const channel = c => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length && (colour.length < 4 || colour[3] > 0.99)) return colour;
    }
    return [255, 255, 255];
  };
  const worst = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.getClientRects().length) continue;
    if (element.closest('style')) continue;
    const style = getComputedStyle(element);
    const ink = parse(element.closest('svg') ? style.fill : style.color);
    const [high, low] = [light(ink), light(behind(element))].sort((a, b) => b - a);
    worst.push([(high + 0.05) / (low + 0.05), node.data.trim().slice(0, 40), element.tagName]);
  }
  return worst.sort((a, b) => a[0] - b[0]).slice(0, 5);
}"""
"""The texts of a page that differ least from what is behind them, as WCAG counts it."""
