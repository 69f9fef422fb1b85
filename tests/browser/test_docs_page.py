"""/docs in a real browser without internet: it shows the API, and calls it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from app.access.entries import PREDICT, make_key
from tests.browser.chromium import Tab, Visits
from tests.browser.prefix import below_a_prefix
from tests.browser.test_page import serious
from tests.e2e.server import PLAIN, Server, running


def execute(page: Page, operation: str, says: str) -> str:
    """What an operation answers to "Try it out"."""
    block = page.locator(operation)
    block.locator(".opblock-summary-control").click()
    block.locator(".try-out__btn").click()
    block.locator(".execute").click()
    answer = block.locator(".live-responses-table")
    expect(answer).to_contain_text(says)
    return answer.inner_text()


@pytest.fixture(scope="module")
def models(one_model: Path) -> Path:
    """The page has operations of each model."""
    return one_model


def test_docs_page_shows_and_calls_every_operation_below_a_prefix(
    models: Path, tmp_path: Path, visit: Visits
) -> None:
    secret, line = make_key("somebody", [PREDICT])  # keys close the calls, but not this page
    with (
        running(models, tmp_path / "log", api_keys=line) as server,
        below_a_prefix(server.url) as root,
    ):
        page = visit(root, "/docs")
        paths = page.locator(".opblock-summary-path")
        expect(page.locator("#operations-health-ready")).to_be_visible()
        offered = httpx.get(f"{server.url}/openapi.json", verify=PLAIN).json()["paths"]
        assert {text.replace("\u200b", "") for text in paths.all_inner_texts()} == set(offered)
        assert '"ready"' in execute(page, "#operations-health-ready", '"status"')
        page.locator(".auth-wrapper .authorize").click()
        page.locator(".auth-container input").first.fill(secret)
        page.locator(".auth-btn-wrapper .authorize").first.click()
        page.locator(".auth-btn-wrapper .btn-done").first.click()
        answer = execute(page, "#operations-predictions-predict", '"prediction"')
        assert '"outputs"' in answer
    assert {f"{root}/health/ready", f"{root}/predict"} <= set(visit.tabs[0].requests)


@pytest.mark.soak
def test_docs_page_lists_real_models_in_dark_mode(server: Server, visit: Visits) -> None:
    page = visit(server.url, "/docs", color_scheme="dark")
    body = execute(page, "#operations-model_double-predict_by_model_double", '"prediction"')
    assert '"model": "double"' in body
    shown = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert max(map(int, re.findall(r"\d+", shown)[:3])) < 64
    expect(page.locator(".models")).not_to_have_class(re.compile("is-open"))
    assert f"{server.url}/models/double/predict" in visit.tabs[0].requests


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
def test_axe_finds_no_serious_problem(
    server: Server, visit: Visits, scheme: Literal["light", "dark"]
) -> None:
    page = visit(server.url, "/docs", color_scheme=scheme)
    expect(page.get_by_label("Server", exact=True)).to_be_visible()
    assert serious(Axe(), page) == []


def test_policy_violations_and_external_requests_are_detected(
    server: Server, browser: Browser
) -> None:
    """The other tests of this folder would see them."""
    tab = Tab(browser.new_page(), server.url)
    tab.page.goto(f"{server.url}/#watch")
    tab.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: '1'}));"
        "document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:1/x.png'}));"
        "fetch('http://elsewhere.example/').catch(() => 0)"
    )
    refusals: list[str] = []
    for _ in range(100):  # the browser reports them in its own time
        refusals = [each for each in tab.complaints if "Content Security Policy" in each]
        if len(refusals) > 2:
            break
        tab.page.wait_for_timeout(200)
    for directive in ("script-src", "img-src", "connect-src"):
        assert any(directive in each for each in refusals), directive
    assert "http://127.0.0.1:1/x.png" in tab.elsewhere
    tab.page.goto(f"{server.url}/predict/nowhere")
    assert any("404" in each for each in tab.complaints)
    tab.close()
