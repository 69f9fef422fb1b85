"""Judges every answer, outside of the server: whose is it, is it right, did it come once?

Nothing here trusts what the server says of itself: `truth.py` knows the right answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.answers import (
    binary_places,
    check_places,
    check_refusal,
    check_row,
    error_of,
    infer_places,
    json_places,
)
from tests.chaos.connection import ChaosAnswer
from tests.chaos.judging import HandlerJudge
from tests.chaos.relayed import Acts, called
from tests.chaos.request import MEDIA_TYPES, V2, Request
from tests.chaos.streaming import read_stream
from tests.chaos.truth import HANDLER, HANDLERS, REPEATS, STREAMER, Item
from tests.chaos.verdict import OFFENCES, Misjudged, Verdict
from tests.chaos.versions import Versions

MOST_OFFENCES = 20  # that are told in full


@dataclass(frozen=True)
class Offence:
    """Something that must never be, and what is needed to see it again."""

    verdict: Verdict
    why: str
    request: str
    answer: str

    def __str__(self) -> str:
        return f"{self.verdict.value.upper()}: {self.why}\n{self.request}\nanswer: {self.answer}"


@dataclass
class Told:
    """What the clients of one server were told; compared with its metrics afterwards.

    Attributes:
        items: (model, outcome) -> items.
        requests: (status, code) -> requests.
        failed: model -> numbers of the items whose place held `backend_failed`.
        unknown_items: of requests whose answer nobody read.
        unknown_requests: whose answer nobody read.
        unknown_streams: those of them that are streams.
        unread_streams: those of these that are too large to end before their client left.
    """

    items: Counter[tuple[str, str]] = field(default_factory=Counter)
    requests: Counter[tuple[int, str]] = field(default_factory=Counter)
    failed: dict[str, set[int]] = field(default_factory=dict)
    unknown_items: Counter[str] = field(default_factory=Counter)
    unknown_requests: int = 0
    unknown_streams: int = 0
    unread_streams: int = 0


class Checker:
    """Counts verdicts.

    Args:
        versions: which of each model may answer when.
    """

    def __init__(self, versions: Versions) -> None:
        self.counts: Counter[Verdict] = Counter()
        self.kinds: Counter[str] = Counter()
        self.offences: list[Offence] = []
        self.told = Told()
        self.stopping = False  # a stop was ordered: refusing is right now
        self.one_stops = False  # of several servers
        self._versions = versions
        self._answered: set[str] = set()
        self._late: list[tuple[Request, ChaosAnswer]] = []
        self.handler = HandlerJudge(versions)

    @property
    def offended(self) -> int:
        """How often something was wrong."""
        return sum(self.counts[each] for each in OFFENCES)

    def judge(self, request: Request, got: ChaosAnswer, sent_at: float) -> Verdict:
        """An answer came on the connection of a request, at its turn.

        Args:
            request: what was asked.
            got: what came.
            sent_at: when asking began, for what versions may answer.
        """
        try:
            self._whose(request, got)
            self._answered.add(request.id)
            verdict = self._right(request, got, sent_at)
        except Misjudged as offence:
            return self.offend(offence.verdict, str(offence), request, got.told())
        self.counts[verdict] += 1
        return verdict

    def settle_late(self, hung: Mapping[str, AbstractSet[int]], acts: Acts) -> None:
        """Who had time enough and was told that it is over must have waited for what hung.

        Args:
            hung: model -> numbers of the items of forwards that did not come back.
            acts: of the handler, which explain what befell others in its processes.
        """
        for request, why, got in self.handler.settle(acts, hung):
            self.offend(Verdict.UNEXPECTED, why, request, got.told())
        for request, got in self._late:
            numbers = {item.number for item in request.items}
            if numbers.isdisjoint(hung.get(request.model, frozenset())):
                self.counts[Verdict.REFUSED] -= 1
                self.offend(Verdict.UNEXPECTED, "late, though nothing hung", request, got.told())
        self._late.clear()

    def judge_refused_connection(self, got: ChaosAnswer) -> Verdict:
        """An answer to what is no HTTP: 400, and the end."""
        if got.status == 400 and got.closes:
            self.counts[Verdict.REFUSED] += 1
            return Verdict.REFUSED
        return self.offend(Verdict.UNEXPECTED, "no HTTP was asked", None, got.told())

    def left(self, request: Request) -> None:
        """Its client went away, or may not know what became of it."""
        self._unknown(request)
        self.counts[Verdict.LEFT] += 1

    def cut(self, request: Request) -> None:
        """A stop or a kill ended the connection; the server owed no answer any more."""
        self._unknown(request)
        self.counts[Verdict.CUT] += 1

    def lost(self, request: Request, why: str) -> None:
        """Its client waited in vain."""
        self._unknown(request)
        self.offend(Verdict.LOST, why, request, "none")

    def left_over(self, data: bytes, last: Request | None) -> None:
        """Bytes came that nobody has asked for: an answer too many."""
        if data:
            self.offend(Verdict.DOUBLED, "more than was asked for", last, repr(data[:2000]))

    def offend(self, verdict: Verdict, why: str, request: Request | None, got: str) -> Verdict:
        """Something must not be."""
        self.counts[verdict] += 1
        if len(self.offences) < MOST_OFFENCES:
            told = request.told() if request is not None else "none"
            self.offences.append(Offence(verdict, why, told, got))
        return verdict

    def _unknown(self, request: Request) -> None:
        self.told.unknown_requests += 1
        self.told.unknown_streams += request.model == STREAMER
        self._unknown_items(request)

    def _unknown_items(self, request: Request) -> None:
        is_one = request.model == STREAMER  # for the handler, not for what it calls
        self.told.unknown_items[request.model] += 1 if is_one else len(request.items)
        self.told.unknown_items += called(request)

    def _whose(self, request: Request, got: ChaosAnswer) -> None:
        named = got.headers.get("x-request-id")
        if named == request.id:
            if named in self._answered:
                raise Misjudged(Verdict.DOUBLED, "it was answered before")
            return
        if named in self._answered:
            raise Misjudged(Verdict.DOUBLED, f"an answer to {named} came before")
        raise Misjudged(Verdict.MISDELIVERED, f"an answer to {named}, not to {request.id}")

    def _right(self, request: Request, got: ChaosAnswer, sent_at: float) -> Verdict:
        if got.status != 200:
            return self._rightly_refused(request, got, sent_at)
        if request.model == STREAMER:
            return self._streamed(request, got, sent_at)
        if got.is_chunked:
            raise Misjudged(Verdict.WRONG, "no stream was asked, and it comes in chunks")
        if request.model == HANDLER:
            return self._relayed(request, got, sent_at)
        if not request.predicts:
            raise Misjudged(Verdict.UNEXPECTED, "200, and it cannot be predicted")
        media_type = got.headers.get("content-type", "")
        if media_type != MEDIA_TYPES[request.form]:
            raise Misjudged(Verdict.WRONG, f"the answer is {media_type}")
        if request.form in V2:
            places, said = infer_places(request, got)
        elif request.form == "json":
            places, said = json_places(request, got.body)
        else:
            places, said = binary_places(request, got.body), None
        check_places(request, places)
        outcomes = self._check_predictions(request, places, said, sent_at)
        for outcome, number in outcomes.items():
            self.told.items[request.model, outcome] += number
        self.told.requests[200, "ok"] += 1
        return Verdict.RIGHT

    def _relayed(self, request: Request, got: ChaosAnswer, sent_at: float) -> Verdict:
        places = self.handler.places(request, got)
        outcomes = self.handler.check(request, places, got, sent_at, self._allowed(request))
        self._told_by_handler(request, outcomes, "ok")
        return Verdict.RIGHT

    def _streamed(self, request: Request, got: ChaosAnswer, sent_at: float) -> Verdict:
        stream = read_stream(request, got)
        allowed = self._allowed(request)
        outcomes = self.handler.check_stream(request, stream, got, sent_at, allowed)
        self._told_by_handler(request, outcomes, stream.code)
        return Verdict.RIGHT

    def _told_by_handler(
        self, request: Request, outcomes: Counter[tuple[str, str]], code: str
    ) -> None:
        """Count what a handler has answered; what its models have, as far as the answer tells."""
        self.told.items += outcomes
        for model, items in called(request).items():
            self.told.unknown_items[model] += items - outcomes[model, "ok"]
        self.told.requests[200, code] += 1

    def _check_predictions(
        self, request: Request, places: Sequence[Any], said: int | None, sent_at: float
    ) -> Counter[str]:
        """Each place holds its own item's outcome, by a version that may answer."""
        outcomes: Counter[str] = Counter()
        for index, (item, place) in enumerate(zip(request.items, places, strict=True)):
            if isinstance(place, str):
                outcomes[place] += 1
                if place != item.code:
                    raise Misjudged(
                        Verdict.WRONG, f"place {index} holds {place}, should be {item.code}"
                    )
                self._failed(request.model, place, item)
                continue
            outcomes["ok"] += 1
            version = int(place[2])
            check_row(request.model, index, item, place)
            if said is not None and said != version:
                why = f"place {index} is by version {version}, the answer says {said}"
                raise Misjudged(Verdict.WRONG, why)
            why_not = self._versions.why_not(request.model, version, request.version, sent_at)
            if why_not:
                raise Misjudged(Verdict.WRONG, why_not)
        return outcomes

    def _rightly_refused(self, request: Request, got: ChaosAnswer, sent_at: float) -> Verdict:
        failing = [each for each in request.items if each.code]
        code, body = error_of(request, got, failing)
        self.told.requests[got.status, code] += 1
        deserved = request.predicts and (
            bool(failing) if request.form != "json" else len(failing) == len(request.items) > 0
        )
        if deserved and code == failing[0].code and request.model not in HANDLERS:
            for item in request.items:
                self.told.items[request.model, item.code or "ok"] += 1
                self._failed(request.model, item.code, item)
            return Verdict.RIGHT
        allowed = self._allowed(request)
        if request.model in HANDLERS:
            ends = request.items[0]
            if request.model == STREAMER and request.form == "json" and failing:
                ends = failing[0]  # of a list any item may fail all
            self.handler.refused(request, ends, code, got, sent_at, allowed)
        elif code == "deadline_exceeded" and code not in allowed and request.items:
            self._late.append((request, got))
        elif code not in allowed:
            raise Misjudged(Verdict.UNEXPECTED, f"{got.status} {code}: {body.get('error')}")
        check_refusal(request, got, code, body)
        # Accepted or not: the items may be counted, or not, as where all answers that are not read
        # leave no room for a large one. What a handler's were is not known.
        late = code in ("deadline_exceeded", "shutting_down")
        if late or request.model in (*HANDLERS, *REPEATS):
            self._unknown_items(request)
        return Verdict.RIGHT if not request.predicts else Verdict.REFUSED

    def _allowed(self, request: Request) -> AbstractSet[str]:
        """Codes that a request may get, whatever its items are."""
        allowed = request.refusals | ({"shutting_down"} if self.stopping else frozenset())
        if self.one_stops and "overloaded" in request.refusals:
            allowed = allowed | {"shutting_down"}  # of those that were tried, that one was the last
        gone = request.version is not None and self._versions.is_gone(
            request.model, request.version
        )
        return allowed | ({"model_not_found"} if gone else frozenset())

    def _failed(self, model: str, code: str | None, item: Item) -> None:
        if code == "backend_failed":
            self.told.failed.setdefault(model, set()).add(item.number)
