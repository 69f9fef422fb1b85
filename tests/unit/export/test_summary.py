"""The summary of an export, on a terminal and in a pipe."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path

import pytest
from rich.console import Console

from export.errors import ExportError
from export.progress import progress_on
from export.reports.content import content_of
from export.summary import print_summary
from models.manifest import Manifest, OmittedVariant
from models.plan import Step
from tests.e2e.forking import run as forked
from tests.unit.export.measured import (
    INT8,
    MIXED,
    SCRIPT,
    device_plan,
    measured_manifest,
    per_item,
)

LONG = "the model " + "has a very long reason " * 20


def printed(manifest: Manifest, folder: str = "artifacts/tiny/3") -> list[str]:
    out = io.StringIO()
    print_summary(Console(file=out, width=80), manifest, folder, Path(folder).parent.parent)
    return out.getvalue().splitlines()


def test_the_summary_of_an_export() -> None:
    manifest = measured_manifest()
    lines = printed(manifest)
    assert len(lines) <= 12
    text = "\n".join(lines)
    assert lines[0] == "tiny version 3"
    plan = manifest.plan
    assert plan is not None
    for step in plan.devices[0].steps[plan.precision]:
        assert f"{step.up_to} {step.form}" in text
    for left_out in manifest.left_out:
        assert f"left out  {left_out.variant}: {left_out.reason}" in text
    assert "batches 1..3, 8, padded to 2, 4, 40; " in text
    for told in ("written   artifacts/tiny/3: ", "report    artifacts/tiny/3/report.html"):
        assert told in text
    assert lines[-1] == "serve it  make serve"


def test_plan_made_under_load_is_marked() -> None:
    busy = MIXED.model_copy(update={"kept_waiting": 0.9, "unsettled": (2, 4)})
    lines = printed(measured_manifest(busy))
    line, report = (
        next(each for each in lines if each.startswith(name)) for name in ("busy", "report")
    )
    assert "other work kept the forwards from running for 90% of the time" in line
    assert "too busy to tell which form is the fastest at batch 2, 4" in line
    assert line.endswith("torchlane tune artifacts/tiny/3")
    assert report.endswith("torchlane show artifacts/tiny/3")


def test_commands_have_the_path_that_the_shell_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my bin").mkdir()
    program = tmp_path / "my bin/torchlane"
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    monkeypatch.setenv("PATH", "/nowhere")
    assert printed(measured_manifest())[-1] == "serve it  'my bin/torchlane' serve"
    monkeypatch.setenv("PATH", str(program.parent))
    assert printed(measured_manifest())[-1] == "serve it  torchlane serve"


@pytest.mark.parametrize("folder", ["models/tiny/3", "my models/tiny/3"])
def test_other_repository_is_quoted_for_the_shell(folder: str) -> None:
    lines = printed(measured_manifest(), folder)
    out = folder.removesuffix("/tiny/3")
    *_, target, flags = shlex.split(lines[-1].removeprefix("serve it  "))
    assert (target, flags.partition("=")[0]) == ("serve", "SERVE_ARGS")
    assert shlex.split(flags.partition("=")[2]) == ["--model-dir", out]
    assert f"torchlane show {shlex.quote(folder)}" in "\n".join(lines)


def test_serve_command_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert printed(measured_manifest())[-1].endswith("torchlane serve")
    lines = printed(measured_manifest(), "my models/tiny/3")
    assert lines[-1].endswith("torchlane serve --model-dir 'my models'")


def test_long_reason_is_shortened_without_truncating_lines() -> None:
    manifest = measured_manifest().model_copy(
        update={"left_out": (OmittedVariant(variant="int8", reason=LONG),), "plan": None}
    )
    (line,) = (line for line in printed(manifest) if line.startswith("left out"))
    assert line.startswith("left out  int8: the model has a very long reason")
    assert line.endswith(" ...")
    assert 80 < len(line) < 200
    assert LONG.strip() in str(content_of(manifest).sections)


def test_variants_left_out_for_one_reason_share_a_line() -> None:
    options = (("script", "no"), ("fp16", "no GPU"), ("trace", "no"))
    left_out = tuple(OmittedVariant(variant=name, reason=why) for name, why in options)
    text = printed(measured_manifest().model_copy(update={"left_out": left_out, "plan": None}))
    lines = [line for line in text if line.startswith("left out")]
    assert lines == ["left out  script, trace: no", "left out  fp16: no GPU"]


@pytest.mark.parametrize(
    ("int8_us", "offers"),
    [
        (
            (40, 50, 60),
            ["or        int8 (2.0x at batch 1, 1.2x at batch 4), when served with --pl"],
        ),
        (
            (160, 70, 35),
            ["or        int8 (0.5x at batch 1, 2.0x at batch 4), when served with --pl"],
        ),
        ((100, 90, 80), []),
        ((80, 75, 70), []),
    ],
)
def test_only_a_faster_precision_is_offered(int8_us: tuple[float, ...], offers: list[str]) -> None:
    times = [per_item(SCRIPT, (80, 75, 70)), per_item(INT8, int8_us, "int8")]
    plan = device_plan(times, Step(up_to=4, form=SCRIPT), int8=[Step(up_to=4, form=INT8)])
    lines = [line for line in printed(measured_manifest(plan)) if line.startswith("or ")]
    assert [line[:72] for line in lines] == offers


def test_a_reason_has_lines_of_its_own_on_a_narrow_terminal() -> None:
    why = "left out: it needs a C++ compiler and there is none; install g++ and Python's headers"
    text = io.StringIO()
    console = Console(file=text, width=80, force_terminal=True, color_system=None)
    with progress_on(console) as stage:
        stage("compiled")(1, 1, why)
        stage("compiled-cuda")(1, 1, "left out: there is no GPU")
        stage("script")(4, 4, "largest difference 2.0e-05")
    lines = [line.rstrip() for line in re.split(r"\x1b\[[^A-Za-z]*[A-Za-z]|\n", text.getvalue())]
    shown = lines[-7:]
    assert [line[:14].rstrip() for line in shown if line[:1].isalpha()] == [
        "compiled",
        "compiled-cuda",
        "script",
    ]
    first = next(index for index, line in enumerate(shown) if line.startswith("compiled "))
    assert shown[first + 1 : first + 3] == [
        "  left out: it needs a C++ compiler and there is none; install g++ and",
        "    Python's headers",
    ]
    assert shown[first + 3].endswith(" left out: there is no GPU")
    assert shown[first + 4].endswith(" largest difference 2.0e-05")


def test_piped_output_is_neither_cut_nor_padded(exported: Path) -> None:
    """`show` has wide tables; rich would take a pipe for 80 columns."""
    done = forked("-m", "export", "show", exported)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.endswith(str(exported)) for line in lines)
    assert max(map(len, lines)) > 80
    assert [line for line in lines if line != line.rstrip()] == []


def test_line_of_a_step_that_fails_ends() -> None:
    """The error on stderr begins a line of its own."""
    text = io.StringIO()

    def fail() -> None:
        with progress_on(Console(file=text)) as stage:
            stage("script")(1, 4, "largest difference 2.0e-05")
            raise ExportError("it differs")

    with pytest.raises(ExportError):
        fail()
    assert text.getvalue().endswith("1/4 largest difference 2.0e-05\n")
