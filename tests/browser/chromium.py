"""A headless Chromium that reaches only the loopback interface; what it says about a page."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"),
    *("disable-background-networking", "disable-component-update", "disable-dev-shm-usage"),
    "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "window-size=1200,1600",
)
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Browser:
    """A browser with one page."""

    driver: webdriver.Chrome

    def open(self, url: str) -> None:
        """Load a page; what the browser asked for before, for its own first page, is forgotten."""
        self.requests()
        self.driver.get(url)

    def find(self, css: str, text: str = "") -> WebElement:
        """The first visible element of a selector that holds the text, once there is one."""

        def there(driver: webdriver.Chrome) -> WebElement | Literal[False]:
            found = driver.find_elements(By.CSS_SELECTOR, css)
            return next((one for one in found if one.is_displayed() and text in one.text), False)

        wait = WebDriverWait(self.driver, PATIENCE_S)
        return wait.until(there, f"no visible {css} with {text!r}")

    def texts(self, css: str) -> list[str]:
        """What all elements of a selector say."""
        return [each.text for each in self.driver.find_elements(By.CSS_SELECTOR, css)]

    def complaints(self) -> list[str]:
        """Errors and warnings in the console since the last call, violated policies among them."""
        log: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [each["message"] for each in log if each["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """The address of everything that was asked for since the last call."""
        log: list[dict[str, Any]] = self.driver.get_log("performance")  # type: ignore[no-untyped-call]
        events = [json.loads(each["message"])["message"] for each in log]
        sent = [each for each in events if each["method"] == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"] for each in sent]


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A fresh browser; the test is skipped where there is none.

    Args:
        folder: for its profile.
    """
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"user-data-dir={folder / 'profile'}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    chrome = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()
