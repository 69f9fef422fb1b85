"""Judges a release: compares what its new version and its old one have done in the current step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from prometheus_client.registry import Collector

from app.errors import (
    BackendFailed,
    DeadlineExceeded,
    HandlerDied,
    HandlerFailed,
    HandlerMemory,
    HandlerOutputs,
    HandlerTimeout,
    NonFiniteOutput,
)
from app.metrics.counters import LATENCIES
from app.registry.releases import ACTIVE, Phase, Release, Stage, old_version, why_it_waits
from app.types import ModelId

DOWN_S = 10.0  # that no replica runs the new version: a broken replica may be back before
LEAST_WATCH_S = 60.0  # that a step is watched after a restart, even if its time has passed
BOUNDS = (*LATENCIES, math.inf)
TAIL = 0.01  # share of the requests that are slower than the p99
LEAST_SLOW, SURE = 10, 4.0  # requests, and standard deviations, above what may be chance
AGREES, DROPPED = ("agrees", "same_label"), "dropped"  # results of copies
# Outcomes of items for which the version is to blame, not the caller, nor a stop of the server.
FAILURES = {
    "internal",
    *(
        kind.code
        for kind in (
            BackendFailed,
            NonFiniteOutput,
            DeadlineExceeded,
            HandlerFailed,
            HandlerDied,
            HandlerMemory,
            HandlerOutputs,
            HandlerTimeout,
        )
    ),
}


class Counts(NamedTuple):
    """What a version has done.

    Attributes:
        within: computed requests without a failure that took at most each of BOUNDS.
        requests: number of its requests.
        ok: items with a prediction.
        failed: items that failed through its fault.
        seconds: sum of the computed requests' times in queue and computation.
        compared: copied items of the old version with which it was compared.
        agreed: those to which it gave the same answer, or at least the same label.
    """

    within: tuple[float, ...] = (0.0,) * len(BOUNDS)
    requests: float = 0.0
    ok: float = 0.0
    failed: float = 0.0
    seconds: float = 0.0
    compared: float = 0.0
    agreed: float = 0.0

    def since(self, before: Counts) -> Counts:
        """What was done since the earlier counts."""
        within = tuple(now - then for now, then in zip(self.within, before.within, strict=True))
        numbers = (now - then for now, then in zip(self[1:], before[1:], strict=True))
        return Counts(within, *numbers)

    @property
    def computed(self) -> float:
        """Requests without a failure for which something was computed."""
        return self.within[-1]

    def slower_than(self, seconds: float) -> float:
        """Computed requests that took longer than one of BOUNDS."""
        return self.computed - self.within[BOUNDS.index(seconds)]

    @property
    def p99_s(self) -> float:
        """The first of BOUNDS that the p99 of the computed requests does not exceed."""
        most = TAIL * self.computed
        return next(bound for bound in BOUNDS if self.slower_than(bound) <= most)


AllCounts: TypeAlias = Mapping[ModelId, Counts]


def counts_of(names: Collection[str], collector: Collector) -> AllCounts:
    """The counts of all versions of these models."""
    counts: defaultdict[ModelId, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    within: defaultdict[ModelId, defaultdict[float, float]] = defaultdict(
        lambda: defaultdict(float)
    )

    for family in collector.collect():
        for sample in family.samples:
            labels, value = sample.labels, sample.value
            if labels.get("model") not in names:
                continue
            model = ModelId(labels["model"], int(labels["version"]))
            match sample.name:
                case "torchlane_items_total" if labels["outcome"] == "ok":
                    counts[model]["ok"] += value
                case "torchlane_items_total" if labels["outcome"] in FAILURES:
                    counts[model]["failed"] += value
                case "torchlane_model_requests_total":
                    counts[model]["requests"] += value
                case "torchlane_model_request_seconds_total":
                    if labels["part"] in ("queue", "compute"):
                        counts[model]["seconds"] += value
                case "torchlane_model_latency_seconds_bucket":
                    within[model][float(labels["le"])] += value
                case "torchlane_shadow_items_total" if labels["result"] != DROPPED:
                    counts[model]["compared"] += value
                    if labels["result"] in AGREES:
                        counts[model]["agreed"] += value
    return {
        model: Counts(tuple(within[model][bound] for bound in BOUNDS), **counts[model])
        for model in {*counts, *within}
    }


def reason_to_stop(release: Release, new: Counts, old: Counts) -> str | None:
    """Why the new version must not go on; None: nothing speaks against it.

    Args:
        release: its rules.
        new: what the new version has done in the current step.
        old: the same of the old version.
    """
    return (
        _errors(release, new)
        or _disagreement(release, new)
        or _latency(release, new, old)
        or _tail(release, new, old)
    )


def _errors(release: Release, new: Counts) -> str | None:
    rules, judged = release.stop_if, new.ok + new.failed
    if min(new.requests, judged) < rules.min_requests:
        return None
    errors = new.failed / judged
    if errors <= rules.errors_above:
        return None
    return (
        f"{errors:.3g} of the items of version {release.to} failed, more than "
        f"errors_above = {rules.errors_above:g}"
    )


def _disagreement(release: Release, new: Counts) -> str | None:
    rules = release.stop_if
    if rules.agreement_below is None or new.compared < rules.min_requests:
        return None
    agreement = new.agreed / new.compared
    if agreement >= rules.agreement_below:
        return None
    return (
        f"version {release.to} agreed with the old version on {new.agreed:.0f} of "
        f"{new.compared:.0f} items ({agreement:.3g}), less than "
        f"agreement_below = {rules.agreement_below:g}"
    )


def _latency(release: Release, new: Counts, old: Counts) -> str | None:
    rules = release.stop_if
    if rules.latency_above is None or min(new.computed, old.computed) < rules.min_requests:
        return None
    new_s, old_s = new.seconds / new.computed, old.seconds / old.computed
    if new_s <= rules.latency_above * old_s:
        return None
    return (
        f"requests of version {release.to} took {new_s * 1000:.3g} ms on average, those of the "
        f"old version {old_s * 1000:.3g} ms, and latency_above = {rules.latency_above:g}"
    )


def _tail(release: Release, new: Counts, old: Counts) -> str | None:
    rules = release.stop_if
    if rules.p99_above is None or min(new.computed, old.computed) < rules.min_requests:
        return None
    old_s = old.p99_s
    most_s = next(bound for bound in BOUNDS if bound >= rules.p99_above * old_s)
    slow, slow_before = new.slower_than(most_s), old.slower_than(most_s)
    expected = new.computed * max(TAIL, slow_before / old.computed)
    # Of the difference between two shares of the same chance.
    share = max(TAIL, (slow + slow_before) / (new.computed + old.computed))
    deviation = math.sqrt(share * new.computed * (1 + new.computed / old.computed))
    if slow < LEAST_SLOW or slow <= expected + SURE * deviation:
        return None
    return (
        f"{slow:.0f} of {new.computed:.0f} computed requests of version {release.to} took more "
        f"than {most_s * 1000:g} ms; the p99 of the old version is at most {old_s * 1000:g} ms, "
        f"and p99_above = {rules.p99_above:g}"
    )


@dataclass(frozen=True, slots=True)
class Watch:
    """What the judge remembers of the beginning of a step.

    Attributes:
        stage: the stage that it watches.
        old_id: the version that it is compared with.
        began: when it first saw the stage, on the monotonic clock.
        new, old: the counts of both versions at that moment.
    """

    stage: Stage
    old_id: ModelId
    began: float
    new: Counts
    old: Counts


class Judge:
    """Decides what becomes of each release.

    Args:
        clock: monotonic seconds.
        now: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float], now: Callable[[], float]) -> None:
        self._clock = clock
        self._now = now
        self._watches: dict[str, Watch] = {}
        self._down: dict[str, float] = {}  # by model, since when its new version cannot run

    def next_stage(
        self,
        name: str,
        release: Release,
        stage: Stage | None,
        served: Sequence[int],
        counts: AllCounts,
        works: Callable[[ModelId], bool],
    ) -> Stage | None:
        """The stage of a model's release after this look; None: none has begun.

        Args:
            name: of the model.
            release: as the models file has it now; another one than that of the stage begins anew.
            stage: the current stage; None: it has not begun.
            served: the served versions.
            counts: what all versions have done so far.
            works: whether a served version can run now.
        """
        is_new = stage is None or stage.release != release
        if why_it_waits(release, stage, served) is not None:  # such time does not count
            self._forget(name)
            return stage  # of an earlier release, it tells which version serves
        old = old_version(release, stage, [each for each in served if each != release.to])
        if stage is None or is_new or stage.phase not in ACTIVE:
            self._forget(name)
        if stage is None or is_new:
            return Stage(release=release, old=old, since=self._now())
        if stage.phase not in ACTIVE:
            return stage
        new_id, old_id = ModelId(name, release.to), ModelId(name, old)
        if not works(new_id):
            return self._after_down(name, stage, also_old=not works(old_id))
        self._down.pop(name, None)
        new_counts, old_counts = (counts.get(each, Counts()) for each in (new_id, old_id))
        watch = self._watches.get(name)
        if watch is None or (watch.stage, watch.old_id) != (stage, old_id):
            watch = Watch(stage, old_id, self._clock(), new_counts, old_counts)
            self._watches[name] = watch
        return self._judged(watch, new_counts.since(watch.new), old_counts.since(watch.old))

    def _forget(self, name: str) -> None:
        """Forget what was seen of a step that is not judged now."""
        self._watches.pop(name, None)
        self._down.pop(name, None)

    def _after_down(self, name: str, stage: Stage, *, also_old: bool) -> Stage:
        """The stage while no replica can run the new version."""
        if also_old:
            self._down.pop(name, None)
            return stage
        since = self._down.setdefault(name, self._clock())
        if self._clock() - since < DOWN_S:
            return stage
        reason = f"no replica could run version {stage.release.to} for {DOWN_S:g} s"
        return stage.changed(self._now(), phase=Phase.ROLLED_BACK, reason=reason)

    def _judged(self, watch: Watch, new: Counts, old: Counts) -> Stage:
        """The stage after what both versions have done in it."""
        stage, now = watch.stage, self._now()
        release = stage.release
        reason = reason_to_stop(release, new, old)
        if reason is not None:
            return stage.changed(now, phase=Phase.ROLLED_BACK, reason=reason)
        if stage.phase is Phase.PAUSED or not self._has_lasted(watch):
            return stage
        if stage.step + 1 < len(release.steps):
            return stage.changed(now, step=stage.step + 1)
        return stage.changed(now, phase=Phase.COMPLETED)

    def _has_lasted(self, watch: Watch) -> bool:
        """Whether a step may end: it was watched all the time, or long enough after a restart."""
        every_s, watched_s = watch.stage.release.every_s, self._clock() - watch.began
        is_over = self._now() - watch.stage.since >= every_s
        return watched_s >= every_s or (is_over and watched_s >= LEAST_WATCH_S)
