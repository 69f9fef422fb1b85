"""Models, on the page at /: what is loaded, loading and failed, and changes by an administrator."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app.access.entries import ADMIN, PREDICT, make_key
from tests.artifacts import write_artifact
from tests.browser.chromium import Visits
from tests.browser.live_data import send_live
from tests.browser.test_page import use_key
from tests.browser.test_watch import SNAPSHOT
from tests.e2e.server import Server, running

ADMIN_KEY, ADMIN_LINE = make_key("boss", [PREDICT, ADMIN])
PREDICT_KEY, PREDICT_LINE = make_key("caller", [PREDICT])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `models`, to which models may be added; `slow` is loaded once `gate` is there."""
    folder = tmp_path_factory.mktemp("guarded")
    write_artifact(folder / "models", "double")
    return folder


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[Server]:
    """A server with keys."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LOAD_UNTIL", str(folder / "gate"))
        with running(
            folder / "models",
            folder / "log",
            module="tests.e2e.slow_app",
            api_keys=f"{ADMIN_LINE}\n{PREDICT_LINE}",
            reload_s="0",
        ) as server:
            yield server


def version(page: Page, model: str) -> str:
    return f"section[aria-label='Model {model}'] tbody tr"


def test_unload_asks_first_and_load_restores_the_model(visit: Visits, guarded: Server) -> None:
    page = visit(guarded.url, "/#models", expected={401})
    use_key(page, ADMIN_KEY)
    shown = page.locator(version(page, "double"))
    button = page.get_by_role("button", name="Unload double", exact=True)
    button.click()
    dialog = page.get_by_role("dialog", name="Unload double?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(shown).to_contain_text("ready")
    button.click()
    dialog.get_by_role("button", name="Unload").click()
    expect(shown).to_contain_text("unloaded")
    expect(page.get_by_role("status").filter(has_text="retired double/1")).to_be_visible()
    page.get_by_role("button", name="Load double", exact=True).click()
    expect(shown).to_contain_text("ready")
    expect(page.get_by_role("status").filter(has_text="loaded double/1")).to_be_visible()


def test_a_key_without_the_admin_scope_sees_why_at_once(visit: Visits, guarded: Server) -> None:
    page = visit(guarded.url, "/#models", expected={401})
    use_key(page, PREDICT_KEY)
    expect(page.locator(version(page, "double"))).to_contain_text("ready")
    reload = page.get_by_role("button", name="Reload repository")
    expect(page.locator("#panel-models")).to_contain_text("This key lacks the scope admin.")
    buttons = [reload, page.get_by_role("button", name="Unload double", exact=True)]
    for button in buttons:
        expect(button).to_be_disabled()
    page.get_by_role("button", name="API key").click()
    use_key(page, ADMIN_KEY)
    for button in buttons:
        expect(button).to_be_enabled()
    expect(page.get_by_role("link", name="How to set keys")).to_be_hidden()


def test_a_server_without_keys_explains_them(visit: Visits, server: Server) -> None:
    page = visit(server.url, "/#models")
    expect(page.get_by_role("button", name="Unload double", exact=True)).to_be_disabled()
    page.get_by_role("link", name="How to set keys").click()
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog.get_by_text("torchlane keys NAME --scope predict")).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()
    expect(page).to_have_url(re.compile("#models$"))


def models_of(page: Page, listed: list[dict[str, Any]]) -> None:
    """Show Models where the server has these."""
    body = json.dumps({"models": listed})
    page.route("**/models", lambda route: route.fulfill(body=body))
    page.get_by_role("tab", name="Models").click()


def test_a_model_waits_for_the_one_that_is_loaded(visit: Visits, server: Server) -> None:
    page = visit(server.url, expected={404})
    loading = {"state": "loading", "version": 1, "problem": None, "seconds": 1.0, "progress": None}
    steps = {"minilm": "load", "pairwise": None}
    model = {"default": False, "state": "loading", "version": None}
    listed = [
        {**model, "name": name, "versions": [{**loading, "step": step}]}
        for name, step in steps.items()
    ]
    models_of(page, listed)
    expect(page.locator(version(page, "pairwise"))).to_contain_text("waiting for minilm")
    expect(page.locator(version(page, "minilm"))).to_contain_text("loading")
    page.get_by_role("tab", name="Try").click()
    options = page.get_by_label("Model", exact=True).get_by_role("option")
    expect(options).to_have_text(["minilm (loading)", "pairwise (waiting for minilm)"])


@pytest.mark.soak
def test_digests_are_shortened(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    problem = f"script.pt has SHA-256 {'0123456789ab' * 5}cdef"
    failed = {"state": "failed", "version": 1, "problem": problem, "step": None}
    model = {"name": "digits", "default": True, "state": "failed", "version": None}
    models_of(page, [{**model, "versions": [failed]}])
    reason = page.locator(f"{version(page, 'digits')} .reason")
    expect(reason).to_have_text("script.pt has SHA-256 0123456789ab…")
    expect(reason).to_have_attribute("title", problem)


@pytest.mark.soak
def test_weights_and_those_without_effect_are_shown(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    problem = "not served, but with a weight: digits 9"
    shares = [{"version": 2, "share": 0.95}, {"version": 3, "share": 0.05}]
    weights = {"versions": [*shares, {"version": 9, "share": 0}], "problem": problem}
    ready = [{"version": number, "state": "ready", "problem": None} for number in (3, 2)]
    model = {"name": "digits", "default": True, "state": "ready", "version": 2}
    models_of(page, [{**model, "versions": ready, "weights": weights}])
    card = page.get_by_role("region", name="Model digits")
    rows = page.locator(version(page, "digits"))
    expect(rows.first).to_contain_text("5 % of requests")
    expect(rows.last).to_contain_text("95 % of requests")
    expect(card.get_by_text(problem)).to_be_visible()
    models_of(page, [{**model, "versions": ready, "weights": None}])
    expect(rows.first).to_contain_text("0 % of requests")
    expect(rows.last).to_contain_text("100 % of requests")
    expect(card.get_by_text(problem)).to_have_count(0)


def test_a_release_is_shown(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    release = {"to": 3, "state": "running", "step": 2, "steps": [1, 12.5, 100], "percent": 12.5}
    ready = [{"version": number, "state": "ready", "problem": None} for number in (3, 2)]
    model = {"name": "digits", "default": True, "state": "ready", "version": 2, "versions": ready}
    models_of(page, [{**model, "release": {**release, "reason": None, "problem": None}}])
    card = page.get_by_role("region", name="Model digits")
    expect(card).to_contain_text("Release of version 3: running, step 2 of 3: 12.5 %")
    back = {**release, "state": "rolled_back", "percent": 0, "reason": "0.2 of the items failed"}
    models_of(page, [{**model, "release": back}])
    expect(card).to_contain_text("3: rolled back, step 2 of 3: 0 %; 0.2 of the items failed")
    expect(card.get_by_role("button", name="Begin again the release of digits")).to_be_disabled()
    roll_back = card.get_by_role("button", name="Roll back")
    expect(roll_back).to_be_hidden()
    waits = {**release, "state": "waiting", "reason": None, "problem": "no room"}
    models_of(page, [{**model, "release": waits}])
    expect(roll_back).to_be_visible()
    models_of(page, [{**model, "release": {**waits, "step": 0}}])  # it has not begun
    expect(roll_back).to_be_hidden()
    models_of(page, [{**model, "release": None}])
    expect(card).not_to_contain_text("Release")
    expect(card.get_by_role("button", name="Begin again")).to_be_hidden()


def test_an_administrator_steers_a_release(visit: Visits, tmp_path: Path) -> None:
    for number in (1, 2):
        write_artifact(tmp_path / "models", "double", number)
    file = tmp_path / "models.toml"
    file.write_text("[models.double]\nrelease = { to = 2, steps = [10, 100], every_s = 3600 }\n")
    settings = {"models_file": str(file), "versions": "all", "api_keys": ADMIN_LINE}
    with running(tmp_path / "models", tmp_path / "log", **settings) as server:
        page = visit(server.url, "/#models", expected={401})
        use_key(page, ADMIN_KEY)
        card = page.get_by_role("region", name="Model double")
        back = card.get_by_role("button", name="Roll back the release of double")
        expect(card).to_contain_text("Release of version 2: running, step 1 of 2: 10 %")
        expect(page.locator(version(page, "double")).first).to_contain_text("10 % of requests")
        card.get_by_role("button", name="Pause the release of double").click()
        expect(card).to_contain_text("Release of version 2: paused")
        expect(page.get_by_role("status").filter(has_text="Release of version 2")).to_be_visible()
        card.get_by_role("button", name="Resume the release of double").click()
        expect(card).to_contain_text("Release of version 2: running")
        back.click()
        expect(card).to_contain_text("rolled back, step 1 of 2: 0 %; an administrator asked for it")
        expect(back).to_be_hidden()
        card.get_by_role("button", name="Begin again the release of double").click()
        expect(card).to_contain_text("Release of version 2: running")
        page.goto("about:blank")  # its live data would end with the server, which is a complaint


@pytest.mark.soak
def test_what_a_version_takes_is_shown(visit: Visits, server: Server) -> None:
    page = visit(server.url, expected={404})
    model = {"default": False, "state": "ready", "version": 1}
    known: dict[str, dict[str, Any]] = {
        "hot": {"state": "ready", "memory_bytes": 14 << 20, "idle_s": 312.0},
        "cold": {"state": "cold"},
        "next": {"state": "cold", "left_s": 5.2},
        "coming": {"state": "loading", "seconds": 2.1, "left_s": 3.4},
    }
    listed = [
        {**model, "name": name, "versions": [{"version": 1, "problem": None, "step": None, **each}]}
        for name, each in known.items()
    ]
    models_of(page, listed)
    words = {
        "hot": "14.0 MiB, used 5 min ago",
        "cold": "the next request loads it",
        "next": "loaded in about 5.2 s",
        "coming": "2.1 s, about 3.4 s left",
    }
    for name, text in words.items():
        expect(page.locator(f"{version(page, name)} .reason")).to_contain_text(text)


@pytest.mark.soak
def test_versions_are_compared_side_by_side(visit: Visits, server: Server) -> None:
    """By what they did since the server started, whoever watched."""
    page = visit(server.url, expected={404})
    some = {"name": "digits", "requests": 1000, "failed_items": {}}
    totals = [
        {**some, "version": 3, "failed": 0, "latency_ms": {"4": 1000}},
        {**some, "version": 2, "failed": 5, "latency_ms": {"10": 900, "100": 95}},
    ]
    served = [
        {"name": "digits", "version": number, "hit_per_s": 0, "miss_per_s": 0, "joined_per_s": 0}
        for number in (3, 2)
    ]
    send_live(page, [{**SNAPSHOT, "models": served, "totals": totals}])
    page.reload()
    versions = [
        {"version": each, "state": "ready", "problem": None, "step": None} for each in (3, 2, 1)
    ]
    model = {"name": "digits", "default": True, "state": "ready", "version": 3}
    models_of(page, [{**model, "versions": versions}])
    rows = page.locator(version(page, "digits"))
    expect(rows.nth(0).locator("td.number")).to_have_text(["1,000", "0", "3.26 ms", "3.99 ms"])
    expect(rows.nth(1).locator("td.number")).to_have_text(
        ["1,000", "5 (0.5 %)", "8.35 ms", "96.1 ms"]
    )
    expect(rows.nth(2).locator("td.number")).to_have_text(["\u2013"] * 4)
    slowest = page.get_by_text("slowest").filter(visible=True)
    expect(slowest).to_have_count(1)
    expect(rows.nth(1).get_by_text("slowest")).to_be_visible()
    page.set_viewport_size({"width": 360, "height": 740})
    expect(rows.nth(1).locator(".reason")).to_contain_text("p50 8.35 ms, p99 96.1 ms")
    expect(rows.nth(1).locator("td.number").first).to_be_hidden()


@pytest.mark.soak
def test_a_shadow_is_shown(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    shadow = {"version": 3, "share": 0.1, "problem": None, "compared": 0, "agreement": None}
    model = {"name": "digits", "default": True, "state": "ready", "version": 2, "versions": []}
    card = page.get_by_role("region", name="Model digits")
    for more, text in (
        ({}, "version 3 computes 10 % of the items; none was compared yet"),
        ({"compared": 1234, "agreement": 0.9943}, "it agrees on 99.4 % of 1,234 items"),
        ({"problem": "version 3 is not served"}, "of the items; version 3 is not served"),
    ):
        models_of(page, [{**model, "shadow": {**shadow, **more}}])
        expect(card).to_contain_text(text)
        page.get_by_role("tab", name="Watch").click()
    models_of(page, [{**model, "shadow": None}])
    expect(card).not_to_contain_text("Shadow")


@pytest.mark.soak
def test_an_empty_repository_says_how_to_fill_it(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    models_of(page, [])
    expect(page.locator("#panel-models")).to_contain_text("torchlane export digits")
    page.get_by_role("tab", name="Try").click()
    expect(page.locator("#panel-try")).to_contain_text("torchlane adopt")


@pytest.mark.soak
def test_an_error_disappears_after_a_successful_read(visit: Visits, server: Server) -> None:
    page = visit(server.url, expected={503})
    failed = {"error": "busy", "code": "overloaded", "details": [{"loc": ["body"]}]}
    for view in ("models", "try"):
        page.get_by_role("tab", name=view.capitalize()).click()
        panel = page.locator(f"#panel-{view}")
        expect(panel).to_contain_text("double")
        page.get_by_role("tab", name="Watch").click()
        page.route("**/models", lambda route: route.fulfill(status=503, body=json.dumps(failed)))
        page.get_by_role("tab", name=view.capitalize()).click()
        expect(panel.get_by_role("alert")).to_contain_text("busy")
        expect(panel.get_by_role("alert")).to_contain_text('[{"loc":["body"]}]')
        page.unroute("**/models")
        page.get_by_role("tab", name="Watch").click()
        page.get_by_role("tab", name=view.capitalize()).click()
        expect(panel.get_by_role("alert")).to_have_count(0)


@pytest.mark.soak
def test_the_plan_and_the_report_are_shown(visit: Visits, server: Server) -> None:
    page = visit(server.url, "/#models")
    digits = page.get_by_role("region", name="Model digits")
    digits.get_by_text("Inputs, limits and plan").click()
    expect(digits.get_by_role("region", name="Plan of digits")).to_contain_text("cpu#0")
    expect(digits).to_contain_text("float32")
    expect(digits).to_contain_text("scaled to fit inside, the rest filled with the median")
    with page.expect_popup() as opened:
        digits.get_by_role("link", name="Report of digits/1").click()
    expect(opened.value.locator("h1")).to_be_visible()


def test_the_report_is_downloaded_when_keys_are_set(
    visit: Visits, models: Path, tmp_path: Path
) -> None:
    with running(models, tmp_path / "log", api_keys=PREDICT_LINE) as server:
        page = visit(server.url, "/#models", expected={401})
        use_key(page, PREDICT_KEY)
        with page.expect_download() as started:
            page.get_by_role("link", name="Report of digits/1").click()
        assert started.value.suggested_filename == "digits-1-report.html"
        report = Path(started.value.path()).read_text()
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        begin = '<!doctype html><meta http-equiv="Content-Security-Policy"'
        assert report.startswith(f'{begin} content="{policy}">')
        assert "<html" in report
        page.goto("about:blank")  # its live data would end with the server, which is a complaint


@pytest.mark.soak
def test_known_progress_is_shown_as_a_bar(visit: Visits, server: Server) -> None:
    """A load as the server tells it, whatever it was when it was asked."""
    status = {"version": 1, "state": "loading", "problem": None, "step": "warm", "seconds": 3.2}
    model = {"name": "digits", "default": True, "state": "loading", "version": None}
    page = visit(server.url)
    models_of(page, [{**model, "versions": [{**status, "progress": 0.25}]}])
    row = page.locator(version(page, "digits"))
    expect(row.get_by_role("progressbar")).to_have_attribute("value", "0.25")
    expect(row).to_contain_text("warm, 3.2 s")


def test_loading_and_failed_versions_are_shown(
    visit: Visits, guarded: Server, folder: Path
) -> None:
    page = visit(guarded.url, "/#models", expected={401, 409})
    use_key(page, ADMIN_KEY)
    expect(page.locator(version(page, "double"))).to_contain_text("ready")
    write_artifact(folder / "models", "slow")
    broken = write_artifact(folder / "models", "broken")
    (broken / "script.pt").write_bytes(b"something else")
    page.get_by_role("button", name="Reload repository").click()
    slow = page.locator(version(page, "slow"))
    expect(slow).to_contain_text("loading")
    expect(slow.get_by_role("progressbar")).to_be_visible()
    expect(slow).to_contain_text(" s")
    failed = page.locator(version(page, "broken"))
    expect(failed).to_contain_text("failed")
    expect(failed).to_contain_text("script.pt")
    (folder / "gate").touch()
    expect(slow).to_contain_text("ready")
    expect(slow.get_by_role("progressbar")).to_have_count(0)
    expect(page.get_by_role("alert").first).to_contain_text("broken/1 failed")
