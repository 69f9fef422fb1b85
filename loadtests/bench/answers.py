"""Correct answers, from the plain script in a separate process, and requests judged by them.

All servers' answers are compared with these, including ours: they come from the model as export
wrote it, not from its plan.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np

from loadtests.bench.bodies import Bodies
from loadtests.bench.dialects import AnswerError, Dialect
from loadtests.bench.own_models import manifest_of
from loadtests.errors import LoadTestError
from loadtests.traffic.calls import failure
from loadtests.wire import HEAD_END, Response
from models.tensors import Array

TOLERANCE = 1e-4
LOSSY_TOLERANCE = 0.05  # of a vector of length 1 in bf16 or int8; two sentences differ by more
LEAST_SPREAD = 1e-3  # between the answers to different inputs: equal ones would prove nothing
LEAST_ITEMS = 8  # needed to determine the spread
CHUNK = 64  # items of one forward
OK = 200
Right = Callable[[Array], Array]  # float32 [n, *shape], or n texts -> scores [n, k]
_scores: list[Right] = []  # in the reference process


class CheckError(LoadTestError):
    """A number of this benchmark would be invalid; the message gives the reason."""


@contextlib.contextmanager
def answers_of(folder: Path) -> Iterator[Right]:
    """Provide the correct answers of an artifact, from a process that ends with the block."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, _load, (folder,)) as pool:

        def right(items: Array) -> Array:
            try:
                return pool.submit(_answer, items).result()
            except BrokenProcessPool as error:
                raise CheckError("the process that knows right answers ended") from error

        right(np.zeros((0, 1), np.float32))  # wait until it is ready, before any measurement
        yield right


def _load(folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends the run
    # torch only in this process
    from loadtests.bench.peers.encoder import Encoder  # noqa: PLC0415
    from loadtests.bench.peers.model import Model  # noqa: PLC0415

    if manifest_of(folder).codec.kind == "text":
        _scores.append(Encoder(folder, "script").vectors)
        return
    _scores.append(Model(folder, "script").scores)


def _answer(items: Array) -> Array:
    parts = [_scores[0](items[at : at + CHUNK]) for at in range(0, len(items), CHUNK)]
    return np.concatenate(parts) if parts else items


class JudgedBodies:
    """Requests to one server with judged answers; see `loadtests.openloop.sender.Requests`.

    Args:
        bodies: the requests.
        dialect: the server's.
        right: the correct answers.
        numbers: of the requests, in order.
        tolerance: the largest allowed error of a score.
        deadline_ms: sent in the requests; None: none.
    """

    def __init__(
        self,
        bodies: Bodies,
        dialect: Dialect,
        right: Right,
        *,
        numbers: Iterable[int] | None = None,
        tolerance: float = TOLERANCE,
        deadline_ms: int | None = None,
    ) -> None:
        self._bodies, self._dialect, self._right = bodies, dialect, right
        self._numbers = iter(itertools.count() if numbers is None else numbers)
        self._tolerance, self._deadline_ms = tolerance, deadline_ms
        self._drawn: list[int] = []

    def draw(self) -> bytes:
        """Draw the next whole request."""
        self._drawn.append(next(self._numbers))
        request = self._bodies.request(self._drawn[-1])
        return request if self._deadline_ms is None else with_deadline(request, self._deadline_ms)

    def problems(self, responses: Sequence[Response | None]) -> list[str | None]:
        """Compare each answer with status 200 with the correct one.

        Raises:
            CheckError: if the model gives the same answer to all inputs.
        """
        drawn, self._drawn = self._drawn, []
        found: list[str | None] = [
            None if each is None else failure(each.status, each.body) for each in responses
        ]
        answered = [(at, each) for at, each in enumerate(responses) if each and each.status == OK]
        if not answered:
            return found
        items = [self._bodies.inputs(drawn[at]) for at, _ in answered]
        scores = self._right(np.concatenate(items))
        if len(scores) >= LEAST_ITEMS and float(np.ptp(scores, axis=0).max()) < LEAST_SPREAD:
            raise CheckError(
                f"{len(scores)} different inputs have the same answer: a check proves nothing"
            )
        ends = np.cumsum([len(each) for each in items])[:-1]
        for (at, response), wanted in zip(answered, np.split(scores, ends), strict=True):
            found[at] = problem(self._dialect, response.body, wanted, self._tolerance)
        return found


def with_deadline(request: bytes, deadline_ms: int) -> bytes:
    """Add a deadline to an HTTP/1.1 request; other servers ignore it."""
    header = b"\r\nX-Torchlane-Timeout-Ms: %d" % deadline_ms
    return request.replace(HEAD_END, header + HEAD_END, 1)


def problem(
    dialect: Dialect, content: bytes, right: Array, tolerance: float = TOLERANCE
) -> str | None:
    """Say what is wrong with the body of an answer with status 200; None if it is correct.

    Args:
        dialect: the server's.
        content: the body.
        right: correct scores [items, k].
        tolerance: the largest allowed error of a score.
    """
    try:
        scores = dialect.scores(content, many=len(right) > 1)
    except AnswerError as error:
        return str(error)
    if scores is None:
        return None
    if scores.shape != right.shape:
        return f"scores {list(scores.shape)} instead of {list(right.shape)}"
    gaps = np.abs(scores - right)
    at = np.unravel_index(np.argmax(np.where(np.isnan(gaps), np.inf, gaps)), gaps.shape)
    if not gaps[at] <= tolerance:  # also true for NaN
        return f"score {scores[at]:.6g} instead of {right[at]:.6g} (item {at[0]}, class {at[1]})"
    return None
