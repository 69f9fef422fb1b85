"""Measures the time of a forward, even on a machine with other work.

Forms are timed in turns, in short samples, so that all meet the same load. Linux counts how long
each thread was ready to run but had no core. So disturbed samples are detected and repeated, and
the time of serial code is corrected. If most samples are disturbed, measuring takes longer and
reports that. If the system does not count these waits, all samples are treated as undisturbed.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from models.system.cores import core_time

Key = TypeVar("Key", bound=Hashable)

TASKS = Path("/proc/self/task")
SAMPLE_S = 1e-3  # a sample repeats a forward for about this long, because clocks are coarse
MAX_REPEATS = 50
SLOW_S = 10 * SAMPLE_S  # longer than a scheduler's time slice: a second try would not be quieter
MIN_ROUNDS = 3  # fewer cannot tell a gain from noise
WARM_RUNS = 3  # TorchScript's profiling executor specialises on the second and third call
QUIET = 0.05  # a sample that waited for a larger share of its time was disturbed
LEAST_OWN = 0.01  # of a sample's time: the kernel's figure of its wait is not that exact
TRIES = 4  # of one sample, until one is quiet
PATIENCE = 3  # factor for rounds and time if most samples are disturbed

# Thread -> nanoseconds since its start for which it was ready to run but had no core.
Watch: TypeAlias = Callable[[], Mapping[int, int]]


def nothing() -> None:
    """Do nothing: what a callback does by default, or what there is to cancel."""


def this_thread() -> dict[int, int]:
    """Return the time that the calling thread has waited for a core; enough for serial code."""
    return _wait_times([str(threading.get_native_id())])


def all_threads() -> dict[int, int]:
    """Return the time that each thread here has waited: a forward may wait for its helpers."""
    try:
        return _wait_times(os.listdir(TASKS))
    except OSError:
        return {}


@dataclass(frozen=True, slots=True)
class TimingLimits:
    """Limits of a measurement.

    Attributes:
        rounds: maximum number, on a quiet machine.
        budget_s: no further round begins after this time, except for the first MIN_ROUNDS. If most
            samples are disturbed, both limits are PATIENCE times as large.
        warm_runs: of each form before it is timed; 0: all are warm.
    """

    rounds: int
    budget_s: float = math.inf
    warm_runs: int = WARM_RUNS


@dataclass(slots=True)
class Timing(Generic[Key]):
    """The result of a measurement.

    Attributes:
        seconds: form -> seconds of one forward, one number per round; for serial code without its
            waits for a core.
        wait_shares: form -> the waiting share of each sample, 0 to 1; 0 for slow serial code, which
            is always interrupted and whose time without the wait is good enough.
        took_s: total time of all samples, including repeated ones.
        waited_s: the part of it spent waiting for a core.
    """

    seconds: dict[Key, list[float]]
    wait_shares: dict[Key, list[float]]
    took_s: float = 0.0
    waited_s: float = 0.0

    @property
    def kept_waiting(self) -> float:
        """The share of time in which this process was kept from running, 0 to 1."""
        return share_waited([self])

    @property
    def is_quiet(self) -> bool:
        """Whether at least three quarters of each form's samples were undisturbed."""
        return all(
            4 * sum(share <= QUIET for share in shares) >= 3 * len(shares)
            for shares in self.wait_shares.values()
        )


def share_waited(timings: Iterable[Timing[Key]]) -> float:
    """Return the share of several timings in which the process was kept from running."""
    each = [(timing.waited_s, timing.took_s) for timing in timings]
    took_s = sum(sample_s for _, sample_s in each)
    return min(1.0, sum(waited_s for waited_s, _ in each) / took_s) if took_s else 0.0


def take_turns(
    runs: Mapping[Key, Callable[[], object]],
    limits: TimingLimits,
    between: Callable[[], None] = nothing,
    threads: int | None = None,
    enough: Callable[[Mapping[Key, Sequence[float]]], bool] | None = None,
) -> Timing[Key]:
    """Time every form on the same batch, in turns, so that all share the noise.

    Args:
        runs: each runs one forward and returns its result.
        limits: how long to measure.
        between: called before each sample, and before each untimed run.
        threads: CPU threads of a forward. With 1 it does nothing while its thread waits, with more
            it may wait for others. None: unknown, or another device computes.
        enough: called after each round, returns whether the seconds so far suffice; not called for
            the first MIN_ROUNDS, nor while most samples are disturbed. Then, and while other work
            keeps the process waiting, the limit is PATIENCE times as many rounds. None: run all.
    """
    turns = {form: _turn(run, limits.warm_runs, between, threads) for form, run in runs.items()}
    timing: Timing[Key] = Timing({form: [] for form in runs}, {form: [] for form in runs})
    start, cores = time.perf_counter(), core_time()
    order = list(runs)
    for round_count in itertools.count(1):
        for form in order:
            best = _quietest(turns[form], between, timing)
            timing.seconds[form].append(best.forward_s)
            timing.wait_shares[form].append(best.wait_share)
        order.append(order.pop(0))  # no form always runs after the same one
        is_open = enough is not None and timing.kept_waiting > QUIET
        longer = PATIENCE if is_open or not timing.is_quiet else 1
        if round_count >= limits.rounds * longer:
            break
        if round_count < MIN_ROUNDS:
            continue
        if time.perf_counter() - start > limits.budget_s * longer:
            break
        if enough is not None and timing.is_quiet and enough(timing.seconds):
            break
    stolen_share = core_time().stolen_since(cores)
    timing.waited_s += stolen_share * (timing.took_s - timing.waited_s)
    return timing


