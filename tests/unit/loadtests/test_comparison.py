"""Comparing results: what changed, in which direction, and what is not comparable."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import orjson
import pytest

from loadtests.__main__ import main
from loadtests.capacity import report
from loadtests.capacity.finding import Found
from loadtests.capacity.search import Answer
from loadtests.comparison import Change, ComparisonError, changes_of, check_alike, read
from tests.unit.loadtests.openloop.trials import GATES, conditions, trial

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
    content = report.capacity_json(Found(answer, trials, "found", False, 1), GATES, conditions())
    content["conditions"] |= dict(other)
    file = folder / f"{len(list(folder.iterdir()))}.json"
    file.write_bytes(orjson.dumps(content))
    return file


def run_file(folder: Path, p99_ms: float, rate: float = 100) -> Path:
    file = folder / f"{len(list(folder.iterdir()))}.json"
    made = dataclasses.replace(trial(rate, p99_ms, "run"), achieved_per_s=rate)
    file.write_bytes(orjson.dumps(report.run_json(made, GATES, conditions())))
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
    said = capsys.readouterr().out
    assert "worse: capacity, requests/s" in said
    assert "Note" not in said
    assert main(["compare", *files, "--fail-on-worse"]) == 1
    assert main(["compare", *files, "--fail-on-worse", "--tolerance", "15%"]) == 0
    assert main(["compare", *reversed(files), "--fail-on-worse"]) == 0
    assert "better: capacity, requests/s" in capsys.readouterr().out


def changed(file: Path, change: Mapping[str, object]) -> str:
    """The same file with other contents; its name."""
    file.write_bytes(orjson.dumps(orjson.loads(file.read_bytes()) | dict(change)))
    return str(file)


def test_only_the_capacities_of_two_searches_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = capacity_file(tmp_path, 1000), capacity_file(tmp_path, 1000)
    slower = orjson.loads(after.read_bytes())["at_capacity"] | {"p50_ms": 49.0, "p99_ms": 49.0}
    assert (
        main(["compare", str(before), changed(after, {"at_capacity": slower}), "--fail-on-worse"])
        == 0
    )
    said = capsys.readouterr().out
    assert "+22.5%" in said  # it is shown, though
    assert "nothing has changed" in said
    judged = {each.name for each in changes_of(read(before), read(after)) if each.better}
    assert judged == {"capacity, requests/s"}


def test_what_a_capacity_is_worth_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doubtful = {"confirmed": False, "at_least": True, "doubts": ["sent late"]}
    after = changed(capacity_file(tmp_path, 1000), doubtful)
    assert main(["compare", str(capacity_file(tmp_path, 1000)), after]) == 0
    said = capsys.readouterr().out.replace("\n", "")
    assert f"Note: {after} is not to be trusted: sent late" in said
    assert f"Note: {after} tells the least that the capacity is" in said
    assert f"Note: {after} holds a capacity that no long trial confirmed" in said
    run = Path(changed(run_file(tmp_path, 20), {"doubts": ["sent late"]}))
    assert read(run).doubts == ("is not to be trusted: sent late",)


@pytest.mark.parametrize("end", ["wrong answers", "interrupted", "unreachable", "too large"])
def test_a_search_that_was_cut_short_is_refused(tmp_path: Path, end: str) -> None:
    file = capacity_file(tmp_path, 100)
    changed(file, {"end": end})
    with pytest.raises(ComparisonError, match=f"was cut short: {end}"):
        read(file)


def test_results_with_wrong_answers_are_refused(tmp_path: Path) -> None:
    lie = {"wrong": 2, "first_wrong": "a lie"}
    run, capacity = run_file(tmp_path, 20), capacity_file(tmp_path, 100)
    changed(run, {"trial": orjson.loads(run.read_bytes())["trial"] | lie})
    trials = orjson.loads(capacity.read_bytes())["trials"]
    changed(capacity, {"trials": [trials[0] | lie]})
    for file in (run, capacity):
        with pytest.raises(ComparisonError, match=r"holds 2 wrong answers: .* a lie"):
            read(file)


def test_locust_results_of_other_requests_are_refused(tmp_path: Path) -> None:
    before, after = (locust_file(tmp_path, 1000, 0, 100, 30) for _ in range(2))
    after.write_text(after.read_text().replace("POST,predict", "POST,batch"))
    assert check_alike(read(before), read(before)) == []
    with pytest.raises(ComparisonError, match="requests POST predict and POST batch"):
        check_alike(read(before), read(after))


def test_what_failed_is_not_answered(tmp_path: Path) -> None:
    failing = read(locust_file(tmp_path, 1000, 250, 100, 30))
    assert failing.measures["answered, requests/s"] == 75


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
