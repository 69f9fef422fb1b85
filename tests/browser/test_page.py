"""The page at / as a whole: keys, a prefix, the keyboard, screen readers, dark and narrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from app.access.entries import ADMIN, METRICS, PREDICT, make_key
from tests.browser.chromium import Visits
from tests.browser.prefix import below_a_prefix
from tests.browser.test_try import choose, predict
from tests.e2e.server import Server, running

VIEWS = ("try", "watch", "models")
ALL_KEY, ALL_LINE = make_key("everybody", [PREDICT, METRICS, ADMIN])
PREDICT_KEY, PREDICT_LINE = make_key("caller", [PREDICT])


@pytest.fixture(scope="module")
def guarded(models: Path) -> Iterator[Server]:
    """A server with keys."""
    settings = {"api_keys": f"{ALL_LINE}\n{PREDICT_LINE}", "open_metrics": "false"}
    with running(models, models.parent / "keys", default_model="double", **settings) as server:
        yield server


def use_key(page: Page, key: str) -> None:
    """Answer the dialog that asks for a key."""
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill(key)
    dialog.get_by_role("button", name="Use key").click()


def show(page: Page, view: str) -> None:
    """Select a view, and wait until it shows something."""
    page.get_by_role("tab", name=view.capitalize()).click()
    panel = page.locator(f"#panel-{view}")
    shows = {
        "try": panel.get_by_role("button", name="Predict"),
        "watch": panel.locator("figure canvas").last,
        "models": panel.get_by_text("ready").first,
    }
    expect(shows[view]).to_be_visible()


def test_axe_finds_no_serious_problem_in_light_and_dark(visit: Visits, server: Server) -> None:
    page = visit(server.url, color_scheme="light")
    axe = Axe()
    for view in VIEWS:
        show(page, view)
        if view == "try":
            choose(page, "hostile")
            predict(page)
        if view == "models":
            page.locator("#panel-models summary").first.click()
            expect(page.locator("#panel-models dl").first).to_be_visible()
        assert serious(axe, page) == [], view
        assert min(background(page)) > 192
        page.emulate_media(color_scheme="dark")
        assert max(background(page)) < 64
        assert serious(axe, page, COLOURS) == [], f"{view}, dark"
        page.emulate_media(color_scheme="light")
    page.get_by_role("link", name="How to set keys").click()
    assert serious(axe, page) == [], "the key"


def background(page: Page) -> list[int]:
    """Red, green and blue."""
    script = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    levels: list[int] = page.evaluate(script)
    return levels[:3]


@pytest.mark.soak
def test_axe_finds_no_serious_problem_in_a_question(visit: Visits, guarded: Server) -> None:
    page = visit(guarded.url, "/#models", expected={401})
    use_key(page, ALL_KEY)
    page.get_by_role("button", name="Unload double", exact=True).click()
    expect(page.get_by_role("dialog", name="Unload double?")).to_be_visible()
    assert serious(Axe(), page) == []


# What may differ between the colour schemes.
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}


def serious(axe: Axe, page: Page, options: dict[str, Any] | None = None) -> list[str]:
    """What axe-core finds that keeps somebody out."""
    options = {"resultTypes": ["violations"], **(options or {})}
    violations = axe.run(page, options=options).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes']]}"
        for each in violations
        if each["impact"] in ("serious", "critical")
    ]


def test_a_problem_that_axe_finds_is_reported(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    show(page, "try")
    page.evaluate("document.querySelector('h1').after(document.createElement('button'))")
    assert any(each.startswith("button-name") for each in serious(Axe(), page))


@pytest.mark.soak
def test_a_narrow_screen_needs_no_horizontal_scrolling(visit: Visits, server: Server) -> None:
    page = visit(server.url, viewport={"width": 360, "height": 740})
    for view in VIEWS:
        show(page, view)
        if view == "try":
            page.get_by_role("button", name="Use the example").click()
            predict(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
        assert serious(Axe(), page) == [], view


def test_the_page_works_below_a_prefix(visit: Visits, server: Server) -> None:
    with below_a_prefix(server.url) as root:
        page = visit(root)
        choose(page, "double")
        predict(page)
        expect(page.get_by_role("region", name="The same call")).to_contain_text(f"{root}/")
        show(page, "watch")
        expect(page.get_by_role("status").first).to_have_text("Live")
        show(page, "models")


def test_the_page_keeps_the_key_in_memory_only(visit: Visits, guarded: Server) -> None:
    page = visit(guarded.url, expected={401})
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert").first).to_contain_text("key")
    page.reload()
    use_key(page, "schlüssel")
    expect(dialog.get_by_role("alert")).to_contain_text("ASCII")
    use_key(page, "wrong")
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    use_key(page, ALL_KEY)
    expect(dialog).not_to_be_visible()
    predict(page)
    expect(page.get_by_role("region", name="The same call")).not_to_contain_text(ALL_KEY)
    show(page, "watch")
    expect(page.get_by_role("status").first).to_have_text("Live")
    stored = "[localStorage.length, sessionStorage.length, document.cookie]"
    assert page.evaluate(stored) == [0, 0, ""]
    page.reload()
    expect(dialog).to_be_visible()


@pytest.mark.soak
def test_a_predict_key_sees_which_scopes_are_missing(visit: Visits, guarded: Server) -> None:
    page = visit(guarded.url, expected={401, 403})
    use_key(page, PREDICT_KEY)
    predict(page)
    page.get_by_role("tab", name="Watch").click()
    expect(page.get_by_role("status").first).to_contain_text("metrics")
    expect(page.get_by_role("button", name="Profile 5 s")).to_be_disabled()
    expect(page.locator("#panel-watch")).to_contain_text("lacks the scope admin")
    expect(page.locator("#panel-watch figure").first).not_to_be_visible()


def test_a_profile_is_downloaded(visit: Visits, guarded: Server) -> None:
    page = visit(guarded.url, "/#watch", expected={401})
    use_key(page, ALL_KEY)
    expect(page.get_by_role("status").first).to_have_text("Live")
    with page.expect_download(timeout=60_000) as started:
        page.get_by_role("button", name="Profile 5 s").click()
        expect(page.get_by_role("button", name="Profile 5 s")).to_be_disabled()
    assert "traceEvents" in json.loads(Path(started.value.path()).read_text())
    expect(page.locator(".profiler")).to_contain_text("Perfetto")


def test_predict_and_tabs_work_by_keyboard(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    model = page.get_by_label("Model", exact=True)
    expect(model).to_have_value("digits")
    reach(page, model)
    page.keyboard.type("double")
    expect(model).to_have_value("double")
    field = page.get_by_role("textbox")
    expect(field).to_be_visible()
    reach(page, field)
    page.keyboard.press("Control+A")
    page.keyboard.type("[20, 21]")
    reach(page, page.get_by_role("button", name="Predict"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Answer")).to_contain_text("42")
    for _ in range(30):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.id") == "tab-try":
            break
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("status").first).to_be_attached()
    expect(page.locator("#panel-watch")).to_be_visible()
    expect(page).to_have_title("Watch · Torchlane")


def reach(page: Page, wanted: Locator) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(30):
        page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            return
    pytest.fail("Tab does not get there")
