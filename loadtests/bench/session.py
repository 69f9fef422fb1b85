"""A whole benchmark: for each workload all servers, round by round, one awake at a time."""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from loadtests.bench import wrk
from loadtests.bench.acceptance import judge
from loadtests.bench.answers import answers_of
from loadtests.bench.launch import (
    TITLES,
    Contestant,
    Serving,
    contestants,
    spec_of,
    title_of,
)
from loadtests.bench.limits import limit
from loadtests.bench.machine import Place, prepare
from loadtests.bench.measuring import Bench, Measured
from loadtests.bench.options import Options
from loadtests.bench.own_models import (
    MINILM,
    ModelError,
    manifest_of,
    mean_artifact,
    newest_artifact,
)
from loadtests.bench.report import as_json, print_figures
from loadtests.bench.results import Entry, Round, interleaved
from loadtests.bench.servers import Fleet, ServerError, ServerSpec
from loadtests.bench.workloads import (
    ENCODER_LIMIT,
    LIMIT,
    OUR_OWN,
    OURS,
    PLAIN_ENCODER,
    LimitKind,
    ModelName,
    Workload,
    chosen,
)
from loadtests.errors import LoadTestError
from loadtests.reports import cut_short, print_judged, write

TABLE_WIDTH = 125  # a narrower terminal breaks lines: better than figures without their ends
NAN = float("nan")
Say = Callable[[str], object]


def bench(given: argparse.Namespace, console: Console, command: str) -> int:
    """Measure, print, write; returns the exit code.

    A missed demand is a result like any other: it is reported, and the exit code is 0.
    """
    console.width = max(console.width, TABLE_WIDTH)
    options, generator, folder = Options.of(given), wrk.version(), newest_artifact(given.artifacts)
    place = prepare(given, console, command)
    console.print(f"{folder}; load by {generator}")
    console.print(f"{options.rounds} round(s) of {options.seconds} s a run")
    session = Session(options, place, folder, console.print)
    try:
        session.run()
    finally:  # what there is, also if the rest is missing
        if session.results:
            found = {
                **place.conditions,
                "generator": generator,
                "rounds": options.rounds,
                "seconds": options.seconds,
                "left_out": session.left_out,
                "retried": session.retried,
                "incomplete": cut_short(),
            }
            judged = judge(session.results, found)
            print_figures(console, session.results)
            print_judged(console, judged)
            write(given.out, "bench", as_json(session.results, judged, found), console)
    return 0


