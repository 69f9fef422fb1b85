"""Measures on the served model how many CPU replicas to use, and how many threads for each.

Export and a server on another machine both measure with the code in this file.
"""

from __future__ import annotations

import math
import queue
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self, TypeAlias

from pydantic import Field, model_validator

from models.parts import Part
from models.system.cores import core_time
from models.system.resources import numa_nodes

FORWARD_S = 0.05  # longest measured forward, if a smaller batch can meet it
WEIGHTS = (".pt", ".pt2", ".zip")
# Event loop time for a single item: parse, queue, answer. For digits as JSON it is 110 us with the
# compiled request path, 220 us without (docs/performance.md). Meanwhile the event loop needs a core
# and holds the GIL.
LOOP_S = 150e-6
MIN_GAIN = 0.15  # needed to choose a layout other than the usual one
ROUNDS = 5
BUSY = 0.1  # share of the cores used by other processes: above it the result is uncertain
PATIENCE = 3  # factor for the number of rounds in that case
SLICE_S = 0.1  # shortest measurement of one layout in one round
MORE_ENDS = 4  # forwards in a slice, in addition to two of each replica
BUDGET_S = 3.0  # for all layouts; running forwards may finish
POLL_S = 0.1  # between two checks of the time
AHEAD = 2  # finished forwards of a replica that may wait for their answer


class Layout(NamedTuple):
    """The number of replicas and the intra-op threads of each."""

    replicas: int
    threads: int

    def __str__(self) -> str:
        return f"{self.replicas} x {self.threads}"


