"""Prints the summary of an export: about ten lines on the artifact and how to serve it."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from export.pipeline import REPORT_FILE
from export.reports.content import quality, ranges
from export.reports.report import plain
from export.reports.timing_sections import load_lines
from export.timing.timings import plan_line
from models.choices import Precision
from models.manifest import Manifest
from models.plan import DevicePlan
from models.stores.urls import Place

WORTH_IT = 1.05  # a lower speed-up is shown as 1.0x
DEFAULT_OUT = Path("artifacts")  # a server's default
CHECKOUT = Path(__file__).resolve().parents[1]  # the folder of an installed package has no Makefile
LEFT_OUT = "left out"
LONGEST = 160  # characters of a reason; the report has all of it


def print_summary(
    console: Console,
    manifest: Manifest,
    where: str,
    out: Place,
    *,
    omits_left_out: bool = False,
) -> None:
    """Print what was written, which form serves which sizes, what was left out, how to serve it.

    Args:
        console: where to print.
        manifest: of the artifact.
        where: the artifact is.
        out: the repository that contains it.
        omits_left_out: whether to leave out the omitted variants, which the progress has listed.
    """
    console.print(plain(f"{manifest.model} version {manifest.version}"), style="bold")
    for word, what in _rows(manifest, where, out):
        if word == LEFT_OUT and omits_left_out:
            continue
        # The terminal wraps long lines itself, so that commands can be copied.
        console.print(Text(f"{word:<9} ", style="dim") + plain(what), soft_wrap=True)


def _rows(manifest: Manifest, where: str, out: Place) -> Iterator[tuple[str, str]]:
    size = sum(file.bytes for file in manifest.files.values())
    yield "written", f"{where}: {len(manifest.files)} files, {size:,} bytes"
    inputs, outputs = (
        ", ".join(f"{each.name} {each.dtype}{list(each.shape)}" for each in specs)
        for specs in (manifest.inputs, manifest.outputs)
    )
    yield "model", f"{inputs} -> {outputs}"
    yield from _proof_rows(manifest)
    program = _program()
    folder = shlex.quote(where) if isinstance(out, Path) else "FOLDER"  # commands take a folder
    yield from _plan_rows(manifest, folder, program)
    variants: dict[str, list[str]] = {}  # by reason
    for each in manifest.left_out:
        variants.setdefault(each.reason, []).append(each.variant)
    for reason, names in variants.items():
        short = textwrap.shorten(reason, LONGEST, placeholder=" ...")
        yield LEFT_OUT, f"{', '.join(names)}: {short}"
    show = f", and {program} show {folder}" if isinstance(out, Path) else ""
    yield "report", f"{where}/{REPORT_FILE}{show}"
    yield "serve it", _serve_command(out, program)


def _proof_rows(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Summarize by precision: forms of one precision differ about equally from eager."""
    worst: dict[str, float] = {}
    sizes: set[int] = set()
    padded_sizes: set[int] = set()
    for variant in manifest.variants.values():
        sizes |= set(variant.parity.batch_sizes)
        padded_sizes |= set(variant.parity.padded_to)
        forms = [each for each in (variant.parity, variant.optimized) if each is not None]
        largest = max(each.max_absolute for each in forms)
        worst[variant.precision] = max(worst.get(variant.precision, 0), largest)
    differences = ", ".join(
        f"{precision} within {largest:.1e}" for precision, largest in worst.items()
    )
    batches = f"batches {ranges(sizes)}" + (
        f", padded to {ranges(padded_sizes)}" if padded_sizes else ""
    )
    yield "proved", f"{', '.join(manifest.variants)}; {batches}; {differences} of eager"
    if manifest.accuracy is not None:
        others = (
            f", {name} {variant.accuracy:.4f}"
            for name, variant in manifest.variants.items()
            if variant.accuracy is not None and variant.accuracy != manifest.accuracy
        )
        yield quality(manifest), f"{manifest.accuracy:.4f}{''.join(others)}"


def _plan_rows(manifest: Manifest, folder: str, program: str) -> Iterator[tuple[str, str]]:
    plan = manifest.plan
    if plan is None:
        yield "serves", f"{next(iter(manifest.variants))}, batches of every size"
        return
    for device in plan.devices:
        steps = device.steps.get(plan.precision)
        line = plan_line(steps) if steps else "nothing"
        yield "serves", f"{plan.precision} on {device.processor.kind}: {line}"
        if text := " ".join(load_lines(device, folder, program)):
            yield "busy", text
    others = {
        name: _faster(device, name, plan.precision)
        for device in plan.devices
        for name in device.steps
        if name != plan.precision
    }
    faster = [f"{name} ({ratios})" for name, ratios in sorted(others.items()) if ratios]
    if faster:
        yield "or", f"{', '.join(faster)}, when served with --plan-precision"


def _faster(device: DevicePlan, precision: Precision, than: Precision) -> str | None:
    """Format a precision's speed-up at the smallest and the largest batch; None if it has none."""
    one, other = (_best(device, each) for each in (precision, than))
    sizes = sorted(one.keys() & other.keys())
    ends = {size: other[size] / one[size] for size in sizes[:1] + sizes[1:][-1:]}
    if max(ends.values(), default=0.0) < WORTH_IT:
        return None
    return ", ".join(f"{ratio:.1f}x at batch {size}" for size, ratio in ends.items())


def _best(device: DevicePlan, precision: Precision) -> dict[int, float]:
    """Map each batch size to the time of a precision's fastest form."""
    best: dict[int, float] = {}
    for times in device.times:
        if times.precision == precision:
            for size, took in zip(times.batch_sizes, times.median_us, strict=True):
                best[size] = min(took, best.get(size, took))
    return best


def _serve_command(out: Place, program: str) -> str:
    """Return the command that serves a repository; in a checkout it uses machine code."""
    flags = "" if out == DEFAULT_OUT else f"--model-dir {shlex.quote(str(out))}"
    if Path.cwd() == CHECKOUT and (CHECKOUT / "Makefile").exists():
        return f"make serve SERVE_ARGS={shlex.quote(flags)}" if flags else "make serve"
    return f"{program} serve {flags}".rstrip()


def _program() -> str:
    """Return `torchlane`, with the shortest path if the shell would not find it."""
    here, path = Path.cwd(), Path(sys.executable).with_name("torchlane")
    if not path.exists() or shutil.which(path.name) == str(path):
        return path.name
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
