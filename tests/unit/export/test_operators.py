"""`torchlane profile`: the operators of an artifact's forms."""

from __future__ import annotations

import gzip
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from models.integrity import read_manifest
from models.plan import form_at
from tests.unit.export.command_line import run
from tests.unit.export.jobs import make
from tests.unit.export.proving.test_padded import texts


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact whose items have a length of 1 to 40: do not change."""
    return make(tmp_path_factory.mktemp("texts"), texts(), "script").folder


def traced(file: Path) -> list[dict[str, Any]]:
    data = file.read_bytes()
    trace = json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)
    assert not {"traceName", "host_name"} & set(trace)
    assert socket.gethostname() not in [str(value) for value in trace.values()]
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


def planned(folder: Path, size: int) -> str:
    """The form that the plan has for a batch size: which one is the fastest was measured."""
    plan = read_manifest(folder).plan
    assert plan is not None
    return str(form_at(plan.devices[0].steps[plan.precision], size))


def refused(code: int, *arguments: object, capsys: pytest.CaptureFixture[str]) -> str:
    assert run("profile", *arguments) == (code, "")
    return capsys.readouterr().err


def test_report_lists_operators_with_their_shapes(exported: Path) -> None:
    code, printed = run("profile", exported, "--threads", 1)
    assert code == 0
    assert printed.startswith("tiny version 1\n")
    assert f"torch {torch.__version__} with " in printed
    assert "; 1 intra-op and " in printed
    for size in (1, 8):
        assert f"{planned(exported, size)}, batch of {size}: x float32[{size}, 2]" in printed
        assert re.search(rf"aten::\w+ +[\d.]+ +[\d.]+ +[\d.]+% .*\[{size},2\]", printed)
    assert "outside of operators" in printed


def test_shares_add_up_in_descending_order(exported: Path) -> None:
    _, printed = run("profile", exported, "--batch-size", 2, "--rows", 1000)
    shares = [float(share) for share in re.findall(r"([\d.]+)%(?: |\n)", printed)]
    inside = [each for each in shares if "." in str(each)][1:]
    assert sum(inside) == pytest.approx(100, abs=len(inside) * 0.06)
    assert inside == sorted(inside, reverse=True)
    assert "--rows shows them" not in printed
    _, printed = run("profile", exported, "--batch-size", 2, "--rows", 1, "--variant", "script")
    assert re.search(r"and \d+ more; --rows shows them", printed)
    for form in ("script", "script, optimized at load"):
        assert f"\n{form}, batch of 2" in printed


def test_a_variable_that_changes_the_speed_is_named(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("SECRET", "hidden")
    _, printed = run("profile", exported, "--batch-size", 1)
    assert "OMP_WAIT_POLICY=passive" in printed
    assert "hidden" not in printed


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_one_trace_holds_all_recordings(exported: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    code, printed = run("profile", exported, "--batch-size", "1,3", "--trace", file)
    assert code == 0
    assert f"trace: {file}; open it at ui.perfetto.dev" in printed
    events = traced(file)
    wholes = [event for event in events if event.get("cat") == "user_annotation"]
    assert [event["name"] for event in wholes] == [
        f"{planned(exported, size)}, batch of {size}" for size in (1, 3) for _ in range(10)
    ]
    times = [event["ts"] for event in wholes]
    assert times == sorted(times)
    shapes = [event["args"].get("Input Dims") for event in events if event.get("cat") == "cpu_op"]
    assert [[3, 2]] in [each[:1] for each in shapes if each]


def test_item_length_can_be_given(padded: Path) -> None:
    _, printed = run("profile", padded, "--batch-size", 2, "--length", 37)
    assert "ids int64[2, 37], mask int64[2, 37]" in printed
    assert re.search(r"aten::\w+ .*\[2,37", printed)


def test_invalid_requests_are_reported(
    exported: Path, padded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(2, tmp_path / "none", capsys=capsys)
    assert f"{tmp_path / 'none'} is not an intact artifact: manifest.json cannot be read" in message
    for above in exported.parents[:2]:
        message = refused(2, above, capsys=capsys)
        assert message.endswith(f"; name the folder of a version, such as {exported}\n")
    message = refused(2, exported, "--variant", "int8,script", capsys=capsys)
    assert "--variant int8: there are: script" in message
    message = refused(2, exported, "--length", 3, capsys=capsys)
    assert "--length: the items of tiny have no length" in message
    message = refused(2, padded, "--length", 41, capsys=capsys)
    assert "--length 41: seq is 1 to 40" in message
    message = refused(2, exported, "--batch-size", "1,0", capsys=capsys)
    assert "must be a whole number, at least 1, got '0'" in message
    message = refused(2, exported, "--batch-size", ",", capsys=capsys)
    assert "must be a whole number, at least 1, got ','" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_device_is_reported(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(2, exported, "--device", "cuda", capsys=capsys)
    assert "--device cuda: this machine has none" in message


def test_unwritable_trace_file_is_reported(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "none/trace.json"
    assert run("profile", exported, "--batch-size", 1, "--trace", file)[0] == 1
    assert f"--trace {file}: No such file or directory" in capsys.readouterr().err
