"""A session goes on without a reference that fails, keeps what it has, and never without ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from loadtests.__main__ import main, parser
from loadtests.bench import launch, wrk
from loadtests.bench import session as bench_session
from loadtests.bench.answers import CheckError
from loadtests.bench.launch import Contestant, Serving
from loadtests.bench.machine import Place
from loadtests.bench.measuring import Bench, Measured
from loadtests.bench.options import Options
from loadtests.bench.servers import Cores, ServerError, ServerSpec
from loadtests.bench.session import Session
from loadtests.bench.workloads import JSON_32, Workload

CORES = Cores(1, 0)
PLACE = Place(Cores(None, None), None, {})
FINE = Measured(1000, 2, 5, 100, 80)


class FakeFleet:
    """Starts nothing; those of the titles in `broken` do not start."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.started: list[str] = []
        self.specs: tuple[ServerSpec, ...] = ()

    def start(self, spec: ServerSpec) -> None:
        if spec.name in self.broken:
            raise ServerError(f"{spec.name} ended with exit code 1")
        if spec not in self.specs:
            self.specs += (spec,)
            self.started.append(spec.name)

    def stop(self, spec: ServerSpec) -> None:
        self.specs = tuple(each for each in self.specs if each != spec)
        self.started.remove(spec.name)


class FakeBench:
    """Measures nothing: says what the test wants, by contestant."""

    precisions = frozenset({"float32"})

    def __init__(self, fails: Callable[[str], bool]) -> None:
        self.fleet = FakeFleet()
        self.serving = Serving(Path("/repository/digits/1"), CORES)
        self.checked: list[str] = []
        self._fails = fails

    def check_compiled(self, contestant: Contestant, workload: Workload) -> None:
        self.checked.append(contestant.key)

    def workers(self, contestant: Contestant, workload: Workload) -> int:
        return 2

    def measured(self, contestant: Contestant, workload: Workload, seed: int) -> Measured:
        if self._fails(contestant.key):
            raise CheckError(f"{contestant.key} answers wrongly")
        return FINE


class Scripted(Session):
    """With a bench of the test's."""

    bench: FakeBench

    @contextlib.contextmanager
    def _bench(self, folder: Path) -> Iterator[Bench]:
        yield cast(Bench, self.bench)


def session(bench: FakeBench, *arguments: str) -> tuple[Scripted, list[str]]:
    given = ["bench", "--servers", "plain_fastapi", "bare_asgi", *arguments]
    asked = Options.of(parser().parse_args(given))
    said: list[str] = []
    made = Scripted(asked, PLACE, Path("/repository/digits/1"), said.append)
    made.bench = bench
    return made, said


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "why_not", lambda _: None)
    monkeypatch.setattr(bench_session, "share_stalled", lambda *_: 0.001)


def servers(made: Session, workload: str) -> list[list[str]]:
    return [sorted(each) for each in made.results[workload]]


def test_servers_take_turns_in_each_round() -> None:
    made, _ = session(FakeBench(lambda _: False), "--workloads", "json-32", "--rounds", "2")
    made.run()
    assert servers(made, "json-32") == [["bare_asgi", "plain_fastapi", "torchlane"]] * 2
    assert made.retried == []
    assert len(made.stalled) == 2


def test_compiled_servers_are_checked() -> None:
    bench = FakeBench(lambda _: False)
    made, _ = session(bench, "--workloads", "json-32", "--rounds", "1", "--before", "earlier")
    made.run()
    assert bench.checked == []
    bench.serving = replace(bench.serving, package=Path("compiled"), before=Path("earlier"))
    made.run()
    assert bench.checked == ["torchlane", "torchlane_before"]


def test_before_must_be_a_compiled_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_session, "newest_artifact", lambda _: tmp_path)
    monkeypatch.setattr(wrk, "version", lambda: "wrk")
    assert main(["bench", "--pure", "--before", str(tmp_path)]) == 1
    assert "needs an earlier commit's .compiled" in capsys.readouterr().err


def test_worker_counts_are_reported_on_shared_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "SHARED_WORKERS", (1, 3))
    bench = FakeBench(lambda _: False)
    made, said = session(bench, "--workloads", "json-64-shared", "--rounds", "1")
    made.run()
    assert "plain FastAPI, 3 workers" in bench.fleet.started
    assert made.workers == {"json-64-shared": 2}
    told = "workers of Torchlane: 2; of the others: 1 and 3"
    assert f"json-64-shared: {told}" in said


def test_servers_outside_the_workload_are_ended() -> None:
    bench = FakeBench(lambda _: False)
    made, _ = session(bench, "--workloads", "json-32", "zipf", "--rounds", "1")
    made.run()
    assert bench.fleet.started == ["Torchlane", "bare ASGI"]


def test_failed_reference_is_restarted_once_and_reported() -> None:
    failures = iter([True])
    fails = FakeBench(lambda key: key == "plain_fastapi" and next(failures, False))
    made, said = session(fails, "--workloads", "json-32", "--rounds", "1")
    made.run()
    assert servers(made, "json-32") == [["bare_asgi", "plain_fastapi", "torchlane"]]
    assert made.retried == ["json-32: plain FastAPI: plain_fastapi answers wrongly"]
    assert any("is restarted" in text for text in said)


def test_reference_that_fails_twice_is_left_out() -> None:
    made, said = session(
        FakeBench(lambda key: key == "plain_fastapi"),
        *("--workloads", "json-32", "--rounds", "2"),
    )
    made.run()
    assert servers(made, "json-32") == [["bare_asgi", "torchlane"]] * 2
    assert made.left_out["json-32"] == {"plain_fastapi": "plain_fastapi answers wrongly"}
    assert sum("plain FastAPI is left out" in text for text in said) == 1


def test_server_that_does_not_start_is_left_out() -> None:
    bench = FakeBench(lambda _: False)
    bench.fleet.broken = {"plain FastAPI"}
    made, _ = session(bench, "--workloads", "json-32", "--rounds", "1")
    made.run()
    assert servers(made, "json-32") == [["bare_asgi", "torchlane"]]
    assert "exit code 1" in made.left_out["json-32"]["plain_fastapi"]


def test_torchlane_failure_ends_the_run_with_results() -> None:
    calls = iter(range(100))
    made, _ = session(
        FakeBench(lambda key: key == "torchlane" and next(calls) >= 1),
        *("--workloads", "json-32", "--rounds", "5"),
    )
    with pytest.raises(CheckError, match="torchlane answers wrongly"):
        made.run()
    assert len(made.results["json-32"]) == 1
    broken = FakeBench(lambda _: False)
    broken.fleet.broken = {"Torchlane"}
    made, _ = session(broken, "--workloads", JSON_32.name)
    with pytest.raises(ServerError):
        made.run()
