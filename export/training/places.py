"""The line of the user's own code in a stack, neither of a library nor of this package."""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

import export
import models
from export.errors import reason

MODELS = Path(str(models.__file__)).parent
LIBRARIES = (
    str(Path(str(torch.__file__)).parents[1]),  # site-packages
    sysconfig.get_path("stdlib"),
    str(Path(str(export.__file__)).parent),
    "<",  # <frozen runpy> and the like
)
OURS = frozenset(
    str(MODELS / "definitions" / f"{name}.py") for name in ("definition", "loading", "training")
)
IN_WORKER = "Original Traceback (most recent call last):"  # of a process that loads data
FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)


def line_of(stack: Sequence[traceback.FrameSummary]) -> str | None:
    """Return the innermost line of a user's own code, with its file; None if there is none."""
    own = [each for each in stack if _is_own(each.filename)]
    if not own:
        return None
    file, line = own[-1].filename, own[-1].lineno or 0
    path, here = Path(file), Path.cwd()
    place = path.relative_to(here) if path.is_relative_to(here) else path.name
    return f"{place}, line {line}: `{linecache.getline(file, line).strip()}`"


def frames_in(text: str) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback that is a text."""
    return [traceback.FrameSummary(file, int(line), "") for file, line in FRAME.findall(text)]


def describe(error: BaseException) -> str | None:
    """Return the reason and the line of an error in a user's own code; None for other errors."""
    text = str(error)
    if IN_WORKER in text:  # torch raises the same class here, with the traceback as its text
        text = text.partition(IN_WORKER)[2]
        line = line_of(frames_in(text))
        cause = text.strip().splitlines()[-1].strip()
    else:
        line = line_of(traceback.extract_tb(error.__traceback__))
        cause = reason(error)
        if not cause.startswith(type(error).__name__):
            cause = f"{type(error).__name__}: {cause}"
    return None if line is None else f"{cause}, at {line}"


def _is_own(file: str) -> bool:
    if file.startswith(LIBRARIES) or file in OURS:
        return False
    path = Path(file)
    return not path.is_relative_to(MODELS) or path.is_relative_to(MODELS / "definitions")
