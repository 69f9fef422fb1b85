"""The checker notices every kind of wrongdoing: a green run of it means something."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.checker import Checker
from tests.chaos.conversation import Conversation, Interruptions
from tests.chaos.lying import Lie, Said, honest, lying
from tests.chaos.relayed import Acts
from tests.chaos.request import Request, body_of
from tests.chaos.truth import Item, Mark, answer
from tests.chaos.verdict import OFFENCES, Verdict
from tests.chaos.versions import Versions

PATIENCE_S = 0.3
BATCH = (Item(20), Item(21), Item(22, Mark.POISON))
REQUESTS = (
    Request("a", "/predict", body_of(BATCH[:1], "json", many=False), "steady", items=BATCH[:1]),
    Request(
        "b", "/batch-predict", body_of(BATCH, "json", many=True), "steady", items=BATCH, many=True
    ),
    Request("c", "/predict", body_of(BATCH[2:], "json", many=False), "steady", items=BATCH[2:]),
    Request(
        "d",
        "/batch-predict",
        b'{"inputs": [[1, 0, 0], "x"]}',
        refusals=frozenset({"invalid_input"}),
        culprit=1,
        predicts=False,
    ),
    Request("e", "/predict", body_of(BATCH[1:2], "json", many=False), "steady", items=BATCH[1:2]),
)


async def checked(
    lie: Lie, requests: Sequence[Request] = REQUESTS, interruptions: Interruptions | None = None
) -> Checker:
    """What the checker finds when these are asked one after the other."""
    checker = Checker(Versions(("steady",)))
    async with lying(lie) as port:
        waits = interruptions or Interruptions(PATIENCE_S)
        talk = Conversation(port, checker, waits, random.Random(0))
        for request in requests:
            connection = await talk.connection()
            connection.send(request.bytes)
            await talk.take(connection, request, time.monotonic())
        await talk.end()
    return checker


def offences(checker: Checker) -> dict[Verdict, int]:
    return {each: checker.counts[each] for each in OFFENCES if checker.counts[each]}


async def test_an_honest_server_has_no_offences() -> None:
    checker = await checked(honest)
    assert offences(checker) == {}
    assert checker.counts[Verdict.RIGHT] == len(REQUESTS)
    assert checker.told.items == {("steady", "ok"): 4, ("steady", "backend_failed"): 2}
    assert checker.told.requests[200, "ok"] == 3
    assert checker.told.failed == {"steady": {22}}


def only(who: str, **changed: object) -> Lie:
    """Lie about one request."""
    return lambda said: replace(said, **changed) if said.id == who else said  # type: ignore[arg-type]


GOOD = [answer("steady", 1, item) for item in BATCH]
FAILED = "backend_failed"


@pytest.mark.parametrize(
    ("lie", "verdict"),
    [
        pytest.param(lambda said: None if said.id == "b" else said, Verdict.LOST, id="silent"),
        pytest.param(only("b", cut=1), Verdict.LOST, id="cut off before its end"),
        pytest.param(only("b", cut=10_000), Verdict.LOST, id="closed without an answer"),
        pytest.param(only("b", copies=2), Verdict.DOUBLED, id="twice"),
        pytest.param(only("e", copies=2), Verdict.DOUBLED, id="the last one twice"),
        pytest.param(only("b", id="a"), Verdict.DOUBLED, id="the one before again"),
        pytest.param(only("b", id="z"), Verdict.MISDELIVERED, id="to somebody else"),
        pytest.param(
            only("b", rows=[GOOD[1], GOOD[0], FAILED]), Verdict.MISDELIVERED, id="mates swapped"
        ),
        pytest.param(
            only("b", rows=[GOOD[1], GOOD[1], FAILED]), Verdict.MISDELIVERED, id="a mate's row"
        ),
        pytest.param(only("e", rows=[]), Verdict.WRONG, id="no row"),
        pytest.param(only("e", rows=[GOOD[0]]), Verdict.MISDELIVERED, id="another's row"),
        pytest.param(only("e", rows=[[21, 1, 1]]), Verdict.WRONG, id="another sum"),
        pytest.param(
            only("e", rows=[answer("narrow", 1, BATCH[1])]), Verdict.WRONG, id="another model's sum"
        ),
        pytest.param(only("e", model="narrow"), Verdict.MISDELIVERED, id="another model"),
        pytest.param(
            only("e", rows=[answer("steady", 2, BATCH[1])], version=2),
            Verdict.WRONG,
            id="a version that is none",
        ),
        pytest.param(only("e", version=2), Verdict.WRONG, id="two versions in one answer"),
        pytest.param(only("b", rows=[*GOOD[:2]]), Verdict.WRONG, id="a place too few"),
        pytest.param(only("b", rows=[*GOOD[:2], FAILED, FAILED]), Verdict.WRONG, id="too many"),
        pytest.param(
            only("b", rows=[GOOD[0], FAILED, FAILED]), Verdict.WRONG, id="a good item failed"
        ),
        pytest.param(only("b", rows=GOOD), Verdict.WRONG, id="a poisoned item answered"),
        pytest.param(
            only("b", rows=[*GOOD[:2], "non_finite_output"]), Verdict.WRONG, id="another code"
        ),
        pytest.param(only("e", status=500, code="internal"), Verdict.UNEXPECTED, id="a bug inside"),
        pytest.param(
            only("e", status=500, code=FAILED), Verdict.UNEXPECTED, id="refused without a reason"
        ),
        pytest.param(
            only("e", status=503, code="shutting_down"),
            Verdict.UNEXPECTED,
            id="no stop was ordered",
        ),
        pytest.param(
            only("c", status=500, code="overloaded"),
            Verdict.UNEXPECTED,
            id="a status not the code's",
        ),
        pytest.param(
            only("d", details=[{"index": 0}]), Verdict.UNEXPECTED, id="another item is named"
        ),
        pytest.param(only("d", status=200, rows=GOOD), Verdict.UNEXPECTED, id="bad input answered"),
    ],
)
async def test_every_kind_of_lie_is_detected(lie: Lie, verdict: Verdict) -> None:
    checker = await checked(lie)
    assert verdict in offences(checker)
    (first, *_) = checker.offences
    assert first.verdict is verdict
    assert first.request  # with all that is needed to ask again


async def test_a_timeout_is_excused_only_by_a_hang(tmp_path: Path) -> None:
    for hung, found in (
        ({"steady": {21}}, {}),
        ({"steady": {20}}, {Verdict.UNEXPECTED: 1}),
        ({}, {Verdict.UNEXPECTED: 1}),
    ):
        checker = await checked(only("e", status=504, code="deadline_exceeded"))
        assert offences(checker) == {}
        checker.settle_late(hung, Acts(tmp_path / "none"))
        assert offences(checker) == found
        assert checker.counts.total() == len(REQUESTS)


async def test_a_stop_excuses_only_later_requests() -> None:
    def silent(said: Said) -> Said:
        return replace(said, cut=10_000)

    for stopped_at, verdict in ((0.0, Verdict.CUT), (time.monotonic() + 60, Verdict.LOST)):
        waits = Interruptions(PATIENCE_S, stopped_at=stopped_at)
        checker = await checked(silent, REQUESTS[:1], waits)
        assert checker.counts == {verdict: 1}


async def test_a_kill_excuses_connections_cut_soon_after() -> None:
    def silent(said: Said) -> Said:
        return replace(said, cut=10_000)

    for ago_s, verdict in ((0.0, Verdict.CUT), (60.0, Verdict.LOST)):
        waits = Interruptions(PATIENCE_S, killed_at=[time.monotonic() - ago_s])
        checker = await checked(silent, REQUESTS[:1], waits)
        assert checker.counts == {verdict: 1}


def test_a_kill_excuses_what_was_sent_before_it() -> None:
    now = time.monotonic()
    waits = Interruptions(PATIENCE_S, killed_at=[now - 60])
    assert waits.excuse(now - 61)  # its client did not read meanwhile
    assert not waits.excuse(now - 59)


def test_a_version_may_answer_until_another_is_seen() -> None:
    now = [0.0]
    versions = Versions(("steady",), lambda: now[0])
    assert versions.why_not("steady", 1, None, 0.0) is None
    assert versions.why_not("steady", 2, None, 0.0) is not None
    versions.published("steady", 2)
    assert versions.why_not("steady", 2, None, 0.0) is None
    assert versions.why_not("steady", 1, None, 5.0) is None
    now[0] = 6.0
    versions.seen("steady", 2)
    assert versions.why_not("steady", 1, None, 5.0) is None
    assert versions.why_not("steady", 1, None, 7.0) is not None
    assert versions.why_not("steady", 1, 1, 7.0) is None
    assert versions.why_not("steady", 2, 1, 7.0) is not None
