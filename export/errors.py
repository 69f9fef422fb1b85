"""What can go wrong in an export, by who has to act; and what a torch error says, in one line.

ExportError
|-- UsageError       the command line is wrong: exit 2
`-- ParityError      the made file does not answer as eager PyTorch does: exit 1
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence

LONGEST = 300  # characters of a reason: it has to fit into a table and a progress line
HERE = "<--- HERE"  # TorchScript points at the place in the model's source
CALLED = "The following call raised this error:"  # so does torch.export, by file and line
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

FOLDERS = re.compile(r"(?<![\w.~:/-])(?:/[\w.+@~-]+)+/(?=[\w.+@~-])")  # reasons are published
RAISED = re.compile(r"(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)\w*): (.+)")
ADVICE = re.compile(r"\s*For more information, run with \S+$")


class ExportError(Exception):
    """The export failed and left no artifact; the message says why."""


class UsageError(ExportError):
    """The command asks for something that cannot be; the message says what would be right."""


class ParityError(ExportError):
    """A variant's answers are not those of the eager model."""


def reason(error: BaseException) -> str:
    """One line that says what is wrong, out of what torch, its compilers or a model raised.

    Their texts have up to hundreds of lines, and each kind keeps the one that matters elsewhere.
    Folders are taken out: what is left tells nothing about this machine.
    """
    text = FOLDERS.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "Traceback of TorchScript" in text:
        said = _raised_in_script(lines)
    elif HERE in text:
        said = _refused_by_script(lines)
    elif "C++ compile error" in lines[0]:
        said = _refused_by_compiler(lines)
    else:
        said = _first(lines)
    if isinstance(error, KeyError | AssertionError):  # whose texts are no sentences
        said = f"{type(error).__name__}: {said}"
    return said if len(said) <= LONGEST else f"{said[: LONGEST - 4].rsplit(' ', 1)[0]} ..."


def _raised_in_script(lines: Sequence[str]) -> str:
    """A traceback: the last line that names an exception."""
    for line in reversed(lines):
        found = RAISED.fullmatch(line)
        if found is not None:
            return found[2] if found[1] == "RuntimeError" else f"{found[1]}: {found[2]}"
    return lines[-1]


def _refused_by_script(lines: Sequence[str]) -> str:
    """What first, then where, under which the place is marked: told with the line of source."""
    what = lines[0].rstrip(".: ")
    wanted = next((line for line in lines if line.startswith("Expected a value of type")), None)
    if wanted is not None:  # of many ways to call it, the first
        what = f"{what}: {wanted.rstrip('.')}"
    marked = next(index for index, line in enumerate(lines) if line.endswith(HERE))
    return f"{what}, in: {lines[marked - 1]}"


def _refused_by_compiler(lines: Sequence[str]) -> str:
    """The command, then the compiler's own errors."""
    found = next((line for line in lines if re.search(r"\berror: ", line)), None)
    return "C++ compile error" + (f": {found.partition('error: ')[2]}" if found else "")


def _first(lines: Sequence[str]) -> str:
    """Others begin with it; torch.export adds a list of what is wrong, or the line of source."""
    what = ADVICE.sub("", lines[0].partition(" (unhinted: ")[0]).rstrip(":! ")
    if len(lines) > 1 and (lines[1].startswith("- ") or lines[0].endswith(":")):
        return f"{what}: {ADVICE.sub('', lines[1].removeprefix('- '))}"
    if CALLED in lines[:-2]:
        return f"{what}, in: {lines[lines.index(CALLED) + 2]}"
    return what
