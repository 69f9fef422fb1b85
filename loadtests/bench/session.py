"""A whole benchmark: for each workload all servers, round by round, one awake at a time."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from loadtests.bench import mean_model
from loadtests.bench.answers import CheckError, answers_of
from loadtests.bench.generator import LoadError
from loadtests.bench.measuring import Bench, Measured, Subject
from loadtests.bench.options import Options
from loadtests.bench.references import (
    TITLES,
    Contestant,
    Serving,
    contestants,
    spec_of,
    title_of,
)
from loadtests.bench.results import Entry, Round, interleaved, values
from loadtests.bench.servers import Cores, Fleet, ServerError, ServerSpec, pinned
from loadtests.bench.workloads import (
    BARE,
    LIMIT,
    OPEN_LOOP,
    OURS,
    ModelName,
    Workload,
    chosen,
)
from models.manifest import MANIFEST_FILE, Manifest

NAN = float("nan")
Say = Callable[[str], object]


@dataclass(slots=True)
class Session:
    """Measures what the options ask for.

    Attributes:
        results: by workload; open loops under `open-loop at SHARE`.
        left_out: why a server was not measured, by workload and server.
        retried: what failed of others and was measured again, and why.
    """

    options: Options
    cores: Cores
    digits: Path
    say: Say
    results: dict[str, list[Round]] = field(default_factory=dict)
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    retried: list[str] = field(default_factory=list)
    _seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def run(self) -> None:
        """All workloads, in the order of the table.

        Raises:
            BodiesError, CheckError, LoadError, ModelError, ServerError: if a number would not mean
                what it says.
        """
        wanted = chosen(self.options.workloads)
        models: list[ModelName] = ["digits", "mean"]
        for model in models:
            of_model = [workload for workload in wanted if workload.model == model]
            open_loop = model == "digits" and OPEN_LOOP.name in self.options.workloads
            if not of_model and not open_loop:
                continue
            with self._bench(model) as bench:
                after = [OPEN_LOOP.closed] if open_loop else []
                for at, workload in enumerate(of_model):
                    self._workload(bench, workload, [*of_model[at + 1 :], *after])
                if open_loop:
                    self._open_loop(bench)

    @contextlib.contextmanager
    def _bench(self, model: ModelName) -> Iterator[Bench]:
        folder = self.digits if model == "digits" else mean_model.artifact()
        manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
        serving = Serving(
            folder.absolute(), self.cores, self.options.shared_environment, self.options.package
        )
        with Fleet() as fleet, answers_of(folder) as answers:
            yield Bench(fleet, serving, manifest, answers, self.options.seconds)

    def _workload(self, bench: Bench, workload: Workload, later: Sequence[Workload]) -> None:
        options = self.options
        beside, left_out = contestants(workload, options.servers, options.forwards)
        for server, reason in left_out.items():
            self.say(f"{workload.name}: {TITLES[server]} is left out: {reason}")
        self.left_out[workload.name] = left_out
        self._start(bench, workload, later)
        others = {contestant.key: contestant for contestant in beside}
        order = interleaved([*others, *([LIMIT] if workload.limit else [])])
        rounds: list[Round] = []
        for number in range(options.rounds):
            entries: list[Entry] = []
            for key in order:
                if key == LIMIT:
                    entries.append(Entry(LIMIT, self._limit(bench, workload, entries)))
                    continue
                contestant = others.get(key, Contestant(OURS))
                subject = Subject(contestant, workload, next(self._seeds))
                entries.append(Entry(key, self._closed(bench, subject)))
            rounds.append(entries)
            self.say(f"{workload.name}, round {number + 1}: {_told(entries)}")
        self.results[workload.name] = rounds

    def _start(self, bench: Bench, workload: Workload, later: Sequence[Workload]) -> None:
        """Start who is needed now, end who is needed no more."""
        specs = self._specs(bench, workload)
        needed = {*specs, *(spec for each in later for spec in self._specs(bench, each))}
        for spec in bench.fleet.specs:
            if spec not in needed:
                bench.fleet.stop(spec)
        for spec in specs:
            bench.fleet.start(spec)

    def _specs(self, bench: Bench, workload: Workload) -> list[ServerSpec]:
        beside, _ = contestants(workload, self.options.servers, self.options.forwards)
        who = [Contestant(OURS), *beside]
        return [spec_of(contestant, workload, bench.serving) for contestant in who]

    def _open_loop(self, bench: Bench) -> None:
        """At shares of what each server reached in the closed loop, of its own figure."""
        closed = OPEN_LOOP.closed
        beside, _ = contestants(closed, self.options.servers, ("script",))
        who = [Contestant(OURS), *(each for each in beside if each.server in OPEN_LOOP.beside)]
        self._start(bench, closed, [])
        for number in range(self.options.rounds):
            for contestant in who:
                whole = self._closed_figure(bench, contestant)
                for share in OPEN_LOOP.shares:
                    subject = Subject(contestant, closed, next(self._seeds))
                    measured = bench.open(subject, share * whole)
                    rounds = self.results.setdefault(f"{OPEN_LOOP.name} at {share:g}", [])
                    if len(rounds) <= number:
                        rounds.append([])
                    rounds[number] = [*rounds[number], Entry(contestant.key, measured)]
                    told = _told_open(contestant.key, share * whole, measured)
                    self.say(f"{OPEN_LOOP.name}, round {number + 1}, {told}")

    def _closed_figure(self, bench: Bench, contestant: Contestant) -> float:
        """The median of the closed loop; measured now where that was not asked for."""
        measured = values(
            self.results.get(OPEN_LOOP.closed.name, []), contestant.key, "requests_per_s"
        )
        if measured:
            return statistics.median(measured)
        subject = Subject(contestant, OPEN_LOOP.closed, next(self._seeds))
        return self._closed(bench, subject).requests_per_s

    def _closed(self, bench: Bench, subject: Subject) -> Measured:
        """Measure; a reference that fails is started anew and gets one more chance, and it is said.

        Ours gets none: what it does under load is what this is about.
        """
        try:
            return bench.closed(subject)
        except (CheckError, LoadError, ServerError) as error:
            if subject.contestant.server == OURS:
                raise
            title = title_of(subject.contestant.key)
            self.say(f"{subject.workload.name}: {title} is started anew: {error}")
            self.retried.append(f"{subject.workload.name}: {title}: {error}")
        spec = spec_of(subject.contestant, subject.workload, bench.serving)
        bench.fleet.stop(spec)
        bench.fleet.start(spec)
        return bench.closed(replace(subject, seed=next(self._seeds)))

    def _limit(self, bench: Bench, workload: Workload, entries: Sequence[Entry]) -> Measured:
        """What HTTP, parsing and the forward alone would allow, as far as it is known."""
        with pinned(self.cores.server):
            command = [sys.executable, "-m", "loadtests.bench.limits", str(workload.limit)]
            done = subprocess.run(
                [*command, str(bench.serving.folder)], capture_output=True, text=True, check=False
            )
        if done.returncode != 0:
            raise ServerError(f"`{' '.join(command)}` failed: {done.stderr[-1000:]}")
        per_s: float = max(json.loads(done.stdout).values())
        if workload.limit == "image":
            bare = values([entries], BARE, "requests_per_s")
            # without the bare server the forward alone: a limit too, only further away
            per_s = 1 / (1 / per_s + (1 / bare[0] if bare else 0))
        return Measured(per_s, NAN, NAN, 1e6 / per_s, 0)


def _told(entries: Sequence[Entry]) -> str:
    return ", ".join(f"{entry.key} {entry.measured.requests_per_s:,.0f}" for entry in entries)


def _told_open(key: str, rate_per_s: float, measured: Measured) -> str:
    return (
        f"{title_of(key)} at {rate_per_s:,.0f}/s: p50 {measured.p50_ms:.2f} ms, p99 "
        f"{measured.p99_ms:.2f} ms (the generator's own lag: p99 {measured.lag_p99_ms:.2f} ms)"
    )
