"""A forward that goes wrong: as its items are marked, and now and then of its own accord.

It stands where a real one would, below everything that the server makes of torch's errors.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import torch

from app.errors import ReplicaError
from models.runtimes.forms import Forward
from tests.chaos.journal import OK, SUCCEEDS, Journal
from tests.chaos.truth import FIRST_NUMBER, FLOODED_S, MOST_NARROW, Mark

SLOW_S = 0.05
HANG_S = 3600.0  # longer than any deadline
TRANSIENT_SHARE = 0.005  # of the batches with more than one item
SLOW_SHARE = 0.002
MOST_HANGS = 2  # a fourth thread that hangs ends the process (docs/adr/0014)
DOWN_S = 20.0  # a replica that has not worked again after this is not waited for any longer
Made: TypeAlias = torch.Tensor | Exception
STRIKES = {Mark.FELLS: "fells", Mark.BREAKS: "breaks", Mark.HANGS: "hangs"}


class Faults:
    """Decides what goes wrong of its own accord, and when a replica may; shared by all threads.

    One replica is made to fail at a time, and beside it one to hang, so of three there is one that
    works; no item meets two such faults. So each must have its right answer, from another replica.

    Args:
        seed: of what happens by chance.
        journal: where it is written down.
        hangs: whether forwards may hang, MOST_HANGS times; else items that would make them are
            answered like others.
    """

    def __init__(self, seed: int, journal: Journal, *, hangs: bool) -> None:
        self.journal = journal
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._hangs_left = MOST_HANGS if hangs else 0
        self._struck: set[int] = set()
        self._down: str | None = None
        self._down_since = self._hung_since = -DOWN_S

    def strike(
        self, marks: Sequence[Mark], numbers: AbstractSet[int], *, whole: bool
    ) -> str | None:
        """How this forward makes its replica fail, if one may fail now.

        Args:
            marks: of its items.
            numbers: of all items that would move.
            whole: no part of it was run before: of one that hangs there would be no report.
        """
        thread, now = threading.current_thread().name, time.monotonic()
        mark = next((each for each in marks if each in STRIKES), None)
        with self._lock:
            if self._down == thread or now - self._down_since > DOWN_S:
                self._down = None  # it has work again
            if mark is None or not self._struck.isdisjoint(numbers):
                return None
            if mark is Mark.HANGS:
                if not whole or not self._hangs_left or now - self._hung_since < DOWN_S:
                    return None
                self._hangs_left -= 1
                self._hung_since = now
            elif self._down is not None:
                return None
            else:
                self._down, self._down_since = thread, now
            self._struck.update(numbers)
            return STRIKES[mark]

    def chance(self, share: float) -> bool:
        """Yes, in this share of all cases."""
        with self._lock:
            return self._rng.random() < share


class FaultyForward:
    """A loaded form, [n, 3] -> [n, 3], and everything that can happen to it.

    Args:
        forward: the real one.
        model: its name.
        faults: of the process.
    """

    def __init__(self, forward: Forward, model: str, faults: Faults) -> None:
        self._forward = forward
        self._model = model
        self._faults = faults
        self._broken = False
        self._unfinished: set[int] = set()  # of a batch that failed and is run again in parts
        self._unanswered: set[int] = set()  # of the batch, those that have not succeeded

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        numbers = [int(number) for number in x[:, 0].tolist()]
        if self._model == "flooded":
            time.sleep(FLOODED_S * len(numbers))
        if max(numbers) < FIRST_NUMBER:
            if self._broken:
                raise RuntimeError("broken: not even a golden example works")
            return self._real(x)
        whole = not self._unfinished.issuperset(numbers)
        if whole:
            self._unanswered = set(numbers)
            self._unfinished = set(numbers)
        what, made = self._run(x, numbers, whole=whole)
        self._faults.journal.ran(
            self._model, numbers, what, whole=whole, unanswered=len(self._unanswered)
        )
        if what == OK or what in SUCCEEDS:
            self._unanswered.difference_update(numbers)
            self._unfinished.difference_update(numbers)
        elif len(numbers) == 1:
            self._unfinished.difference_update(numbers)
        if what == "hangs":
            time.sleep(HANG_S)
        if isinstance(made, Exception):
            raise made
        return made

    def _run(self, x: torch.Tensor, numbers: list[int], *, whole: bool) -> tuple[str, Made]:
        """What happened, and what came of it."""
        marks = [Mark(int(mark)) for mark in x[:, 1].tolist()]
        fault = self._fault(marks, whole=whole)
        return fault if fault is not None else self._answer(x, marks)

    def _fault(self, marks: Sequence[Mark], *, whole: bool) -> tuple[str, Exception] | None:
        """What keeps the model from being asked at all."""
        size = len(marks)
        struck = None if self._broken else self._faults.strike(marks, self._unanswered, whole=whole)
        if self._broken or struck == "breaks":
            self._broken = True
            return struck or "broken", RuntimeError("broken: nothing works any more")
        if struck is not None:
            return struck, ReplicaError("the device does not answer")
        if self._model == "narrow" and size > MOST_NARROW:
            return "out of memory", torch.OutOfMemoryError(f"{size} items do not fit")
        if whole and size > 1 and self._faults.chance(TRANSIENT_SHARE):
            return "transient", RuntimeError("it will work the next time")
        return None

    def _answer(self, x: torch.Tensor, marks: Sequence[Mark]) -> tuple[str, Made]:
        """What the model makes of it, with rows lost or gained."""
        slow = Mark.SLOW in marks or self._faults.chance(SLOW_SHARE)
        if slow:
            time.sleep(SLOW_S)
        try:
            made = self._real(x)
        except (RuntimeError, torch.jit.Error) as error:
            return "poison", error
        if Mark.LOSES in marks:
            return "rows lost", made[1:]
        if Mark.GAINS in marks:
            return "rows gained", torch.cat([made[:1], made])
        return "nan" if Mark.NAN in marks else "slow" if slow else OK, made

    def _real(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self._forward(x)
        return made
