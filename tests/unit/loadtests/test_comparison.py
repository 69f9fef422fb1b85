"""Comparing results: what changed, in which direction, and what is not comparable."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import orjson
import pytest

from loadtests.__main__ import main
from loadtests.capacity import results
from loadtests.capacity.finding import Found
from loadtests.capacity.search import Answer
from loadtests.comparison import Change, ComparisonError, changes_of, check_alike, read
from tests.unit.loadtests.capacity.trials import conditions, trial

NONE: Mapping[str, object] = MappingProxyType({})
LOCUST = (
    "Type,Name,Request Count,Failure Count,Requests/s,50%,95%,99%\n"
    "POST,predict,90,0,9.0,3,4,5\n"
    ",Aggregated,{count},{failures},{rate},5,20,{p99}\n"
)


def capacity_file(folder: Path, capacity: float | None, other: Mapping[str, object] = NONE) -> Path:
    """A capacity.json; `other` are conditions that differ."""
    trials = (trial(capacity or 1, 40 if capacity else 90, "confirm"),)
    answer = Answer(capacity, 1, 2, confirmed=True)
    content = orjson.loads(
        results.capacity_json(Found(answer, trials, "found", False, 1), conditions())
    )
    content["conditions"] |= dict(other)
    file = folder / f"{len(list(folder.iterdir()))}.json"
    file.write_bytes(orjson.dumps(content))
    return file


def run_file(folder: Path, p99_ms: float, rate: float = 100) -> Path:
    file = folder / f"{len(list(folder.iterdir()))}.json"
    made = dataclasses.replace(trial(rate, p99_ms, "run"), achieved_per_s=rate)
    file.write_bytes(results.run_json(made, conditions()))
    return file


def locust_file(folder: Path, count: int, failures: int, rate: float, p99: float) -> Path:
    file = folder / f"{len(list(folder.iterdir()))}_stats.csv"
    file.write_text(LOCUST.format(count=count, failures=failures, rate=rate, p99=p99))
    return file


@pytest.mark.parametrize(
    ("before", "after", "better", "verdict"),
    [
        (100, 89, "higher", "worse"),
        (100, 90, "higher", "same"),
        (100, 110, "higher", "same"),
        (100, 111, "higher", "better"),
        (50, 56, "lower", "worse"),
        (50, 44, "lower", "better"),
        (0, 0, "lower", "same"),
        (0, 0.01, "lower", "worse"),
        (0.01, 0, "lower", "better"),
    ],
)
def test_verdicts(before: float, after: float, better: str, verdict: str) -> None:
    assert Change("x", before, after, better).verdict(0.1) == verdict  # type: ignore[arg-type]


def test_a_capacity_that_fell_is_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(capacity_file(tmp_path, rate)) for rate in (1000, 850)]
    assert main(["compare", *files]) == 0
    assert "worse: capacity, requests/s" in capsys.readouterr().out
    assert main(["compare", *files, "--fail-on-worse"]) == 1
    assert main(["compare", *files, "--fail-on-worse", "--tolerance", "15%"]) == 0
    assert main(["compare", *reversed(files), "--fail-on-worse"]) == 0
    assert "better: capacity, requests/s" in capsys.readouterr().out


def test_runs_are_compared_by_latency_too(tmp_path: Path) -> None:
    before, after = read(run_file(tmp_path, 20)), read(run_file(tmp_path, 30))
    verdicts = {each.name: each.verdict(0.1) for each in changes_of(before, after)}
    assert verdicts == {
        "answered, requests/s": "same",
        "p50 ms": "worse",
        "p95 ms": "worse",
        "p99 ms": "worse",
        "failed share": "same",
    }


def test_locusts_totals_are_read(tmp_path: Path) -> None:
    before = read(locust_file(tmp_path, 1000, 0, 100, 30))
    after = read(locust_file(tmp_path, 500, 5, 50, 31))
    assert before.measures["p99 ms"] == 30
    assert after.measures["failed share"] == 0.01
    verdicts = {each.name: each.verdict(0.1) for each in changes_of(before, after)}
    assert verdicts["answered, requests/s"] == verdicts["failed share"] == "worse"
    assert verdicts["p99 ms"] == "same"


@pytest.mark.parametrize(
    ("name", "value"),
    [("workload", "batch"), ("slo_ms", 20.0), ("model", "iris"), ("arrivals", "uniform")],
)
def test_unlike_things_are_refused(
    tmp_path: Path, name: str, value: str | float, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(capacity_file(tmp_path, 100)), str(capacity_file(tmp_path, 100, {name: value}))]
    assert main(["compare", *files]) == 1
    said = capsys.readouterr().err
    assert "unlike things were measured" in said
    assert name in said
    assert str(value) in said


def test_another_machine_or_version_is_only_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = capacity_file(tmp_path, 100, {"machine": "another", "version": 2})
    assert main(["compare", str(capacity_file(tmp_path, 100)), str(other)]) == 0
    said = capsys.readouterr().out
    assert "machine differs: a machine, 2 cores before, another after" in said
    assert "version differs: 1 before, 2 after" in said
    assert "nothing has changed" in said


def test_runs_at_other_rates_and_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ComparisonError, match="with rate 100 and 200"):
        check_alike(read(run_file(tmp_path, 5)), read(run_file(tmp_path, 5, rate=200)))
    with pytest.raises(ComparisonError, match=r"is of a run, .* of a capacity"):
        check_alike(read(run_file(tmp_path, 5)), read(capacity_file(tmp_path, 100)))


def test_files_that_cannot_be_compared_are_told(tmp_path: Path) -> None:
    with pytest.raises(ComparisonError, match="No such file"):
        read(tmp_path / "none.json")
    with pytest.raises(ComparisonError, match="holds no capacity: The server does not keep"):
        read(capacity_file(tmp_path, None))
    for name, text, says in (
        ("a.json", "{", "neither"),
        ("b.json", "[]", "neither"),
        ("c.json", '{"kind": "capacity"}', "lacks 'capacity_per_s'"),
        ("d.csv", "a,b\n1,2\n", "no _stats.csv of Locust"),
        ("e.csv", LOCUST.format(count=0, failures=0, rate=0, p99="N/A"), "no _stats.csv"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ComparisonError, match=says):
            read(tmp_path / name)


@pytest.mark.parametrize("text", ["-1", "ten", "nan", "%"])
def test_a_tolerance_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "a", "b", "--tolerance", text])
