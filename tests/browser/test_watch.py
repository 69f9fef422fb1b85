"""Watch, on the page at /: what it shows of a load, and what it does without a connection."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.chromium import Visits
from tests.browser.live_data import send_live
from tests.e2e.server import PLAIN, Server

REQUESTS = {
    **{"per_s": 7.0, "in_flight": 0, "p50_ms": 1, "p99_ms": 2},
    **{"failed_per_s": {}, "failed_total": {}},
}
SNAPSHOT = {
    "at": 1000.0,
    "ready": True,
    "requests": REQUESTS,
    "models": [],
    "replicas": [],
    "devices": [],
    "cache": {"bytes": 0, "limit_bytes": 1, "entries": 0},
    "totals": [],
    "versions": [],
}


def watch(visit: Visits, server: Server, snapshots: Sequence[Any], *, ends: bool = False) -> Page:
    """Open Watch with these snapshots as the live data."""
    page = visit(server.url)
    send_live(page, snapshots, ends=ends)
    page.reload()
    page.get_by_role("tab", name="Watch").click()
    expect(page.locator("#panel-watch figure canvas").first).to_be_visible()
    return page


def tile(page: Page, name: str) -> Locator:
    """A figure of the headline."""
    return page.locator(f"dl.tiles div:has(dt:text-is('{name}')) dd")


def chart(page: Page, title: str) -> str:
    """A selector of the values that a chart shows as text."""
    return f"figure:has(h3:text-is('{title}')) .values"


def value_of(page: Page, title: str, label: str) -> Locator:
    return page.locator(f"{chart(page, title)} li").filter(has_text=label).locator("b")


def shown(page: Page, title: str, label: str) -> float:
    value = value_of(page, title, label)
    expect(value).to_have_text(re.compile("[0-9]"))  # drawn a moment after its table
    return float(value.inner_text().replace(",", ""))


@contextlib.contextmanager
def load(server: Server) -> Iterator[None]:
    """One caller, which repeats its request until the end of the block."""
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, verify=PLAIN) as client:
            while not over.is_set():
                client.post("/models/double/predict", json={"input": [1, 2]}).raise_for_status()

    caller = threading.Thread(target=ask)
    caller.start()
    try:
        yield
    finally:
        over.set()
        caller.join()


def test_charts_show_a_load_of_one_model(visit: Visits, server: Server) -> None:
    page = visit(server.url, "/#watch")
    with load(server):
        expect(tile(page, "Requests/s")).to_have_text(re.compile("[1-9]"))
        some = re.compile("[1-9]")
        expect(value_of(page, "Requests", "answered")).to_have_text(some)
        page.locator("#watch-model").select_option("double/1")
        expect(value_of(page, "Items", "answered")).to_have_text(some)
        expect(value_of(page, "Cache", "hits")).to_have_text(some)
        page.locator("#watch-model").select_option("digits/1")
        assert shown(page, "Items", "answered") == 0
        expect(page.get_by_role("region", name="Replicas")).to_contain_text("cpu#0")


def test_charts_pause_and_resume(visit: Visits, server: Server) -> None:
    page = visit(server.url, "/#watch")
    expect(page.get_by_role("status").first).to_have_text("Live")
    pause = page.get_by_role("button", name="Pause")
    pause.click()
    expect(pause).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("status").first).to_contain_text("Paused")
    label = page.locator("figure").first.get_by_role("img").get_attribute("aria-label")
    page.wait_for_timeout(2500)
    assert page.locator("figure").first.get_by_role("img").get_attribute("aria-label") == label
    pause.click()
    expect(page.get_by_role("status").first).to_have_text("Live")
    # Earlier values, by the keyboard: one second back at each step.
    page.locator("figure").first.get_by_role("img").focus()
    spoken = page.locator("figure").first.locator("[aria-live]")
    times = []
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
        times.append(spoken.inner_text().partition(" ")[0])
    assert times[0] > times[1], times


def test_a_lost_connection_is_shown_and_reopened(visit: Visits, server: Server) -> None:
    page = visit(server.url, "/#watch")
    state = page.get_by_role("status").first
    expect(state).to_have_text("Live")
    page.route("**/live", lambda route: route.fulfill(body="", content_type="text/event-stream"))
    page.reload()
    expect(state).to_contain_text("Disconnected since")
    page.unroute("**/live")
    expect(state).to_have_text("Live")


def test_devices_and_failures_are_shown(visit: Visits, server: Server) -> None:
    """Of a server with GPUs, as GET /live tells it."""
    gpu = {"memory_bytes": 8 << 30, "utilization_ratio": 0.4, "temperature_celsius": 61.0}
    silent = {"memory_used_bytes": None, "memory_bytes": None, "utilization_ratio": None}
    devices = [
        {"name": "cuda:0", "memory_used_bytes": 2 << 30, **gpu},
        {"name": "cuda:1", "temperature_celsius": None, **silent},
    ]
    failed = {"overloaded": 12.0, "deadline_exceeded": 3.0}
    snapshots = [
        {
            **SNAPSHOT,
            "at": float(at),
            "devices": devices,
            "requests": {**REQUESTS, "failed_per_s": failed},
        }
        for at in (1000, 1001)
    ]
    page = watch(visit, server, snapshots)
    table = page.get_by_role("region", name="Devices")
    expect(table.get_by_role("row", name="cuda:0")).to_contain_text("of 8192.0 MiB")
    expect(table.get_by_role("row", name="cuda:0")).to_contain_text("40 %")
    expect(table.get_by_role("row", name="cuda:0")).to_contain_text("61 °C")
    expect(table.get_by_role("row", name="cuda:1")).to_contain_text("\u2013")
    assert shown(page, "GPU memory", "cuda:0") == 25
    assert shown(page, "GPU temperature", "cuda:0") == 61
    assert shown(page, "Rejections and failures", "overloaded") == 12


@pytest.mark.soak
def test_the_headline_has_the_colour_of_the_worst_error(visit: Visits, server: Server) -> None:
    replicas = [
        {"name": f"cpu#{at}", "device": "cpu", "ready": True, "busy_share": busy}
        for at, busy in enumerate((0.2, 0.6))
    ]
    states = [{"state": state} for state in ("ready", "ready", "failed")]
    known = {**SNAPSHOT, "replicas": replicas, "versions": states}
    for failed, tone in (({"overloaded": 3.0}, "warn"), ({"backend_failed": 3.0}, "bad")):
        requests = {**REQUESTS, "failed_per_s": failed}
        page = watch(visit, server, [{**known, "requests": requests}])
        expect(tile(page, "Requests/s")).to_have_text("7")
        expect(tile(page, "p99")).to_have_text("2 ms")
        expect(tile(page, "Errors/s")).to_have_text("3")
        expect(tile(page, "Errors/s")).to_have_class(tone)
        expect(tile(page, "Busy")).to_have_text("40 %")
        expect(tile(page, "Models")).to_have_text("2 ready, 1 failed")
        code = next(iter(failed))
        expect(page.locator(f"{chart(page, 'Rejections and failures')} .{tone}")).to_be_visible()
        reason = page.get_by_role("region", name="Reasons").get_by_role("row", name=code)
        expect(reason).to_contain_text("The ")


@pytest.mark.soak
def test_a_lost_connection_clears_the_numbers(visit: Visits, server: Server) -> None:
    page = watch(visit, server, [SNAPSHOT], ends=True)
    expect(page.get_by_role("status").first).to_contain_text("Disconnected")
    expect(tile(page, "Requests/s")).to_have_text("\u2013")
    expect(page.locator(f"{chart(page, 'Requests')} b")).to_have_text("\u2013")
    expect(page.get_by_role("region", name="Replicas")).to_be_hidden()


@pytest.mark.soak
def test_an_idle_server_says_how_to_send_a_request(visit: Visits, server: Server) -> None:
    idle = {**SNAPSHOT, "requests": {**REQUESTS, "per_s": 0.0}}
    page = watch(visit, server, [idle])
    hint = page.get_by_text("No requests in this time")
    expect(hint).to_contain_text("torchlane load run --rate")
    busy = watch(visit, server, [idle, {**SNAPSHOT, "at": 1001.0}])
    expect(busy.get_by_text("No requests in this time")).to_be_hidden()


@pytest.mark.soak
def test_only_the_chosen_minutes_are_shown(visit: Visits, server: Server) -> None:
    sent = [{**SNAPSHOT, "at": 1000.0 + at} for at in range(0, 600, 10)]
    sent[20]["requests"] = {**REQUESTS, "failed_per_s": {"overloaded": 4.0}}
    page = watch(visit, server, sent)
    reasons = page.get_by_role("region", name="Reasons")
    expect(reasons).to_be_hidden()  # it was 6.5 minutes before
    page.get_by_label("Time shown").select_option("10 min")
    overloaded = reasons.get_by_role("row", name="overloaded")
    expect(overloaded).to_contain_text("4 in 10 min")
    expect(overloaded).to_contain_text("Retry-After")


@pytest.mark.soak
def test_what_was_refused_before_the_page_was_opened_is_explained(
    visit: Visits, server: Server
) -> None:
    requests = {**REQUESTS, "failed_total": {"payload_too_large": 3, "unauthorized": 1204}}
    page = watch(visit, server, [{**SNAPSHOT, "requests": requests}])
    rows = page.get_by_role("region", name="Reasons").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("unauthorized")
    expect(rows.nth(1)).to_contain_text("0 in 5 min")
    expect(rows.nth(1)).to_contain_text("1,204 since the start")
    expect(rows.nth(1)).to_contain_text("Authorization: Bearer KEY")
    page.get_by_text("All error codes").click()
    expect(page.locator("dt:has-text('model_not_found') + dd")).to_contain_text("no such model")


@pytest.mark.soak
def test_the_slowest_version_is_marked(visit: Visits, server: Server) -> None:
    model = {"items_per_s": 4.0, "batches_per_s": 2.0, "batch_items": 2.0, "queue_items": 0}
    rates = {"hit_per_s": 1.0, "miss_per_s": 3.0, "joined_per_s": 0.0, "queue_ms": 1.0}
    slow, fast = (
        {**model, **rates, "name": "digits", "version": version, "compute_ms": ms}
        for version, ms in ((3, 9.0), (2, 5.0))
    )
    none = {"requests": 0, "failed": 0, "failed_items": {}, "latency_ms": {}}
    some = {"requests": 200, "failed": 4, "failed_items": {}, "latency_ms": {"10": 196}}
    sent = [
        {**SNAPSHOT, "at": at, "totals": [{"name": "digits", "version": 2, **each}]}
        for at, each in ((1000.0, none), (1001.0, some))
    ]
    page = watch(visit, server, [{**each, "models": [slow, fast]} for each in sent])
    versions = page.get_by_role("region", name="Versions")
    expect(versions.get_by_role("row", name="digits/3")).to_contain_text("slowest")
    assert versions.get_by_role("row").filter(has_text="slowest").count() == 1
    cells = versions.get_by_role("row", name="digits/2").get_by_role("cell")
    expect(cells).to_have_text(["9.96 ms", "4 (2 %)", "4", "1 ms", "5 ms", "2", "25 %"])


@pytest.mark.soak
def test_hovering_moves_nothing(visit: Visits, server: Server) -> None:
    sent = [{**SNAPSHOT, "at": 1000.0 + at} for at in range(60)]
    failed = {"overloaded": 12345.0, "deadline_exceeded": 3.0, "rate_limited": 1.0}
    sent[-1]["requests"] = {**REQUESTS, "failed_per_s": failed}
    page = watch(visit, server, sent)
    figure = page.locator("figure", has_text="Rejections and failures")
    place = "each => [each.offsetTop, each.offsetHeight]"
    before = figure.evaluate(place)
    figure.locator(".u-over").hover()
    expect(figure.locator("figcaption .note")).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
    assert figure.evaluate(place) == before


def test_a_drawing_error_does_not_end_the_connection(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    drawn = page.evaluate(
        """async (event) => {
          const { Feed } = await import("./page/live.js");
          const said = [];
          console.error = (error) => said.push(error.message);
          let isDone = null;
          const done = new Promise((resolve) => (isDone = resolve));
          const feed = new Feed(async () => new Response(event));
          feed.listen(() => {
            if (feed.state.kind === "lost") isDone();
            throw new Error("no room");
          });
          feed.run();
          await done;
          return [said, feed.history.samples[0].at];
        }""",
        f"data: {json.dumps(SNAPSHOT)}\n\n",
    )
    assert drawn == [["no room"] * 3, SNAPSHOT["at"]]  # connecting, live, lost


@pytest.mark.soak
def test_a_failed_chart_library_load_is_retried(visit: Visits, server: Server) -> None:
    page = visit(server.url, expected={503})
    page.route("**/uPlot.iife.min.js", lambda route: route.fulfill(status=503))
    page.get_by_role("tab", name="Watch").click()
    expect(page.locator("#panel-watch").get_by_role("alert")).to_contain_text("uPlot")
    page.unroute("**/uPlot.iife.min.js")
    page.get_by_role("tab", name="Models").click()
    page.get_by_role("tab", name="Watch").click()
    expect(page.get_by_role("status").first).to_have_text("Live")
    expect(page.locator("#panel-watch figure canvas").first).to_be_visible()
