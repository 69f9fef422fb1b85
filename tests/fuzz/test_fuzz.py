"""The fuzzer: all that its targets begin with passes, and a minute of it finds nothing."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest

from tests import native
from tests.fuzz.__main__ import available, fuzz, main, sanitized
from tests.fuzz.names import MODULES
from tests.fuzz.target import Target

needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="needs atheris, which is installed for Python 3.11 on x86-64 Linux",
)
needs_compiler = pytest.mark.skipif(not native.HAS_COMPILER, reason=f"needs {native.CXX[0]}")
# Whole requests need a server on an event loop of its own, which would outlive the test.
IN_PROCESS = sorted(set(MODULES) - {"wire"})


@pytest.mark.parametrize("name", IN_PROCESS)
def test_seeds_and_words_of_a_target_pass(name: str) -> None:
    target: Target = import_module(MODULES[name]).TARGET
    for case in (b"", *target.seeds(), *target.words):
        target.case(case)


@pytest.mark.soak
@needs_atheris
@pytest.mark.timeout(300)
def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    names = available()  # each takes 6 s of processor time before its first case
    with ThreadPoolExecutor(2) as pool:  # each case runs in a process of its target
        runs = list(pool.map(lambda name: fuzz(name, tmp_path, 60 / len(names)), names))
    assert all(run.ok for run in runs), "\n".join(f"{run}\n{run.finding}" for run in runs)


@pytest.mark.soak  # compiles
@needs_atheris
@needs_compiler
def test_a_short_run_with_sanitizers_finds_nothing(tmp_path: Path) -> None:
    run = fuzz("numbers", tmp_path, 3, sanitized(tmp_path))
    assert run.ok, f"{run}\n{run.finding}"


@pytest.mark.soak
@needs_atheris
@needs_compiler
def test_sanitizers_detect_a_read_past_the_end(tmp_path: Path) -> None:
    right = native.SOURCE.read_text()
    wrong = right.replace("end - at >= 8", "end != nullptr")
    assert wrong != right
    run = fuzz("numbers", tmp_path, 20, sanitized(tmp_path, wrong))
    assert "AddressSanitizer" in run.finding
    assert "load_eight" in run.finding


@needs_atheris
def test_a_crashing_case_is_found_and_saved(tmp_path: Path) -> None:
    run = fuzz("planted-crash", tmp_path, 20)
    assert not run.ok
    assert "ZeroDivisionError: planted" in run.finding
    (kept,) = tmp_path.glob("found-planted-crash-*")
    assert kept.read_bytes().startswith(b"PK")
    assert str(kept) in run.finding


@pytest.mark.soak
@needs_atheris
def test_memory_growth_is_detected(tmp_path: Path) -> None:
    run = fuzz("planted-growth", tmp_path, 6)
    assert not run.ok, str(run)


def test_an_unknown_target_error_lists_known_targets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["yaml"])
    assert "there is no target 'yaml'; there are json, raw" in capsys.readouterr().err


@needs_atheris
def test_the_native_target_is_omitted_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "HAS_COMPILER", False)
    assert set(MODULES) - set(available()) == {"numbers"}
    with pytest.raises(SystemExit, match="2"):
        main(["numbers"])
    assert "the target 'numbers' needs a C++ compiler" in capsys.readouterr().err
