"""What a handler may not answer is noticed: a green run of its clients means something."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.answers import STATUSES
from tests.chaos.checker import Checker
from tests.chaos.connection import ChaosAnswer
from tests.chaos.relayed import MODELS, Acts
from tests.chaos.request import JSON, Request
from tests.chaos.truth import HANDLER, HANDLERS, Item, Mark, answer
from tests.chaos.verdict import Verdict
from tests.chaos.versions import Versions

ITEMS = (Item(20), Item(21), Item(22, Mark.RAISES))
ALONE = Request("a", "/models/relay/predict", b"", HANDLER, items=ITEMS[:1])
BATCH = Request("b", "/models/relay/batch-predict", b"", HANDLER, items=ITEMS, many=True)
ENDS = Request("c", "/models/relay/predict", b"", HANDLER, items=[Item(23, Mark.EXITS)])


def row(item: Item, version: int = 1) -> list[float]:
    return answer(HANDLER, version, item) + [n for each in MODELS for n in answer(each, 1, item)]


def judged(request: Request, content: object, status: int = 200) -> Checker:
    checker = Checker(Versions(("steady", "narrow", *HANDLERS)))
    headers = {"content-type": JSON, "x-request-id": request.id}
    got = ChaosAnswer(status, headers, json.dumps(content).encode())
    checker.judge(request, got, time.monotonic())
    return checker


def batch(*places: object) -> dict[str, object]:
    return {"model": HANDLER, "version": 1, "predictions": places}


def refused(request: Request, code: str) -> Checker:
    content = {"error": "no", "code": code, "request_id": request.id}
    return judged(request, content, STATUSES[code])


def journal(folder: Path, lines: Sequence[dict[str, Any]]) -> Acts:
    path = folder / "relayed"
    known = {"handler": HANDLER, "at": time.monotonic(), "id": "other", "number": 99}
    path.write_text("".join(f"{json.dumps({**known, **line})}\n" for line in lines))
    return Acts(path)


def test_right_answers_are_right() -> None:
    assert judged(ALONE, {"row": row(ITEMS[0])}).counts == {Verdict.RIGHT: 1}
    places = [{"row": row(each)} for each in ITEMS[:2]]
    checker = judged(BATCH, batch(*places, {"error": "no", "code": "handler_failed"}))
    assert checker.counts == {Verdict.RIGHT: 1}
    assert checker.told.items == {
        **{(name, "ok"): 2 for name in (HANDLER, *MODELS)},
        (HANDLER, "handler_failed"): 1,
    }


@pytest.mark.parametrize(
    ("request_", "content", "verdict"),
    [
        pytest.param(ALONE, {"row": row(ITEMS[1])}, Verdict.MISDELIVERED, id="another's row"),
        pytest.param(
            ALONE,
            {"row": row(ITEMS[0])[:3] + row(ITEMS[1])[3:]},
            Verdict.MISDELIVERED,
            id="another's call",
        ),
        pytest.param(ALONE, {"row": row(ITEMS[0])[:6]}, Verdict.WRONG, id="a call is missing"),
        pytest.param(ALONE, {"row": row(ITEMS[0], 2)}, Verdict.WRONG, id="no such version"),
        pytest.param(ENDS, {"row": row(ENDS.items[0])}, Verdict.WRONG, id="it cannot answer"),
        pytest.param(
            BATCH,
            batch({"row": row(ITEMS[1])}, {"row": row(ITEMS[0])}, {"code": "handler_failed"}),
            Verdict.MISDELIVERED,
            id="swapped",
        ),
        pytest.param(
            BATCH,
            batch({"code": "handler_failed"}, {"row": row(ITEMS[1])}, {"code": "handler_failed"}),
            Verdict.UNEXPECTED,
            id="a good item failed",
        ),
    ],
)
def test_wrong_answers_are_noticed(request_: Request, content: object, verdict: Verdict) -> None:
    assert judged(request_, content).counts == {verdict: 1}


@pytest.mark.parametrize("code", ["handler_failed", "backend_failed", "invalid_input"])
def test_a_code_that_its_item_does_not_deserve_is_noticed(code: str) -> None:
    assert refused(ALONE, code).counts == {Verdict.UNEXPECTED: 1}


@pytest.mark.parametrize(
    ("code", "what", "pid", "is_excused"),
    [
        ("handler_died", "EXITS", 7, True),
        ("handler_died", "LOOPS", 7, True),
        ("handler_died", "EXITS", 8, False),  # another process
        ("handler_died", "GROWS", 7, False),  # would be handler_memory
        ("handler_died", "STAYS", 7, False),  # its process ends when it has answered others
        ("handler_died", "RAISES", 7, False),
        ("handler_memory", "GROWS", 7, True),
        ("handler_memory", "GROWS", 8, False),
        ("handler_timeout", "BLOCKS", 7, True),
        ("handler_timeout", "RAISES", 7, False),
        ("model_not_ready", "EXITS", 8, True),
        ("model_not_ready", "PRINTS", 8, False),
    ],
)
def test_only_what_happened_in_its_process_excuses_a_failure(
    tmp_path: Path, code: str, what: str, pid: int, is_excused: bool
) -> None:
    acts = journal(
        tmp_path,
        [{"pid": 7, "id": ALONE.id, "number": 20, "what": "begins"}, {"pid": pid, "what": what}],
    )
    checker = refused(ALONE, code)
    assert checker.offended == 0
    checker.settle_late({}, acts)
    assert checker.offended == (not is_excused)


def test_a_forward_that_hangs_excuses_a_timeout(tmp_path: Path) -> None:
    checker = refused(ALONE, "handler_timeout")
    checker.settle_late({"narrow": {20}}, Acts(tmp_path / "none"))
    assert checker.offended == 0