@dataclass(slots=True)
class Session:
    """Measures what the options ask for.

    Attributes:
        results: by workload.
        left_out: why a server was not measured, by workload and server.
        retried: what failed of others and was measured again, and why.
    """

    options: Options
    place: Place
    digits: Path
    say: Say
    results: dict[str, list[Round]] = field(default_factory=dict)
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    retried: list[str] = field(default_factory=list)
    _seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def run(self) -> None:
        """All workloads, in the order of the table.

        Raises:
            LoadTestError: if a number would not mean what it says.
        """
        models: list[ModelName] = ["digits", "mean", "minilm"]
        for model in models:
            of_model = [each for each in chosen(self.options.workloads) if each.model == model]
            if not of_model:
                continue
            try:
                folder = self._folder(model)
            except ModelError as error:
                if model != MINILM:
                    raise
                self.say(f"workloads of {model} are left out: {error}")
                self.left_out |= {each.name: {OURS: str(error)} for each in of_model}
                continue
            with self._bench(folder) as bench:
                for at, workload in enumerate(of_model):
                    self._workload(bench, workload, of_model[at + 1 :])

    def _folder(self, model: ModelName) -> Path:
        """The artifact of a model."""
        if model == "minilm":
            return newest_artifact(self.digits.parent.parent, MINILM)
        return self.digits if model == "digits" else mean_artifact()

    @contextlib.contextmanager
    def _bench(self, folder: Path) -> Iterator[Bench]:
        serving = Serving(folder.absolute(), self.place.cores, self.place.package)
        with Fleet() as fleet, answers_of(folder) as right:
            yield Bench(fleet, serving, manifest_of(folder), right, self.options.seconds)

    def _workload(self, bench: Bench, workload: Workload, later: Sequence[Workload]) -> None:
        options = self.options
        found, left_out = contestants(workload, options.servers, bench.precisions)
        for server, reason in left_out.items():
            self.say(f"{workload.name}: {TITLES[server]} is left out: {reason}")
        self.left_out[workload.name] = left_out
        self._start(bench, workload, later)
        gone = self.left_out[workload.name]
        others = {contestant.key: contestant for contestant in found}
        limits = [LIMIT] if workload.limit else []
        if PLAIN_ENCODER in others and workload.limit:
            limits.append(ENCODER_LIMIT)
        order = interleaved([*others, *limits])
        rounds: list[Round] = []
        for number in range(options.rounds):
            entries: list[Entry] = []
            for key in order:
                if key in limits:
                    entries.append(Entry(key, self._limit(bench, workload, key)))
                elif key not in gone:
                    contestant = others.get(key, Contestant(OURS))
                    measured = self._run(bench, workload, contestant)
                    entries += [Entry(key, measured)] if measured is not None else []
            rounds.append(entries)
            self.results[workload.name] = rounds  # also if the next one is not finished
            self.say(f"{workload.name}, round {number + 1}: {_told(entries)}")

    def _start(self, bench: Bench, workload: Workload, later: Sequence[Workload]) -> None:
        """Start the servers of this workload, end those that no later one needs."""
        specs = self._specs(bench, workload)
        needed = {spec for each in (workload, *later) for spec in self._specs(bench, each).values()}
        for spec in bench.fleet.specs:
            if spec not in needed:
                bench.fleet.stop(spec)
        for key, spec in specs.items():
            try:
                bench.fleet.start(spec)
            except ServerError as error:
                self._leave_out(workload.name, key, error)

    def _leave_out(self, workload: str, key: str, error: Exception) -> None:
        """Go on without a reference that does not work; without ours there is no figure."""
        if key in OUR_OWN:
            raise error
        self.say(f"{workload}: {title_of(key)} is left out: {error}")
        self.left_out.setdefault(workload, {})[key] = str(error)

    def _specs(self, bench: Bench, workload: Workload) -> dict[str, ServerSpec]:
        others, _ = contestants(workload, self.options.servers, bench.precisions)
        everyone = [Contestant(OURS), *others]
        return {each.key: spec_of(each, workload, bench.serving) for each in everyone}

    def _run(self, bench: Bench, workload: Workload, contestant: Contestant) -> Measured | None:
        """Measure one server; None: it is left out.

        A reference that fails is started anew and gets one more chance, and the report says so.
        Ours gets none: what it does under load is what this is about.
        """
        try:
            return bench.measured(contestant, workload, next(self._seeds))
        except LoadTestError as error:
            if contestant.server in OUR_OWN:
                raise
            title = title_of(contestant.key)
            self.say(f"{workload.name}: {title} is started anew: {error}")
            self.retried.append(f"{workload.name}: {title}: {error}")
        spec = spec_of(contestant, workload, bench.serving)
        try:
            bench.fleet.stop(spec)
            bench.fleet.start(spec)
            return bench.measured(contestant, workload, next(self._seeds))
        except LoadTestError as error:
            self._leave_out(workload.name, contestant.key, error)
        return None

    def _limit(self, bench: Bench, workload: Workload, key: str) -> Measured:
        """What parsing and the forward alone would allow."""
        if workload.limit is None:
            raise ValueError(f"bug: {workload.name} has no limit")
        kind: LimitKind = "encoder" if key == ENCODER_LIMIT else workload.limit
        per_s = limit(kind, bench.serving.folder, self.place.cores.server)
        return Measured(per_s, NAN, NAN, 1e6 / per_s, 0)


def _told(entries: Sequence[Entry]) -> str:
    return ", ".join(f"{entry.key} {entry.measured.requests_per_s:,.0f}" for entry in entries)
