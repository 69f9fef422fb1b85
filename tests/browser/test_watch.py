"""Watch, on the page at /: what it shows of a load, and what it does without a connection."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from playwright.sync_api import Locator, Page, expect

from loadtests.openloop.address import reach
from loadtests.openloop.arrivals import schedule
from loadtests.openloop.generator import RequestLog, TrialLimits, send
from tests.browser.chromium import Visits
from tests.browser.live_data import send_live
from tests.e2e.server import Server

RATE_PER_S = 200.0
SECONDS = 8.0
SETTLED_S = 3.0  # after this the page has to show the load
BODY = json.dumps({"input": [1.0, 2.0]})
REQUEST = (
    "POST /models/double/predict HTTP/1.1\r\nHost: loopback\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\n\r\n{BODY}"
).encode()
ERRORS = Path(__file__).parents[2] / "docs" / "errors.md"
REQUESTS = {"per_s": 7.0, "in_flight": 0, "p50_ms": 1, "p99_ms": 2, "failed_per_s": {}}
SNAPSHOT = {
    "at": 1000.0,
    "ready": True,
    "requests": REQUESTS,
    "models": [],
    "replicas": [],
    "devices": [],
    "cache": {"bytes": 0, "limit_bytes": 1, "entries": 0},
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


def shown(page: Page, title: str, label: str) -> float:
    line = page.locator(f"{chart(page, title)} li").filter(has_text=label)
    value = line.locator("b")
    expect(value).to_have_text(re.compile("[0-9]"))  # drawn a moment after its table
    return float(value.inner_text().replace(",", ""))


class Load(Thread):
    """Requests at a constant rate, whatever becomes of those before."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        due_s = schedule("uniform", RATE_PER_S, SECONDS, 0)
        self._work = (reach(server.url), due_s, [REQUEST] * len(due_s), TrialLimits())
        self.sent: RequestLog | None = None

    def run(self) -> None:
        self.sent = asyncio.run(send(*self._work))

    def answered_per_s(self) -> float:
        """While the page was looked at."""
        self.join()
        assert self.sent is not None
        assert all(each is not None and each.status == 200 for each in self.sent.responses)
        done = self.sent.done_s
        return float(((done > SETTLED_S) & (done <= SECONDS)).sum() / (SECONDS - SETTLED_S))


def test_charts_show_the_measured_request_rate(visit: Visits, server: Server) -> None:
    page = visit(server.url, "/#watch")
    expect(page.get_by_role("status").first).to_have_text("Live")
    load = Load(server)
    load.start()
    page.wait_for_timeout(SETTLED_S * 1000)
    values = []
    for _ in range(4):
        page.wait_for_timeout(1000)
        values.append(shown(page, "Requests", "answered"))
    page.locator("#watch-model").select_option("double/1")
    items = shown(page, "Items", "answered")
    hits = shown(page, "Cache", "hits")
    page.locator("#watch-model").select_option("digits/1")
    others = shown(page, "Items", "answered")
    replicas = page.get_by_role("region", name="Replicas")
    expect(replicas).to_contain_text("cpu#0")
    answered_per_s = load.answered_per_s()
    # What was really answered: on a busy machine it is neither what was asked for nor even.
    assert abs(statistics.median(values) / answered_per_s - 1) <= 0.2, (values, answered_per_s)
    assert (items > RATE_PER_S / 4, others) == (True, 0)
    assert hits > 90


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


def test_a_lost_connection_clears_the_numbers(visit: Visits, server: Server) -> None:
    page = watch(visit, server, [SNAPSHOT], ends=True)
    expect(page.get_by_role("status").first).to_contain_text("Disconnected")
    expect(tile(page, "Requests/s")).to_have_text("\u2013")
    expect(page.locator(f"{chart(page, 'Requests')} b")).to_have_text("\u2013")
    expect(page.get_by_role("region", name="Replicas")).to_be_hidden()


def test_an_idle_server_says_how_to_send_a_request(visit: Visits, server: Server) -> None:
    idle = {**SNAPSHOT, "requests": {**REQUESTS, "per_s": 0.0}}
    page = watch(visit, server, [idle])
    hint = page.get_by_text("No requests in this time")
    expect(hint).to_contain_text("torchlane load run --rate")
    busy = watch(visit, server, [idle, {**SNAPSHOT, "at": 1001.0}])
    expect(busy.get_by_text("No requests in this time")).to_be_hidden()


def test_only_the_chosen_minutes_are_shown(visit: Visits, server: Server) -> None:
    sent = [{**SNAPSHOT, "at": 1000.0 + at} for at in range(0, 600, 10)]
    sent[20]["requests"] = {**REQUESTS, "failed_per_s": {"overloaded": 4.0}}
    page = watch(visit, server, sent)
    reasons = page.get_by_role("region", name="Reasons")
    expect(reasons).to_be_hidden()  # it was 6.5 minutes before
    page.get_by_label("Time shown").select_option("10 min")
    expect(reasons.get_by_role("row", name="overloaded")).to_contain_text("4")


