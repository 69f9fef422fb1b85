"""The page's modules, which need no server: live data, history, lines of charts, inputs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.test_watch import REQUESTS, SNAPSHOT

ERRORS = Path(__file__).parents[2] / "docs" / "errors.md"


@pytest.fixture(scope="module")
def models(one_model: Path) -> Path:
    """The modules are the same for every model."""
    return one_model


def test_every_code_is_explained_with_a_remedy(scripts: Page) -> None:
    listed = re.findall(r"^\| `(\w+)` \|", ERRORS.read_text(), re.MULTILINE)
    known, failures, silent = scripts.evaluate(
        """async () => {
          const { CODES, FAILURES, reasonOf, remedyOf } = await import("./page/reasons.js");
          return [CODES, FAILURES, CODES.filter((each) => !reasonOf(each) || !remedyOf(each))];
        }"""
    )
    assert known == listed
    assert set(failures) <= set(listed)
    assert silent == []


@pytest.mark.parametrize(
    ("share", "counts", "low", "high"),
    [
        (0.5, {"1": 50, "100": 50}, 0.9, 1.0),
        (0.99, {"1": 50, "100": 50}, 90, 100),
        (0.99, {"1": 99, "100": 1}, 0.9, 1.0),
        (0.99, {"2.5": 1000}, 1.6, 2.5),
        (0.99, {"30000": 1, "Infinity": 99}, 30000, 30000),
    ],
)
def test_quantiles_of_latencies(
    scripts: Page, share: float, counts: dict[str, int], low: float, high: float
) -> None:
    found = scripts.evaluate(
        """async ([share, counts]) => {
          const { quantile } = await import("./page/means.js");
          return quantile(share, new Map(Object.entries(counts).map(([b, n]) => [Number(b), n])));
        }""",
        [share, counts],
    )
    assert low <= found <= high


def test_figures_are_differences_until_the_server_restarts(scripts: Page) -> None:
    before = {"requests": 10, "failed": 4, "failed_items": {"overloaded": 4}}
    now = {"requests": 30, "failed": 6, "failed_items": {"overloaded": 4, "internal": 2}}
    before, now = (
        {**before, "latency_ms": {"1": 6}},
        {**now, "latency_ms": {"1": 6, "inf": 1, "100": 17}},
    )
    found = scripts.evaluate(
        """async ([before, now]) => {
          const { errorsOf, figuresOf, toneOfErrors } = await import("./page/means.js");
          const pairs = [[now, before], [before], [before, now]];
          return pairs.map((pair) => figuresOf(...pair)).map((each) =>
            [each.requests, errorsOf(each), toneOfErrors(each), each.p50 > 50]);
        }""",
        [before, now],
    )
    since_start = [10, "4 (40 %)", "warn", False]
    assert found == [[20, "2 (10 %)", "bad", True], since_start, since_start]


def test_events_are_parsed_however_chunks_are_split(scripts: Page) -> None:
    """Lines end with CR, LF or both; an event has several lines; pieces end anywhere."""
    stream = ': note\r\ndata: {\r\ndata:"a": 1}\r\n\r\ndata: 2\n\nid: 7\revent: x\rdata: 3\r\r\n\n'
    for size in (1, 2, 3, 5, len(stream)):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        events = scripts.evaluate(
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


def test_the_history_keeps_only_ten_minutes(scripts: Page) -> None:
    kept = scripts.evaluate(
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


def test_the_history_survives_a_reconnection(scripts: Page) -> None:
    """The latest snapshot is sent again at once."""
    kept = scripts.evaluate(
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


def test_the_five_largest_failures_have_their_own_lines(scripts: Page) -> None:
    failed = {name: float(rate) for rate, name in enumerate("abcdefgh", 1)}
    lines = scripts.evaluate(
        """async (snapshot) => {
          const { OF_SERVER } = await import("./page/series.js");
          const samples = [{ at: 1, snapshot }, { at: 2, snapshot: null }];
          return OF_SERVER.at(-1).lines[0](samples).map(({ label, values }) => [label, values]);
        }""",
        {**SNAPSHOT, "requests": {**REQUESTS, "failed_per_s": failed}},
    )
    largest = [[name, [failed[name], None]] for name in "defgh"]
    assert lines == [*largest, ["others", [1.0 + 2.0 + 3.0, None]]]


def test_a_class_has_one_colour_in_all_pictures(scripts: Page) -> None:
    classes = scripts.evaluate(
        """async () => {
          const { rowsView } = await import("./page/rows.js");
          const specs = [{ name: "boxes", shape: [-1, 9, 4] }];
          const outputs = { boxes: [[0, 0, 1, 1], [0, 0, 2, 2]] };
          const prediction = { labels: ["cat", "ant"], outputs };
          const view = rowsView(prediction, specs, {}, ["ant", "bee", "cat"]);
          return [...view.querySelectorAll(".swatch")].map((each) => each.className);
        }"""
    )
    assert classes == ["swatch c3", "swatch c1"]


def test_embeddings_begin_with_two_texts_to_compare(scripts: Page) -> None:
    texts = scripts.evaluate(
        """async () => {
          const { inputFor } = await import("./page/inputs.js");
          const manifest = { codec: { task: "embed", max_tokens: 8 } };
          const form = inputFor({ codec: "text", example: "A dog", manifest });
          const { many, body } = await form.example();
          return [many, ...JSON.parse(body.text).inputs];
        }"""
    )
    assert texts[:2] == [True, "A dog"]
    assert texts[2]