def time_interleaved(
    runs: Mapping[Key, Callable[[], object]],
    rounds: int,
    budget_s: float = math.inf,
    between: Callable[[], None] = nothing,
) -> dict[Key, list[float]]:
    """Return the seconds of `take_turns`, without an early end.

    Returns:
        form -> seconds of one forward, one number per round.
    """
    return take_turns(runs, TimingLimits(rounds, budget_s), between).seconds


def lasts_s(times: Sequence[float]) -> float:
    """Estimate the time of a forward by its samples' lower quartile, because load only adds."""
    return sorted(times)[round((len(times) - 1) / 4)]


def seconds_of(run: Callable[[], object], repeats: int = 1) -> float:
    """Return the seconds of one call, the mean of several in a row."""
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begin) / repeats


class _Turn(NamedTuple):
    """A warm form.

    Attributes:
        run: one forward.
        repeats: forwards in one sample.
        tries: most tries for a quiet sample.
        watch: reads the waits of the relevant threads.
        serial: whether a forward does nothing while its thread waits.
    """

    run: Callable[[], object]
    repeats: int
    tries: int
    watch: Watch
    serial: bool


class _Sample(NamedTuple):
    """Seconds of the whole sample, of the longest wait, and of one forward; see `Timing`."""

    wall_s: float
    waited_s: float
    forward_s: float
    wait_share: float


def _turn(
    run: Callable[[], object], warm_runs: int, between: Callable[[], None], threads: int | None
) -> _Turn:
    """Warm up a form and estimate its time; for a slow form the warm-up suffices."""
    shortest_s = math.inf
    for number in range(warm_runs + 1):
        if number < warm_runs or shortest_s < SLOW_S or warm_runs == 0:
            between()
            shortest_s = min(shortest_s, seconds_of(run))
    repeats = max(1, min(MAX_REPEATS, round(SAMPLE_S / max(shortest_s, 1e-9))))
    watch = all_threads if threads is not None and threads > 1 else this_thread
    return _Turn(run, repeats, TRIES if shortest_s < SLOW_S else 1, watch, threads == 1)


def _quietest(turn: _Turn, between: Callable[[], None], timing: Timing[Key]) -> _Sample:
    """Return the least disturbed of several tries; count the time of all of them."""
    samples: list[_Sample] = []
    while len(samples) < turn.tries and (not samples or samples[-1].wait_share > QUIET):
        between()
        if turn.tries > 1:
            turn.run()  # not timed: earlier code has filled the caches, more so under load
            between()
        samples.append(sample := _sample(turn))
        timing.took_s += sample.wall_s
        timing.waited_s += sample.waited_s
    return min(samples, key=lambda sample: sample.wait_share)


def _sample(turn: _Turn) -> _Sample:
    """Repeat a forward for at most SLOW_S: if it is kept waiting, it may take much longer."""
    before = turn.watch()
    count, wall_s, begin = 0, 0.0, time.perf_counter()
    while count < turn.repeats and wall_s < SLOW_S:
        turn.run()
        count += 1
        wall_s = time.perf_counter() - begin
    # Another thread's wait may have begun before the sample: that part does not count.
    waits = (after - before[each] for each, after in turn.watch().items() if each in before)
    waited_s = min(wall_s, max(waits, default=0) / 1e9)
    own_s = max(wall_s - waited_s, LEAST_OWN * wall_s) if turn.serial else wall_s
    forward_s = max(own_s, 1e-9) / count  # never 0: a divisor
    # Apart from its wait, which is known, load hardly affects a slow serial forward.
    wait_share = 0.0 if wall_s == 0 or (turn.serial and turn.tries == 1) else waited_s / wall_s
    return _Sample(wall_s, waited_s, forward_s, wait_share)


def _wait_times(threads: Iterable[str]) -> dict[int, int]:
    waits_ns = {}
    for thread in threads:
        try:
            _, waited_ns, _ = (TASKS / thread / "schedstat").read_text().split()
            waits_ns[int(thread)] = int(waited_ns)
        except (OSError, ValueError):  # it has ended, or the kernel does not count
            continue
    return waits_ns
