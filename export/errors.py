"""Errors of an export, by cause; and torch's messages, reduced to one line.

ExportError
|-- UsageError       the command line is wrong: exit 2
`-- ParityError      the exported file and eager PyTorch give different answers: exit 1
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence

LONGEST = 300  # characters of a reason: it must fit into a table and a progress line
HERE = "<--- HERE"  # TorchScript marks the place in the model's source
CALLED = "The following call raised this error:"  # torch.export names the file and line
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

FOLDERS = re.compile(r"(?<![\w.~:/-])(?:/[\w.+@~-]+)+/(?=[\w.+@~-])")  # reasons are published
RAISED = re.compile(r"(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)\w*): (.+)")
ADVICE = re.compile(r"\s*For more information, run with \S+$")


class ExportError(Exception):
    """The export failed and left no artifact; the message says why."""


class UsageError(ExportError):
    """The command is impossible to carry out; the message gives a correct form."""


class ParityError(ExportError):
    """A variant's answers differ from those of the eager model."""


def reason(error: BaseException) -> str:
    """Extract the line that says what is wrong from an error of torch, a compiler or a model.

    Such messages have up to hundreds of lines, and the important one is in a different place in
    each kind. Folders are removed, so that the line reveals nothing about this machine.
    """
    text = FOLDERS.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "Traceback of TorchScript" in text:
        message = _raised_in_script(lines)
    elif HERE in text:
        message = _script_error(lines)
    elif "C++ compile error" in lines[0]:
        message = _compiler_error(lines)
    else:
        message = _first(lines)
    if isinstance(error, KeyError | AssertionError):  # their texts are not sentences
        message = f"{type(error).__name__}: {message}"
    return message if len(message) <= LONGEST else f"{message[: LONGEST - 4].rsplit(' ', 1)[0]} ..."


def _raised_in_script(lines: Sequence[str]) -> str:
    """Return the last line of a traceback that names an exception."""
    for line in reversed(lines):
        match = RAISED.fullmatch(line)
        if match is not None:
            return match[2] if match[1] == "RuntimeError" else f"{match[1]}: {match[2]}"
    return lines[-1]


def _script_error(lines: Sequence[str]) -> str:
    """Return the script compiler's message, with the line of source that it marks."""
    what = lines[0].rstrip(".: ")
    expectation = next(
        (line for line in lines if line.startswith("Expected a value of type")), None
    )
    if expectation is not None:  # the first of several signatures
        what = f"{what}: {expectation.rstrip('.')}"
    mark = next(index for index, line in enumerate(lines) if line.endswith(HERE))
    return f"{what}, in: {lines[mark - 1]}"


def _compiler_error(lines: Sequence[str]) -> str:
    """Return the compiler's first error, which follows the command."""
    error_line = next((line for line in lines if re.search(r"\berror: ", line)), None)
    return "C++ compile error" + (f": {error_line.partition('error: ')[2]}" if error_line else "")


def _first(lines: Sequence[str]) -> str:
    """Return the first line with torch.export's detail: a list entry or a line of source."""
    what = ADVICE.sub("", lines[0].partition(" (unhinted: ")[0]).rstrip(":! ")
    if len(lines) > 1 and (lines[1].startswith("- ") or lines[0].endswith(":")):
        return f"{what}: {ADVICE.sub('', lines[1].removeprefix('- '))}"
    if CALLED in lines[:-2]:
        return f"{what}, in: {lines[lines.index(CALLED) + 2]}"
    return what
