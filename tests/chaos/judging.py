"""Judges the answers of the handlers; whom they may fail is known when their journal is read."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import numpy as np

from tests.chaos.answers import check_places, check_row
from tests.chaos.connection import ChaosAnswer
from tests.chaos.relayed import CALLS, MODELS, UNANSWERED, Acts
from tests.chaos.request import JSON, OCTETS, Request
from tests.chaos.streaming import Streamed
from tests.chaos.truth import HANDLER, STREAMER, WIDTH, Item, Mark
from tests.chaos.verdict import Misjudged, Verdict
from tests.chaos.versions import Versions

# Codes that an item may get through no fault of its own, if `Acts.excuse` or a forward that hung
# is the reason.
EXCUSED = frozenset(
    {"handler_died", "handler_memory", "handler_timeout", "deadline_exceeded", "model_not_ready"}
)


class Excused(NamedTuple):
    """A code that needs an excuse, and whose place holds it."""

    request: Request
    item: Item
    numbers: Sequence[int]  # of the items that it may be due to
    code: str
    got: ChaosAnswer
    sent_at: float
    told_at: float


class HandlerJudge:
    """Judges what the handlers answer.

    Args:
        versions: which of the handlers and of their models may answer when.

    Attributes:
        codes: (handler, "ok" or code of an error) -> how many items, first items of a request, or
            streams got it.
    """

    def __init__(self, versions: Versions) -> None:
        self.codes: Counter[tuple[str, str]] = Counter()
        self._versions = versions
        self._excused: list[Excused] = []

    def places(self, request: Request, got: ChaosAnswer) -> list[Any]:
        """Rows of numbers or codes of errors, of an answer with the status 200.

        Raises:
            Misjudged: it is none.
        """
        media_type = got.headers.get("content-type", "")
        is_bytes = not request.many and request.items[0].mark is Mark.BYTES
        if media_type != (OCTETS if is_bytes else JSON):
            raise Misjudged(Verdict.WRONG, f"the answer is {media_type}")
        if is_bytes:
            return [np.frombuffer(got.body, "<f4").tolist()]
        try:
            parsed = json.loads(got.body)
            if not request.many:
                return [parsed["row"]]
            if parsed["model"] != HANDLER:
                raise Misjudged(Verdict.MISDELIVERED, f"by {parsed['model']}, not {HANDLER}")
            return [*map(_place, parsed["predictions"])]
        except (ValueError, KeyError, TypeError) as error:
            raise Misjudged(Verdict.WRONG, f"no answer of the handler: {error}") from error

    def check(
        self,
        request: Request,
        places: Sequence[Any],
        got: ChaosAnswer,
        sent_at: float,
        allowed: AbstractSet[str],
    ) -> Counter[tuple[str, str]]:
        """What each place tells of the handler and its models: (name, outcome) -> items.

        Raises:
            Misjudged: a place is not what its item may get.
        """
        check_places(request, places)
        outcomes: Counter[tuple[str, str]] = Counter()
        for index, (item, place) in enumerate(zip(request.items, places, strict=True)):
            if isinstance(place, str):
                self.refused(request, item, place, got, sent_at, allowed)
                outcomes[HANDLER, place] += 1
                continue
            names = (HANDLER, *MODELS)
            self._check_rows(request, index, item, names, place, sent_at)
            outcomes.update((name, "ok") for name in names)
            self.codes[HANDLER, "ok"] += 1
        return outcomes

    def check_stream(
        self,
        request: Request,
        stream: Streamed,
        got: ChaosAnswer,
        sent_at: float,
        allowed: AbstractSet[str],
    ) -> Counter[tuple[str, str]]:
        """What a stream tells of the handler and its models: (name, outcome) -> items.

        Raises:
            Misjudged: it does not hold its items, or does not end as they make it.
        """
        rows, items = stream.rows, request.items
        outcomes = Counter({(STREAMER, stream.code): 1})
        if not 0 < len(rows) <= len(items):
            raise Misjudged(Verdict.WRONG, f"{len(rows)} rows for {len(items)} items")
        for index, (item, row) in enumerate(zip(items, rows, strict=False)):
            called = CALLS[STREAMER] if item.mark < Mark.RAISES else ()
            self._check_rows(request, index, item, (STREAMER, *called), row, sent_at)
            outcomes.update((name, "ok") for name in called)
        if len({row[2] for row in rows}) > 1:
            raise Misjudged(Verdict.WRONG, "two versions in one stream")
        if stream.code != "ok":
            item = items[min(len(rows), len(items) - 1)]
            self.refused(request, item, stream.code, got, sent_at, allowed)
        elif len(rows) < len(items):
            raise Misjudged(Verdict.WRONG, f"it ends after {len(rows)} rows of {len(items)}")
        else:
            self.codes[STREAMER, "ok"] += 1
        return outcomes

    def _check_rows(
        self,
        request: Request,
        index: int,
        item: Item,
        names: Sequence[str],
        numbers: Sequence[float],
        sent_at: float,
    ) -> None:
        """Check the rows of the handler and of those that it called for an item, in a row."""
        if item.mark in UNANSWERED or item.code is not None:
            raise Misjudged(Verdict.WRONG, f"place {index} has an answer: {item.mark.name}")
        if len(numbers) != WIDTH * len(names):
            raise Misjudged(Verdict.WRONG, f"place {index} has {len(numbers)} numbers")
        for name, at in zip(names, range(0, len(numbers), WIDTH), strict=True):
            row = numbers[at : at + WIDTH]
            check_row(name, index, item, row)
            asked = request.version if name == request.model else None
            why_not = self._versions.why_not(name, int(row[2]), asked, sent_at)
            if why_not:
                raise Misjudged(Verdict.WRONG, f"{name}: {why_not}")

    def refused(
        self,
        request: Request,
        item: Item,
        code: str,
        got: ChaosAnswer,
        sent_at: float,
        allowed: AbstractSet[str],
    ) -> None:
        """An item, the first one of a request, or the next one of a stream, got an error.

        Raises:
            Misjudged: it may not get this one, whatever happened.
        """
        self.codes[request.model, code] += 1
        if code == item.code or code in allowed:
            return
        if code not in EXCUSED:
            raise Misjudged(Verdict.UNEXPECTED, f"{code} for {item.number} {item.mark.name}")
        # The first item of a stream tells in which process it was, and any may have been called.
        items = request.items if request.model == STREAMER else [item]
        numbers = [each.number for each in items]
        self._excused.append(Excused(request, item, numbers, code, got, sent_at, time.monotonic()))

    def settle(
        self, acts: Acts, hung: Mapping[str, AbstractSet[int]]
    ) -> list[tuple[Request, str, ChaosAnswer]]:
        """Those that were failed by nothing that is known, and how; forgets all.

        Args:
            acts: of the handler.
            hung: model -> numbers of the items of forwards that did not come back.
        """
        lost = set[int]().union(*(hung.get(model, frozenset()) for model in MODELS))
        unexcused = [
            (each.request, f"{each.code} for {each.item}, which nothing explains", each.got)
            for each in self._excused
            if not (
                not lost.isdisjoint(each.numbers)
                and each.code in ("handler_timeout", "deadline_exceeded")
            )
            and not acts.excuse(
                each.request.model,
                each.code,
                each.request.id,
                each.numbers[0],
                each.sent_at,
                each.told_at,
            )
        ]
        self._excused.clear()
        return unexcused


def _place(place: Any) -> Any:
    if "code" in place:
        return place["code"]
    if "base64" in place:
        return np.frombuffer(base64.b64decode(place["base64"]), "<f4").tolist()
    return place["row"]