class MeasuredLayout(Part):
    """The best layout of a model at one batch size, and the items/s of all candidates."""

    chosen: Layout
    layouts: tuple[Layout, ...] = Field(description="[replicas, threads of each], the usual first")
    items_per_s: tuple[float, ...] = Field(description="one number per layout; 0: too slow")
    batch_size: int = Field(ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.chosen not in self.layouts or len(self.items_per_s) != len(self.layouts):
            raise ValueError("a layout needs its rate, and the chosen one must be among them")
        return self


Forward: TypeAlias = Callable[[], object]
# Called first in a replica's thread: sets its number of threads and its cores.
Begin: TypeAlias = Callable[[int, Layout], None]


def layouts(cores: int) -> tuple[Layout, ...]:
    """Return the candidate layouts; the usual one first: all cores but the event loop's.

    Omits layouts that leave more than one core idle.

    Args:
        cores: usable by this process.
    """
    candidates = [Layout(1, max(1, cores - 1))]
    threads = 1
    while threads <= cores:
        for core_count in (cores - 1, cores):
            replicas = core_count // threads
            if replicas * threads >= cores - 1:
                candidates.append(Layout(replicas, threads))
        threads = threads * 2 if threads * 2 <= cores or threads == cores else cores
    return tuple(dict.fromkeys(each for each in candidates if each.replicas > 0))


def cores_of(replica: int, layout: Layout) -> frozenset[int] | None:
    """Return the cores of a CPU replica, those of one NUMA node; None: all cores.

    Each replica gets the node with the most free cores; if a replica fits into no node, no replica
    is bound.
    """
    nodes = numa_nodes()
    if layout.replicas < 2 or len(nodes) < 2:
        return None
    free = [len(node) for node in nodes]
    node_of_replica: list[int] = []
    for _ in range(layout.replicas):
        roomiest = max(range(len(nodes)), key=free.__getitem__)
        if free[roomiest] < layout.threads:
            return None
        free[roomiest] -= layout.threads
        node_of_replica.append(roomiest)
    return nodes[node_of_replica[replica]]


def throughput(
    layout: Layout,
    forward: Forward,
    items: int,
    begin: Begin,
    until: float = math.inf,
    loop_s: float = LOOP_S,
) -> float:
    """Measure items/s of replicas that run in parallel with a simulated busy event loop.

    Args:
        layout: number of replicas and threads.
        forward: one batch; called by all replicas at once.
        items: in a batch.
        begin: called first in the thread of each replica.
        until: end of the measurement by `time.perf_counter`; running forwards may finish.
        loop_s: event loop time for each item.

    Returns:
        0 if the time was up before enough forwards had ended.

    Raises:
        Exception: what `forward` raises.
    """
    results: queue.SimpleQueue[tuple[int, float] | BaseException] = queue.SimpleQueue()
    ahead = [threading.Semaphore(AHEAD) for _ in range(layout.replicas)]
    stop = threading.Event()

    def replica(number: int) -> None:
        try:
            begin(number, layout)
            while True:
                ahead[number].acquire()
                if stop.is_set():
                    return
                forward()
                results.put((number, time.perf_counter()))
        except BaseException as error:  # raised in the thread that waits for the forward
            results.put(error)

    threads = [
        threading.Thread(target=replica, args=(n,), daemon=True) for n in range(layout.replicas)
    ]
    ends: list[float] = []
    enough = 2 * layout.replicas + MORE_ENDS
    began = time.perf_counter()
    try:
        for thread in threads:
            thread.start()
        while (now := time.perf_counter()) < until:
            if len(ends) >= enough and now - began >= SLICE_S:
                break
            try:
                result = results.get(timeout=min(POLL_S, until - now))
            except queue.Empty:
                continue
            if isinstance(result, BaseException):
                raise result
            number, end = result
            ends.append(end)
            _hold_gil(items * loop_s)
            ahead[number].release()
    finally:
        stop.set()
        for semaphore in ahead:
            semaphore.release()
        for thread in threads:
            thread.join()
    if len(ends) < enough:
        return 0.0
    first = layout.replicas - 1  # the simultaneous start is left out
    ends.sort()
    return (len(ends) - 1 - first) * items / (ends[-1] - ends[first])


def best(
    candidates: Mapping[Layout, Forward],
    items: int,
    begin: Begin,
    stop: threading.Event | None = None,
) -> tuple[MeasuredLayout, float]:
    """Find the fastest layout: the first one, unless another is clearly faster.

    They run in turns, so that noise affects all. A layout that is too slow to be measured in time
    counts as zero. While other processes use the cores, there are more rounds, another layout must
    win every one, and the result is uncertain.

    Args:
        candidates: the forward of each; the usual one first.
        items: in one forward.
        begin: called first in the thread of each replica.
        stop: set when the result is no longer needed.

    Returns:
        the measurements, and the share of the cores that other processes used; above BUSY the
        measurements are uncertain.
    """
    rates: dict[Layout, list[float]] = {layout: [] for layout in candidates}
    began, cores, others = time.perf_counter(), core_time(), 0.0
    until = began + BUDGET_S
    for rounds in range(1, ROUNDS * PATIENCE + 1):
        for layout, forward in candidates.items():
            if time.perf_counter() < until and not (stop and stop.is_set()):
                rate = throughput(layout, forward, items, begin, until)
                if rate > 0 or not rates[layout]:  # an interrupted one adds no information
                    rates[layout].append(rate)
        others = core_time().others_since(cores)
        if rounds >= ROUNDS and others <= BUSY:
            break
    winner = _clearly_best(rates, always=others > BUSY)
    measurement = MeasuredLayout(
        chosen=winner,
        layouts=tuple(rates),
        items_per_s=tuple(round(_median(samples), 1) for samples in rates.values()),
        batch_size=items,
    )
    return measurement, others


def _clearly_best(rates: Mapping[Layout, Sequence[float]], *, always: bool) -> Layout:
    """Return the layout with the highest rate; the first unless it loses clearly or always."""
    usual = next(iter(rates))
    fastest = max(rates, key=lambda layout: _median(rates[layout]))
    is_clear = _median(rates[fastest]) >= (1 + MIN_GAIN) * _median(rates[usual])
    was_slower = any(own <= other for own, other in zip(rates[fastest], rates[usual], strict=False))
    return usual if not is_clear or (always and was_slower) else fastest


def _median(rates: Sequence[float]) -> float:
    return statistics.median(rates) if rates else 0.0


def _hold_gil(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
