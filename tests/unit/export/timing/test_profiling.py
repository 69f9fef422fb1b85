"""Traces and tables of operators."""

from __future__ import annotations

import gzip
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from export.errors import ExportError
from export.timing.profiling import FORWARDS, profile

FILE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")


def forms() -> dict[str, Callable[[], object]]:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    scripted: torch.jit.ScriptModule = torch.jit.freeze(torch.jit.script(module))
    optimize: Callable[..., Any] = torch.jit.optimize_for_inference
    optimized = optimize(torch.jit.freeze(torch.jit.script(module)))
    batch = torch.ones(2, 4)
    return {
        "eager": lambda: module(batch),
        "script": lambda: scripted(batch),
        "script, optimized at load": lambda: optimized(batch),
    }


def unpacked(file: Path) -> str:
    return gzip.decompress(file.read_bytes()).decode()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return profile(forms(), tmp_path_factory.mktemp("profiles"))


def test_each_form_has_a_trace_and_a_table(written: list[Path]) -> None:
    assert [file.name for file in written] == [
        "profile-eager.json.gz",
        "profile-eager.txt",
        "profile-script.json.gz",
        "profile-script.txt",
        "profile-script-optimized-at-load.json.gz",
        "profile-script-optimized-at-load.txt",
    ]
    assert all(FILE_NAME.match(file.name) for file in written)


def test_trace_holds_forwards_and_operators(written: list[Path]) -> None:
    for file in written[::2]:
        events = json.loads(unpacked(file))["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        marks = [event for event in spans if event["cat"] == "user_annotation"]
        assert [event["name"] for event in marks] == ["whole forward"] * FORWARDS
        assert any(event["name"].startswith("aten::") for event in spans)
        assert all(event["dur"] >= 0 for event in spans)


def test_no_trace_names_the_machine(written: list[Path], tmp_path: Path) -> None:
    for file in written[::2]:
        text = unpacked(file)
        assert str(tmp_path.parent.parent) not in text
        assert "/tmp" not in text
        trace = json.loads(text)
        assert not {"traceName", "host_name"} & set(trace)
        assert socket.gethostname() not in [str(value) for value in trace.values()]


def test_table_lists_operators_by_self_time(written: list[Path]) -> None:
    table = written[1].read_text()
    assert f"eager: {FORWARDS} forwards on torch {torch.__version__}" in table
    assert "Self CPU" in table
    assert "aten::addmm" in table


def test_form_without_operators_is_profiled_as_a_whole(tmp_path: Path) -> None:
    trace, table = profile({"compiled": lambda: None}, tmp_path)
    assert "whole forward   " in table.read_text()
    assert '"whole forward"' in unpacked(trace)


def test_names_that_would_share_a_file_are_refused(tmp_path: Path) -> None:
    run = forms()["eager"]
    with pytest.raises(ValueError, match="would give one file: a b, a-b"):
        profile({"a b": run, "a-b": run}, tmp_path)
    with pytest.raises(ValueError, match=r"a letter or digit in it, got '\.\./\.\.'"):
        profile({"../..": run}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    files = profile({"../../etc/x" + "y" * 300: lambda: None}, tmp_path)
    assert [file.parent for file in files] == [tmp_path, tmp_path]
    assert all(FILE_NAME.match(file.name) for file in files)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"cannot write profile-eager\.txt: No such file"):
        profile({"eager": forms()["eager"]}, tmp_path / "nowhere")
