"""A headless Chromium that reaches only the loopback interface, and what it complains about."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
PATIENCE_MS = 60_000
# An error's status is told in the console, whatever the page makes of it.
STATUS = re.compile(r"Failed to load resource: the server responded with a status of (\d+)")
WITHOUT_NETLINK = Path(__file__).with_name("without_netlink.py")
PICTURES = Path(__file__).parents[2] / "reports" / "browser"  # of each test, as it ends


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The system's browser; the test is skipped where there is none.

    The same browser without a desktop's parts, if it is there, takes half of the processor time.
    """
    found = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if found is None:
        pytest.skip("needs chromium (Debian: chromium-headless-shell, or chromium)")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=WITHOUT_NETLINK if sys.platform == "linux" else found,
            args=list(FLAGS),
            env={**os.environ, "BROWSER_PROGRAM": found},
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tab:
    """A page in a context of its own, and what it did wrong.

    Args:
        page: the page.
        root: the address below which everything has to be that is asked for.
        expected: statuses of errors which are no complaints.
    """

    page: Page
    root: str
    expected: Collection[int] = ()
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    @property
    def elsewhere(self) -> list[str]:
        """What was asked for from other origins."""
        own = (f"{self.root}/", "data:", f"blob:{'/'.join(self.root.split('/')[:3])}/")
        return [each for each in self.requests if not each.startswith(own)]

    def close(self) -> None:
        self.page.context.close()

    def _said(self, message: ConsoleMessage) -> None:
        status = STATUS.match(message.text)
        if status and int(status[1]) in self.expected:
            return
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


@dataclass
class Visits:
    """The pages that a test opens; none may complain, or ask another origin for anything."""

    browser: Browser
    name: str
    tabs: list[Tab] = field(default_factory=list)

    def __call__(
        self, root: str, path: str = "/", *, expected: Collection[int] = (), **context: Any
    ) -> Page:
        """Open ROOT/PATH; `context` says how, such as `color_scheme`."""
        page = self.browser.new_context(**{"locale": "en-GB", **context}).new_page()
        self.tabs.append(Tab(page, root, expected))
        page.goto(root + path)
        return page

    def keep_pictures(self) -> None:
        """Write down what each page looks like."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        for number, tab in enumerate(self.tabs):
            name = re.sub(r"[^\w-]+", "-", f"{self.name}-{number}" if number else self.name)
            tab.page.screenshot(path=PICTURES / f"{name.strip('-')}.png")

    def close(self) -> None:
        """Close all pages.

        Raises:
            AssertionError: if one did wrong.
        """
        for tab in self.tabs:
            tab.close()
        assert [each for tab in self.tabs for each in tab.complaints] == []
        assert [each for tab in self.tabs for each in tab.elsewhere] == []