def test_the_slowest_version_is_marked(visit: Visits, server: Server) -> None:
    model = {"items_per_s": 4.0, "batches_per_s": 2.0, "batch_items": 2.0, "queue_items": 0}
    rates = {"hit_per_s": 1.0, "miss_per_s": 3.0, "joined_per_s": 0.0, "queue_ms": 1.0}
    slow, fast = (
        {**model, **rates, "name": "digits", "version": version, "compute_ms": ms}
        for version, ms in ((3, 9.0), (2, 5.0))
    )
    page = watch(visit, server, [{**SNAPSHOT, "models": [slow, fast]}])
    versions = page.get_by_role("region", name="Versions")
    expect(versions.get_by_role("row", name="digits/3")).to_contain_text("slowest")
    assert versions.get_by_role("row").filter(has_text="slowest").count() == 1
    cells = versions.get_by_role("row", name="digits/2").get_by_role("cell")
    expect(cells).to_have_text(["4", "2", "1 ms", "5 ms", "25 %"])


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


def test_each_explained_code_exists(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    listed = set(re.findall(r"^\| `(\w+)` \|", ERRORS.read_text(), re.MULTILINE))
    known = page.evaluate(
        """async (codes) => {
          const { FAILURES, reasonOf } = await import("./page/reasons.js");
          return [FAILURES, codes.filter((each) => reasonOf(each)).length];
        }""",
        sorted(listed),
    )
    text = (ERRORS.parents[1] / "app/api/page/static/reasons.js").read_text()
    assert set(known[0]) <= listed
    assert known[1] == len(re.findall(r"^  \w+: ", text, re.MULTILINE))


def test_events_are_parsed_however_chunks_are_split(visit: Visits, server: Server) -> None:
    """Lines end with CR, LF or both; an event has several lines; pieces end anywhere."""
    page = visit(server.url)
    stream = ': note\r\ndata: {\r\ndata:"a": 1}\r\n\r\ndata: 2\n\nid: 7\revent: x\rdata: 3\r\r\n\n'
    for size in (1, 2, 3, 5, len(stream)):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        events = page.evaluate(
            """async (pieces) => {
              const { eventReader } = await import("./page/live.js");
              const events = [];
              const read = eventReader((data) => events.push(JSON.parse(data)));
              pieces.forEach(read);
              return events;
            }""",
            pieces,
        )
        assert events == [{"a": 1}, 2, 3], size


def test_the_history_keeps_only_ten_minutes(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    kept = page.evaluate(
        """async (snapshot) => {
          const { History } = await import("./page/live.js");
          const history = new History();
          for (let at = 0; at < 2000; at += 1) history.add({ ...snapshot, at });
          const times = history.samples.map((each) => each.at);
          history.interrupt();
          history.add({ ...snapshot, at: 2001 });
          const gap = history.samples.at(-2).snapshot;
          for (let at = 2001; at < 2010; at += 0.001) history.add({ ...snapshot, at: at + 0.001 });
          const most = history.samples.length;
          history.add({ ...snapshot, at: 5 });
          return [times[0], times.at(-1), times.length, gap, most, history.samples.length];
        }""",
        SNAPSHOT,
    )
    assert kept == [1400, 1999, 600, None, 1200, 1]


def test_the_history_survives_a_reconnection(visit: Visits, server: Server) -> None:
    """The latest snapshot is sent again at once."""
    page = visit(server.url)
    kept = page.evaluate(
        """async (snapshot) => {
          const { History } = await import("./page/live.js");
          const history = new History();
          for (let at = 100; at < 110; at += 1) history.add({ ...snapshot, at });
          history.interrupt();
          history.add({ ...snapshot, at: 109 });
          history.add({ ...snapshot, at: 110 });
          const [first, last] = [history.samples[0], history.samples.at(-1)];
          return [first.at, last.at, history.samples.length, last.snapshot.versions ?? null];
        }""",
        SNAPSHOT,
    )
    assert kept == [100, 110, 12, None]


def test_a_drawing_error_does_not_end_the_connection(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    drawn = page.evaluate(
        """async (event) => {
          const { Feed } = await import("./page/live.js");
          const said = [];
          console.error = (error) => said.push(error.message);
          let isDone = null;
          const done = new Promise((resolve) => (isDone = resolve));
          const feed = new Feed(
            async () => new Response(event),
            () => {
              if (feed.state.kind === "lost") isDone();
              throw new Error("no room");
            },
          );
          feed.run();
          await done;
          return [said, feed.history.samples[0].at];
        }""",
        f"data: {json.dumps(SNAPSHOT)}\n\n",
    )
    assert drawn == [["no room"] * 3, SNAPSHOT["at"]]  # connecting, live, lost


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


def test_the_five_largest_failures_have_their_own_lines(visit: Visits, server: Server) -> None:
    page = visit(server.url)
    failed = {name: float(rate) for rate, name in enumerate("abcdefgh", 1)}
    lines = page.evaluate(
        """async (snapshot) => {
          const { OF_SERVER } = await import("./page/series.js");
          const samples = [{ at: 1, snapshot }, { at: 2, snapshot: null }];
          return OF_SERVER.at(-1).lines[0](samples).map(({ label, values }) => [label, values]);
        }""",
        {**SNAPSHOT, "requests": {**REQUESTS, "failed_per_s": failed}},
    )
    largest = [[name, [failed[name], None]] for name in "defgh"]
    assert lines == [*largest, ["others", [1.0 + 2.0 + 3.0, None]]]
