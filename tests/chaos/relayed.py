"""What the handlers of a chaos run are, and what they did: artifacts, acts, remains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.chaos import relay
from tests.chaos.request import Request
from tests.chaos.truth import FIRST_NUMBER, HANDLER, HANDLERS, STREAMER, Item, Mark, answer
from tests.handlers import Example, asks, write_handler

CALLS = MappingProxyType({HANDLER: relay.Relay.models, STREAMER: relay.Feed.models})
MODELS = CALLS[HANDLER]
PROCESSES = 2  # in each process of the server
CONCURRENCY = MappingProxyType({HANDLER: 4, STREAMER: 16})  # slow readers keep their places
EXAMPLES = 3  # items of each model that it calls, whenever a version starts
JOURNAL = "relayed"  # beside the repository
SCRATCH = "tmp"  # TMPDIR of the server, beside the repository
# A process that ended is back within this time, with the longest pause before its start.
BACK_S = 20.0

# What ends a process, by the cause that the server counts.
ENDS = {
    "died": frozenset({Mark.EXITS}),
    "memory": frozenset({Mark.GROWS}),
    "stuck": frozenset({Mark.LOOPS, Mark.BLOCKS, Mark.STAYS}),
}
DEADLY = frozenset().union(*ENDS.values())
# What may fail the requests that are in its process, by the code that they get. A process whose
# code STAYS gets no new requests, and is ended when it has answered the others.
FAILS_MATES = {
    "handler_died": frozenset({Mark.EXITS, Mark.LOOPS, Mark.BLOCKS}),
    "handler_memory": frozenset({Mark.GROWS}),
}
# What may make its mates, or those that wait for a process, too late.
DELAYS = DEADLY | {Mark.PAUSES}
UNANSWERED = DEADLY | {Mark.LATE, Mark.LINGERS}


def called(request: Request) -> Counter[str]:
    """Model -> items of a request for which its handler calls it."""
    of = CALLS.get(request.model, ())
    plain = request.model == HANDLER
    return Counter(
        model for item in request.items if plain or item.mark < Mark.RAISES for model in of
    )


def write_acting(
    root: Path, handler: str, journal: Path, version: int, said: int, *, imports: bool
) -> Path:
    """Write a version of a handler.

    Args:
        root: where to; gets HANDLER/VERSION.
        handler: one of `HANDLERS`.
        journal: that its processes write.
        version: of the artifact.
        said: the version that its answers name.
        imports: whether its code can be imported.
    """
    marks = {mark.name: int(mark) for mark in Mark if mark >= Mark.RAISES}
    settings: dict[str, object] = {"VERSION": said, "CONSTANT": HANDLERS[handler]}
    settings |= {"JOURNAL": str(journal), "MARKS": marks}
    source = Path(relay.__file__).read_text()
    source += "".join(f"{name} = {value!r}\n" for name, value in settings.items())
    source += "" if imports else "import no_module_of_this_name\n"
    return write_handler(
        root,
        handler,
        version,
        source,
        [_example(handler, FIRST_NUMBER + index, version) for index in range(EXAMPLES)],
        CALLS[handler],
        entry=f"relay:{handler.capitalize()}",
        streams=handler == STREAMER,
        processes=PROCESSES,
        concurrency=CONCURRENCY[handler],
        memory_bytes=160 << 20,
    )


def _example(handler: str, number: int, version: int) -> Example:
    item = Item(number)
    row = answer(handler, version, item)
    for model in CALLS[handler]:
        row += answer(model, 0, item)
    is_one = handler == HANDLER
    asked, answered = item.values(), {"row": row}
    return asks(asked, answered) if is_one else asks([asked], [answered])


class Act(NamedTuple):
    """What a process of a handler did.

    Attributes:
        handler: that it is of.
        at: when, on `time.monotonic`.
        pid: of the process.
        what: that it did.
        id: of the request.
        number: of the item.
    """

    handler: str
    at: float
    pid: int
    what: Mark
    id: str
    number: int


class Acts:
    """What the processes of the handlers did.

    Args:
        path: of their journal, which need not exist.

    Attributes:
        acts: but for beginning requests.
        pids: of all processes.
        children: of those that they forked.
        streaming: process -> its generators that were not closed.
    """

    def __init__(self, path: Path) -> None:
        self.acts: list[Act] = []
        self.pids: set[int] = set()
        self.children: set[int] = set()
        self.streaming: Counter[int] = Counter()
        self._began: dict[tuple[str, int], set[int]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            if line.endswith("}"):
                self._take(json.loads(line))

    def _take(self, entry: dict[str, Any]) -> None:
        pid, what, key = entry["pid"], entry["what"], (entry["id"], entry["number"])
        (self.children if what == "FORKED" else self.pids).add(pid)
        if what == "begins":
            self._began.setdefault(key, set()).add(pid)
        elif what in ("opens", "closes"):
            self.streaming[pid] += 1 if what == "opens" else -1
        elif what != "FORKED":
            self.acts.append(Act(entry["handler"], entry["at"], pid, Mark[what], *key))

    def of(self, id: str, number: int) -> AbstractSet[int]:
        """The processes that began an item: none, one or, if it was sent twice, several."""
        return self._began.get((id, number), frozenset())

    def ended(self, cause: str) -> AbstractSet[int]:
        """The processes that did something which ends a process for this cause."""
        return {each.pid for each in self.acts if each.what in ENDS.get(cause, ())}

    def ended_only(self, cause: str) -> AbstractSet[int]:
        """Those of them that did nothing else which ends a process."""
        others = (self.ended(each) for each in ENDS if each != cause)
        return self.ended(cause) - set().union(*others)

    def excuse(
        self, handler: str, code: str, id: str, number: int, sent_at: float, told_at: float
    ) -> bool:
        """Whether an item that did nothing itself may have been told this code.

        Args:
            handler: that was asked.
            code: of the error.
            id: of the request.
            number: of the item.
            sent_at: when the request was sent.
            told_at: when its answer came.
        """
        kinds, pids = FAILS_MATES.get(code, DELAYS), self.of(id, number)
        if code in FAILS_MATES and pids:
            return any(each.what in kinds and each.pid in pids for each in self.acts)
        # It waited for a process, or was sent to one that did not begin it.
        return any(
            each.handler == handler
            and each.what in kinds
            and sent_at - BACK_S <= each.at <= told_at
            for each in self.acts
        )
