"""The command `torchlane`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from torchlane.command import PROGRAMS, main


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchlane", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_all_commands(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 0
    listed = re.findall(r"^  (\w+)  ", capsys.readouterr().out, re.M)
    assert listed == list(PROGRAMS)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("serv", "'serv' is not a command; did you mean `torchlane serve`?"),
        ("exprt", "'exprt' is not a command; did you mean `torchlane export`?"),
        ("digits", "'digits' is not a command; torchlane --help lists all"),
        ("--port", "--port comes after a command, as in `torchlane serve --port 9000`"),
    ],
)
def test_a_wrong_command_gets_a_hint(
    capsys: pytest.CaptureFixture[str], name: str, hint: str
) -> None:
    assert main([name, "--help"]) == 2
    assert capsys.readouterr().err == f"torchlane: {hint}\n"


@pytest.mark.parametrize("program", sorted({each.module for each in PROGRAMS.values()}))
def test_each_program_exists(program: str) -> None:
    assert find_spec(program) is not None


def test_a_program_gets_its_arguments_and_its_exit_code_is_the_commands() -> None:
    done = run("keys", "ops", "--scope", "nonsense")
    assert done.returncode == 2
    assert "argument --scope: invalid choice: 'nonsense'" in done.stderr


@pytest.mark.parametrize(
    ("command", "unbuffered"), [("--help", ""), ("--help", "1"), ("doctor", "")]
)
def test_output_that_nobody_reads_is_no_error(command: str, unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as unread:
        done = subprocess.run(
            [sys.executable, "-m", "torchlane", command],
            stdout=unread,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_an_interrupt_before_a_program_runs_is_one_line(tmp_path: Path) -> None:
    """While its imports take their seconds, it cannot answer one itself."""
    (tmp_path / "pydantic.py").write_text("raise KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, "-m", "torchlane", "serve"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(Path.cwd())))},
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "torchlane: interrupted\n")


def test_the_package_imports_neither_torch_nor_the_server() -> None:
    code = (
        "import sys, torchlane, torchlane.command; torchlane.__version__\n"
        "print({'torch', 'app', 'export', 'fastapi'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("command", ["serve --port 1", "doctor", "export digits", "score", "keys"])
def test_help_imports_neither_torch_nor_the_server(command: str) -> None:
    code = (
        "import sys, contextlib, torchlane.command as command\n"
        "with contextlib.suppress(SystemExit): command.main(sys.argv[1:])\n"
        "print({'torch', 'numpy', 'fastapi', 'app.model_source'} & set(sys.modules))"
    )
    words = [sys.executable, "-c", code, *command.split(), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: ")
    assert done.stdout.endswith("set()\n")
